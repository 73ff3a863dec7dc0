"""How names, sizes and counts are written for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptctl.errors import printable

if TYPE_CHECKING:
    from datetime import datetime

_LIMIT = 200
_LONG_NUMBER = 10**15
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
_COUNTS = ("", " k", " M", " G", " T", " P", " E")


def escape(text: str, *, limit: int = _LIMIT) -> str:
    """Return text from a file so that a terminal shows it and does nothing else: no control, no bidi marks."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return printable(text.replace("\\", "\\\\"))


def size(nbytes: int) -> str:
    """Return a number of bytes in decimal units, as the hubs print them."""
    return _scaled(nbytes, _UNITS, " ")


def count(number: int) -> str:
    """Return a number of elements, shortened: 124.4 M."""
    return _scaled(number, _COUNTS, "")


def number(value: float) -> str:
    """Return a plain number: thousands separated, floats to four digits."""
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < _LONG_NUMBER else escape(str(value), limit=24)
    return f"{value:.4g}"


def plural(amount: int, what: str) -> str:
    """Return an amount with its noun."""
    return f"{amount:,} {what}" + ("" if amount == 1 else "s")


def age(now: datetime, then: datetime) -> str:
    """Return how long ago something was, in its largest unit; what lies in the future is zero seconds old."""
    seconds = max(int((now - then).total_seconds()), 0)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length or (unit == "min" and seconds >= length):
            return f"{seconds // length:,} {unit}"
    return f"{seconds} s"


def _scaled(value: int, units: tuple[str, ...], space: str) -> str:
    if value < 1000:
        return f"{value}{space}{units[0]}"
    scaled, power = float(value), 0
    while scaled >= 999.95 and power < len(units) - 1:
        scaled /= 1000
        power += 1
    digits = 2 if scaled < 9.995 and power >= 3 else 1
    return f"{scaled:,.{digits}f}{space}{units[power]}"
