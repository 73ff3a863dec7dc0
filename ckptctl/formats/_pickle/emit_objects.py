"""Described objects in a pickle: only what our own tables trust, whatever the description says of itself."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING

from ckptctl.errors import UnsupportedError
from ckptctl.formats._pickle.emit_tensors import ARRAY, STORAGE_TYPES, push_dtype
from ckptctl.formats._pickle.levels import level_of
from ckptctl.formats._pickle.records import Global
from ckptctl.model import Level, dtype_of_torch
from ckptctl.values import Described, Numbers, Span, TensorRef, children, is_module

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ckptctl.formats._pickle.writer import Writer

_MADE_FROM_ITEMS = frozenset({("builtins", name) for name in ("set", "frozenset", "list", "tuple")})
_COUNTER = ("collections", "Counter")
_DEQUE = ("collections", "deque")
# Known to the tables because torch writes them around tensors, which have references of their own: as objects
# they would call, or read as a file, what they are given.
_NEVER = frozenset(
    {"torch._utils", "torch._tensor", "torch.jit._pickle", "torch.nested._internal.nested_tensor"},
)
_NEVER_PAIRS = frozenset({("torch.storage", "_load_from_bytes"), ("builtins", "getattr")})
# Named by others, never made: an array of any size would be allocated from a few bytes.
_NEVER_MADE = frozenset({("numpy", "ndarray")})
_SCALARS = {
    "bool": ("b1", "?"), "str_": ("U", "U"), "int8": ("i1", "b"), "uint8": ("u1", "B"), "int16": ("i2", "h"),
    "uint16": ("u2", "H"), "int32": ("i4", "i"), "uint32": ("u4", "I"), "int64": ("i8", "q"), "uint64": ("u8", "Q"),
    "float16": ("f2", "e"), "float32": ("f4", "f"), "float64": ("f8", "d"),
}  # fmt: skip
"""The dtype of each NumPy scalar, and how ``struct`` packs it."""
_LATIN1 = ("latin1", "latin-1")


def open_described(writer: Writer, item: Described) -> Iterable[object]:
    """Push what a description stands for.

    Raises
    ------
    UnsupportedError
        It names a global that is not trusted, or was made in a way that cannot be repeated.
    """
    if is_module(item):
        return _state_dict(writer, item)
    if item.type == "type":
        named = item.args[0] if len(item.args) == 1 else None
        writer.name(*trusted(named if isinstance(named, str) else "a computed type"))
        return ()
    module, _, name = item.type.rpartition(".")
    spec = _SCALARS.get(name) if module == "numpy" else None
    if spec:
        return _scalar(writer, item, *spec)
    return _object(writer, item, trusted(item.type))


def trusted(name: str) -> tuple[str, str]:
    """Return module and name of a global, if the tables know it and calling it runs nothing but itself."""
    module, _, last = name.rpartition(".")
    level = level_of(Global(module, last))
    refused = module in _NEVER or (module, last) in _NEVER_PAIRS
    if refused or level not in (Level.KNOWN, Level.INERT):
        raise UnsupportedError(f"{name} is not written to a pickle: it is not known to be safe to load")
    return module, last


def _object(writer: Writer, item: Described, pair: tuple[str, str]) -> Iterator[object]:
    """Class, arguments, the call; then what was put into it, and its attributes."""
    if item.how not in ("call", "new"):
        raise UnsupportedError(f"{item.type} is made in a way ({item.how}) that is not written to a pickle")
    _check(item, pair)
    args, items = _arguments(item, pair)
    writer.name(*pair)
    yield args
    writer.out += b"\x81" if item.how == "new" and pair not in _MADE_FROM_ITEMS else b"R"
    writer.keep(item)
    if isinstance(items, dict):
        yield from writer.pairs(items.items())
    elif isinstance(items, (list, tuple, Numbers)):
        yield from writer.items(items)
    if item.state is not None:
        yield item.state
        writer.out += b"b"


def _arguments(item: Described, pair: tuple[str, str]) -> tuple[tuple[object, ...], object]:
    """Return what goes to the constructor, and what is put in thereafter, as Python's own pickles have it."""
    if pair in _MADE_FROM_ITEMS:
        return (item.items if item.items is not None else [], *item.args), None
    if pair == _DEQUE:
        return ((), *item.args), item.items
    if pair == _COUNTER and item.how == "call":
        return (item.items or {}, *item.args), None
    return item.args, item.items


def _check(item: Described, pair: tuple[str, str]) -> None:
    """Refuse arguments with which a trusted class does something else, and descriptions that are not whole."""
    if pair in _NEVER_MADE or (pair[0] == "torch" and dtype_of_torch(pair[1])):
        raise UnsupportedError(f"{item.type} is nothing that a pickle may call")
    if isinstance(item.state, dict) and any(isinstance(key, str) and key.startswith("__") for key in item.state):
        raise UnsupportedError(f"a state of {item.type} sets what no attribute of its own is called")
    match pair, item.args:
        case ("builtins", "bytearray"), () | (bytes(),) | (Span(text=False),):
            return
        case ("builtins", "bytearray") | ("_codecs", "encode"), (str() | Span(text=True), str(encoding)):
            if encoding in _LATIN1:
                return
        case ("builtins", "bytearray") | ("_codecs", "encode"), _:
            pass
        case ("numpy", "dtype"), _ if isinstance(item.state, dict):
            raise UnsupportedError("a numpy.dtype with attributes cannot be written")
        case _:
            return
    raise UnsupportedError(f"{item.type} with other arguments than bytes is not written to a pickle")


def _scalar(writer: Writer, item: Described, spec: str, code: str) -> tuple[()]:
    """A NumPy scalar: its dtype and its bytes."""
    value = item.args[0] if len(item.args) == 1 else None
    if code == "U" and isinstance(value, str):
        raw = struct.pack(f"<{len(value)}I", *map(ord, value))
        spec = f"U{len(value)}"
    elif type(value) is {"?": bool, "e": float, "f": float, "d": float}.get(code, int):
        try:
            raw = struct.pack(f"<{code}", value)
        except (struct.error, OverflowError):
            raise UnsupportedError(f"{value!r:.80} is no {item.type}") from None
    else:
        raise UnsupportedError(f"{item.type} is made from something that is no such value")
    writer.name("numpy._core.multiarray", "scalar")
    push_dtype(writer, spec)
    writer.raw((raw,), len(raw))
    writer.out += b"\x86R"
    return ()


def _state_dict(writer: Writer, module: Described) -> Iterator[object]:
    """In place of a module, an OrderedDict of the tensors below it, by their dotted names."""
    writer.name("collections", "OrderedDict")
    writer.out += b")R"
    writer.keep(module)
    yield from writer.pairs(_tensors_below(module))


def _tensors_below(module: Described) -> Iterator[tuple[object, object]]:
    """Yield name and reference of each tensor; a parameter is a plain tensor there."""
    todo = [("", children(module))]
    seen: set[int] = {id(module)}
    while todo:
        prefix, inside = todo[-1]
        for key, value in inside:
            path = f"{prefix}{key}"
            if isinstance(value, TensorRef):
                kept = value.type == ARRAY or value.type in STORAGE_TYPES
                yield path, value if kept else replace(value, type="torch.Tensor", requires_grad=False, state=None)
                value = value.state  # noqa: PLW2901  # what hangs on it may hold further tensors
            if isinstance(value, (dict, list, tuple, Described)) and id(value) not in seen:
                seen.add(id(value))
                todo.append((f"{path}.", children(value)))
                break
        else:
            todo.pop()
