"""Damage to files: what a fuzzer does to bytes, and to the lengths and texts that formats are made of."""

from __future__ import annotations

import random
import re
import struct
import zlib
from collections.abc import Callable

_NUMBERS = (
    0,
    1,
    7,
    0x7F,
    0x80,
    0xFF,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    1 << 40,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
)
_WORDS = (b"", b"-1", b"0", b"1e999", b"NaN", b"null", b"true", b"[]", b"{}", b'""', b"9" * 30, b"[" * 40, b'"\\ud800"',
          b'"\\u001b]0;x\\u0007"', b'"../../x"', b"18446744073709551616")  # fmt: skip
_TOKEN = re.compile(rb'-?\d+|"(?:[^"\\]|\\.)*"|true|false|null')


def flip(raw: bytearray, chosen: random.Random) -> None:
    """Change some bits."""
    for _ in range(chosen.choice((1, 1, 1, 2, 8, 64))):
        raw[chosen.randrange(len(raw))] ^= 1 << chosen.randrange(8)


def overwrite(raw: bytearray, chosen: random.Random) -> None:
    """Write over a stretch: zeros, ones, or anything."""
    at, count = chosen.randrange(len(raw)), chosen.choice((1, 2, 4, 8, 16, 64, 512, 4096))
    kind = chosen.randrange(3)
    raw[at : at + count] = (b"\0" * count, b"\xff" * count, chosen.randbytes(count))[kind][: len(raw) - at]


def number(raw: bytearray, chosen: random.Random) -> None:
    """Write a number at which arithmetic breaks."""
    width = chosen.choice((1, 2, 4, 8))
    value = chosen.choice(_NUMBERS) & ((1 << 8 * width) - 1)
    at = chosen.randrange(max(len(raw) - width, 1))
    raw[at : at + width] = value.to_bytes(width, chosen.choice(("little", "big")))


def cut(raw: bytearray, chosen: random.Random) -> None:
    """Take away the end, or a stretch."""
    at = chosen.randrange(len(raw))
    end = len(raw) if chosen.random() < 0.5 else at + chosen.choice((1, 2, 8, 64, 512))
    del raw[at:end]


def insert(raw: bytearray, chosen: random.Random) -> None:
    """Put in something that is there already, or anything."""
    at, count = chosen.randrange(len(raw)), chosen.choice((1, 2, 8, 64, 512))
    start = chosen.randrange(len(raw))
    raw[at:at] = raw[start : start + count] if chosen.random() < 0.6 else chosen.randbytes(count)


def swap(raw: bytearray, chosen: random.Random) -> None:
    """Exchange two stretches of the same length."""
    count = chosen.choice((1, 4, 8, 64, 512))
    one, other = sorted(chosen.randrange(max(len(raw) - count, 1)) for _ in range(2))
    raw[one : one + count], raw[other : other + count] = raw[other : other + count], raw[one : one + count]


def token(raw: bytearray, chosen: random.Random) -> None:
    """Replace a number, a text or a word of JSON; the header of a safetensors file keeps its length right."""
    start, end = 0, min(len(raw), 1 << 20)
    header = len(raw) > 9 and raw[8:9] == b"{"
    if header:
        start, end = 8, min(8 + struct.unpack("<Q", raw[:8])[0], len(raw))
    found = list(_TOKEN.finditer(raw, start, end))
    if not found:
        return flip(raw, chosen)
    one, other, before = chosen.choice(found), chosen.choice(found), len(raw)
    raw[one.start() : one.end()] = chosen.choice(_WORDS) if chosen.random() < 0.6 else other[0]
    if header:
        raw[:8] = struct.pack("<Q", end - 8 + len(raw) - before)
    return None


def member(raw: bytearray, chosen: random.Random) -> None:
    """Change bytes of a stored member of a zip and make its CRC right again, as only an attacker does."""
    heads = [one.start() for one in re.finditer(rb"PK\x03\x04", raw)]
    if not heads:
        return flip(raw, chosen)
    at = chosen.choice(heads)
    if at + 30 > len(raw):
        return None
    method, crc, size, _, name, extra = struct.unpack("<H4xIIIHH", raw[at + 8 : at + 30])
    start = at + 30 + name + extra
    if method or not size or start + size > len(raw):
        return flip(raw, chosen)
    body = raw[start : start + size]
    chosen.choice((flip, overwrite, number, swap))(body, chosen)
    raw[start : start + size] = body[:size].ljust(size, b"\0")
    new = struct.pack("<I", zlib.crc32(raw[start : start + size]))
    old = struct.pack("<I", crc)
    for one in [one.start() for one in re.finditer(re.escape(old), raw)]:
        if not start <= one < start + size:
            raw[one : one + 4] = new
    return None


KINDS: tuple[Callable[[bytearray, random.Random], None], ...] = (
    flip, overwrite, number, cut, insert, swap, token, member,
)  # fmt: skip


def mutated(raw: bytes, chosen: random.Random) -> tuple[bytes, str]:
    """Return damaged bytes, and how they were damaged."""
    made, names = bytearray(raw), []
    for _ in range(chosen.choice((1, 1, 1, 2, 3))):
        kind = chosen.choice(KINDS)
        if not made:
            break
        kind(made, chosen)
        names.append(kind.__name__)
    return bytes(made), "+".join(names)
