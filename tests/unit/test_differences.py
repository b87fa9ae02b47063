"""`headmaps diff`: numbers with deltas and a tolerance, figures changed or not, and the rest by hash."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from headmaps.cli import main
from headmaps.commands.diff import report
from headmaps.differences import compare
from headmaps.errors import ResultError
from headmaps.records import write_array, write_arrays, write_json

HEADS = "tiny/raw/tables/heads.csv"
NPZ = "tiny/raw/decomposition/value/layer-00.npz"
PARQUET = "tiny/raw/tables/vectors.parquet"
RECORD = "tiny/raw/tables/tables.json"
FIGURE = "tiny/raw/figures/figure2.svg"


def write_results(folder: Path) -> Path:
    """Small results of every kind."""
    for name in (HEADS, NPZ, FIGURE):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / HEADS).write_text("layer,head,matrix,self_mean,note\n0,0,value,0.25,\n0,1,value,0.5,a\n")
    write_arrays(folder / NPZ, {"sigma": np.arange(6.0).reshape(2, 3), "eigenvalues": np.array([1 + 2j, np.nan])})
    write_array(folder / "tiny/heads/layer-00/W_Q.npy", np.zeros((2, 2)))
    pa.parquet.write_table(
        pa.table({"layer": [0, 0], "matrix": ["value", "qk"], "sigma": [1.0, 2.0]}), folder / PARQUET
    )
    write_json(folder / RECORD, {"files": {"heads.csv": {"sha256": "a", "size": 1}}, "facts": {"p": 0.5}})
    (folder / FIGURE).write_text("<svg/>")
    (folder / "tiny/raw/figures/figure3.svg").write_text("<svg/>")
    return folder


@pytest.fixture
def a(tmp_path: Path) -> Path:
    return write_results(tmp_path / "a/results")


@pytest.fixture
def b(tmp_path: Path) -> Path:
    return write_results(tmp_path / "b/results")


def test_equal_results_have_no_differences(a: Path, b: Path) -> None:
    found = compare(a, b, 0.0)
    assert found.differences == []
    assert report(found, 30) == "no differences; 2 figures are the same"


def test_project_folders_and_results_folders_are_the_same_place(a: Path, b: Path) -> None:
    (b / FIGURE).write_text("<svg></svg>")
    assert compare(a.parent, b, 0.0) == compare(a, b.parent, 0.0) == compare(a, b, 0.0)


def test_a_cell_is_named_by_head_and_column_with_its_delta(a: Path, b: Path) -> None:
    (b / HEADS).write_text((a / HEADS).read_text().replace("0.5", "0.75"))
    (one,) = compare(a, b, 0.0).differences
    assert (one.path, one.kind, one.where) == (HEADS, "number", "layer 0 head 1 matrix value: self_mean")
    assert (one.a, one.b, one.delta) == (0.5, 0.75, 0.25)
    assert compare(a, b, 0.25).differences == []
    assert len(compare(a, b, 0.2).differences) == 1


def test_rows_in_another_order_are_the_same_rows(a: Path, b: Path) -> None:
    header, *rows = (a / HEADS).read_text().splitlines()
    (b / HEADS).write_text("\n".join([header, *reversed(rows)]) + "\n")
    assert compare(a, b, 0.0).differences == []


def test_empty_cells_and_new_columns_are_differences_at_any_tolerance(a: Path, b: Path) -> None:
    (b / HEADS).write_text("layer,head,matrix,self_mean,rank\n0,0,value,,8\n0,1,value,0.5,8\n")
    found = {
        (one.where.split(": ")[1], one.a, one.b) for one in compare(a, b, 100.0).differences if one.kind == "number"
    }
    assert found == {("self_mean", 0.25, None), ("rank", None, 8.0)}


def test_a_changed_word_is_said(a: Path, b: Path) -> None:
    (b / HEADS).write_text((a / HEADS).read_text().replace(",a\n", ",b\n"))
    (one,) = compare(a, b, 0.0).differences
    assert one.where == "layer 0 head 1 matrix value: note was 'a', is 'b'"


def test_of_an_array_the_largest_difference_is_named(a: Path, b: Path) -> None:
    sigma = np.arange(6.0).reshape(2, 3)
    sigma[1, 2] += 0.5
    sigma[0, 0] += 0.1
    write_arrays(b / NPZ, {"sigma": sigma, "eigenvalues": np.array([1 + 2j, np.nan])})
    (one,) = compare(a, b, 0.0).differences
    assert (one.kind, one.where) == ("array", "sigma[1, 2], the largest of 2 in 6")
    assert one.delta == 0.5
    assert compare(a, b, 0.5).differences == []


def test_complex_numbers_differ_by_their_distance(a: Path, b: Path) -> None:
    write_arrays(b / NPZ, {"sigma": np.arange(6.0).reshape(2, 3), "eigenvalues": np.array([1 + 2.5j, np.nan])})
    assert compare(a, b, 0.4).differences[0].where == "eigenvalues[0], the largest of 1 in 2"
    assert compare(a, b, 0.5).differences == []


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"sigma": np.zeros((2, 2))}, "sigma has shape (2, 3) and (2, 2)"),
        ({"sigma": np.arange(6.0).reshape(2, 3), "gap": np.zeros(1)}, "gap is only in B"),
    ],
)
def test_arrays_of_another_shape_or_name_are_said(a: Path, b: Path, arrays: dict, words: str) -> None:
    write_arrays(b / NPZ, arrays)
    assert words in {one.where for one in compare(a, b, 1e9).differences}


def test_columns_of_parquet_and_single_arrays_are_compared(a: Path, b: Path) -> None:
    pa.parquet.write_table(pa.table({"layer": [0, 0], "matrix": ["value", "qk"], "sigma": [1.0, 2.25]}), b / PARQUET)
    write_array(b / "tiny/heads/layer-00/W_Q.npy", np.array([[0.0, 0.0], [1.0, 0.0]]))
    found = {one.where: one.delta for one in compare(a, b, 0.0).differences}
    assert found == {"sigma[1], the largest of 1 in 2": 0.25, "array[1, 0], the largest of 1 in 4": 1.0}


def test_records_that_differ_by_hashes_alone_say_nothing_new(a: Path, b: Path) -> None:
    write_json(b / RECORD, {"files": {"heads.csv": {"sha256": "b", "size": 2}}, "facts": {"p": 0.5}})
    assert compare(a, b, 0.0).differences == []
    write_json(b / RECORD, {"files": {"heads.csv": {"sha256": "a", "size": 1}}, "facts": {"p": 0.75}})
    assert [one.kind for one in compare(a, b, 0.0).differences] == ["file"]
    assert compare(a, b, 0.25).differences == []


def test_a_damaged_array_is_a_file_that_differs(a: Path, b: Path) -> None:
    (b / NPZ).write_bytes(b"not a zip")
    assert [(one.path, one.kind) for one in compare(a, b, 0.0).differences] == [(NPZ, "file")]


def test_figures_change_or_do_not(a: Path, b: Path) -> None:
    (b / FIGURE).write_text("<svg></svg>")
    found = compare(a, b, 1e9)
    assert [(one.path, one.kind) for one in found.differences] == [(FIGURE, "figure")]
    assert "1 figures changed, 1 are the same" in report(found, 30)


def test_what_says_when_results_were_made_does_not_differ(a: Path, b: Path) -> None:
    for name in ("provenance.json", "ro-crate-metadata.json", "raw/tables/tables.made.json", "checkpoint/kept/x.bin"):
        path = b / "tiny" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("now")
    assert compare(a, b, 0.0).differences == []


def test_files_on_one_side_only(a: Path, b: Path) -> None:
    (a / FIGURE).unlink()
    (b / NPZ).unlink()
    assert {(one.path, one.kind) for one in compare(a, b, 0.0).differences} == {
        (FIGURE, "only in B"),
        (NPZ, "only in A"),
    }


def test_neither_folder_nor_lock_is_refused(a: Path, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(ResultError, match="not a lock file"):
        compare(a, tmp_path / "x.json", 0.0)


def test_the_command_prints_the_largest_first_and_ends_with_1(
    a: Path, b: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (b / HEADS).write_text("layer,head,matrix,self_mean,note\n0,0,value,0.26,\n0,1,value,1.5,a\n")
    assert main(["diff", str(a), str(b), "--most", "1"]) == 1
    printed = capsys.readouterr().out
    assert "layer 0 head 1 matrix value: self_mean" in printed
    assert "head 0" not in printed
    assert "... and 1 smaller ones" in printed
    assert main(["diff", str(a), str(b), "--tolerance", "1"]) == 0


def test_as_json(a: Path, b: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (b / HEADS).write_text((a / HEADS).read_text().replace("0.5", "0.75"))
    assert main(["diff", str(a), str(b), "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["same_figures"] == 2
    assert printed["differences"] == [
        {
            "path": HEADS, "kind": "number", "where": "layer 0 head 1 matrix value: self_mean",
            "a": 0.5, "b": 0.75, "delta": 0.25,
        }
    ]  # fmt: skip
