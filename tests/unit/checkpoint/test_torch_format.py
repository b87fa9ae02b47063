"""pytorch_model.bin without torch: what torch 2.13 wrote is read exactly, and nothing in a pickle is ever run."""

import json
import os
import pickle
import shutil
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_makers import (
    FIXTURES,
    MemoryStore,
    hostile_pickle,
    state_dict_program,
    tensor_program,
    torch_bytes,
    torch_file,
    zip_bytes,
)

from headmaps.checkpoint.catalogue import open_checkpoint
from headmaps.checkpoint.dtypes import decode, in_c_order
from headmaps.checkpoint.formats import torch_zip
from headmaps.checkpoint.formats.state_dict import MOST_INSTRUCTIONS
from headmaps.checkpoint.store import LocalStore, Store
from headmaps.errors import CheckpointError


def values(store: Store, name: str) -> dict[str, Any]:
    """Every tensor of a file, decoded; integers are left out."""
    header = torch_zip.read_header(store, name)
    found = {}
    for entry in torch_zip.located(store, header, list(header.entries)).values():
        data = store.read(entry.file, entry.offset, entry.nbytes)
        if entry.stride is not None:
            data = in_c_order(data, entry.dtype, entry.shape, entry.stride)
        if entry.dtype != "I64":
            found[entry.name] = decode(data, entry.dtype, entry.shape)
    return found


@pytest.mark.parametrize("name", ["every_kind", "module", "nested", "parameters", "protocol4"])
def test_what_torch_wrote_is_read_exactly(name: str) -> None:
    """Float types, tied, transposed, sliced, permuted, scalar and empty tensors; parameters; a training checkpoint."""
    prefix = "every_kind/" if name == "every_kind" else "module/"
    expected = {key.removeprefix(prefix): v for key, v in np.load(FIXTURES / "expected.npz").items() if prefix in key}
    expected.pop("integers", None)
    found = values(LocalStore(FIXTURES), f"{name}.bin")
    assert set(found) == set(expected)
    for tensor, array in found.items():
        assert array.shape == expected[tensor].shape
        np.testing.assert_array_equal(array, expected[tensor], err_msg=tensor)


def test_only_views_that_are_not_in_c_order_have_a_stride() -> None:
    header = torch_zip.read_header(LocalStore(FIXTURES), "every_kind.bin")
    strided = {name for name, entry in header.entries.items() if entry.stride is not None}
    assert strided == {"transposed", "columns", "every_other", "bfloat16_transposed", "three_dimensions"}
    assert header.members["tied_a"] == header.members["tied_b"]


def test_the_format_of_old_torch_is_refused_by_name() -> None:
    with pytest.raises(CheckpointError, match=r"before version 1\.6"):
        torch_zip.read_header(LocalStore(FIXTURES), "legacy.bin")


def refused(data: bytes) -> str:
    with pytest.raises(CheckpointError) as error:
        torch_zip.read_header(MemoryStore(m=data), "m")
    return str(error.value)


def test_a_pickle_that_calls_something_is_refused_and_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "was-run"
    cases = [
        (hostile_pickle(os.system, f"touch {mark}"), "posix.system"),
        (hostile_pickle(shutil.copyfile, __file__, str(mark)), "shutil.copyfile"),
        (hostile_pickle(eval, f"open({str(mark)!r}, 'w')"), "__builtin__.eval"),
        (hostile_pickle(open, str(mark), "w"), "io.open"),
    ]
    for pickled, name in cases:
        message = refused(torch_bytes(pickled, {}))
        assert f"it names {name}, which is not part of a state dict" in message
        assert "nothing in it was run" in message
        assert not mark.exists()
    pickle.loads(cases[0][0])
    assert mark.exists()  # Python's own reader does run it


def program(body: bytes) -> bytes:
    return torch_bytes(b"\x80\x02" + body, {"0": bytes(16)})


W = tensor_program("0", 4, (2, 2), (2, 1))
NAME = b"X\x01\x00\x00\x00w"  # the text "w"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "damaged"),
        (b"}", "damaged"),
        (b".", "an empty stack"),
        (b"\x87.", "an empty stack"),
        (b"(0.", "the instruction b'0'"),
        (b"ctorch\nload\n.", "names torch.load"),
        (b"ctorch._utils\n_rebuild_tensor_v3\n.", "names torch._utils._rebuild_tensor_v3"),
        (b"\x8c\x02os\x8c\x06system\x93.", "names os.system"),
        (b"ios\nsystem\n.", "the instruction b'i'"),
        (b"ccollections\nOrderedDict\n}b.", "sets attributes on something"),
        (b"ccollections\nOrderedDict\nK\x01\x85R.", "calls collections.OrderedDict in a way"),
        (b"})R.", "calls something that is not a name"),
        (b"}X\xff\xff\xff\xffabc.", "cut short"),
        (b"}(K\x01K\x02K\x03u.", "items for no dictionary"),
        (b"](K\x01K\x02u.", "items for no dictionary"),
        (b"})K\x01s.", "a dictionary key of type tuple"),
        (b"(K\x01tQ.", "a reference to something other than a storage"),
        (b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.", "the instruction"),
        (b"\x96\xff\xff\xff\xff\xff\xff\xff\x7f.", "the instruction"),
        (b"h\x05.", "damaged"),
        (b"]r\xff\xff\xff\xff.", "holds no dictionary"),
        (b")" * 300_000 + b".", "holds no dictionary"),
        (b"}.", "holds 0 dictionaries of tensors"),
        (b"}(K\x01}K\x01" + W + b"sK\x02}K\x01" + W + b"su.", "holds 0 dictionaries of tensors"),
        (b"}(K\x01}" + NAME + W + b"sK\x02}" + NAME + W + b"su.", "holds 2 dictionaries of tensors"),
        (b"}(" + NAME + W + NAME + W + b"u.", "tensor w is present twice"),
    ],
)
def test_damaged_and_hostile_programs_are_refused(body: bytes, message: str) -> None:
    assert message in refused(program(body))


def test_an_endless_program_ends() -> None:
    assert f"more than {MOST_INSTRUCTIONS} instructions" in refused(program(b"}" * (MOST_INSTRUCTIONS + 1)))


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (tensor_program("0", 4, (2, 3), (3, 1)), "past the end of its storage"),
        (tensor_program("0", 4, (2, 2), (2, 1), offset=1), "past the end of its storage"),
        (tensor_program("0", 4, (2, 2), (1 << 40, 1)), "past the end of its storage"),
        (tensor_program("0", 5, (2, 2), (2, 1)), "has 16 bytes instead of 20"),
        (tensor_program("0", 4, (2, 2), (2, 1), dtype="F64"), "has 16 bytes instead of 32"),
        (tensor_program("9", 4, (2, 2), (2, 1)), "storage of tensor w is missing"),
        (tensor_program("../../0", 4, (2, 2), (2, 1)), "storage of tensor w is missing"),
        (tensor_program("0", 4, (1 << 30, 1 << 30), (0, 0)), "repeats its elements"),
        (tensor_program("0", 4, (2, 2), (2,)), "a damaged tensor"),
        (tensor_program("0", 4, (1,) * 17, (1,) * 17), "a damaged tensor"),
        (tensor_program("0", 4, (-2, 2), (2, 1)), "a damaged tensor"),
    ],
)
def test_a_tensor_that_does_not_fit_its_storage_is_refused(tensor: bytes, message: str) -> None:
    assert message in refused(torch_bytes(state_dict_program({"w": tensor}), {"0": bytes(16)}))


GOOD = torch_bytes(state_dict_program({"w": W}), {"0": np.arange(4, dtype="<f4").tobytes()})


def test_the_tests_own_writer_is_right() -> None:
    np.testing.assert_array_equal(values(MemoryStore(m=GOOD), "m")["w"], [[0, 1], [2, 3]])


def test_archives_that_torch_does_not_write_are_refused() -> None:
    bomb = torch_bytes(state_dict_program({"w": W}), {"0": bytes(50_000_000)}, method=zipfile.ZIP_DEFLATED)
    assert len(bomb) < 100_000
    cases = {
        bomb: "compressed or encrypted",
        torch_bytes(state_dict_program({"w": W}), {"0": bytes(16)}, byteorder=b"big"): "big-endian",
        zip_bytes({"archive/data/0": bytes(16)}): "0 files data.pkl",
        b"PK\x03\x04" + zip_bytes({}): "0 files data.pkl",
        zip_bytes({"a/data.pkl": b"", "b/data.pkl": b""}): "2 files data.pkl",
        zip_bytes({"../data.pkl": b"", "a": b""}): "leaves its folder",
        zip_bytes({"/etc/data.pkl": b""}): "leaves its folder",
        GOOD[:-30]: "no directory at its end",
        GOOD[:100]: "no directory at its end",
        b"PK\x03\x04": "no directory at its end",
        b"": "it begins with b''",
        b"<html>": "web page",
    }
    for data, message in cases.items():
        assert message in refused(data)


def central(data: bytes, member: str) -> int:
    """Where the directory's record of an entry begins."""
    return data.index(b"PK\x01\x02", data.rindex(member.encode()) - 46 - 4)


def patched(offset: int, value: bytes) -> bytes:
    return GOOD[:offset] + value + GOOD[offset + len(value) :]


def test_a_directory_that_lies_is_refused() -> None:
    record = central(GOOD, "archive/data/0")
    header = struct.unpack_from("<L", GOOD, record + 42)[0]
    assert "overlaps what follows" in refused(patched(record + 42, struct.pack("<L", header - 40)))
    assert "overlaps what follows" in refused(patched(record + 42, struct.pack("<L", 1 << 31)))
    assert "overlaps what follows" in refused(patched(record + 20, struct.pack("<LL", 1 << 30, 1 << 30)))
    assert "compressed or encrypted" in refused(patched(record + 8, b"\1\0"))
    assert "compressed or encrypted" in refused(patched(record + 20, struct.pack("<LL", 4, 16)))
    assert "is impossible" in refused(patched(len(GOOD) - 12, struct.pack("<L", 1 << 31)))
    with pytest.warns(UserWarning, match="Duplicate name"):
        twice = zip_bytes([("archive/data.pkl", b"."), ("archive/data.pkl", b".")])
    assert "the entry archive/data.pkl is present twice" in refused(twice)


def test_a_local_header_that_disagrees_is_refused() -> None:
    header = struct.unpack_from("<L", GOOD, central(GOOD, "archive/data/0") + 42)[0]
    for offset, value in [(0, b"XX"), (8, b"\x08\0"), (26, b"\x01\0"), (28, b"\xff\x7f"), (30, b"b")]:
        store = MemoryStore(m=patched(header + offset, value))
        file = torch_zip.read_header(store, "m")
        with pytest.raises(CheckpointError, match="local header of archive/data/0"):
            torch_zip.located(store, file, ["w"])


def test_large_archives_have_zip64_records() -> None:
    """torch writes them always; here sizes and places are given there only."""
    record = central(GOOD, "archive/data/0")
    header = struct.unpack_from("<L", GOOD, record + 42)[0]
    extra = struct.pack("<2H3Q", 1, 24, 16, 16, header)
    name_length = len("archive/data/0")
    data = bytearray(GOOD)
    data[record + 20 : record + 28] = b"\xff" * 8
    data[record + 42 : record + 46] = b"\xff" * 4
    data[record + 30 : record + 32] = struct.pack("<H", len(extra))
    data[record + 46 + name_length : record + 46 + name_length] = extra
    end = len(data) - 22
    data[end + 12 : end + 16] = struct.pack("<L", struct.unpack_from("<L", data, end + 12)[0] + len(extra))
    np.testing.assert_array_equal(values(MemoryStore(m=bytes(data)), "m")["w"], [[0, 1], [2, 3]])


def test_reading_a_remote_archive_costs_its_directory_and_its_pickle() -> None:
    data = torch_file({"a": np.zeros((1000, 1000)), "b": np.arange(12).reshape(3, 4)})
    store = MemoryStore(m=data)
    file = torch_zip.read_header(store, "m")
    entry = torch_zip.located(store, file, ["b"])["b"]
    assert store.bytes_read < 100_000 < len(data)
    found = decode(store.read("m", entry.offset, entry.nbytes), "F32", entry.shape)
    np.testing.assert_array_equal(found, np.arange(12).reshape(3, 4))


def test_a_sharded_checkpoint() -> None:
    index = {"weight_map": {"a": "pytorch_model-1.bin", "b": "pytorch_model-2.bin"}}
    store = MemoryStore()
    store.contents = {
        "config.json": b'{"model_type": "gpt2"}',
        "pytorch_model.bin.index.json": json.dumps(index).encode(),
        "pytorch_model-1.bin": torch_file({"a": np.full((2, 2), 1.0)}),
        "pytorch_model-2.bin": torch_file({"b": np.full((2, 2), 2.0)}),
    }
    catalogue = open_checkpoint(store)
    assert catalogue.format == "torch"
    for name, entry in catalogue.locate(["b", "a"]).items():
        data = store.read(entry.file, entry.offset, entry.nbytes)
        np.testing.assert_array_equal(decode(data, entry.dtype, entry.shape), np.full((2, 2), 1.0 + (name == "b")))
    store.contents["pytorch_model-2.bin"] = torch_file({"a": np.ones((2, 2)), "b": np.ones((2, 2))})
    with pytest.raises(CheckpointError, match="a is present twice"):
        open_checkpoint(store)
