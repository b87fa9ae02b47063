"""`headmaps entry` prints a configuration that can be pasted, or used as it is."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import yaml

from headmaps.cli import main
from headmaps.config import HubModel, LocalModel, read_config
from hub.builders import FALCON_COMMIT, make_falcon_rw_repo, make_llama_repo, write_safetensors
from hub.server import LocalHub

ORACLE = Path(__file__).parents[1] / "oracle" / "fixtures"


def entry(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[list[Any], str]:
    """The models of the printed configuration, read back as the workflow reads it, and the whole text."""
    assert main(["entry", *arguments]) == 0
    printed = capsys.readouterr().out
    return list(read_config(yaml.safe_load(printed)).models), printed


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The message, where there is no entry to print."""
    assert main(["entry", *arguments]) == 1
    captured = capsys.readouterr()
    assert "models:" not in captured.out
    return captured.err


@pytest.fixture
def llama(hub: LocalHub, tmp_path: Path) -> str:
    """The commit of a small Llama in two shards."""
    return hub.repository("some/llama-tiny").add_folder(make_llama_repo(tmp_path / "llama", layers=3, shards=2))


def test_a_branch_becomes_a_full_commit(hub: LocalHub, llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    (model,), printed = entry(capsys, "hub:some/llama-tiny@main")
    assert isinstance(model, HubModel)
    assert (model.name, model.layers, model.repo, model.revision) == ("llama-tiny", 3, "some/llama-tiny", llama)
    assert f"# main is now commit {llama}" in printed
    assert "llama: 3 layers, d_model 64, 4 heads on 2 key/value heads of d_head 16, stored as BF16" in printed


def test_a_pull_request_is_named_with_its_author(hub: LocalHub, llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Conversions to safetensors are pull requests by the Hub's own converter; anybody else can open one too."""
    repository, title = hub.repository("some/llama-tiny"), "Adding `safetensors` variant of this model"
    repository.refs |= {"refs/pr/25": llama, "refs/pr/26": llama}
    repository.pull_requests = {25: ("SFconvertbot", title), 26: ("somebody", title)}
    (model,), printed = entry(capsys, "hub:some/llama-tiny@refs/pr/25")
    assert model.revision == llama
    assert "# refs/pr/25 is by SFconvertbot, the Hub's converter: Adding" in printed
    _, printed = entry(capsys, "hub:some/llama-tiny@refs/pr/26")
    repository.refs["refs/pr/27"] = llama
    assert (
        "# refs/pr/27 is by somebody of whom the server says nothing"
        in entry(capsys, "hub:some/llama-tiny@refs/pr/27")[1]
    )
    assert "# refs/pr/26 is by somebody, not by the repository's owner and not by the Hub's converter" in printed


def test_one_of_several_gguf_files(hub: LocalHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "quantised"
    for name in ("a-Q8_0.gguf", "b/b-Q4_0.gguf"):
        write_gguf(folder / name)
    hub.repository("some/quantised").add_folder(folder)
    (model,), _ = entry(capsys, "hub:some/quantised")  # the other one lies in a folder of its own
    assert model.file is None
    (model,), printed = entry(capsys, "hub:some/quantised", "--file", "b/b-Q4_0.gguf")
    assert (model.file, model.layers) == ("b/b-Q4_0.gguf", 2)
    assert "gguf:llama: 2 layers, d_model 64, 4 heads on 2 key/value heads of d_head 16, stored as Q8_0" in printed
    write_gguf(folder / "c-Q6_K.gguf")
    hub.repository("some/quantised").add_folder(folder)
    assert "2 GGUF files to choose from" in refusal(capsys, "hub:some/quantised")
    assert "the file x.gguf is missing" in refusal(capsys, "hub:some/quantised", "--file", "x.gguf")
    (model,), _ = entry(capsys, str(folder), "--file", "a-Q8_0.gguf")
    assert model.path == str(folder / "a-Q8_0.gguf")


@pytest.mark.parametrize("fixture", sorted(path.name for path in ORACLE.iterdir()))
def test_every_family_of_the_oracle(fixture: str, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads((ORACLE / fixture / "config.json").read_text())
    models, printed = entry(capsys, str(ORACLE / fixture))
    parts = {"t5": ["encoder", "decoder", "cross"], "clip": ["text", "vision"]}
    parts["whisper"] = parts["t5"]
    assert [model.stack or model.tower for model in models] == parts.get(config["model_type"], [None])
    for model in models:
        latent = ["value", "qk_nope", "qk_rope"]
        assert model.matrices == (latent if "deepseek" in fixture else ["value", "qk"])
        assert f"{len(model.layer_numbers)} " in printed
    if not parts.get(config["model_type"]):
        some = {"qwen3_next": [1, 3]}
        assert model.layer_numbers == some.get(fixture, list(range(number_of_layers(config))))


def number_of_layers(config: dict[str, Any]) -> int:
    """Under whichever name the family has it."""
    return next(config[name] for name in ("num_hidden_layers", "n_layer", "n_layers", "num_layers") if name in config)


def test_the_bytes_to_fetch_are_those_of_the_tensors(
    hub: LocalHub, llama: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, printed = entry(capsys, "hub:some/llama-tiny")
    attention = 3 * 2 * (64 * (64 + 32 + 32 + 64) + 64)
    assert f"fetches {attention / 1000:.1f} kB of " in printed
    assert hub.sent() < attention  # only headers were read


def test_falcon_rw_1b_from_its_pickle(hub: LocalHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hub.repository("tiiuae/falcon-rw-1b").add_folder(make_falcon_rw_repo(tmp_path / "falcon", 2, 4, 128))
    (model,), printed = entry(capsys, f"hub:tiiuae/falcon-rw-1b@{FALCON_COMMIT}")
    assert (model.name, model.layers, model.revision) == ("falcon-rw-1b", 2, FALCON_COMMIT)
    assert "position alibi" in printed


def test_a_commit_of_digits_alone_stays_text(hub: LocalHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for commit in ("1234567890" * 4, "1e" + "0" * 38, "0" * 40):
        hub.repository("some/digits").add_folder(make_llama_repo(tmp_path / "digits"), commit=commit)
        (model,), _ = entry(capsys, "hub:some/digits")
        assert model.revision == commit


def test_a_folder_on_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model,), _ = entry(capsys, str(make_llama_repo(tmp_path / "my model (2)")))
    assert isinstance(model, LocalModel)
    assert (model.name, model.layers, model.path) == ("my-model-2-", 2, str(tmp_path / "my model (2)"))


def test_the_name_can_be_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model,), _ = entry(capsys, str(make_llama_repo(tmp_path / "comparison")))
    assert model.name == "comparison-model"  # reserved
    (model,), _ = entry(capsys, str(tmp_path / "comparison"), "--name", "mine")
    assert model.name == "mine"


def write_gguf(path: Path) -> Path:
    """A Llama of two layers whose matrices are Q8_0."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_embedding_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(16)
    kind = gguf.GGMLQuantizationType.Q8_0
    for layer in range(2):
        for name, shape in {"q": (64, 64), "k": (32, 64), "v": (32, 64), "output": (64, 64)}.items():
            weights = np.random.default_rng([layer, shape[0]]).normal(size=shape).astype("f4")
            part = "attn_output" if name == "output" else f"attn_{name}"
            writer.add_tensor(f"blk.{layer}.{part}.weight", gguf.quants.quantize(weights, kind), raw_dtype=kind)
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", np.ones(64, "f4"))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    return path


def write_t5(folder: Path) -> Path:
    """An encoder-decoder of two layers a stack."""
    folder.mkdir()
    config = {"model_type": "t5", "d_model": 32, "d_kv": 8, "num_heads": 4, "num_layers": 2, "num_decoder_layers": 2}
    config |= {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128, "layer_norm_epsilon": 1e-6}
    (folder / "config.json").write_text(json.dumps(config))
    shapes: dict[str, tuple[int, ...]] = {}
    for stack, sublayers in (("encoder", ["SelfAttention"]), ("decoder", ["SelfAttention", "EncDecAttention"])):
        for layer in range(2):
            for number, attention in enumerate(sublayers):
                block = f"{stack}.block.{layer}.layer.{number}."
                shapes |= {f"{block}{attention}.{name}.weight": (32, 32) for name in "qkvo"}
                shapes[f"{block}layer_norm.weight"] = (32,)
        shapes[f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = (32, 4)
    write_safetensors(folder / "model.safetensors", shapes, lambda name: None)
    return folder


def test_an_encoder_decoder_gives_an_entry_a_stack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models, _ = entry(capsys, str(write_t5(tmp_path / "t5")))
    assert [(model.name, model.stack, model.layers) for model in models] == [
        ("t5-encoder", "encoder", 2),
        ("t5-decoder", "decoder", 2),
        ("t5-cross", "cross", 2),
    ]
    (model,), _ = entry(capsys, str(tmp_path / "t5"), "--stack", "decoder")
    assert (model.name, model.stack) == ("t5", "decoder")


def write_qwen3_next(folder: Path) -> Path:
    """A hybrid: of four layers, the last has softmax attention; its queries are stored with their gates."""
    folder.mkdir()
    config = {"model_type": "qwen3_next", "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4}
    config |= {"num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-6, "partial_rotary_factor": 0.25}
    (folder / "config.json").write_text(json.dumps(config))
    block = "model.layers.3."
    shapes: dict[str, tuple[int, ...]] = {
        f"{block}self_attn.q_proj.weight": (128, 32),
        f"{block}self_attn.k_proj.weight": (32, 32),
        f"{block}self_attn.v_proj.weight": (32, 32),
        f"{block}self_attn.o_proj.weight": (32, 64),
        f"{block}self_attn.q_norm.weight": (16,),
        f"{block}self_attn.k_norm.weight": (16,),
        **{f"model.layers.{layer}.input_layernorm.weight": (32,) for layer in range(4)},
        **{f"model.layers.{layer}.linear_attn.out_proj.weight": (32, 64) for layer in range(3)},
    }
    write_safetensors(folder / "model.safetensors", shapes, lambda name: None)
    return folder


def test_a_hybrid_lists_the_layers_with_softmax_attention(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model,), printed = entry(capsys, str(write_qwen3_next(tmp_path / "hybrid")))
    assert model.layers == [3]
    assert "1 of 4 layers" in printed


def write_deepseek(folder: Path) -> Path:
    """Latent attention: two QK matrices a head."""
    folder.mkdir()
    config = {"model_type": "deepseek_v2", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config |= {"num_key_value_heads": 2, "q_lora_rank": None, "kv_lora_rank": 8, "qk_nope_head_dim": 8}
    config |= {"qk_rope_head_dim": 4, "v_head_dim": 8, "rms_norm_eps": 1e-6}
    (folder / "config.json").write_text(json.dumps(config))
    block = "model.layers.0."
    shapes: dict[str, tuple[int, ...]] = {
        f"{block}self_attn.q_proj.weight": (24, 32),
        f"{block}self_attn.kv_a_proj_with_mqa.weight": (12, 32),
        f"{block}self_attn.kv_a_layernorm.weight": (8,),
        f"{block}self_attn.kv_b_proj.weight": (32, 8),
        f"{block}self_attn.o_proj.weight": (32, 16),
        f"{block}input_layernorm.weight": (32,),
    }
    write_safetensors(folder / "model.safetensors", shapes, lambda name: None)
    return folder


def test_latent_attention_names_its_matrices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model,), _ = entry(capsys, str(write_deepseek(tmp_path / "mla")))
    assert model.matrices == ["value", "qk_nope", "qk_rope"]


def write_config(folder: Path, **changes: Any) -> Path:
    """A Llama folder whose config says something else."""
    make_llama_repo(folder)
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_what_is_not_supported_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unknown = refusal(capsys, str(write_config(tmp_path / "a", model_type="brandnew")))
    assert "'brandnew' is not in the table" in unknown
    quantised = refusal(capsys, str(write_config(tmp_path / "b", quantization_config={"quant_method": "gptq"})))
    assert "quantised (gptq)" in quantised


def test_a_repository_without_hub_in_front_is_recognised(hub: LocalHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert "headmaps entry hub:openai-community/gpt2" in refusal(capsys, "openai-community/gpt2")


def test_a_gated_repository_names_the_page(hub: LocalHub, llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    hub.repository("some/llama-tiny").gated = True
    message = refusal(capsys, "hub:some/llama-tiny")
    assert f"accept them at {hub.endpoint}/some/llama-tiny" in message
    assert "Traceback" not in message
