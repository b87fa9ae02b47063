"""Results are written whole or not at all, with bytes that depend on the numbers alone."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from headmaps.errors import HeadmapsError, ResultError
from headmaps.records import (
    atomic_path,
    read_arrays,
    read_json,
    sha256_of_array,
    sha256_of_file,
    write_array,
    write_arrays,
    write_json,
    write_record,
)


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    write_json(file, {"a": 1})
    with pytest.raises(KeyboardInterrupt), atomic_path(file) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert read_json(file) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_equal_values_have_equal_bytes_whatever_their_order_and_date(tmp_path: Path) -> None:
    arrays = {"Z": np.eye(3), "sigma": np.arange(3.0)}
    write_arrays(tmp_path / "a.npz", arrays)
    write_arrays(tmp_path / "b.npz", dict(reversed(arrays.items())))
    os.utime(tmp_path / "a.npz", (0, 0))
    assert sha256_of_file(tmp_path / "a.npz") == sha256_of_file(tmp_path / "b.npz")
    write_json(tmp_path / "a.json", {"x": 1, "y": 2})
    write_json(tmp_path / "b.json", {"y": 2, "x": 1})
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_arrays_come_back_as_they_were_and_transposed_ones_in_c_order(tmp_path: Path) -> None:
    array = np.arange(6.0).reshape(2, 3).T
    write_array(tmp_path / "a.npy", array)
    read = np.load(tmp_path / "a.npy")
    assert read.flags.c_contiguous
    np.testing.assert_array_equal(read, array)
    write_arrays(tmp_path / "a.npz", {"w": array})
    np.testing.assert_array_equal(read_arrays(tmp_path / "a.npz")["w"], array)
    assert sha256_of_array(array) == hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def test_a_record_names_hash_dtype_and_shape_and_nothing_that_varies(tmp_path: Path) -> None:
    write_arrays(tmp_path / "layer-00.npz", {"Z": np.zeros((2, 3, 3), np.float32)})
    write_record(tmp_path / "layer-00.json", "decompose", {"matrix": "qk"}, {"arrays": tmp_path / "layer-00.npz"})
    record = read_json(tmp_path / "layer-00.json")
    assert record["files"]["arrays"]["arrays"] == {"Z": {"dtype": "<f4", "shape": [2, 3, 3]}}
    assert record["files"]["arrays"]["sha256"] == sha256_of_file(tmp_path / "layer-00.npz")
    text = (tmp_path / "layer-00.json").read_text()
    assert str(tmp_path) not in text


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04broken"])
def test_a_damaged_array_file_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "layer-00.npz"
    file.write_bytes(content)
    with pytest.raises(ResultError) as raised:
        read_arrays(file)
    assert str(file) in str(raised.value)


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ResultError):
        read_arrays(tmp_path / "x.npz")


def test_missing_and_broken_json_are_named(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="missing"):
        read_json(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ResultError, match=r"not valid JSON"):
        read_json(tmp_path / "bad.json")


def test_an_error_survives_pickling_with_all_its_parts() -> None:
    import pickle

    error = ResultError("what", where="here", expected="this", do="that")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert isinstance(error, HeadmapsError)
