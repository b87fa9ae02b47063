"""A layer's decomposition: which factors make which head, what is folded, what the bias lines are, and the step."""

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from headmaps.decomposition import METHODS, decompose, decompose_layer, pair_quantities
from headmaps.errors import ArchitectureError, NumericError
from headmaps.geometry import write_geometry
from headmaps.heads import LayerHeads, factors
from headmaps.layer_factors import LayerFactors
from headmaps.layer_norm import TREATMENTS, treated
from headmaps.records import read_arrays, read_json, write_array, write_arrays, write_json
from headmaps.steps import decompose as step
from support.random_heads import a_geometry, a_layer, frame

WORKFLOW = Path(__file__).resolve().parents[2] / "workflow"


def treated_factors(heads, geometry, treatment, matrix):
    """The factors of the whole treated layer: the long way to what LayerFactors makes head by head."""
    return list(factors(treated(heads, geometry, treatment)[0], matrix))


@pytest.mark.parametrize("matrix", ["value", "qk"])
@pytest.mark.parametrize(("H", "KV"), [(4, 2), (4, 4), (4, 1), (6, 3)])
def test_every_query_head_is_decomposed_with_the_key_value_head_of_its_group(matrix, H, KV):
    geometry = a_geometry(H=H, KV=KV)
    heads = a_layer(geometry)
    arrays = decompose_layer(heads, geometry, matrix)
    for h in range(H):
        g = h // (H // KV)
        A, B = (heads.W_V[g], heads.W_O[h]) if matrix == "value" else (heads.W_Q[h], heads.W_K[g].T)
        W = A.astype(np.float64) @ B.astype(np.float64)
        np.testing.assert_allclose(arrays["sigma"][h], np.linalg.svd(W)[1][: geometry.d_head], rtol=1e-10)


def test_h_modulo_KV_would_be_seen():
    geometry = a_geometry(H=4, KV=2)
    heads = a_layer(geometry)
    wrong = LayerHeads(heads.W_Q, heads.W_K, heads.W_V[[0, 1]], heads.W_O[[0, 2, 1, 3]])
    ours = decompose_layer(heads, geometry, "value")["sigma"]
    assert np.abs(ours[1:3] - decompose_layer(wrong, geometry, "value")["sigma"][1:3]).max() > 0.1


@pytest.mark.parametrize("treatment", TREATMENTS)
@pytest.mark.parametrize("matrix", ["value", "qk"])
def test_a_layer_is_its_heads_one_by_one_under_the_treatment(matrix, treatment):
    geometry = a_geometry()
    heads = a_layer(geometry)
    arrays = decompose_layer(heads, geometry, matrix, treatment)
    for h, (A, B) in enumerate(treated_factors(heads, geometry, treatment, matrix)):
        alone = decompose(A, B)
        np.testing.assert_allclose(arrays["sigma"][h], alone.sigma, rtol=1e-10)
        np.testing.assert_allclose(arrays["Z"][h], alone.Z, atol=1e-10)
        np.testing.assert_allclose(arrays["gap"][h], alone.gap, rtol=1e-6)
        assert METHODS[arrays["method"][h]] == "gram"
        np.testing.assert_allclose(arrays["input_norm"][h], np.linalg.norm(A), rtol=1e-12)
        np.testing.assert_allclose(arrays["output_norm"][h], np.linalg.norm(B), rtol=1e-12)


def test_value_and_qk_may_have_different_inner_dimensions():
    geometry = a_geometry(r=6, r_v=9)
    heads = a_layer(geometry)
    assert decompose_layer(heads, geometry, "value")["Z"].shape == (4, 9, 9)
    assert decompose_layer(heads, geometry, "qk")["Z"].shape == (4, 6, 6)


@pytest.mark.parametrize("matrix", ["value", "qk_nope", "qk_rope"])
def test_the_two_parts_of_an_MLA_score_are_the_columns_before_and_from_the_rotated_part_on(matrix):
    geometry = a_geometry(KV=4, r=6, d_head_rope=2, matrices=["value", "qk_nope", "qk_rope"])
    plain = a_layer(geometry)
    keys = plain.W_K.copy()
    keys[:, :, 4:] = keys[:1, :, 4:]
    heads = LayerHeads(plain.W_Q, keys, plain.W_V, plain.W_O, d_head_rope=2)
    arrays = decompose_layer(heads, geometry, matrix)
    for h, (A, B) in enumerate(factors(heads, matrix)):
        np.testing.assert_allclose(arrays["sigma"][h], decompose(A, B).sigma, rtol=1e-10)


def test_an_unknown_matrix_is_refused():
    geometry = a_geometry()
    with pytest.raises(ArchitectureError, match="qk_rope"):
        decompose_layer(a_layer(geometry), geometry, "qk_rope")


# --- bias lines -------------------------------------------------------------------------------------------------------


def lines(heads, geometry, matrix, head, vectors, treatment="raw"):
    """Projections of given vectors (d,) on dense singular vectors, up to each pair's sign."""
    A, B = treated_factors(heads, geometry, treatment, matrix)[head]
    u, _, vh = np.linalg.svd(A @ B)
    r = A.shape[1]
    return {name: (np.abs(x @ u[:, :r]), np.abs(vh[:r] @ x)) for name, x in vectors.items()}


def assert_lines(arrays, head, expected):
    stored = {name.removeprefix("bias_input_") for name in arrays if name.startswith("bias_input_")}
    assert stored == set(expected)
    for name, (on_inputs, on_outputs) in expected.items():
        np.testing.assert_allclose(np.abs(arrays[f"bias_input_{name}"][head]), on_inputs, atol=1e-8)
        np.testing.assert_allclose(np.abs(arrays[f"bias_output_{name}"][head]), on_outputs, atol=1e-8)


def test_bias_lines_of_a_value_matrix():
    geometry = a_geometry()
    heads = a_layer(geometry, dtype=np.float64)
    e, h, g = heads.extras, 3, 1
    vectors = {
        "b_V_W_O": e["b_V"][g] @ heads.W_O[h],
        "b_O": e["b_O"],
        "norm_bias": e["norm_bias"],
        "norm_bias_W_V_W_O": e["norm_bias"] @ heads.W_V[g] @ heads.W_O[h],
    }
    assert_lines(decompose_layer(heads, geometry, "value"), h, lines(heads, geometry, "value", h, vectors))


def test_bias_lines_of_a_qk_matrix():
    geometry = a_geometry()
    heads = a_layer(geometry, dtype=np.float64)
    e, h, g = heads.extras, 1, 0
    vectors = {
        "b_Q_W_K": heads.W_K[g] @ e["b_Q"][h],
        "b_K_W_Q": heads.W_Q[h] @ e["b_K"][g],
        "norm_bias": e["norm_bias"],
        "norm_bias_W_Q_W_K": e["norm_bias"] @ heads.W_Q[h] @ heads.W_K[g].T,
        "norm_bias_W_K_W_Q": e["norm_bias"] @ heads.W_K[g] @ heads.W_Q[h].T,
    }
    assert_lines(decompose_layer(heads, geometry, "qk"), h, lines(heads, geometry, "qk", h, vectors))


def test_where_the_gain_is_folded_the_norms_bias_is_part_of_the_value_bias():
    geometry = a_geometry()
    heads = a_layer(geometry, dtype=np.float64)
    e, h, g = heads.extras, 2, 1
    vectors = {"b_V_W_O": (e["b_V"][g] + e["norm_bias"] @ heads.W_V[g]) @ heads.W_O[h], "b_O": e["b_O"]}
    expected = lines(heads, geometry, "value", h, vectors, "gain")
    assert_lines(decompose_layer(heads, geometry, "value", "gain"), h, expected)


def test_a_checkpoint_without_biases_has_no_bias_lines():
    geometry = a_geometry()
    heads = a_layer(geometry)
    bare = LayerHeads(heads.W_Q, heads.W_K, heads.W_V, heads.W_O)
    assert not [name for name in decompose_layer(bare, geometry, "qk") if name.startswith("bias_")]


# --- sides that cannot be compared ------------------------------------------------------------------------------------


@pytest.mark.parametrize("matrix", ["value", "qk"])
def test_cross_attention_reads_and_writes_different_streams_and_keeps_sigma_alone(matrix):
    geometry = a_geometry(d=48, stack="cross", d_source=30)
    heads = a_layer(geometry)
    heads = LayerHeads(heads.W_Q, heads.W_K[:, :30], heads.W_V[:, :30], heads.W_O, heads.extras)
    arrays = decompose_layer(heads, geometry, matrix)
    assert not arrays["comparable"]
    assert not arrays["Z"].any()
    assert not arrays["eigenvalues"].any()
    for h, (A, B) in enumerate(factors(heads, matrix)):
        dense = np.linalg.svd(A @ B, compute_uv=False)[: geometry.d_head]
        np.testing.assert_allclose(arrays["sigma"][h], dense, rtol=1e-9)


# --- memory -----------------------------------------------------------------------------------------------------------


def test_factors_are_held_in_float64_one_head_at_a_time():
    geometry = a_geometry(d=2048, H=16, KV=2, r=16)
    heads = a_layer(geometry)
    one = 2048 * 16 * 8
    tracemalloc.start()
    for A, B, _ in LayerFactors(heads, geometry, "value"):
        assert A.dtype == B.dtype == np.float64
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * one < heads.W_O.size * 8 / 3


def test_a_shared_factor_is_the_same_object_for_the_whole_group():
    geometry = a_geometry(H=4, KV=2)
    made = list(LayerFactors(a_layer(geometry), geometry, "value"))
    assert made[0][0] is made[1][0]
    assert made[0][2][0] is made[1][2][0]
    assert made[1][0] is not made[2][0]


# --- the step ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def results(tmp_path):
    """The files that the step reads."""
    geometry = a_geometry()
    heads = a_layer(geometry)
    write_geometry(tmp_path / "geometry.json", geometry)
    for name in ("W_Q", "W_K", "W_V", "W_O"):
        write_array(tmp_path / "layer-00" / f"{name}.npy", getattr(heads, name))
    write_arrays(tmp_path / "layer-00" / "extras.npz", heads.extras)
    write_json(tmp_path / "layer-00.json", {"step": "heads"})
    return tmp_path


def arguments(folder, matrix="value", layer_norm="raw"):
    spec = json.dumps({"matrix": matrix, "layer_norm": layer_norm})
    flags = {
        "--spec": spec, "--geometry": folder / "geometry.json", "--heads": folder / "layer-00", "--layer": 0,
        "--output": folder / "out" / "layer-00.npz", "--record": folder / "out" / "layer-00.json",
    }  # fmt: skip
    return [str(part) for flag in flags.items() for part in flag]


def test_the_step_writes_what_the_library_computes_and_a_record(results):
    step.main(arguments(results, "qk", "gain"))
    written = read_arrays(results / "out" / "layer-00.npz")
    geometry = a_geometry()
    computed = decompose_layer(a_layer(geometry), geometry, "qk", "gain")
    for name, array in computed.items():
        np.testing.assert_array_equal(written[name], array)
    record = read_json(results / "out" / "layer-00.json")
    assert record["files"]["arrays"]["arrays"]["Z"]["shape"] == [4, 6, 6]
    assert record["facts"]["methods"] == {"gram": 4, "qr": 0, "rank_revealing": 0, "zero": 0}
    assert any("W_K" in sentence for sentence in record["facts"]["folded"])


def test_running_the_step_again_gives_the_same_bytes(results):
    step.main(arguments(results))
    first = (results / "out" / "layer-00.npz").read_bytes()
    step.main(arguments(results))
    assert (results / "out" / "layer-00.npz").read_bytes() == first


def test_a_value_that_is_not_finite_is_named_with_layer_and_head(results, capsys):
    W_O = np.load(results / "layer-00" / "W_O.npy")
    W_O[2, 1, 3] = np.nan
    write_array(results / "layer-00" / "W_O.npy", W_O)
    with pytest.raises(SystemExit) as exit_:
        step.main(arguments(results))
    assert exit_.value.code == 1
    message = capsys.readouterr().err
    assert "layer 0, head 2, value matrix" in message
    assert not list(results.glob("out/*"))
    with pytest.raises(NumericError):
        decompose_layer(LayerHeads(*(np.full((4, 48, 6), np.nan),) * 3, W_O), a_geometry(KV=4), "value")


def test_compute_steps_import_neither_scipy_nor_pandas_nor_matplotlib():
    code = (
        "import sys, headmaps.steps.decompose, headmaps.steps.haar_pool, headmaps.steps.baseline;"
        "print(*sorted({'scipy', 'pandas', 'matplotlib', 'pyarrow', 'pydantic', 'snakemake'} & set(sys.modules)))"
    )
    environment = os.environ | {"PYTHONPATH": str(WORKFLOW)}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""


def test_a_planted_projector_in_a_layer_is_all_self():
    geometry = a_geometry(H=2, KV=2)
    rng = np.random.default_rng(1)
    P = np.stack([frame(rng, 48, 6) for _ in range(2)])
    heads = LayerHeads(P, P, P, P.transpose(0, 2, 1) * 2)
    for matrix in ("value", "qk"):
        own = pair_quantities(decompose_layer(heads, geometry, matrix)["Z"])[1]
        assert own.shape == (2, 6)
        # all sigmas coincide, so that single pairs are defined only together; a multiple of a projector is symmetric
        np.testing.assert_allclose(own, 1, atol=1e-10)
