"""Opcodes that push numbers and constants."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from ckptctl.formats._pickle import limits
from ckptctl.formats._pickle.table import OPCODES, Handler, op

if TYPE_CHECKING:
    from ckptctl.formats._pickle.machine import Machine


def line(machine: Machine, i: int) -> tuple[bytes, int]:
    """Return the text from index `i` up to a line end, and the index after it."""
    end = machine.buffer.find(b"\n", i, i + limits.MAX_LINE + 1)
    if end < 0:
        if len(machine.buffer) - i > limits.MAX_LINE:
            raise machine.limit(f"has a line of text longer than {limits.MAX_LINE} bytes")
        raise machine.malformed("a line of text has no end", i)
    return machine.buffer[i:end], end + 1


def _constant(value: object) -> Handler:
    def push(machine: Machine, i: int) -> int:
        machine.stack.append(value)
        return i + 1

    return push


def _packed(form: str) -> Handler:
    packed = struct.Struct(form)

    def push(machine: Machine, i: int) -> int:
        machine.stack.append(packed.unpack_from(machine.buffer, i + 1)[0])
        return i + 1 + packed.size

    return push


def number(machine: Machine, i: int, text: bytes, kind: type[int | float]) -> float:
    """Return a number written as decimal text."""
    if len(text) > limits.MAX_DIGITS:
        raise machine.limit(f"has a number of {len(text)} digits (limit {limits.MAX_DIGITS})")
    try:
        return kind(text)
    except ValueError:
        raise machine.malformed(f"{text[:20]!r} is no number", i) from None


@op(b"I")
def _int(machine: Machine, i: int) -> int:
    text, after = line(machine, i + 1)
    # Protocol 0 wrote False and True as these two.
    machine.stack.append(text == b"01" if text in (b"00", b"01") else number(machine, i, text, int))
    return after


@op(b"L")
def _long(machine: Machine, i: int) -> int:
    text, after = line(machine, i + 1)
    machine.stack.append(number(machine, i, text.removesuffix(b"L"), int))
    return after


@op(b"F")
def _float(machine: Machine, i: int) -> int:
    text, after = line(machine, i + 1)
    machine.stack.append(number(machine, i, text, float))
    return after


def _sized_int(form: str) -> Handler:
    sized = struct.Struct(form)

    def push(machine: Machine, i: int) -> int:
        length: int = sized.unpack_from(machine.buffer, i + 1)[0]
        start = i + 1 + sized.size
        if not 0 <= length <= limits.MAX_INT_BYTES:
            raise machine.malformed(f"an integer of {length} bytes (limit {limits.MAX_INT_BYTES})", i)
        raw = machine.buffer[start : start + length]
        if len(raw) != length:
            raise machine.malformed("an integer is cut off", i)
        machine.stack.append(int.from_bytes(raw, "little", signed=True))
        return start + length

    return push


OPCODES[ord("N")] = _constant(None)
OPCODES[0x88] = _constant(True)
OPCODES[0x89] = _constant(False)
OPCODES[ord(")")] = _constant(())
OPCODES[ord("J")] = _packed("<i")
OPCODES[ord("M")] = _packed("<H")
OPCODES[ord("G")] = _packed(">d")
OPCODES[0x8A] = _sized_int("<B")
OPCODES[0x8B] = _sized_int("<i")
