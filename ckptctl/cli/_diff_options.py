"""The options of `diff`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ckptctl.cli._options import OUTPUT
from ckptctl.errors import UsageError
from ckptctl.storage import address

if TYPE_CHECKING:
    from ckptctl.tensors.tolerance import Tolerance

_EQUAL, _NAMES = "What counts as equal", "Names"

A = Annotated[Path, typer.Argument(parser=address, metavar="A", help="A file or a checkpoint directory.")]
B = Annotated[Path, typer.Argument(parser=address, metavar="B", help="Another one, of whatever format.")]
Close = Annotated[
    bool,
    typer.Option("--close", help="Numbers that are close: by default as their types suggest.", rich_help_panel=_EQUAL),
]
Rtol = Annotated[
    float | None,
    typer.Option("--rtol", metavar="X", min=0, help="Relative to A; implies --close.", rich_help_panel=_EQUAL),
]
Atol = Annotated[
    float | None, typer.Option("--atol", metavar="X", min=0, help="Absolute; implies --close.", rich_help_panel=_EQUAL)
]
DtypeTolerant = Annotated[
    bool, typer.Option("--dtype-tolerant", help="A cast copy and its origin.", rich_help_panel=_EQUAL)
]
Map = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="REGEX=REPL",
        help="Substitute in names of A, in order. Repeatable.",
        rich_help_panel=_NAMES,
    ),
]
StripPrefix = Annotated[
    list[str] | None,
    typer.Option(
        "--strip-prefix", metavar="PREFIX", help="Cut off names of both sides. Repeatable.", rich_help_panel=_NAMES
    ),
]
All = Annotated[bool, typer.Option("--all", help="List what is equal too.", rich_help_panel=OUTPUT)]
Depth = Annotated[
    int | None,
    typer.Option("--depth", metavar="N", min=1, help="Roll modules up to so many names.", rich_help_panel=OUTPUT),
]
Top = Annotated[
    int, typer.Option("--top", metavar="N", min=0, help="So many of each kind are shown.", rich_help_panel=OUTPUT)
]


def tolerance_of(close: bool, rtol: float | None, atol: float | None) -> Tolerance | None:
    """Return what is close; None if bits are to be compared.

    Raises
    ------
    UsageError
        A number is no number, or infinite: then all would be close.
    """
    from ckptctl.tensors.tolerance import Tolerance

    if not all(math.isfinite(one) for one in (rtol, atol) if one is not None):
        raise UsageError("--rtol and --atol take finite numbers")
    return Tolerance(rtol=rtol, atol=atol) if close or rtol is not None or atol is not None else None
