"""The comparison with the article: its own numbers pass; altered, permuted or differently split ones do not."""

import copy
import dataclasses

import numpy as np
import pytest

from headmaps.decomposition import decompose, pair_quantities
from headmaps.errors import ConfigError, ResultError
from headmaps.figures.ternary import linear_fit
from headmaps.published import Reference, aligned, bias_candidates, compared, moves
from headmaps.references import check_references, reference_files, reference_head
from headmaps.verdict import report, verdict
from support.replay import NAME, ROOT, Results, article, failing, fill, judge, results_like

REFERENCES = ROOT / "workflow/reference"


@pytest.fixture(scope="module")
def reference() -> Reference:
    return article()


@pytest.fixture
def ours(reference: Reference) -> Results:
    return results_like(reference)


# --- replaying the published numbers ----------------------------------------------------------------------------------


def test_the_published_numbers_reproduce_themselves(reference, ours):
    judged = judge(reference, ours)
    assert judged["reproduced_by"] == "raw"
    assert failing(judged) == set()
    assert judged["treatments"]["raw"]["largest"] < 1e-5  # sigma times self from self: seven digits


def test_every_published_number_is_compared(reference, ours):
    counts = {(one.matrix, one.quantity): len(one.published) for one in compared(reference, *vars(ours).values())}
    heads = {("value", name): 768 for name in ("self", "ortho", "rotation")}
    pairs = {(m, q): 64 for m in ("value", "qk") for q in ("sigma", "sigma self", "sigma ortho", "sigma rotation")}
    Z = {("value", "overlap"): 64, ("value", "Z row 0"): 64, ("value", "Z row 1"): 64}
    rest = {("value", "fit a"): 1, ("value", "fit b"): 1, ("value", "histogram"): 32 * 101}
    assert counts == heads | pairs | Z | rest


ALTERED = {
    "value self": lambda r: r.makeup["self"],
    "value ortho": lambda r: r.makeup["ortho"],
    "value rotation": lambda r: r.makeup["rotation"],
    "value sigma": lambda r: r.sigma["value"]["sigma"],
    "value sigma self": lambda r: r.sigma["value"]["self"],
    "value sigma ortho": lambda r: r.sigma["value"]["ortho"],
    "value sigma rotation": lambda r: r.sigma["value"]["rotation"],
    "qk sigma": lambda r: r.sigma["qk"]["sigma"],
    "qk sigma self": lambda r: r.sigma["qk"]["self"],
    "qk sigma ortho": lambda r: r.sigma["qk"]["ortho"],
    "qk sigma rotation": lambda r: r.sigma["qk"]["rotation"],
    "value overlap": lambda r: r.diagonal,
    "value Z row 0": lambda r: r.Z[0],
    "value Z row 1": lambda r: r.Z[1],
}


@pytest.mark.parametrize("quantity", ALTERED)
@pytest.mark.parametrize("change", [1e-4, -1e-4])
def test_one_number_altered_in_the_fourth_decimal_fails(reference, ours, quantity, change):
    altered = copy.deepcopy(reference)
    numbers = ALTERED[quantity](altered)
    numbers[5] += change
    judged = judge(altered, ours)
    assert judged["reproduced_by"] is None
    assert failing(judged) == {quantity}


@pytest.mark.parametrize("quantity", ALTERED)
def test_rounding_below_the_tolerance_passes(reference, ours, quantity):
    altered = copy.deepcopy(reference)
    ALTERED[quantity](altered)[:] += 5e-5
    assert quantity not in failing(judge(altered, ours))


def test_a_line_altered_in_the_fourth_decimal_fails(reference, ours):
    a, b = linear_fit(*(ours.heads[name] for name in ("self_mean", "ortho_mean", "rotation_mean")))
    assert failing(judge(dataclasses.replace(reference, line=(a + 1e-4, b)), ours)) == {"value fit a"}
    assert failing(judge(dataclasses.replace(reference, line=(a, b - 1e-4)), ours)) == {"value fit b"}


def test_a_count_moved_to_the_next_bin_fails(reference, ours):
    counts = reference.counts.copy()
    full = int(counts[3].argmax())
    counts[3, full] -= 1
    counts[3, full + 1] += 1
    judged = judge(dataclasses.replace(reference, counts=counts), ours)
    assert failing(judged) == {"value histogram"}
    assert judged["treatments"]["raw"]["quantities"]["value histogram"]["at"] == {
        "layer": 13, "head": 3, "index": full + 1,
    }  # fmt: skip


def test_two_heads_exchanged_fail(reference, ours):
    heads = ours.heads["head"]
    swap = {4.0: 5.0, 5.0: 4.0}
    ours.heads["head"] = np.array([swap.get(head, head) for head in heads])
    assert failing(judge(reference, ours)) == {"value self", "value ortho", "value rotation"}


def test_another_head_at_the_published_place_fails(reference, ours):
    for arrays in (ours.value, ours.qk):
        for name in arrays:
            arrays[name] = np.roll(arrays[name], 1, axis=0)
    assert {"value sigma", "qk sigma", "value overlap", "value histogram"} <= failing(judge(reference, ours))


def test_input_and_output_exchanged_fail(reference, ours):
    """Self is the same for a matrix and its transpose; rotation and ortho are not."""
    ours.value["Z"] = ours.value["Z"].transpose(0, 2, 1)
    found = failing(judge(reference, ours))
    assert "value sigma rotation" in found
    assert "value sigma self" not in found


def test_the_treatment_that_reproduces_is_named(reference, ours):
    other = copy.deepcopy(ours)
    other.value["sigma"] = other.value["sigma"] * 1.01
    judged = judge(reference, other, gain=ours, gain_and_center=copy.deepcopy(other))
    assert judged["reproduced_by"] == "gain"
    text = report(judged)
    assert "reproduced by gain; the largest difference is" in text
    assert "1.22e-02*" in text  # sigma_1 is 1.216


def test_nothing_that_reproduces_is_said_in_words(reference, ours):
    ours.qk["sigma"] = ours.qk["sigma"] + 1
    assert "not reproduced under any of raw" in report(judge(reference, ours))


def test_a_head_without_values_does_not_pass(reference, ours):
    ours.heads["self_mean"][17] = np.nan
    judged = judge(reference, ours)
    assert "value self" in failing(judged)
    assert judged["treatments"]["raw"]["quantities"]["value self"]["largest"] is None


def test_a_model_of_another_shape_is_refused(reference, ours):
    ours.heads = {name: values[:-1] for name, values in ours.heads.items()}
    with pytest.raises(ResultError, match="767 heads"):
        judge(reference, ours)


# --- signs ------------------------------------------------------------------------------------------------------------


def test_signs_of_singular_pairs_do_not_matter(reference, ours):
    signs = np.where(np.random.default_rng(0).random(64) < 0.5, -1.0, 1.0)
    ours.value["Z"][7] *= np.outer(signs, signs)
    assert failing(judge(reference, ours)) == set()


def test_signs_that_no_pair_can_have_matter():
    """Flipping one entry of one row would ask pair j to have both signs, once for each row."""
    Z = np.random.default_rng(1).standard_normal((2, 6))
    flipped = Z.copy()
    flipped[0, 3] *= -1
    assert np.abs(aligned(Z, flipped, (0, 1)) - flipped).max() > 0.1


def test_the_sign_of_an_overlap_matters(reference, ours):
    altered = dataclasses.replace(reference, diagonal=-reference.diagonal)
    assert "value overlap" in failing(judge(altered, ours))


# --- histogram counts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("offset", "distance"), [(5e-5, 5e-5), (-5e-5, 5e-5), (3e-3, 3e-3)])
def test_a_value_near_an_edge_may_have_been_counted_beyond_it(offset, distance):
    values = np.array([-0.5 + 0.01, 0.5 + offset])  # 0.5 is an edge
    counts = np.zeros(100, dtype=int)
    counts[25] = 1  # of -0.49
    counts[74 if offset > 0 else 75] = 1  # of the other side of the edge
    assert moves(values, counts)[2].max() == pytest.approx(distance)


def test_values_outside_the_range_are_not_in_the_published_counts():
    counts = np.zeros(100, dtype=int)
    counts[50] = 1
    assert moves(np.array([-3.0, 0.01, 2.0]), counts)[2].max() == 0


def test_more_counts_than_values_are_never_reproduced():
    counts = np.zeros(100, dtype=int)
    counts[50] = 2
    assert np.isinf(moves(np.array([0.01]), counts)[2].max())


# --- how the heads are cut out of query_key_value ---------------------------------------------------------------------

LAYERS, H, D, R = 3, 4, 48, 12


def published_of(values, keys) -> Reference:
    """Published numbers of small heads, from d x d matrices and LAPACK's SVD."""
    rows = {name: [] for name in ("layer", "head", "self", "ortho", "rotation")}
    counts = np.zeros((H, 100), dtype=int)
    for layer in range(LAYERS):
        for head in range(H):
            sigma, Z = by_svd(values[layer][head])
            overlap, own, rotation, ortho = pair_quantities(Z)
            for name, number in zip(rows, (layer, head, own.mean(), ortho.mean(), rotation.mean()), strict=True):
                rows[name].append(number)
            if layer == 1:
                counts[head] = np.histogram(sigma * overlap, 100, (-1, 1))[0]
    makeup = {name: np.array(column) for name, column in rows.items()}
    weighted = {}
    for matrix, product in (("value", values[1][2]), ("qk", keys[1][2])):
        sigma, Z = by_svd(product)
        _, own, rotation, ortho = pair_quantities(Z)
        weighted[matrix] = {"sigma": sigma, "self": sigma * own, "ortho": sigma * ortho, "rotation": sigma * rotation}
    _, Z = by_svd(values[1][2])
    line = linear_fit(makeup["self"], makeup["ortho"], makeup["rotation"])
    return Reference(1, 2, makeup, weighted, (0, 1), Z[:2], np.diagonal(Z).copy(), counts, line, {})


def by_svd(product):
    U, sigma, Vh = np.linalg.svd(product)
    return sigma[:R], Vh[:R] @ U[:, :R]


def results_of(values, keys) -> Results:
    """Our results of heads given as factors (A, B)."""
    rows = {name: [] for name in ("layer", "head", "self_mean", "ortho_mean", "rotation_mean")}
    for layer in range(LAYERS):
        for head, (A, B) in enumerate(values[layer]):
            _, own, rotation, ortho = pair_quantities(decompose(A, B).Z)
            for name, number in zip(rows, (layer, head, own.mean(), ortho.mean(), rotation.mean()), strict=True):
                rows[name].append(number)
    arrays = []
    for factors in (values[1], keys[1]):
        found = [decompose(A, B) for A, B in factors]
        parts = {"sigma": [f.sigma for f in found], "Z": [f.Z for f in found], "rank": [f.rank for f in found]}
        arrays.append({name: np.array(part) for name, part in parts.items()})
    return Results({name: np.array(column) for name, column in rows.items()}, *arrays)


@pytest.fixture(scope="module")
def fused():
    rng = np.random.default_rng(5)
    return [(0.1 * rng.standard_normal((3 * D, D)), 0.1 * rng.standard_normal((D, D))) for _ in range(LAYERS)]


def factors_of(fused, flat: bool):
    """(A, B) of every layer and head, from x @ fused.T cut per head into q, k, v, or first into all q, all k, all v."""
    values, keys = [], []
    for weight, dense in fused:
        cut = weight.reshape(3, H, R, D) if flat else weight.reshape(H, 3, R, D).transpose(1, 0, 2, 3)
        W_Q, W_K, W_V = (part.transpose(0, 2, 1) for part in cut)
        W_O = dense.T.reshape(H, R, D)
        values.append([(W_V[h], W_O[h]) for h in range(H)])
        keys.append([(W_Q[h], W_K[h].T) for h in range(H)])
    return values, keys


def products_of(factors):
    return [[A @ B for A, B in layer] for layer in factors]


def test_heads_cut_as_the_model_has_them_reproduce(fused):
    values, keys = factors_of(fused, flat=False)
    judged = judge(published_of(products_of(values), products_of(keys)), results_of(values, keys))
    assert failing(judged) == set()
    assert judged["treatments"]["raw"]["largest"] < 1e-9


def test_a_flat_split_of_query_key_value_fails(fused):
    values, keys = factors_of(fused, flat=False)
    published = published_of(products_of(values), products_of(keys))
    found = failing(judge(published, results_of(*factors_of(fused, flat=True))))
    assert {"value self", "value ortho", "value rotation", "value sigma", "qk sigma", "value overlap"} <= found


# --- bias lines -------------------------------------------------------------------------------------------------------


def with_lines(ours: Results, lines) -> dict[str, dict[str, np.ndarray]]:
    """Decompositions with bias lines of the published head, zero for the other heads."""
    arrays = {"value": dict(ours.value), "qk": dict(ours.qk)}
    for (matrix, name), line in lines.items():
        every = np.zeros((32, 64))
        every[7] = line
        arrays[matrix][name] = every
    return arrays


def test_the_sum_that_is_the_published_bias_line_is_found(reference, ours):
    rng = np.random.default_rng(0)
    part = rng.standard_normal(64)
    signs = np.where(rng.random(64) < 0.5, -1, 1)
    lines = {
        ("value", "bias_output_b_O"): part,
        ("value", "bias_output_b_V_W_O"): signs * reference.bias["value", "output"] - part,
        ("value", "bias_output_norm_bias"): rng.standard_normal(64),
        ("qk", "bias_input_b_K_W_Q"): -reference.bias["qk", "input"],
    }
    candidates = bias_candidates(reference, with_lines(ours, lines))
    matched = {(one.matrix, one.side): one.names for one in candidates if one.matches}
    assert matched == {("value", "output"): ("b_O", "b_V_W_O"), ("qk", "input"): ("b_K_W_Q",)}
    judged = verdict(NAME, {"gain": compared(reference, *vars(ours).values())}, {"gain": candidates})
    assert "bias line, value output side, gain: it is b_O + b_V_W_O" in report(judged)


def test_no_matching_bias_line_is_said(reference, ours):
    candidates = bias_candidates(reference, with_lines(ours, {("value", "bias_output_b_O"): np.ones(64)}))
    judged = verdict(NAME, {"raw": compared(reference, *vars(ours).values())}, {"raw": candidates})
    assert judged["reproduced_by"] == "raw"  # which vector the article drew is a finding, not a condition
    assert "value output side, raw: none matches; nearest is b_O" in report(judged)


# --- the files --------------------------------------------------------------------------------------------------------


def test_the_published_head_is_read_off_the_file_names():
    assert reference_head(NAME, REFERENCES) == (13, 7)
    assert len(reference_files(NAME, REFERENCES)) == 8


def test_an_unknown_reference_lists_those_that_ship():
    with pytest.raises(ConfigError, match="falcon-rw-1b"):
        reference_files("falcon", REFERENCES)


@dataclasses.dataclass
class Entry:
    published: str | None
    layer_numbers: list[int]
    matrices: tuple[str, ...] = ("value", "qk")


def test_a_model_without_the_published_layer_is_refused_before_anything_runs():
    check_references({"a": Entry(NAME, list(range(24))), "b": Entry(None, [0])}, REFERENCES)
    with pytest.raises(ConfigError, match="layer 13"):
        check_references({"a": Entry(NAME, list(range(12)))}, REFERENCES)


def test_the_fill_of_the_replay_has_the_published_squares(reference):
    """The replay is itself a set of singular pairs: self^2 + rotation^2 + ortho^2 = 1."""
    arrays = {"sigma": np.ones((32, 64)), "Z": np.zeros((32, 64, 64))}
    fill(arrays, reference, "qk", np.ones(64))
    _, own, rotation, ortho = pair_quantities(arrays["Z"][7])
    np.testing.assert_allclose(own**2 + rotation**2 + ortho**2, 1, atol=1e-12)
