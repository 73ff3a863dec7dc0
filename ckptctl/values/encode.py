"""Write the nested plain state as JSON, without loss; `ckptctl.values.decode` reads it back.

docs/reference/values.md describes the form. Plain JSON stands for itself. What JSON cannot say is an object
with one key that begins with ``$``. Tensors are named; long lists of numbers, long bytes and long texts become
tensors of their own.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptctl.errors import LimitError, UnsupportedError
from ckptctl.model import DTYPES, Encoding, Piece, TensorInfo
from ckptctl.storage import MemoryFile
from ckptctl.values import Described, Numbers, Span, TensorRef, key_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ckptctl.model import DType
    from ckptctl.storage import ByteRange

SCHEMA = "ckptctl.values/1"
MAX_TEXT = 16 << 20
MAX_NODES = 1_000_000
_MAX_DEPTH = 100
_LONG = 64
"""Lists of so many numbers become a tensor."""
_INLINE = 4096
"""Bytes up to this length stand in the text."""
NUMBERS = {"BOOL": "?", "I64": "q", "U64": "Q", "F64": "d"}


@dataclass(frozen=True, slots=True)
class Encoded:
    """A state as text, and the tensors that hold what was too long for it."""

    text: str
    tensors: Mapping[str, TensorInfo]


def encode(values: object, *, path: Path, taken: frozenset[str]) -> Encoded:
    """Write a state as JSON; `taken` are the names that tensors have already.

    Raises
    ------
    LimitError
        It is nested too deeply, or too large for a header.
    UnsupportedError
        Something in it cannot be written; the caller should have seen to that.
    """
    encoder = _Encoder(path, taken)
    root = encoder.of(values, "", 0)
    text = json.dumps({"schema": SCHEMA, "root": root}, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    if len(text) > MAX_TEXT or nodes_in(text) > MAX_NODES:
        raise _too_large(path, f"{len(text)} bytes of text, limit {MAX_TEXT}")
    return Encoded(text, encoder.tensors)


def _too_large(path: Path, what: str) -> LimitError:
    message = f"{path}: its plain values are too many for a header ({what})"
    return LimitError(message, hint="--only model takes the weights alone")


def numbers_dtype(items: list[object] | tuple[object, ...]) -> DType | None:
    """Return the dtype that holds all of a long list of numbers of one type, if there is one."""
    if len(items) < _LONG:
        return None
    kinds = set(map(type, items))
    if kinds == {float}:
        return DTYPES["F64"]
    if kinds == {bool}:
        return DTYPES["BOOL"]
    if kinds != {int}:
        return None
    low, high = min(items), max(items)  # type: ignore[type-var]
    if low >= -(1 << 63) and high < 1 << 63:  # type: ignore[operator]
        return DTYPES["I64"]
    return DTYPES["U64"] if low >= 0 and high < 1 << 64 else None  # type: ignore[operator]


class _Encoder:
    def __init__(self, path: Path, taken: frozenset[str]) -> None:
        self.tensors: dict[str, TensorInfo] = {}
        self._path, self._taken = path, taken
        self._left = MAX_NODES

    def of(self, value: object, at: str, depth: int) -> object:
        """Return what stands for a value; `at` is the dotted path that leads to it."""
        # Counted here and not only at the end: what is shared in memory stands in the text once for each place.
        self._left -= 1
        if self._left < 0:
            raise _too_large(self._path, f"more than {MAX_NODES} values")
        if depth > _MAX_DEPTH:
            what = f"{at[:200]} is nested too deeply to be written as JSON (limit {_MAX_DEPTH})"
            raise LimitError(f"{self._path}: {what}", hint="--only model takes the weights alone")
        match value:
            case None | bool() | int() | str():
                return value
            case float():
                return value if math.isfinite(value) else {"$float": str(value)}
            case bytes():
                return self._bytes(value, at)
            case list() | tuple():
                return self._sequence(value, at, depth)
            case dict():
                return self._dict(value, at, depth)
            case TensorRef():
                return self._reference(value, at, depth)
            case Span(range=place, text=text, latin1=latin1):
                encoding = Encoding.LATIN1 if latin1 else Encoding.RAW
                length = place.length if not latin1 else _latin1_length(place)
                return {"$text" if text else "$data": self._stored(at, DTYPES["U8"], place, length, encoding)}
            case Numbers(range=place, dtype=dtype, type=kind):
                count = place.length * 8 // dtype.bits
                return {"$numbers": self._stored(at, dtype, place, count), "type": kind}
            case Described():
                return self._object(value, at, depth)
        raise UnsupportedError(f"{self._path}: {at[:200]} is a {type(value).__name__}, which cannot be written as JSON")

    def _bytes(self, value: bytes, at: str) -> object:
        if len(value) <= _INLINE:
            return {"$bytes": base64.b64encode(value).decode()}
        return {"$data": self._stored(at, DTYPES["U8"], self._memory(value), len(value))}

    def _sequence(self, value: list[object] | tuple[object, ...], at: str, depth: int) -> object:
        kind = "tuple" if isinstance(value, tuple) else "list"
        dtype = numbers_dtype(value)
        if dtype:
            raw = struct.pack(f"<{len(value)}{NUMBERS[dtype.name]}", *value)
            return {"$numbers": self._stored(at, dtype, self._memory(raw), len(value)), "type": kind}
        # A tuple is two levels of JSON.
        deeper = depth + 1 + (kind == "tuple")
        items = [self.of(inner, _below(at, index), deeper) for index, inner in enumerate(value)]
        return {"$tuple": items} if kind == "tuple" else items

    def _dict(self, value: Mapping[object, object], at: str, depth: int) -> object:
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {str(key): self.of(inner, _below(at, key), depth + 1) for key, inner in value.items()}
        pairs = [
            [self.of(key, at, depth + 3), self.of(inner, _below(at, key), depth + 3)] for key, inner in value.items()
        ]
        return {"$dict": pairs}

    def _reference(self, ref: TensorRef, at: str, depth: int) -> object:
        made: dict[str, object] = {"$tensor": ref.name}
        if ref.type != "torch.Tensor":
            made["class"] = ref.type
        if ref.requires_grad:
            made["requires_grad"] = True
        if ref.state is not None:
            made["state"] = self.of(ref.state, at, depth + 1)
        return made

    def _object(self, value: Described, at: str, depth: int) -> object:
        made: dict[str, object] = {"$object": value.type}
        if value.how != "call":
            made["how"] = value.how
        if value.args:
            made["args"] = [self.of(inner, _below(at, f"({i})"), depth + 2) for i, inner in enumerate(value.args)]
        if value.items is not None:
            made["items"] = self.of(value.items, at, depth + 1)
        if value.state is not None:
            made["state"] = self.of(value.state, at, depth + 1)
        return made

    def _memory(self, data: bytes) -> ByteRange:
        return MemoryFile(data, path=self._path).range()

    def _stored(self, at: str, dtype: DType, place: ByteRange, count: int, encoding: Encoding = Encoding.RAW) -> str:
        """Enter a tensor of one dimension, under a name that nobody has."""
        name, number = at or "values", 1
        while name in self._taken or name in self.tensors:
            number += 1
            name = f"{at or 'values'}#{number}"
        piece = Piece(range=place, offsets=(0,), shape=(count,), encoding=encoding)
        self.tensors[name] = TensorInfo(name=name, dtype=dtype, shape=(count,), pieces=(piece,))
        return name


def nodes_in(text: str) -> int:
    """Return about how many values a JSON text holds, at least."""
    return text.count(",") + text.count("[") + text.count("{")


def _below(at: str, key: object) -> str:
    text = key_text(key)
    return f"{at}.{text}" if at else text


def _latin1_length(place: ByteRange) -> int:
    """Return how many bytes a text stands for that has a character for each."""
    total, block = 0, 1 << 20
    for start in range(0, place.length, block):
        # Every character has one byte that does not continue another.
        total += sum((byte & 0xC0) != 0x80 for byte in place.read(start, min(block, place.length - start)))
    return total
