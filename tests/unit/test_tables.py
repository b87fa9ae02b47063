"""heads.csv and vectors.parquet of a small made-up model: what is in them, that it reads back, and what is refused."""

import csv
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from headmaps.baselines import KINDS as BASELINES
from headmaps.baselines import Sampler, baseline_layer
from headmaps.blocks import block_labels
from headmaps.decomposition import decompose_layer
from headmaps.errors import ResultError
from headmaps.geometry import Geometry, Norm, Position
from headmaps.haar import COSTLY_DRAWS, pool_arrays, pool_blocks
from headmaps.heads import LayerHeads
from headmaps.layer_factors import LayerFactors
from headmaps.null_columns import Heads, spectrum_draws
from headmaps.precision import precision_arrays
from headmaps.quantities import REGISTRY, SPECTRAL_NAMES, quantities
from headmaps.records import write_arrays, write_json
from headmaps.significance import benjamini_hochberg, overlap_p, significance
from headmaps.steps import tables as step
from headmaps.tables import FIRST, write_tables

D, R, H, KV, LAYERS, POOL = 24, 6, 4, 2, [0, 2], 500
MATRICES = ["value", "qk"]
KINDS = ["gaussian", "spectrum", "shuffle", "unpaired"]
GEOMETRY = Geometry("made", "split", LAYERS, 3, D, H, KV, R, R, "BF16", 1.0, Position("none"), Norm("rms", "pre"))


def made_heads(layer: int) -> LayerHeads:
    """A layer whose head 3 has a value matrix of rank R - 2 in layer 0, and none at all in layer 2."""
    generator = np.random.default_rng(layer)
    shapes = {"W_Q": (H, D, R), "W_K": (KV, D, R), "W_V": (KV, D, R), "W_O": (H, R, D)}
    arrays = {name: generator.normal(size=shape) for name, shape in shapes.items()}
    arrays["W_O"][3, 4:] = 0
    if layer == 2:
        arrays["W_O"][3] = 0
    return LayerHeads(**arrays, extras={"b_Q": generator.normal(size=(H, R))} if layer == 0 else {})


@dataclass
class Results:
    """A folder with everything the tables are made from."""

    root: Path

    @property
    def decompositions(self) -> list[Path]:
        return sorted(self.root.glob("decomposition/*/*.npz"))

    @property
    def baselines(self) -> list[Path]:
        return [self.root / "haar.npz", *sorted(self.root.glob("baselines/*/*.npz"))]

    def make(
        self, name: str = "tables", **changes: Any
    ) -> tuple[list[dict[str, str]], dict[str, list[Any]], dict[str, Any]]:
        """Write both tables; return the rows of the first, the columns of the second, and the facts."""
        folder = self.root / name
        given = {"decompositions": self.decompositions, "baselines": self.baselines, "kinds": KINDS} | changes
        paths = {"heads_csv": folder / "heads.csv", "vectors": folder / "vectors.parquet"}
        facts = write_tables(GEOMETRY, MATRICES, given["kinds"], given["decompositions"], given["baselines"], **paths)
        with open(paths["heads_csv"], newline="") as stream:
            rows = list(csv.DictReader(stream))
        return rows, pq.read_table(paths["vectors"]).to_pydict(), facts

    def arrays(self, matrix: str, layer: int) -> dict[str, np.ndarray]:
        return dict(np.load(self.root / f"decomposition/{matrix}/layer-{layer:02d}.npz"))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    root = tmp_path_factory.mktemp("results")
    write_json(root / "geometry.json", GEOMETRY.to_json())
    write_arrays(root / "haar.npz", pool_arrays(D, [R], POOL, 0))
    for layer in LAYERS:
        heads = made_heads(layer)
        for matrix in MATRICES:
            arrays = decompose_layer(heads, GEOMETRY, matrix)
            arrays |= precision_arrays(heads, GEOMETRY, matrix, "raw", layer, arrays)
            write_arrays(root / f"decomposition/{matrix}/layer-{layer:02d}.npz", arrays)
        for kind in ("spectrum", "shuffle", "unpaired"):
            draws = baseline_layer(heads, GEOMETRY, kind=kind, draws=16, key=(0, "made", layer), matrices=MATRICES)
            write_arrays(root / f"baselines/{kind}/layer-{layer:02d}.npz", draws)
    return Results(root)


@pytest.fixture(scope="module")
def made(results: Results) -> tuple[list[dict[str, str]], dict[str, list[Any]], dict[str, Any]]:
    return results.make()


@pytest.fixture(scope="module")
def rows(made: Any) -> list[dict[str, str]]:
    return made[0]


@pytest.fixture(scope="module")
def vectors(made: Any) -> dict[str, np.ndarray]:
    return {name: np.array(values) for name, values in made[1].items()}


def column(rows: list[dict[str, str]], name: str, matrix: str) -> np.ndarray:
    return np.array([float(row[name]) if row[name] else np.nan for row in rows if row["matrix"] == matrix])


# --- heads.csv --------------------------------------------------------------------------------------------------------


def test_rows_run_by_matrix_layer_and_head(rows: list[dict[str, str]]) -> None:
    keys = [(row["matrix"], int(row["layer"]), int(row["head"])) for row in rows]
    assert keys == [(matrix, layer, head) for matrix in MATRICES for layer in LAYERS for head in range(H)]
    assert tuple(rows[0])[: 3 + len(FIRST)] == ("layer", "head", "matrix", *FIRST)


def test_numbers_read_back_as_the_very_same_floats(rows: list[dict[str, str]], results: Results) -> None:
    for matrix in MATRICES:
        arrays = [results.arrays(matrix, layer) for layer in LAYERS]
        stacked = {
            name: np.concatenate([one[name] for one in arrays]) for name in ("sigma", "Z", "eigenvalues", "rank")
        }
        expected = quantities(stacked["sigma"], stacked["Z"], stacked["eigenvalues"], rank=stacked["rank"])
        for name in REGISTRY:
            np.testing.assert_array_equal(column(rows, name, matrix), expected[name], err_msg=name)
        np.testing.assert_array_equal(column(rows, "rank", matrix), stacked["rank"])


def test_rank_says_how_many_pairs_count_and_an_all_zero_head_has_empty_cells(rows: list[dict[str, str]]) -> None:
    assert column(rows, "rank", "value").tolist() == [R, R, R, R - 2, R, R, R, 0]
    empty = rows[7]
    assert (empty["self_mean"], empty["self_energy"], empty["gap_min"], empty["frobenius_norm"]) == ("", "", "", "0.0")
    assert empty["self_mean_gaussian_p"] == empty["self_mean_shuffle_z"] == ""


def test_what_depends_on_factors_and_storage_is_there(rows: list[dict[str, str]], results: Results) -> None:
    arrays = results.arrays("qk", 0)
    np.testing.assert_array_equal(column(rows, "directionality", "qk")[:H], arrays["fq_directionality"])
    np.testing.assert_array_equal(column(rows, "precision_self_mean", "qk")[:H], arrays["precision_self_mean"])
    # only layer 0 has biases
    assert np.isnan(column(rows, "bias_key_share", "qk")).tolist() == [False] * H + [True] * H


def test_blocks_follow_the_storages_precision(rows: list[dict[str, str]], results: Results) -> None:
    arrays = results.arrays("qk", 0)
    labels = block_labels(arrays["sigma"], np.ones((H, R), bool), arrays["precision_sigma"])
    np.testing.assert_array_equal(column(rows, "blocks", "qk")[:H], labels.max(axis=1) + 1)


# --- the nulls --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["self_mean", "rotation_energy", "symmetric_share", "eigenvalue_positivity"])
def test_gaussian_columns_compare_with_the_pool(name: str, rows: list[dict[str, str]], results: Results) -> None:
    draws = np.load(results.root / "haar.npz")[f"{R}.{name}"]
    observed = column(rows, name, "qk")
    expected = significance(observed, draws)
    for key in ("mean", "sd", "difference", "ratio", "z", "p"):
        np.testing.assert_array_equal(column(rows, f"{name}_gaussian_{key}", "qk"), getattr(expected, key))


@pytest.mark.parametrize("name", ["frobenius_norm", "trace", "commutator_norm", "henrici"])
def test_the_pool_serves_quantities_with_a_scale_as_literal_draws_would(
    name: str, rows: list[dict[str, str]], results: Results
) -> None:
    layer = LayerFactors(made_heads(0), GEOMETRY, "qk")
    sigma, Z = BASELINES["gaussian"].draw(Sampler(layer, (5, "made", 0), 2000), 1)
    literal = quantities(sigma, Z, names=[name])[name]
    mean, sd = (column(rows, f"{name}_gaussian_{key}", "qk")[1] for key in ("mean", "sd"))
    error = sd * math.sqrt(1 / POOL + 1 / len(literal))
    assert abs(mean - literal.mean()) < 5 * error
    assert sd == pytest.approx(literal.std(ddof=1), rel=0.2)


def test_spectrum_draws_are_those_of_the_heads_own_sigma_with_the_pools_vectors() -> None:
    pool = {name.partition(".")[2]: values for name, values in pool_arrays(D, [R], 40, 3).items()}
    Z = np.concatenate([Z for _, _, Z in pool_blocks(D, R, 40, 3)])
    sigma = np.array([[5.0, 3, 2, 1, 0.5, 0.1], [1, 1, 1, 1, 0, 0]])
    heads = Heads({"rank": np.array([R, 4])}, sigma, np.ones(2))
    expected = quantities(np.tile(sigma[0], (40, 1)), Z)
    found = dict(spectrum_draws(pool, heads))
    for name in ("self_energy", "rotation_energy", "ortho_energy", "trace", "trace_share"):
        np.testing.assert_allclose(found[name][0], expected[name], rtol=1e-9, atol=1e-12, err_msg=name)
    for name, draws in found.items():
        assert np.isnan(draws[1]).all(), f"{name}: a head of lower rank has no such null"
    # the input side takes the output side's draws: the law is the same, not the draws
    mean, input_mean = found["input_rotation_energy"][0].mean(), expected["input_rotation_energy"].mean()
    assert mean == pytest.approx(input_mean, abs=5 * np.std(found["rotation_energy"][0]) / math.sqrt(20))


def test_spectrum_columns_exist_for_vectors_and_weights_but_not_for_the_spectrum(rows: list[dict[str, str]]) -> None:
    there = {name for name in REGISTRY if f"{name}_spectrum_p" in rows[0]}
    assert {"self_mean", "self_energy", "input_ortho_energy", "trace", "principal_angle_min"} <= there
    assert there == set(REGISTRY) - set(SPECTRAL_NAMES)
    assert np.isnan(column(rows, "self_mean_spectrum_p", "value")).tolist() == [False] * 3 + [True] + [False] * 3 + [
        True
    ]


def test_every_comparison_says_how_many_draws_it_rests_on(rows: list[dict[str, str]]) -> None:
    for kind in KINDS:
        for name, entry in REGISTRY.items():
            if kind not in entry.nulls:
                assert not [column for column in rows[0] if column.startswith(f"{name}_{kind}_")]
                continue
            most = column(rows, f"{kind}_draws", "qk")
            own = column(rows, f"{name}_{kind}_draws", "qk") if f"{name}_{kind}_draws" in rows[0] else most
            p = column(rows, f"{name}_{kind}_p", "qk")
            halves = p * (own + 1) / 2  # 1 + the smaller number of draws on one side
            whole = np.abs(halves - np.round(halves)) < 1e-9
            assert (whole | (p == 1))[~np.isnan(p)].all(), f"{name} {kind}"
            assert np.isnan(p).all() == (own == 0).all(), f"{name} {kind}"
    eigen = column(rows, "spectral_radius_spectrum_draws", "value")
    assert eigen.tolist() == [16] * 3 + [0] + [16] * 3 + [0], "a head of lower rank has none"
    assert set(column(rows, "spectrum_draws", "value")) == set(column(rows, "gaussian_draws", "value")) == {POOL}
    assert column(rows, "commutator_share_spectrum_draws", "qk").tolist() == [COSTLY_DRAWS] * 2 * H


def test_literal_draws_are_compared_head_by_head(rows: list[dict[str, str]], results: Results) -> None:
    for kind in ("shuffle", "unpaired"):
        files = [np.load(results.root / f"baselines/{kind}/layer-{layer:02d}.npz") for layer in LAYERS]
        draws = np.concatenate([one["qk.rotation_mean"] for one in files])
        expected = significance(column(rows, "rotation_mean", "qk"), draws)
        for key in ("mean", "sd", "difference", "ratio", "z", "p"):
            np.testing.assert_array_equal(column(rows, f"rotation_mean_{kind}_{key}", "qk"), getattr(expected, key))
    assert column(rows, "shuffle_draws", "qk").tolist() == [16] * 2 * H
    # QK: the head's W_Q with the keys of the other group; value: W_V with the W_O of the other group's two heads
    assert column(rows, "unpaired_draws", "qk").tolist() == [1] * 2 * H
    assert column(rows, "unpaired_draws", "value").tolist() == [2] * 2 * H


def test_adjusted_p_are_given_where_the_draws_carry_them(made: Any, rows: list[dict[str, str]]) -> None:
    np.testing.assert_array_equal(
        column(rows, "self_mean_gaussian_p_adjusted", "qk"),
        benjamini_hochberg(column(rows, "self_mean_gaussian_p", "qk")),
    )
    for kind in ("shuffle", "unpaired"):
        assert f"self_mean_{kind}_p_adjusted" not in rows[0]
    facts = made[2]["baselines"]["qk"]
    assert facts["gaussian"]["draws"] == POOL
    assert facts["gaussian"]["heads_needed_for_a_rejection"] == 1
    assert "too few draws" in facts["shuffle"]["adjustment"]
    assert "share" in facts["unpaired"]["adjustment"]


# --- vectors.parquet --------------------------------------------------------------------------------------------------


def test_there_is_a_row_for_every_pair_that_counts(vectors: Mapping[str, np.ndarray]) -> None:
    assert len(vectors["layer"]) == (2 * 2 * H - 2) * R + (R - 2)
    deficient = (vectors["matrix"] == "value") & (vectors["layer"] == 0) & (vectors["head"] == 3)
    assert vectors["index"][deficient].tolist() == list(range(R - 2))


def test_pairs_read_back_as_computed(vectors: Mapping[str, np.ndarray], results: Results) -> None:
    arrays = results.arrays("qk", 2)
    own = (vectors["matrix"] == "qk") & (vectors["layer"] == 2)
    overlap = np.diagonal(arrays["Z"], axis1=1, axis2=2).ravel()
    np.testing.assert_array_equal(vectors["sigma"][own], arrays["sigma"].ravel())
    np.testing.assert_array_equal(vectors["gap"][own], arrays["gap"].ravel())
    np.testing.assert_array_equal(vectors["overlap"][own], overlap)
    np.testing.assert_array_equal(vectors["overlap_p"][own], overlap_p(overlap, D))
    np.testing.assert_array_equal(vectors["precision_self"][own], arrays["pair_precision_self"].ravel())


def test_self_rotation_and_ortho_are_the_parts_of_a_unit_vector(vectors: Mapping[str, np.ndarray]) -> None:
    for side in ("", "input_"):
        squares = vectors["self"] ** 2 + vectors[f"{side}rotation"] ** 2 + vectors[f"{side}ortho"] ** 2
        np.testing.assert_allclose(squares, 1, atol=1e-12)


def test_biases_that_only_some_layers_have_are_empty_elsewhere(vectors: Mapping[str, np.ndarray]) -> None:
    bias, there = vectors["bias_output_b_Q_W_K"].astype(float), vectors["layer"] == 0
    there &= vectors["matrix"] == "qk"
    np.testing.assert_array_equal(np.isfinite(bias), there)


def test_cross_attention_keeps_its_spectrum_and_has_nothing_else(results: Results, tmp_path: Path) -> None:
    for path in results.decompositions:
        arrays = dict(np.load(path))
        if path.parent.name == "qk":
            arrays |= {"comparable": np.array(False), "Z": np.zeros_like(arrays["Z"])}
        write_arrays(tmp_path / path.parent.name / path.name, arrays)
    rows, vectors, _ = results.make("cross", decompositions=sorted(tmp_path.glob("*/*.npz")), kinds=["gaussian"])
    for name in REGISTRY:
        assert np.isnan(column(rows, name, "qk")).all() == (name not in SPECTRAL_NAMES), name
    overlap = np.array(vectors["overlap"], dtype=float)
    np.testing.assert_array_equal(np.isnan(overlap), np.array(vectors["matrix"]) == "qk")


# --- bytes, and what is refused ---------------------------------------------------------------------------------------


def test_equal_inputs_give_equal_bytes_in_any_order_of_files(results: Results, made: Any) -> None:
    results.make("again", decompositions=results.decompositions[::-1], baselines=results.baselines[::-1])
    for name in ("heads.csv", "vectors.parquet"):
        assert (results.root / "tables" / name).read_bytes() == (results.root / "again" / name).read_bytes()
    assert pq.read_schema(results.root / "tables" / "vectors.parquet").metadata is None


def test_tables_without_baselines_are_possible(results: Results) -> None:
    rows, _, facts = results.make("plain", kinds=[], baselines=[])
    assert not [name for name in rows[0] if "gaussian" in name]
    assert facts["baselines"] == {"value": {}, "qk": {}}


def refused(results: Results, **changes: Any) -> str:
    with pytest.raises(ResultError) as caught:
        results.make("refused", **changes)
    assert not list((results.root / "refused").glob("*")), "nothing half-written may stay behind"
    return str(caught.value)


def test_missing_superfluous_and_repeated_files_are_named(results: Results, tmp_path: Path) -> None:
    every = results.decompositions
    assert "value layer 2" in refused(
        results, decompositions=[path for path in every if path.parts[-2:] != ("value", "layer-02.npz")]
    )
    assert "given twice" in refused(results, decompositions=[*every, every[0]])
    stranger = every[0].with_name("layer-07.npz")
    assert "layer 7" in refused(results, decompositions=[*every, stranger])
    assert "names no layer" in refused(results, decompositions=[*every, tmp_path / "qk" / "first.npz"])
    assert "0 Haar pools" in refused(results, baselines=results.baselines[1:])
    assert "lacks layers [2]" in refused(results, baselines=results.baselines[:2])


def test_a_damaged_decomposition_is_named(results: Results, tmp_path: Path) -> None:
    broken = tmp_path / "qk" / "layer-02.npz"
    others = [path for path in results.decompositions if path.parts[-2:] != ("qk", "layer-02.npz")]
    arrays = results.arrays("qk", 2)
    write_arrays(broken, arrays | {"Z": arrays["Z"][:, :3]})
    assert "Z has shape (4, 3, 6)" in refused(results, decompositions=[*others, broken])
    write_arrays(broken, {name: values for name, values in arrays.items() if name != "gap"})
    assert "gap is missing" in refused(results, decompositions=[*others, broken])
    broken.write_bytes(b"not a zip")
    assert str(broken) in refused(results, decompositions=[*others, broken])


def test_a_pool_of_another_rank_is_refused(results: Results, tmp_path: Path) -> None:
    write_arrays(tmp_path / "haar.npz", pool_arrays(D, [R + 1], 10, 0))
    assert f"no draws of rank {R}" in refused(results, kinds=["gaussian"], baselines=[tmp_path / "haar.npz"])


def test_the_step_writes_tables_and_record(
    results: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = {"kinds": ["gaussian"], "layer_norm": "raw", "model": "made", "matrices": MATRICES}
    flags = ["--spec", json.dumps(spec), "--geometry", str(results.root / "geometry.json")]
    flags += ["--baselines", str(results.root / "haar.npz")]
    flags += ["--heads-csv", str(tmp_path / "heads.csv"), "--vectors", str(tmp_path / "vectors.parquet")]
    flags += ["--record", str(tmp_path / "tables.json")]
    step.main([*flags, "--decompositions", *map(str, results.decompositions)])
    record = json.loads((tmp_path / "tables.json").read_text())
    assert record["spec"] == spec
    assert record["facts"]["rows"] == 2 * 2 * H
    with pytest.raises(SystemExit) as stopped:
        step.main(flags)
    assert stopped.value.code == 1
    assert "decompositions are missing" in capsys.readouterr().err


def test_a_decomposition_of_a_matrix_that_is_not_asked_for_is_refused(results: Results) -> None:
    with pytest.raises(ResultError, match="no matrix or layer"):
        write_tables(
            GEOMETRY,
            ["value"],
            [],
            results.decompositions,
            [],
            heads_csv=results.root / "x.csv",
            vectors=results.root / "x.parquet",
        )


def test_many_heads_are_compared_some_at_a_time_with_the_same_result(
    results: Results, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headmaps.null_columns.HEADS_AT_A_TIME", 3)
    rows, _, _ = results.make("chunks")
    for name in ("self_energy_spectrum_p", "trace_spectrum_mean", "input_ortho_energy_spectrum_sd"):
        np.testing.assert_allclose(column(rows, name, "qk"), column(made[0], name, "qk"), rtol=1e-12)
