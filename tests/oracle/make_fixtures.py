"""Make the oracle's fixtures: tiny random models, and what transformers computes with them.

    python3 -m venv /tmp/oracle && /tmp/oracle/bin/pip install -r tests/oracle/requirements.txt
    /tmp/oracle/bin/python tests/oracle/make_fixtures.py            # all of them, into tests/oracle/fixtures/
    /tmp/oracle/bin/python tests/oracle/make_fixtures.py --check    # make them again and compare with what is there

Each fixture is a folder with `config.json` and `model.safetensors` as transformers writes them, and `expected.npz`. The
numbers are caught where the model itself uses them: the operands of its `q @ k^T`, the input of its softmax, the second
operand of `weights @ v`, and the output of its output projection. Nothing here knows how a layout is split.
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "OMP_NUM_THREADS": "1"}

import numpy as np
import torch
import transformers
from torch.overrides import TorchFunctionMode
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

sys.path.insert(0, str(Path(__file__).parent.parent))
from oracle.case import Case
from oracle.cases import CASES

FIXTURES = Path(__file__).parent / "fixtures"
BATCH = 2
POSITIONS = [0, 1, 2, 4, 16, 64, 256]
"""Gaps, so that pairs of tokens are at many distances."""
DROPPED = ("mlp", "experts", "lm_head", "router", "fc1", "fc2", "linear_attn", "position_embedding", "embed_positions")
"""Parts of names of tensors that no attention needs: left out of the stored checkpoint for their size."""


class Capture(TorchFunctionMode):
    """Watches the products and softmaxes of the attention modules while a model runs."""

    PRODUCTS = ("matmul", "__matmul__", "bmm", "baddbmm")

    def __init__(self) -> None:
        super().__init__()
        self.inside: int | None = None
        self.seen: dict[int, dict[str, torch.Tensor]] = {}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if self.inside is not None:
            found = self.seen[self.inside]
            if name in self.PRODUCTS:
                given = [*args, *kwargs.values()]
                left, right = [value for value in given if isinstance(value, torch.Tensor)][-2:]
                if "scores" in found:
                    found.setdefault("v", right)
                else:
                    found["q"], found["k"] = left, right.transpose(-1, -2)
            elif name == "softmax":
                found.setdefault("scores", args[0] if args else kwargs["input"])
            elif name == "scaled_dot_product_attention":
                q, k, v = args[:3]
                found |= {"q": q, "k": k, "v": v}
                found["scores"] = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + kwargs["attn_mask"]
        return func(*args, **kwargs)


def randomise(model: torch.nn.Module, seed: int) -> None:
    """Every parameter random and exact in bfloat16; norms' gains and all biases far from their usual 1 and 0."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        values = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim >= 2:
            values *= 1.2 / np.sqrt(parameter.shape[-1])
        else:
            values = 0.6 + 0.5 * values
        parameter.data = values.to(torch.bfloat16).to(torch.float32)


def module_at(model: torch.nn.Module, path: str, tower: str | None) -> torch.nn.Module:
    """The one module whose name ends with `path`."""
    found = [
        (name, module)
        for name, module in model.named_modules()
        if (name == path or name.endswith(f".{path}")) and (tower is None or name.startswith(tower))
    ]
    assert len(found) == 1, (path, [name for name, _ in found])
    return found[0][1]


def beside(model: torch.nn.Module, attention: str, path: str, tower: str | None) -> torch.nn.Module:
    """A module inside the attention module, or, with `../`, inside its parent."""
    while path.startswith("../"):
        attention, path = attention.rpartition(".")[0], path[3:]
    return module_at(model, f"{attention}.{path}", tower)


def model_inputs(case: Case, model: torch.nn.Module, seed: int) -> dict[str, torch.Tensor]:
    """Random tokens (or pixels, or a spectrogram) and, where the family turns queries and keys, their positions."""
    generator = torch.Generator().manual_seed(seed + 1)
    inputs = {name: torch.randn((BATCH, *shape), generator=generator) for name, shape in case.inputs.items()}
    tokens = torch.randint(3, 32, (BATCH, len(POSITIONS)), generator=generator)
    if case.model_type == "vit":
        return inputs
    if case.model_type == "whisper":
        return inputs | {"decoder_input_ids": tokens}
    inputs |= {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    if case.model_type == "t5":
        inputs |= {"decoder_input_ids": tokens.flip(0)}
    if not case.contiguous:
        inputs |= {"position_ids": torch.tensor(POSITIONS).expand(BATCH, -1)}
    return inputs


def run(case: Case) -> tuple[torch.nn.Module, dict[str, np.ndarray]]:
    """The model and what it computes in the attention of the stored layers."""
    seed = int.from_bytes(hashlib.sha256(case.name.encode()).digest()[:4], "big")
    torch.manual_seed(seed)
    config = CONFIG_MAPPING[case.model_type](**case.config)
    model = getattr(transformers, case.auto).from_config(config, attn_implementation=case.implementation).eval()
    randomise(model, seed)
    capture = Capture()
    kept: dict[str, torch.Tensor] = {}
    for layer in case.layers:
        watch(case, model, layer, capture, kept)
    with torch.no_grad(), capture:
        model(**model_inputs(case, model, seed), **({"use_cache": False} if not case.inputs else {}))
    scaling = 1.0
    for layer in case.layers:
        found = capture.seen[layer]
        if case.scaled_query:
            scaling = (found["q"].shape[-1]) ** -0.5
        heads = found["scores"].shape[1]
        for name in ("q", "k", "v"):
            kept[f"{layer}.{name}"] = by_head(found[name], heads)
        kept[f"{layer}.q"] = kept[f"{layer}.q"] / scaling
        kept[f"{layer}.scores"] = found["scores"][..., : kept[f"{layer}.k"].shape[2]]
    arrays = {name: np.asarray(value.detach().numpy(), np.float32) for name, value in kept.items()}
    for layer in case.layers:
        scores = arrays[f"{layer}.scores"]
        arrays[f"{layer}.visible"] = scores > -1e20
        arrays[f"{layer}.scores"] = np.where(scores > -1e20, scores, 0).astype(np.float32)
    return model, arrays


def watch(case: Case, model: torch.nn.Module, layer: int, capture: Capture, kept: dict[str, torch.Tensor]) -> None:
    """Hooks on one layer: what its attention reads and writes, and what its norms make of their input."""
    path = case.attention.format(i=layer)

    def enter(*_: object) -> None:
        capture.inside, capture.seen[layer] = layer, {}

    def leave(*_: object) -> None:
        capture.inside = None

    def keep(name: str, of_input: bool):
        def hook(_: torch.nn.Module, given: tuple[torch.Tensor, ...], made: torch.Tensor) -> None:
            kept[f"{layer}.{name}"] = given[0] if of_input else made

        return hook

    attention = module_at(model, path, case.tower)
    attention.register_forward_pre_hook(enter)
    attention.register_forward_hook(leave)
    queries, keys = case.reads
    beside(model, path, queries, case.tower).register_forward_hook(keep("x", True))
    if case.stack == "cross":
        beside(model, path, keys, case.tower).register_forward_hook(keep("x_source", True))
    beside(model, path, case.writes, case.tower).register_forward_hook(keep("output", False))
    if case.norm:
        module_at(model, case.norm.format(i=layer), case.tower).register_forward_hook(keep("stream", True))
    if case.post_norm:
        module_at(model, case.post_norm.format(i=layer), case.tower).register_forward_hook(keep("post_normed", False))


def by_head(value: torch.Tensor, n_heads: int) -> torch.Tensor:
    """(batch, H, n, r) from whatever shape the model multiplies; one shared head is repeated."""
    if value.ndim == 3:
        value = value.reshape(BATCH, -1, *value.shape[1:])
    return value.expand(BATCH, n_heads, *value.shape[2:])


def write(case: Case, folder: Path) -> None:
    """One fixture into `folder`."""
    model, arrays = run(case)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        model.to(torch.bfloat16).save_pretrained(scratch)
        from safetensors.torch import load_file, save_file

        tensors = load_file(Path(scratch, "model.safetensors"))
        config = json.loads(Path(scratch, "config.json").read_text())
    needed = {name: value for name, value in tensors.items() if not any(part in name for part in DROPPED)}
    save_file(needed, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    if not case.contiguous:
        arrays["positions"] = np.array(POSITIONS)
    np.savez_compressed(folder / "expected.npz", **dict(sorted(arrays.items())))


def check(case: Case) -> list[str]:
    """What differs between the stored fixture and one made now: bytes of the model, numbers beyond rounding."""
    stored = FIXTURES / case.name
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch)
        write(case, made)
        faults = [
            f"{case.name}: {name} differs"
            for name in ("config.json", "model.safetensors")
            if (made / name).read_bytes() != (stored / name).read_bytes()
        ]
        with np.load(made / "expected.npz") as new, np.load(stored / "expected.npz") as old:
            if sorted(new.files) != sorted(old.files):
                return [*faults, f"{case.name}: expected.npz holds other arrays"]
            for name in new.files:
                if not np.allclose(new[name], old[name], rtol=0, atol=1e-5):
                    faults.append(f"{case.name}: {name} differs by {np.abs(new[name] - old[name]).max():.1e}")
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the stored fixtures instead of writing")
    parser.add_argument("names", nargs="*", help="only these cases")
    given = parser.parse_args()
    torch.set_num_threads(1)
    faults = []
    for case in CASES:
        if given.names and case.name not in given.names:
            continue
        if given.check:
            faults += check(case)
        else:
            write(case, FIXTURES / case.name)
        print(case.name, flush=True)
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
