"""Opcodes that push text and bytes; what is long stays in the file."""

from __future__ import annotations

import codecs
import struct
from typing import TYPE_CHECKING

from ckptctl.formats._pickle import limits
from ckptctl.formats._pickle.literals import line
from ckptctl.formats._pickle.records import Span
from ckptctl.formats._pickle.table import OPCODES, Handler, op

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptctl.formats._pickle.machine import Machine


def as_text(machine: Machine, i: int, raw: bytes) -> str:
    """Decode UTF-8; half surrogates pass, as pickle writes them."""
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise machine.malformed("a string is not UTF-8", i) from None


def _text_or_bytes(machine: Machine, i: int, raw: bytes) -> str | bytes:
    """A Python 2 str: text if it can be."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _as_bytes(machine: Machine, i: int, raw: bytes) -> bytes:
    return raw


def _sized(form: str, make: Callable[[Machine, int, bytes], object], *, text: bool) -> Handler:
    """A length and that many bytes, pushed as what `make` makes of them, or left in the file if long."""
    sized = struct.Struct(form)
    most = limits.LONG_TEXT if text else limits.LONG_BYTES

    def push(machine: Machine, i: int) -> int:
        length: int = sized.unpack_from(machine.buffer, i + 1)[0]
        start = i + 1 + sized.size
        left = machine.source.length - machine.base - start
        if not 0 <= length <= left:
            raise machine.malformed(f"a string of {length} bytes where {left} are left", i)
        if length > most:
            machine.stack.append(Span(range=machine.source.sub(machine.base + start, length), text=text))
            return _skip(machine, start + length)
        raw = machine.buffer[start : start + length]
        if len(raw) < length:
            raw = machine.source.read(machine.base + start, length)
        machine.stack.append(make(machine, i, raw))
        return _skip(machine, start + length)

    return push


def _skip(machine: Machine, i: int) -> int:
    """Return index `i`, moving the window there first if it lies outside."""
    return i if i <= len(machine.buffer) else machine.refill(i)


PUSH_BYTES8 = _sized("<Q", _as_bytes, text=False)


@op(b"S")
def _string(machine: Machine, i: int) -> int:
    raw, after = line(machine, i + 1)
    if len(raw) < 2 or raw[:1] != raw[-1:] or raw[:1] not in (b"'", b'"'):
        raise machine.malformed("a string lacks its quotes", i)
    try:
        decoded = codecs.escape_decode(raw[1:-1])[0]
    except ValueError:
        raise machine.malformed("a string has a bad escape", i) from None
    machine.stack.append(_text_or_bytes(machine, i, decoded))
    return after


@op(b"V")
def _unicode(machine: Machine, i: int) -> int:
    raw, after = line(machine, i + 1)
    try:
        machine.stack.append(raw.decode("raw-unicode-escape"))
    except UnicodeDecodeError:
        raise machine.malformed("a string has a bad escape", i) from None
    return after


OPCODES[ord("X")] = _sized("<I", as_text, text=True)
OPCODES[0x8C] = _sized("<B", as_text, text=True)
OPCODES[0x8D] = _sized("<Q", as_text, text=True)
OPCODES[ord("B")] = _sized("<I", _as_bytes, text=False)
OPCODES[ord("C")] = _sized("<B", _as_bytes, text=False)
OPCODES[0x8E] = PUSH_BYTES8
OPCODES[ord("T")] = _sized("<i", _text_or_bytes, text=False)
OPCODES[ord("U")] = _sized("<B", _text_or_bytes, text=False)
