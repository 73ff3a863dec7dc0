"""Write a pickle of protocol 2 with the opcodes that ``torch.save`` uses, and no others.

What is nested is written without recursion: whatever opens a container returns the values inside it one by
one, and writes what is needed between them and after them.
"""

from __future__ import annotations

import struct
from itertools import islice
from typing import TYPE_CHECKING, Any

from ckptctl.errors import LimitError, UnsupportedError
from ckptctl.values import Elided, Numbers, Span, Token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    Opener = Callable[["Writer", Any], Iterable[object] | None]

MAX_BYTES = 200 << 20
_BATCH = 1000
"""Items put into a list or dict at once, as Python does it."""
_PIECE = 1 << 20
_SHORT = 256
"""Texts up to this length (in bytes) are written once and referred to thereafter."""
_MARK, _APPEND, _APPENDS, _SETITEM, _SETITEMS = b"(", b"a", b"e", b"s", b"u"
_TUPLES = {1: b"\x85", 2: b"\x86", 3: b"\x87"}
_CODES = {"BOOL": "?", "I64": "q", "U64": "Q", "F64": "d"}


class Writer:
    """Appends values to a pickle in memory, of at most `most` bytes.

    `openers` say how types beyond the plain ones are written.
    """

    def __init__(self, openers: Mapping[type, Opener], most: int = MAX_BYTES) -> None:
        self.out = bytearray(b"\x80\x02")
        self._openers = {**_PLAIN, **openers}
        self._most = most
        self._memo: dict[object, bytes] = {}
        self._kept: list[object] = []

    def pickle(self, root: object) -> bytearray:
        """Return the whole pickle of a value.

        Raises
        ------
        UnsupportedError
            It holds what cannot be written.
        LimitError
            It becomes too long.
        """
        todo: list[Iterator[object]] = [iter((root,))]
        while todo:
            for value in todo[-1]:
                inner = self._open(value)
                if inner is not None:
                    self.need(0)
                    todo.append(iter(inner))
                    break
            else:
                todo.pop()
        self.out += b"."
        self.need(0)
        return self.out

    def need(self, length: int) -> None:
        """Make sure that there is room for so many bytes more."""
        if len(self.out) + length > self._most:
            raise LimitError(
                f"a pickle of more than {self._most} bytes",
                hint="--plain turns arrays into tensors, which have no such limit",
            )

    def put(self, key: object) -> None:
        """Remember what was just made under `key`, any hashable value but an integer."""
        number = len(self._memo)
        short = number < 256
        self.out += b"q" + bytes((number,)) if short else b"r" + struct.pack("<I", number)
        self._memo[key] = b"h" + bytes((number,)) if short else b"j" + struct.pack("<I", number)

    def get(self, key: object) -> bool:
        """Push what was put under `key`; return whether there was anything."""
        found = self._memo.get(key)
        if found is None:
            return False
        self.out += found
        return True

    def keep(self, value: object) -> None:
        """Remember an object that was just made, so that another reference to it becomes one."""
        self._kept.append(value)  # its id must not be given to another
        self.put(id(value))

    def name(self, module: str, name: str) -> None:
        """Push a global. Whether it may be trusted is for the caller to know."""
        if not self.get((module, name)):
            self.out += f"c{module}\n{name}\n".encode()
            self.put((module, name))

    def text(self, value: str) -> None:
        """Push text."""
        if self.get(value):
            return
        raw = value.encode("utf-8", "surrogatepass")
        self.need(len(raw))
        self.out += b"X" + struct.pack("<I", len(raw)) + raw
        if len(raw) <= _SHORT:
            self.put(value)

    def whole(self, value: int) -> None:
        """Push an integer of any size."""
        if 0 <= value < 1 << 16:
            self.out += b"K" + bytes((value,)) if value < 256 else b"M" + struct.pack("<H", value)
        elif -(1 << 31) <= value < 1 << 31:
            self.out += b"J" + struct.pack("<i", value)
        else:
            bits = (value if value >= 0 else ~value).bit_length()
            raw = value.to_bytes(bits // 8 + 1, "little", signed=True)
            short = len(raw) < 256
            self.out += (b"\x8a" + bytes((len(raw),)) if short else b"\x8b" + struct.pack("<i", len(raw))) + raw

    def flag(self, value: object) -> None:
        """Push a bool."""
        self.out += b"\x88" if value else b"\x89"

    def wholes(self, values: tuple[int, ...]) -> None:
        """Push a tuple of integers."""
        self._mark_tuple(len(values))
        for value in values:
            self.whole(value)
        self._end_tuple(len(values))

    def raw(self, pieces: Iterable[bytes], most: int) -> None:
        """Push bytes that come in pieces, `most` in all, as the text that protocol 2 makes of them."""
        self.name("_codecs", "encode")
        self.need(most)
        self._long(piece.decode("latin1").encode() for piece in pieces)
        self.text("latin1")
        self.out += b"\x86R"

    def pairs(self, items: Iterable[tuple[object, object]]) -> Iterator[object]:
        """Put items into the mapping on top."""
        rest = iter(items)
        while batch := list(islice(rest, _BATCH)):
            self.out += _MARK if len(batch) > 1 else b""
            for key, value in batch:
                yield key
                yield value
            self.out += _SETITEMS if len(batch) > 1 else _SETITEM

    def items(self, values: Iterable[object] | Numbers) -> Iterator[object]:
        """Append values to what is on top."""
        if isinstance(values, Numbers):
            self.numbers(values)
            return
        rest = iter(values)
        while batch := list(islice(rest, _BATCH)):
            self.out += _MARK if len(batch) > 1 else b""
            yield from batch
            self.out += _APPENDS if len(batch) > 1 else _APPEND

    def numbers(self, value: Numbers, *, batch: int = _BATCH) -> None:
        """Append numbers to what is on top, so many at once; with 0, leave them above it."""
        width = value.dtype.bits // 8
        step = (batch or _PIECE // 8) * width
        for start in range(0, value.range.length, step):
            raw = value.range.read(start, min(step, value.range.length - start))
            self.need(2 * len(raw))
            self.out += _MARK if batch else b""
            self._numbers(value.dtype.name, raw)
            self.out += _APPENDS if batch else b""

    def _numbers(self, dtype: str, raw: bytes) -> None:
        if dtype == "F64":
            big = bytearray(len(raw) // 8 * 9)
            big[0::9] = b"G" * (len(raw) // 8)
            for place in range(8):
                big[1 + place :: 9] = raw[7 - place :: 8]
            self.out += big
        elif dtype == "BOOL":
            self.out += bytes(0x88 if item else 0x89 for item in raw)
        else:
            for (item,) in struct.iter_unpack(f"<{_CODES[dtype]}", raw):
                self.whole(item)

    def _open(self, value: object) -> Iterable[object] | None:
        kind = type(value)
        if kind is str:
            self.text(value)  # type: ignore[arg-type]
        elif value is None:
            self.out += b"N"
        elif kind is bool:
            self.flag(value)
        elif kind is int:
            self.whole(value)  # type: ignore[arg-type]
        elif kind is float:
            self.out += b"G" + struct.pack(">d", value)
        elif not self.get(id(value)):
            opener = self._openers.get(kind)
            if opener is None:
                raise UnsupportedError(f"a {kind.__name__} cannot be written to a pickle")
            return opener(self, value)
        return None

    def _long(self, pieces: Iterable[bytes]) -> None:
        """Push UTF-8 text that comes in pieces."""
        self.out += b"X\0\0\0\0"
        start = len(self.out)
        for piece in pieces:
            self.need(len(piece))
            self.out += piece
        struct.pack_into("<I", self.out, start - 4, len(self.out) - start)

    def list_of(self, value: list[object]) -> Iterator[object]:
        """Push a list."""
        self.out += b"]"
        self.keep(value)
        return self.items(value)

    def dict_of(self, value: dict[object, object]) -> Iterator[object]:
        """Push a dict."""
        self.out += b"}"
        self.keep(value)
        return self.pairs(value.items())

    def tuple_of(self, value: tuple[object, ...]) -> Iterator[object]:
        """Push a tuple."""
        self._mark_tuple(len(value))
        yield from value
        self._end_tuple(len(value))
        if value:
            self.keep(value)

    def span(self, value: Span) -> None:
        """Push text or bytes that lie in a file."""
        length = value.range.length
        self.need(length)
        pieces = (value.range.read(at, min(_PIECE, length - at)) for at in range(0, length, _PIECE))
        if value.text:
            self._long(pieces)
        elif value.latin1:
            self.name("_codecs", "encode")
            self._long(pieces)
            self.text("latin1")
            self.out += b"\x86R"
        else:
            self.raw(pieces, length)

    def numbers_of(self, value: Numbers) -> None:
        """Push a list or tuple of numbers."""
        if value.type == "tuple":
            count = value.range.length * 8 // value.dtype.bits
            self._mark_tuple(count)
            self.numbers(value, batch=0)
            self._end_tuple(count)
        else:
            self.out += b"]"
            self.numbers(value)

    def _mark_tuple(self, count: int) -> None:
        self.out += _MARK if count > 3 else b""

    def _end_tuple(self, count: int) -> None:
        self.out += _TUPLES.get(count, b"t") if count else b")"


def _refused(writer: Writer, value: Elided | Token) -> None:
    what = f"what was left out ({value.why})" if isinstance(value, Elided) else f"a key that is no plain value, {value}"
    raise UnsupportedError(f"{what} cannot be written to a pickle")


_PLAIN: dict[type, Opener] = {
    list: Writer.list_of,
    dict: Writer.dict_of,
    tuple: Writer.tuple_of,
    bytes: lambda writer, value: writer.raw((value,), len(value)),
    Span: Writer.span,
    Numbers: Writer.numbers_of,
    Elided: _refused,
    Token: _refused,
}
