"""The one way out: lines for people or one JSON document, never both, all of it on stdout."""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path

from ckptctl.values import Described, Elided, Span, TensorRef, as_json

_ASCII = str.maketrans({"·": "|", "–": "-", "×": "x", "…": "...", "├": "|", "─": "-", "└": "`", "│": "|"})
_GAP = "   "
_MIN_NAME = 24


class Printer:
    """Prints lines as wide as the terminal, or as wide as they are where there is none."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        self.width = max(self._console.width, 60) if self._console.is_terminal else None
        self._ascii = "utf" not in (self._console.encoding or "").lower()

    def line(self, text: str = "", *, style: str | None = None) -> None:
        """Print one line, coloured as a whole where there is a terminal."""
        text = text.translate(_ASCII) if self._ascii else text
        if style and self.width:
            self._console.print(text, style=style)
        else:
            self._console.file.write(text + "\n")

    def columns(self, rows: Sequence[Sequence[str]], align: str, *, styles: Sequence[str | None] = ()) -> None:
        """Print rows in columns; `align` has ``<`` or ``>`` for each. The first column gives way."""
        for index, text in enumerate(columns(rows, align, width=self.width)):
            self.line(text, style=styles[index] if styles else None)


def columns(rows: Sequence[Sequence[str]], align: str, *, width: int | None) -> Iterator[str]:
    """Yield rows as lines of aligned columns, the first one shortened if they would not fit."""
    if not rows:
        return
    from rich.cells import cell_len

    widths = [max(cell_len(row[i]) for row in rows) for i in range(len(align))]
    used = [i for i, w in enumerate(widths) if w]
    if width and used:
        over = sum(widths[i] for i in used) + len(_GAP) * (len(used) - 1) - width
        last = used[-1]
        if over > 0 and last and align[last] == "<" and widths[last] > over + 8:
            widths[last] -= over
        elif over > 0:
            widths[0] = max(_MIN_NAME, widths[0] - over)
    for row in rows:
        cells = [_fitted(row[i], widths[i], align[i], cell_len(row[i])) for i in used]
        yield _GAP.join(cells).rstrip()


def _fitted(text: str, width: int, side: str, length: int) -> str:
    """Pad a cell, or cut it in its middle, where dotted names say least."""
    if length > width:
        half = max(width - 1, 2) // 2
        text = text[: max(width - 1, 2) - half] + "…" + text[-half:]
        length = width
    pad = " " * (width - length)
    return pad + text if side == ">" else text + pad


def print_json(document: Mapping[str, object]) -> None:
    """Print one JSON document, in ASCII, without NaN."""
    json.dump(document, sys.stdout, ensure_ascii=True, allow_nan=False, indent=2)
    sys.stdout.write("\n")


def to_json(value: object) -> object:
    """Turn a report into what JSON has: the only place where that is decided."""
    match value:
        case TensorRef() | Described() | Span() | Elided() | float():
            return as_json(value)
        case enum.Enum():
            return value.value
        case Path():
            return str(value)
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
