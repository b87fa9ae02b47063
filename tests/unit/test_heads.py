"""From stored tensors to heads: the four matrices, what is written and read back, and numbers that are refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headmaps.architectures import geometry_of
from headmaps.errors import ArchitectureError, CheckpointError, NumericError, ResultError
from headmaps.geometry import Geometry, write_geometry
from headmaps.heads import LayerHeads, LayerTensors, factors, layer_heads, read_layer_heads, write_layer_heads
from headmaps.records import read_json, write_json
from headmaps.steps import geometry as geometry_step
from headmaps.steps import heads as heads_step
from support.checkpoints import write_safetensors
from support.sources import LLAMA, SHAPES, source

Arrays = dict[str, np.ndarray]
ROLES = {
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "norm_weight": "input_layernorm.weight",
}


def stored(dtype: str = "float32") -> Arrays:
    """Random tensors of one Llama layer by role: 4 query heads on 2 key/value heads, d_head 16, d_model 32."""
    random = np.random.default_rng(0)
    return {role: random.standard_normal(SHAPES[name]).astype(dtype) for role, name in ROLES.items()}


def as_layer(tensors: Arrays) -> LayerTensors:
    return LayerTensors({role: role for role in tensors}, lambda name: tensors[name], "layer-00.safetensors", 0)


@pytest.fixture
def geometry() -> Geometry:
    return geometry_of(source(LLAMA, SHAPES))


def test_each_head_projects_as_the_stored_matrix_does(geometry: Geometry) -> None:
    """x @ W.T, cut in heads, is x @ W_Q[h]; heads' outputs through W_O add up to the stored output projection."""
    tensors = stored()
    heads = layer_heads(as_layer(tensors), geometry)
    x = np.random.default_rng(1).standard_normal((5, 32)).astype("float32")
    for name, role, n in (("W_Q", "q", 4), ("W_K", "k", 2), ("W_V", "v", 2)):
        whole = (x @ tensors[role].T).reshape(5, n, 16).transpose(1, 0, 2)
        np.testing.assert_allclose(x @ getattr(heads, name), whole, rtol=1e-5, atol=1e-5)
    a = np.random.default_rng(2).standard_normal((4, 5, 16)).astype("float32")
    whole = a.transpose(1, 0, 2).reshape(5, 64) @ tensors["o"].T
    np.testing.assert_allclose((a @ heads.W_O).sum(axis=0), whole, rtol=1e-4, atol=1e-4)


def test_factors_pair_each_query_head_with_its_group(geometry: Geometry) -> None:
    heads = layer_heads(as_layer(stored()), geometry)
    for h, (A, B) in enumerate(factors(heads, "value")):
        np.testing.assert_array_equal(A @ B, heads.W_V[h // 2].astype(float) @ heads.W_O[h].astype(float))
    for h, (A, B) in enumerate(factors(heads, "qk")):
        np.testing.assert_array_equal(A @ B, heads.W_Q[h].astype(float) @ heads.W_K[h // 2].T.astype(float))
        assert A.dtype == B.dtype == np.float64


def test_factors_of_a_matrix_that_is_not_there(geometry: Geometry) -> None:
    heads = layer_heads(as_layer(stored()), geometry)
    with pytest.raises(ArchitectureError, match="qk_rope"):
        next(factors(heads, "qk_rope"))


def test_latent_attention_has_two_qk_matrices_that_add_up() -> None:
    random = np.random.default_rng(3)
    shapes = {"W_Q": (4, 32, 14), "W_K": (4, 32, 14), "W_V": (4, 32, 10), "W_O": (4, 10, 32)}
    heads = LayerHeads(**{name: random.standard_normal(shape) for name, shape in shapes.items()}, d_head_rope=8)
    parts = zip(factors(heads, "qk_nope"), factors(heads, "qk_rope"), strict=True)
    for h, ((A_nope, B_nope), (A_rope, B_rope)) in enumerate(parts):
        assert (A_nope.shape, A_rope.shape) == ((32, 6), (32, 8))
        np.testing.assert_allclose(A_nope @ B_nope + A_rope @ B_rope, heads.W_Q[h] @ heads.W_K[h].T)
    with pytest.raises(ArchitectureError, match="qk_nope, qk_rope"):
        next(factors(heads, "qk"))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_written_is_read_back(dtype: str, geometry: Geometry, tmp_path: Path) -> None:
    """float32, or float64 where the checkpoint is; C order; nothing rounded."""
    files = write_layer_heads(tmp_path, as_layer(stored(dtype)), geometry, transposed=False)
    assert sorted(path.name for path in files.values()) == ["W_K.npy", "W_O.npy", "W_Q.npy", "W_V.npy", "extras.npz"]
    heads, direct = read_layer_heads(tmp_path, geometry), layer_heads(as_layer(stored(dtype)), geometry)
    for name in ("W_Q", "W_K", "W_V", "W_O"):
        assert getattr(heads, name).dtype == dtype
        assert getattr(heads, name).flags.c_contiguous
        np.testing.assert_array_equal(getattr(heads, name), getattr(direct, name))
    np.testing.assert_array_equal(heads.extras["norm_weight"], stored(dtype)["norm_weight"])


def test_tensors_are_read_one_at_a_time(geometry: Geometry) -> None:
    """The previous tensor is let go before the next is read: the peak is one tensor and the matrix made of it."""
    import weakref

    tensors, alive = stored(), []

    def read(name: str) -> np.ndarray:
        assert not [name for name, reference in alive if reference() is not None]
        values = tensors[name].copy()
        alive.append((name, weakref.ref(values)))
        return values

    layer = LayerTensors({role: role for role in tensors}, read, "layer-00.safetensors", 0)
    for role in ("q", "k", "v", "o"):
        assert layer[role].shape
    assert len(alive) == 4


def test_a_fused_tensor_is_read_once() -> None:
    reads = []

    def read(name: str) -> np.ndarray:
        reads.append(name)
        return np.ones((3, 3))

    layer = LayerTensors({"qkv": "c_attn"}, read, "here", 0)
    for _ in range(3):
        assert layer["qkv"].shape == (3, 3)
    assert reads == ["c_attn"]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("role", ["q", "o", "norm_weight"])
def test_numbers_that_are_not_finite_are_refused(bad: float, role: str, geometry: Geometry) -> None:
    tensors = stored()
    tensors[role].flat[-1] = bad
    layer = LayerTensors(ROLES, lambda name: tensors[{v: k for k, v in ROLES.items()}[name]], "results/tiny/x", 7)
    with pytest.raises(NumericError) as error:
        layer_heads(layer, geometry)
    for part in ("layer 7", ROLES[role], "results/tiny/x"):
        assert part in str(error.value)


def test_a_file_of_another_shape_is_refused(geometry: Geometry, tmp_path: Path) -> None:
    write_layer_heads(tmp_path, as_layer(stored()), geometry, transposed=False)
    np.save(tmp_path / "W_K.npy", np.ones((4, 32, 16)))
    with pytest.raises(ResultError, match=r"W_K has shape \(4, 32, 16\)"):
        read_layer_heads(tmp_path, geometry)


def test_a_file_that_is_missing_or_no_array_is_refused(geometry: Geometry, tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="missing"):
        read_layer_heads(tmp_path, geometry)
    (tmp_path / "W_Q.npy").write_bytes(b"not an array")
    with pytest.raises(ResultError, match="not an array"):
        read_layer_heads(tmp_path, geometry)


# --- the steps ----------------------------------------------------------------------------------------------------


def prepare(folder: Path, tensors: Arrays, leave_out: str = "") -> list[str]:
    """source.json, geometry.json and a layer file in `folder`; the heads step's arguments."""
    record: dict[str, Any] = source(LLAMA, SHAPES)
    write_json(folder / "source.json", record)
    write_geometry(folder / "geometry.json", geometry_of(record))
    named = {f"model.layers.1.{ROLES[role]}": value for role, value in tensors.items() if role != leave_out}
    write_safetensors(folder / "layer-01.safetensors", named)
    given = {
        "spec": "{}",
        "geometry": folder / "geometry.json",
        "source": folder / "source.json",
        "checkpoint": folder / "layer-01.safetensors",
        "layer": 1,
        "directory": folder / "layer-01",
        "record": folder / "layer-01.json",
    }
    return [part for name, value in given.items() for part in (f"--{name}", str(value))]


def test_the_heads_step_writes_arrays_and_their_record(tmp_path: Path) -> None:
    heads_step.main(prepare(tmp_path, stored()))
    record = read_json(tmp_path / "layer-01.json")
    assert record["files"]["W_Q"]["arrays"]["W_Q"]["shape"] == [4, 32, 16]
    assert sorted(record["files"]) == ["W_K", "W_O", "W_Q", "W_V", "extras"]


def test_bfloat16_is_read_bit_for_bit(tmp_path: Path) -> None:
    """A bfloat16 is the upper half of a float32."""
    exact = {role: (value.view("<u4") & 0xFFFF0000).view("<f4") for role, value in stored().items()}
    halves = {role: (value.view("<u4") >> 16).astype("<u2") for role, value in exact.items()}
    heads_step.main(prepare(tmp_path, halves))
    geometry = geometry_of(source(LLAMA, SHAPES))
    heads, direct = read_layer_heads(tmp_path / "layer-01", geometry), layer_heads(as_layer(exact), geometry)
    np.testing.assert_array_equal(heads.W_Q, direct.W_Q)
    np.testing.assert_array_equal(heads.W_O, direct.W_O)


def test_the_heads_step_leaves_nothing_half_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = stored()
    tensors["o"][3, 3] = np.nan
    with pytest.raises(SystemExit) as exit_status:
        heads_step.main(prepare(tmp_path, tensors))
    assert exit_status.value.code == 1
    assert "model.layers.1.self_attn.o_proj.weight contains NaN or infinity" in capsys.readouterr().err
    assert not (tmp_path / "layer-01.json").exists()
    assert not [path for path in (tmp_path / "layer-01").iterdir() if path.name.startswith(".")]


def test_a_layer_file_without_a_tensor_is_refused(tmp_path: Path) -> None:
    prepare(tmp_path, stored(), leave_out="v")
    record = json.loads((tmp_path / "source.json").read_text())
    with pytest.raises(CheckpointError, match=r"lacks the tensor model\.layers\.1\.self_attn\.v_proj\.weight"):
        heads_step.tensors_of_layer(tmp_path / "layer-01.safetensors", record, 1)


def test_the_geometry_step_checks_the_matrices_of_the_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_json(tmp_path / "source.json", source(LLAMA, SHAPES))
    given = ["--source", str(tmp_path / "source.json"), "--output", str(tmp_path / "geometry.json")]
    geometry_step.main(["--spec", json.dumps({"matrices": ["value", "qk"], "sequence_length": 4096}), *given])
    assert read_json(tmp_path / "geometry.json")["sequence_length"] == 4096
    with pytest.raises(SystemExit):
        geometry_step.main(["--spec", json.dumps({"matrices": ["value", "qk_rope"]}), *given])
    assert "matrices: [value, qk]" in capsys.readouterr().err
