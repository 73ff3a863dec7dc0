"""The one way out: lines for people or one JSON document, never both, all of it on stdout."""

from __future__ import annotations

import enum
import json
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from pathlib import Path

from ckptctl.cli._text import escape
from ckptctl.model import Finding
from ckptctl.values import State, as_json
from ckptctl.values.compare import ValueDiff

_ASCII = str.maketrans({"·": "|", "–": "-", "×": "x", "…": "...", "├": "|", "─": "-", "└": "`", "│": "|",
                        "✓": "+", "✗": "x", "→": "->",
                        "Δ": "d", "█": "#", **dict.fromkeys("▏▎▍▌▋▊▉", "")})  # fmt: skip
_GAP = "   "
_MIN_NAME, _MIN_LAST = 24, 16


class Printer:
    """Prints lines as wide as the terminal, or as wide as they are where there is none."""

    def __init__(self, *, error: bool = False) -> None:
        from rich.console import Console

        self._console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True, stderr=error)
        self.width = max(self._console.width, 60) if self._console.is_terminal else None
        self._ascii = "utf" not in (self._console.encoding or "").lower()

    def line(self, text: str = "", *, style: str | None = None) -> None:
        """Print one line, coloured as a whole where there is a terminal."""
        text = text.translate(_ASCII) if self._ascii else text
        if not text.isprintable():
            text = escape(text, limit=len(text))
        if style and self.width:
            self._console.print(text, style=style)
        else:
            self._console.file.write(text + "\n")

    def paragraph(self, text: str, *, style: str | None = None) -> None:
        """Print a sentence, broken between words where the terminal ends."""
        for part in wrapped(text, self.width):
            self.line(part, style=style)

    def columns(self, rows: Sequence[Sequence[str]], align: str, *, styles: Sequence[str | None] = ()) -> None:
        """Print rows in columns; `align` has ``<`` or ``>`` for each."""
        for index, lines in enumerate(columns(rows, align, width=self.width)):
            for text in lines:
                self.line(text, style=styles[index] if styles else None)


def wrapped(text: str, width: int | None) -> list[str]:
    """Break a text between words, further lines indented; one line if there is no width."""
    if not width or len(text) <= width:
        return [text]
    indent = " " * (len(text) - len(text.lstrip(" ")) + 2)
    return textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def columns(rows: Sequence[Sequence[str]], align: str, *, width: int | None) -> Iterator[list[str]]:
    """Yield the lines of each row, aligned. Where they would not fit, the last column is broken, or the first cut."""
    if not rows:
        return
    from rich.cells import cell_len

    widths = [max(cell_len(row[i]) for row in rows) for i in range(len(align))]
    used = [i for i, w in enumerate(widths) if w]
    if width and used:
        _shrink(widths, align, used, sum(widths[i] for i in used) + len(_GAP) * (len(used) - 1) - width)
    for row in rows:
        yield _lines(row, widths, align, used)


def _shrink(widths: list[int], align: str, used: list[int], over: int) -> None:
    """Take what is too much from the last column, if it is text, and then from the first."""
    last = used[-1]
    if over > 0 and last and align[last] == "<":
        given = min(over, max(widths[last] - _MIN_LAST, 0))
        widths[last] -= given
        over -= given
    if over > 0:
        widths[0] = max(_MIN_NAME, widths[0] - over)


def _lines(row: Sequence[str], widths: list[int], align: str, used: list[int]) -> list[str]:
    if not used:
        return [""]
    *others, last = used
    head = "".join(_fitted(row[i], widths[i], align[i]) + _GAP for i in others)
    if align[last] == ">" or not others or " " not in row[last]:
        return [(head + _fitted(row[last], widths[last], align[last])).rstrip()]
    first, *more = textwrap.wrap(row[last], max(widths[last], 1), break_on_hyphens=False) or [""]
    return [(head + first).rstrip(), *(" " * len(head) + part for part in more)]


def _fitted(text: str, width: int, side: str) -> str:
    """Pad a cell, or cut it in its middle, where dotted names say least."""
    from rich.cells import cell_len, set_cell_size

    length = cell_len(text)
    if length > width:
        half = max(width - 1, 2) // 2
        start, end = set_cell_size(text, max(width - 1, 2) - half), set_cell_size(text[::-1], half)[::-1]
        text = f"{start}…{end}"
        length = cell_len(text)
    pad = " " * (width - length)
    return pad + text if side == ">" else text + pad


def print_json(document: Mapping[str, object]) -> None:
    """Print one JSON document, in ASCII, without NaN; with what stores have sent, where some were asked."""
    told = sys.modules.get("ckptctl.storage.stores")
    if told and told.transferred.requests:
        sent = {"requests": told.transferred.requests, "bytes": told.transferred.nbytes}
        document = {**document, "transferred": sent}
    sys.stdout.write(json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":")) + "\n")


def to_json(value: object) -> object:
    """Turn a report into what JSON has: the only place where that is decided."""
    match value:
        case State(items=items):
            return as_json(dict(items))
        case float():
            return as_json(value)
        case ValueDiff(path=path, a=a, b=b, only=only, unread=unread):
            return {"path": path, "a": as_json(a), "b": as_json(b), "only": only, "unread": unread}
        case Finding():
            said = {name: to_json(getattr(value, name)) for name in ("aspect", "severity", "slug", "where", "message")}
            return {**said, "hint": value.hint}
        case enum.Enum():
            return value.value
        case Path():
            return str(value)
        case datetime():
            return value.isoformat(timespec="seconds")
        case timedelta():
            return value.total_seconds()
        case frozenset():
            return sorted(value)
        case Mapping():
            return {str(to_json(key)): to_json(inner) for key, inner in value.items()}
        case list() | tuple():
            return [to_json(inner) for inner in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    return value


def joined(parts: Iterable[str], separator: str = " · ") -> str:
    """Join those parts that are not empty."""
    return separator.join(part for part in parts if part)
