"""The article's numbers for tiiuae/falcon-rw-1b agree among themselves under the formulas used here."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from headmaps.decomposition import pair_quantities
from headmaps.figures.ternary import linear_fit
from headmaps.haar import haar_means

PUBLISHED = Path(__file__).resolve().parents[2] / "workflow" / "reference" / "falcon-rw-1b"


def columns(name):
    with open(PUBLISHED / name, newline="") as stream:
        rows = list(csv.DictReader(stream))
    return {key: np.array([float(row[key]) for row in rows]) for key in rows[0] if key != "matrix"}


def published_json(name):
    return json.loads((PUBLISHED / name).read_text())


@pytest.mark.parametrize("row", [0, 1])
def test_published_rows_of_Z_and_sigma_give_the_published_self_rotation_and_ortho(row):
    sigma = columns("sigma_value_13_7.csv")
    table = columns("z_value_13_7_rows_0_1.csv")
    Z = np.zeros((64, 64))
    Z[row] = [table[f"c{k}"][row] for k in range(64)]
    overlap, own, rotation, ortho = (values[row] for values in pair_quantities(Z))
    np.testing.assert_allclose(sigma["sigma"][row] * own, sigma["self_weighted"][row], rtol=1e-5)
    np.testing.assert_allclose(sigma["sigma"][row] * rotation, sigma["rot_weighted"][row], rtol=1e-5)
    np.testing.assert_allclose(sigma["sigma"][row] * ortho, sigma["ortho_weighted"][row], rtol=1e-5)
    assert overlap == columns("z_value_13_7_diagonal.csv")["z_kk"][row]


def test_published_diagonal_of_Z_is_self_up_to_sign():
    sigma, diagonal = columns("sigma_value_13_7.csv"), columns("z_value_13_7_diagonal.csv")
    np.testing.assert_allclose(sigma["sigma"] * np.abs(diagonal["z_kk"]), sigma["self_weighted"], rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("matrix", ["value", "qk"])
def test_published_squares_sum_to_sigma_squared(matrix):
    table = columns(f"sigma_{matrix}_13_7.csv")
    parts = table["self_weighted"] ** 2 + table["ortho_weighted"] ** 2 + table["rot_weighted"] ** 2
    np.testing.assert_allclose(parts, table["sigma"] ** 2, rtol=2e-6)


def test_a_published_point_is_the_plain_mean_over_the_pairs():
    sigma, points = columns("sigma_value_13_7.csv"), columns("value_makeup.csv")
    here = (points["layer"] == 13) & (points["head"] == 7)
    for name in ("self", "ortho", "rot"):
        mean = (sigma[f"{name}_weighted"] / sigma["sigma"]).mean()
        np.testing.assert_allclose(points[name][here], mean, atol=2e-6)


def test_published_histogram_counts_sigma_times_overlap():
    sigma, diagonal = columns("sigma_value_13_7.csv")["sigma"], columns("z_value_13_7_diagonal.csv")["z_kk"]
    table = columns("hist_value_13.csv")
    here = table["head"] == 7
    expected = np.zeros(100, dtype=int)
    expected[table["bin_index"][here].astype(int)] = table["count"][here]
    edges = np.linspace(-1, 1, 101)
    np.testing.assert_array_equal(np.histogram(sigma * diagonal, edges)[0], expected)
    assert (np.histogram(diagonal, edges)[0] != expected).any()


def test_the_published_points_give_the_published_fit_line():
    points = columns("value_makeup.csv")
    assert len(points["self"]) == 768
    a, b = linear_fit(points["self"], points["ortho"], points["rot"])
    ends = published_json("value_makeup_random.json")["linear_fit"]
    first, last = ends["first"]["ortho"], ends["last"]["ortho"]
    np.testing.assert_allclose([a, b], [first, last - first], atol=2e-6)


def test_the_published_random_point_is_within_its_sampling_error_of_the_closed_form():
    random = published_json("value_makeup_random.json")["random_initialization"]
    own, rotation, ortho = haar_means(2048, 64)
    # one draw: a mean over 64 pairs, whose |Z_ii| have a standard deviation of sqrt(1 - 2 / pi) / sqrt(2048)
    assert abs(random["self"] - own) < 3 * np.sqrt((1 - 2 / np.pi) / 2048 / 64)
    np.testing.assert_allclose([random["rot"], random["ortho"]], [rotation, ortho], atol=2e-3)
