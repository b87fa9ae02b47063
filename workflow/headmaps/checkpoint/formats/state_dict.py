"""A reader of the pickles in which torch.save describes a state dict. It cannot run code: it has none to call.

A pickle is a program for a small stack machine. Python's own machine imports and calls whatever the program names;
this one knows the two dozen instructions that torch.save emits, builds dictionaries, lists, tuples, numbers and
text, and knows three names: `collections.OrderedDict`, `torch._utils._rebuild_tensor_v2` and `_rebuild_parameter`,
besides torch's storage types. A name is a token here, never an object. All else is refused, by name.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from headmaps.errors import CheckpointError

STORAGES = {
    "torch.DoubleStorage": "F64",
    "torch.FloatStorage": "F32",
    "torch.HalfStorage": "F16",
    "torch.BFloat16Storage": "BF16",
    "torch.LongStorage": "I64",
    "torch.IntStorage": "I32",
    "torch.ShortStorage": "I16",
    "torch.CharStorage": "I8",
    "torch.ByteStorage": "U8",
    "torch.BoolStorage": "BOOL",
}
"""torch's storage types and the names of their elements' types."""

PICKLE_LIMIT = 64 << 20
MOST_INSTRUCTIONS = 4_000_000
"""A tensor takes some forty instructions; each makes at most one small object, so memory stays below 1 GB."""

_ORDERED = "collections.OrderedDict"
_REBUILD = "torch._utils._rebuild_tensor_v2"
_PARAMETER = "torch._utils._rebuild_parameter"
_NAMES = frozenset({_ORDERED, _REBUILD, _PARAMETER, *STORAGES})


class Name(NamedTuple):
    """A global that a pickle names: a token."""

    path: str


@dataclass(frozen=True)
class Storage:
    """A storage that a pickle refers to: its key in the archive, element type and number of elements."""

    key: str
    dtype: str
    numel: int


@dataclass(frozen=True)
class View:
    """A tensor: a strided view of a storage. Offset and stride are in elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class _RefusedError(Exception):
    pass


def read_pickle(data: bytes, where: str) -> Any:
    """The object that a pickle describes, of plain containers, text, numbers and `View`s.

    Raises:
        CheckpointError: the pickle names anything but tensors, uses another instruction, is damaged or too long.
    """
    if len(data) > PICKLE_LIMIT:
        raise CheckpointError(f"its pickle has {len(data)} bytes; at most {PICKLE_LIMIT} are read", where=where)
    try:
        return _Machine(data).run()
    except _RefusedError as refusal:
        fault = str(refusal)
    except (IndexError, KeyError, ValueError, TypeError, struct.error, OverflowError) as error:
        fault = f"it is damaged ({type(error).__name__}: {error})"
    raise CheckpointError(
        f"not a pickled state dict that can be read: {fault}",
        where=where,
        expected="a dictionary of tensors, as torch.save(model.state_dict()) writes it; nothing in it was run",
        do="use the safetensors version of this checkpoint",
    )


def state_dict_of(value: Any, where: str) -> dict[str, View]:
    """The tensors of a state dict, alone or under one key of a training checkpoint.

    Raises:
        CheckpointError: there are no tensors, or several dictionaries hold some.
    """
    if not isinstance(value, dict):
        raise CheckpointError("the pickle holds no dictionary", where=where, expected="a state dict")
    if tensors := _tensors(value):
        return tensors
    nested = {key: found for key, inner in value.items() if isinstance(inner, dict) and (found := _tensors(inner))}
    if len(nested) == 1:
        return next(iter(nested.values()))
    keys = ", ".join(map(repr, nested)) or "none; the keys are " + ", ".join(map(repr, list(value)[:12]))
    raise CheckpointError(
        f"the pickle holds {len(nested)} dictionaries of tensors",
        where=where,
        expected=f"one state dict; found: {keys}",
        do="save the model's state dict alone",
    )


def _tensors(value: dict[Any, Any]) -> dict[str, View]:
    return {key: item for key, item in value.items() if isinstance(key, str) and isinstance(item, View)}


class _Machine:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        for _ in range(MOST_INSTRUCTIONS):
            code = self.data[self.at]
            self.at += 1
            if code == _STOP:
                return self.pop()
            action = _ACTIONS.get(code)
            if action is None:
                raise _RefusedError(f"it uses the instruction {bytes([code])!r}, which torch.save does not")
            action(self)
        raise _RefusedError(f"it has more than {MOST_INSTRUCTIONS} instructions")

    # --- reading the program ---

    def take(self, count: int) -> bytes:
        piece = self.data[self.at : self.at + count]
        if len(piece) < count:
            raise _RefusedError("it is cut short")
        self.at += count
        return piece

    def number(self, code: str) -> Any:
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def line(self) -> str:
        end = self.data.find(b"\n", self.at, self.at + 512)
        if end < 0:
            raise _RefusedError("it is cut short")
        text = self.data[self.at : end].decode("utf-8")
        self.at = end + 1
        return text

    # --- the stack ---

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        if not self.stack or (self.marks and len(self.stack) <= self.marks[-1]):
            raise _RefusedError("it is damaged (an empty stack)")
        return self.stack.pop()

    def top(self) -> Any:
        self.push(value := self.pop())
        return value

    def since_mark(self) -> list[Any]:
        if not self.marks:
            raise _RefusedError("it is damaged (no mark)")
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def last(self, count: int) -> tuple[Any, ...]:
        return tuple(reversed([self.pop() for _ in range(count)]))

    # --- what instructions do ---

    def name(self, module: str, attribute: str) -> None:
        path = f"{module}.{attribute}"
        if path not in _NAMES:
            raise _RefusedError(f"it names {path}, which is not part of a state dict")
        self.push(Name(path))

    def store(self, target: Any, items: list[Any]) -> None:
        if type(target) is not dict or len(items) % 2:
            raise _RefusedError("it is damaged (items for no dictionary)")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) not in {str, int}:
                raise _RefusedError(f"a dictionary key of type {type(key).__name__}")
            if type(value) is View and key in target:
                raise _RefusedError(f"the tensor {key} is present twice")
            target[key] = value

    def extend(self, target: Any, items: list[Any]) -> None:
        if type(target) is not list:
            raise _RefusedError("it is damaged (items for no list)")
        target.extend(items)

    def call(self) -> None:
        arguments, function = self.pop(), self.pop()
        if type(function) is not Name or type(arguments) is not tuple:
            raise _RefusedError("it calls something that is not a name")
        if function.path == _ORDERED and not arguments:
            self.push({})
        elif function.path == _REBUILD and len(arguments) in {6, 7}:
            self.push(_view(*arguments[:4]))
        elif function.path == _PARAMETER and len(arguments) == 3 and type(arguments[0]) is View:
            self.push(arguments[0])
        else:
            raise _RefusedError(f"it calls {function.path} in a way that torch.save does not")

    def refer(self) -> None:
        reference = self.pop()
        if type(reference) is not tuple or len(reference) != 5 or reference[0] != "storage":
            raise _RefusedError("a reference to something other than a storage")
        _, kind, key, _, numel = reference
        if type(kind) is not Name or kind.path not in STORAGES:
            raise _RefusedError("a storage of an unknown type")
        if type(key) is not str or type(numel) is not int or numel < 0:
            raise _RefusedError("a damaged reference to a storage")
        self.push(Storage(key, STORAGES[kind.path], numel))

    def build(self) -> None:
        """Attributes (`_metadata`, the versions of modules) are set on dictionaries only, and are left out here."""
        state, target = self.pop(), self.top()
        if type(target) is not dict or type(state) is not dict:
            raise _RefusedError("it sets attributes on something that is not a dictionary")


def _view(storage: Any, offset: Any, shape: Any, stride: Any) -> View:
    sizes = [offset, *shape, *stride]
    if type(storage) is not Storage or not all(type(size) is int and 0 <= size < 1 << 63 for size in sizes):
        raise _RefusedError("a damaged tensor")
    if len(shape) != len(stride) or len(shape) > 16:
        raise _RefusedError("a damaged tensor")
    return View(storage, offset, tuple(shape), tuple(stride))


_STOP = ord(".")


def _long1(machine: _Machine) -> None:
    machine.push(int.from_bytes(machine.take(machine.number("<B")), "little", signed=True))


def _stack_global(machine: _Machine) -> None:
    module, attribute = machine.last(2)
    if type(module) is not str or type(attribute) is not str:
        raise _RefusedError("a name that is not text")
    machine.name(module, attribute)


def _set_item(machine: _Machine) -> None:
    items = list(machine.last(2))
    machine.store(machine.top(), items)


def _set_items(machine: _Machine) -> None:
    items = machine.since_mark()
    machine.store(machine.top(), items)


def _append(machine: _Machine) -> None:
    item = machine.pop()
    machine.extend(machine.top(), [item])


def _appends(machine: _Machine) -> None:
    items = machine.since_mark()
    machine.extend(machine.top(), items)


def _text(code: str) -> Callable[[_Machine], None]:
    return lambda machine: machine.push(machine.take(machine.number(code)).decode("utf-8"))


def _put(code: str) -> Callable[[_Machine], None]:
    return lambda machine: machine.memo.__setitem__(machine.number(code), machine.top())


def _get(code: str) -> Callable[[_Machine], None]:
    return lambda machine: machine.push(machine.memo[machine.number(code)])


def _push_number(code: str) -> Callable[[_Machine], None]:
    return lambda machine: machine.push(machine.number(code))


# the instructions of protocols 2 to 4 that occur in state dicts; the letters are those of the pickletools module
_ACTIONS: dict[int, Callable[[_Machine], Any]] = {
    0x80: lambda machine: machine.take(1),  # PROTO
    0x95: lambda machine: machine.take(8),  # FRAME
    ord("("): lambda machine: machine.marks.append(len(machine.stack)),
    ord("}"): lambda machine: machine.push({}),
    ord("]"): lambda machine: machine.push([]),
    ord(")"): lambda machine: machine.push(()),
    ord("t"): lambda machine: machine.push(tuple(machine.since_mark())),
    0x85: lambda machine: machine.push(machine.last(1)),
    0x86: lambda machine: machine.push(machine.last(2)),
    0x87: lambda machine: machine.push(machine.last(3)),
    ord("N"): lambda machine: machine.push(None),
    0x88: lambda machine: machine.push(True),
    0x89: lambda machine: machine.push(False),
    ord("K"): _push_number("<B"),
    ord("M"): _push_number("<H"),
    ord("J"): _push_number("<i"),
    ord("G"): _push_number(">d"),
    0x8A: _long1,
    ord("X"): _text("<I"),
    0x8C: _text("<B"),
    ord("q"): _put("<B"),
    ord("r"): _put("<I"),
    0x94: lambda machine: machine.memo.__setitem__(len(machine.memo), machine.top()),  # MEMOIZE
    ord("h"): _get("<B"),
    ord("j"): _get("<I"),
    ord("c"): lambda machine: machine.name(machine.line(), machine.line()),
    0x93: _stack_global,
    ord("R"): lambda machine: machine.call(),
    ord("Q"): lambda machine: machine.refer(),
    ord("s"): _set_item,
    ord("u"): _set_items,
    ord("a"): _append,
    ord("e"): _appends,
    ord("b"): lambda machine: machine.build(),
}
