"""A mistake in the configuration is answered before any job starts: with its file, key, what was found and allowed."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from headmaps.config import Config, encoded, expanded_models, read_config
from headmaps.config_reference import schema_text, with_reference
from headmaps.errors import ConfigError

ROOT = Path(__file__).parents[2]
SHA = "0" * 64
LOCAL = {"name": "mine", "layers": 4, "source": "local", "path": "somewhere"}
WHEEL = {"name": "w", "layers": 4, "source": "wheel", "package": "p", "version": "1", "sha256": SHA, "file": "p/m.gguf"}
HUB = {"name": "h", "layers": 4, "source": "hub", "repo": "who/what", "revision": "a" * 40}


def config(**changes: Any) -> dict[str, Any]:
    return {"models": [copy.deepcopy(LOCAL)], **changes}


def model(base: dict[str, Any], **changes: Any) -> dict[str, Any]:
    changed = {key: value for key, value in (base | changes).items() if value is not None}
    return {"models": [changed]}


# what is wrong in the YAML | words of the answer
MISTAKES = {
    "no models": ({}, ["`models` is missing", "To paste"]),
    "an empty list of models": (config(models=[]), ["models", "at least 1 item"]),
    "an unknown key": (config(layernorm=["raw"]), ["`layernorm` is not a key", "did you mean `layer_norm`?"]),
    "an unknown key of a model": (model(LOCAL, pth="x"), ["`models[0].pth` is not a key", "did you mean `path`?"]),
    "an unknown key of a section": (config(figures={"format": ["svg"]}), ["`figures.format`", "`formats`?"]),
    "an unknown source": (model(LOCAL, source="disk"), ["unknown source: 'disk'", "wheel, local or hub"]),
    "no source": (model(LOCAL, source=None), ["does not say its `source`", "wheel, local or hub"]),
    "layers as text": (model(LOCAL, layers="4"), ["`models[0].layers` is '4'", "a number, or a list"]),
    "no layers": (model(LOCAL, layers=None), ["`models[0].layers` is missing"]),
    "zero layers": (model(LOCAL, layers=0), ["`models[0].layers` is 0"]),
    "layers out of order": (model(LOCAL, layers=[3, 1]), ["ascending order"]),
    "an unknown treatment": (config(layer_norm=["rew"]), ["'rew'", "'gain_and_center_write'"]),
    "a treatment twice": (config(layer_norm=["raw", "raw"]), ["once only"]),
    "an unknown baseline": (config(baselines={"kinds": ["gauss"]}), ["'gauss'", "'gaussian'"]),
    "a small pool": (config(baselines={"pool": 10}), ["`baselines.pool` is 10", "4096"]),
    "a negative seed": (config(baselines={"seed": -1}), ["`baselines.seed` is -1"]),
    "an unknown format": (config(figures={"formats": ["jpg"]}), ["'jpg'", "'svg' or 'png'"]),
    "a figure of a layer that is not there": (config(figures={"layers": [7]}), ["layer 7", "'mine'", "0 to 3"]),
    "a head in a layer that is not there": (config(figures={"heads": [[9, 0]]}), ["layer 9", "0 to 3"]),
    "a head without its layer": (config(figures={"heads": [[1]]}), ["`figures.heads[0]` is [1]"]),
    "two models with one name": ({"models": [LOCAL, LOCAL]}, ["two models are named 'mine'"]),
    "a reserved name": (model(LOCAL, name="comparison"), ["reserved"]),
    "a name that leaves the folder": (model(LOCAL, name="../x"), ["`models[0].name` is '../x'"]),
    "a name that is a folder above": (model(LOCAL, name=".."), ["`models[0].name` is '..'"]),
    "a wheel with file and folder": (model(WHEEL, folder="p"), ["either `file` or `folder`"]),
    "a wheel with a short sha256": (model(WHEEL, sha256="abc"), ["`models[0].sha256` is 'abc'"]),
    "a hub model without revision": (model(HUB, revision=None), ["either `revision` or `revisions`"]),
    "a hub model with both": (model(HUB, revisions=["a"]), ["either `revision` or `revisions`"]),
    "a hub revision twice": (model(HUB, revision=None, revisions=["a", "a"]), ["each once"]),
    "a repo that is a path": (model(HUB, repo="../secret"), ["`models[0].repo` is '../secret'"]),
    "a comparison of an unknown model": (config(comparisons=[{"name": "c", "models": ["x"]}]), ["'x'", "mine"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_with_its_key_and_what_is_allowed(mistake: str, tmp_path: Path) -> None:
    raw, words = MISTAKES[mistake]
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(raw))
    with pytest.raises(ConfigError) as raised:
        read_config(raw, ["other.yaml", str(file)])
    answer = str(raised.value)
    for word in words:
        assert word in answer
    assert str(file) in answer


def test_several_mistakes_are_answered_together() -> None:
    with pytest.raises(ConfigError) as raised:
        read_config(config(layernorm=["raw"], figures={"formats": ["jpg"]}))
    assert "`layernorm`" in str(raised.value)
    assert "'jpg'" in str(raised.value)


def test_revisions_become_models_of_their_own() -> None:
    raw = model(HUB, revision=None, revisions=["step1000", "refs/pr/5"])
    assert list(expanded_models(read_config(raw))) == ["h@step1000", "h@refs%2Fpr%2F5"]
    assert expanded_models(read_config(raw))["h@step1000"].revision == "step1000"  # type: ignore[union-attr]
    assert encoded("refs/pr/5") == "refs%2Fpr%2F5"


def test_one_revision_adds_nothing_to_the_name() -> None:
    assert list(expanded_models(read_config(model(HUB)))) == ["h"]


@pytest.mark.parametrize("file", sorted((ROOT / "config").glob("*.yaml")), ids=lambda file: file.name)
def test_every_shipped_config_is_valid_and_spells_out_every_section(file: Path) -> None:
    raw = yaml.safe_load(file.read_text())
    checked = read_config(raw, [str(file)])
    assert set(raw) == set(Config.model_fields), "a section left out would be taken from config/config.yaml"
    assert set(raw["baselines"]) == set(type(checked.baselines).model_fields)
    assert set(raw["figures"]) == set(type(checked.figures).model_fields)


def test_the_reference_page_and_the_schema_are_those_of_the_types() -> None:
    page = (ROOT / "config/README.md").read_text()
    assert page == with_reference(page), "run `make docs`"
    assert (ROOT / "config/schema.json").read_text() == schema_text(), "run `make docs`"
