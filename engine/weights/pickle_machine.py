"""Reads a pickle without carrying it out: every name in it stays a name, every object an inert record.

Python's own unpickler imports and calls what a file names. This one interprets the opcodes itself, so there is nothing
to import and nothing to call: a reference is a :class:`Name`, an object a :class:`Made` with its state, a tensor a
:class:`StoredTensor` that says where its values lie. Opcodes, bytes and the size of the memo are bounded.
Free of torch.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from ..errors import CheckpointError

MAX_OPCODES = 400_000  # a whole pickled ViT-H/14 has about 60,000
MAX_PICKLE_BYTES = 64 * 2**20
MAX_COPIED = (
    1_000_000  # entries of tables and sets that are made of others; what is written once has an instruction each
)
Scalar = (str, int, float, bool, bytes, type(None))


@dataclass(frozen=True)
class Name:
    """A class or function that a pickle refers to; never imported."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False)
class Made:
    """An object that a pickle would have made: of which class, from what, with which attributes."""

    name: Name
    args: Any = ()
    state: dict[Any, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Storage:
    """A block of values beside the pickle."""

    key: str
    kind: str  # torch's class name, such as FloatStorage
    count: int  # values in it


@dataclass(frozen=True)
class StoredTensor:
    """A tensor by its place: values of a storage, seen with an offset, a shape and strides (all in values)."""

    storage: Storage
    offset: Any
    shape: Any
    stride: Any


class BoundedFile:
    """The part of a file that a pickle may take; reading past the bound is an error, never a large allocation."""

    def __init__(self, file: BinaryIO, limit: int = MAX_PICKLE_BYTES) -> None:
        self._file, self._left = file, limit

    def read(self, count: int) -> bytes:
        """Read at most ``count`` bytes."""
        if count > self._left:
            raise ValueError(f"a value of {count:,} bytes")
        self._left -= count
        return self._file.read(count)

    def readline(self) -> bytes:
        """Read one line, of at most 10,000 bytes."""
        line = self._file.readline(10_000)
        self._left -= len(line)
        return line

    def tell(self) -> int:
        """Return the position in the file."""
        return self._file.tell()


def read_pickle(file: BinaryIO, origin: str) -> Any:
    """Read one pickle from where a file stands; nothing is imported or called.

    Args:
        file: opened in binary mode.
        origin: the file's name, for errors.

    Returns:
        Scalars, lists, tuples, dicts and sets as they are; everything else as the records of this module.

    Raises:
        CheckpointError: no pickle, a damaged one, or one that is larger than any checkpoint's.
    """
    machine = _Machine()
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(BoundedFile(file))):
            if count > MAX_OPCODES:
                raise ValueError(f"more than {MAX_OPCODES:,} instructions")
            handler = _HANDLERS.get(opcode.name)
            if handler is None:
                raise ValueError(f"the instruction {opcode.name}")
            handler(machine, argument)
        return machine.stack[-1]
    except (ValueError, LookupError, TypeError, struct.error, OverflowError, EOFError) as error:
        raise CheckpointError(
            f"{origin} is no readable checkpoint: its pickle is damaged or unusual ({error!s:.200}). Copy it again, "
            "or save its weights as safetensors."
        ) from error


class _Machine:
    """The stack machine of the pickle format."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.copied = 0

    def copying(self, items: Any) -> Any:
        """Return items that are about to be copied; one list may be named, and so copied, a million times."""
        self.copied += len(items)
        if self.copied > MAX_COPIED:
            raise ValueError(f"more than {MAX_COPIED:,} entries copied")
        return items

    def since_mark(self) -> list[Any]:
        """Take what was pushed since the last mark."""
        items, self.stack = self.stack, self.marks.pop()
        return items


def _mark(machine: _Machine, _: Any) -> None:
    machine.marks.append(machine.stack)
    machine.stack = []


def _push(machine: _Machine, value: Any) -> None:
    machine.stack.append(value)


def _pop(machine: _Machine, _: Any) -> None:
    if machine.stack:
        machine.stack.pop()
    else:
        machine.since_mark()


def _constant(make: Callable[[], Any]) -> Callable[[_Machine, Any], None]:
    return lambda machine, _: machine.stack.append(make())


def _tuple_of(count: int) -> Callable[[_Machine, Any], None]:
    def handler(machine: _Machine, _: Any) -> None:
        items = tuple(machine.stack.pop() for _ in range(count))
        machine.stack.append(items[::-1])

    return handler


def _from_mark(make: Callable[[list[Any]], Any]) -> Callable[[_Machine, Any], None]:
    def handler(machine: _Machine, _: Any) -> None:
        items = machine.since_mark()  # this changes which stack is pushed to
        machine.stack.append(make(items))

    return handler


def _table(items: list[Any]) -> dict[Any, Any]:
    """Pairs as a dict; keys that are no scalars are left out, so that nothing deep is ever hashed."""
    return {key: value for key, value in zip(items[::2], items[1::2], strict=True) if isinstance(key, Scalar)}


def _scalars(items: Any) -> set[Any]:
    return {item for item in items if isinstance(item, Scalar)} if isinstance(items, (list, tuple)) else set()


def _extend(machine: _Machine, items: list[Any]) -> None:
    target = machine.stack[-1]
    if isinstance(target, list):
        target.extend(items)
    elif isinstance(target, set):
        target.update(_scalars(items))


def _set_items(machine: _Machine, items: list[Any]) -> None:
    target = machine.stack[-1]
    table = target if isinstance(target, dict) else target.state if isinstance(target, Made) else None
    if table is not None:
        table.update(_table(items))


def _set_item(machine: _Machine, _: Any) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    _set_items(machine, [key, value])


def _append(machine: _Machine, _: Any) -> None:
    _extend(machine, [machine.stack.pop()])


def _put(machine: _Machine, place: int) -> None:
    machine.memo[place] = machine.stack[-1]


def _memoize(machine: _Machine, _: Any) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]


def _get(machine: _Machine, place: int) -> None:
    machine.stack.append(machine.memo[place])


def _global(machine: _Machine, argument: str) -> None:
    module, _, name = argument.partition(" ")
    machine.stack.append(Name(module, name))


def _stack_global(machine: _Machine, _: Any) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    machine.stack.append(Name(str(module), str(name)) if isinstance(name, str) and isinstance(module, str) else None)


def _persistent(machine: _Machine, _: Any) -> None:
    machine.stack.append(_persistent_value(machine.stack.pop()))


def _persistent_value(identity: Any) -> Any:
    """A storage, written as ('storage', class, key, device, count, …), or the class in ('module', class, …)."""
    if isinstance(identity, tuple) and len(identity) >= 2 and identity[0] == "module":
        return identity[1]
    if not (isinstance(identity, tuple) and len(identity) >= 5 and identity[0] == "storage"):
        raise ValueError("a reference to values outside the file")
    kind, key, count = identity[1], identity[2], identity[4]
    if len(identity) > 5 and identity[5] is not None:
        raise ValueError("a storage that is part of another one; the file was written by a very old torch")
    if not isinstance(kind, Name) or not isinstance(key, str) or not _is_count(count):
        raise ValueError("a storage without class, key or size")
    return Storage(key, kind.name, count)


def _reduce(machine: _Machine, _: Any) -> None:
    args, callee = machine.stack.pop(), machine.stack.pop()
    machine.stack.append(_called(machine, callee, args))


def _called(machine: _Machine, callee: Any, args: Any, depth: int = 0) -> Any:
    """Return what a call would have given for the few names that matter, an inert record for all others."""
    if not isinstance(callee, Name) or not isinstance(args, tuple):
        return Made(callee if isinstance(callee, Name) else Name("?", "?"), args)
    if callee.name in ("_rebuild_tensor", "_rebuild_tensor_v2") and len(args) >= 4 and isinstance(args[0], Storage):
        return Made(callee, args) if _outstanding(args) else StoredTensor(*args[:4])
    if callee.name in ("_rebuild_parameter", "_rebuild_parameter_with_state", "Parameter") and args:
        return args[0]
    if callee.name == "_rebuild_from_type_v2" and len(args) >= 3 and depth == 0:
        return _called(machine, args[0], args[2], depth + 1)
    if str(callee) in ("collections.OrderedDict", "builtins.dict", "__builtin__.dict"):
        pairs = machine.copying(args[0]) if args and isinstance(args[0], (list, tuple)) else ()
        return _table([part for pair in pairs if isinstance(pair, (list, tuple)) and len(pair) == 2 for part in pair])
    if str(callee) in ("builtins.set", "__builtin__.set", "builtins.frozenset", "__builtin__.frozenset"):
        return _scalars(machine.copying(args[0])) if args and isinstance(args[0], (list, tuple)) else set()
    if callee.name == "_reconstructor" and args and isinstance(args[0], Name):
        return Made(args[0])
    return Made(callee, args)


def _outstanding(args: tuple[Any, ...]) -> bool:
    """Return whether a tensor's sign or conjugation is not yet in its stored values."""
    return len(args) > 6 and isinstance(args[6], dict) and any(args[6].get(flag) for flag in ("neg", "conj"))


def _build(machine: _Machine, _: Any) -> None:
    state, target = machine.stack.pop(), machine.stack[-1]
    parts = state if isinstance(state, tuple) else (state,)
    if isinstance(target, Made):
        for part in parts:
            if isinstance(part, dict):
                # Shared, not copied, while it is the only part: a state that is set a million times costs nothing.
                target.state = part if not target.state else _joined(machine, target.state, part)


def _joined(machine: _Machine, first: dict[Any, Any], second: dict[Any, Any]) -> dict[Any, Any]:
    if len(first) + len(second) > 10_000:
        raise ValueError("an object with more than 10,000 attributes set in several steps")
    return {**machine.copying(first), **machine.copying(second)}


def _new_object(machine: _Machine, _: Any) -> None:
    args, made = machine.stack.pop(), machine.stack.pop()
    machine.stack.append(_called(machine, made, args))


def _new_object_with_names(machine: _Machine, _: Any) -> None:
    machine.stack.pop()
    _new_object(machine, None)


def _object(machine: _Machine, _: Any) -> None:
    callee, *args = machine.since_mark()
    machine.stack.append(_called(machine, callee, tuple(args)))


def _instance(machine: _Machine, argument: str) -> None:
    module, _, name = argument.partition(" ")
    args = tuple(machine.since_mark())
    machine.stack.append(_called(machine, Name(module, name), args))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**48


_HANDLERS: dict[str, Callable[[_Machine, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda machine, _: None),
    **dict.fromkeys(
        (
            "INT",
            "BININT",
            "BININT1",
            "BININT2",
            "LONG",
            "LONG1",
            "LONG4",
            "FLOAT",
            "BINFLOAT",
            "STRING",
            "BINSTRING",
            "SHORT_BINSTRING",
            "UNICODE",
            "BINUNICODE",
            "SHORT_BINUNICODE",
            "BINUNICODE8",
            "BINBYTES",
            "SHORT_BINBYTES",
            "BINBYTES8",
            "BYTEARRAY8",
        ),
        _push,
    ),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _put),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _get),
    "MARK": _mark,
    "POP": _pop,
    "POP_MARK": lambda machine, _: machine.since_mark() and None,
    "DUP": lambda machine, _: machine.stack.append(machine.stack[-1]),
    "NONE": _constant(lambda: None),
    "NEWTRUE": _constant(lambda: True),
    "NEWFALSE": _constant(lambda: False),
    "EMPTY_LIST": _constant(list),
    "EMPTY_TUPLE": _constant(tuple),
    "EMPTY_DICT": _constant(dict),
    "EMPTY_SET": _constant(set),
    "TUPLE": _from_mark(tuple),
    "TUPLE1": _tuple_of(1),
    "TUPLE2": _tuple_of(2),
    "TUPLE3": _tuple_of(3),
    "LIST": _from_mark(list),
    "DICT": _from_mark(_table),
    "FROZENSET": _from_mark(_scalars),
    "APPEND": _append,
    "APPENDS": lambda machine, _: _extend(machine, machine.since_mark()),
    "ADDITEMS": lambda machine, _: _extend(machine, machine.since_mark()),
    "SETITEM": _set_item,
    "SETITEMS": lambda machine, _: _set_items(machine, machine.since_mark()),
    "MEMOIZE": _memoize,
    "GLOBAL": _global,
    "STACK_GLOBAL": _stack_global,
    "PERSID": lambda machine, argument: machine.stack.append(_persistent_value(argument)),
    "BINPERSID": _persistent,
    "REDUCE": _reduce,
    "BUILD": _build,
    "NEWOBJ": _new_object,
    "NEWOBJ_EX": _new_object_with_names,
    "OBJ": _object,
    "INST": _instance,
}
