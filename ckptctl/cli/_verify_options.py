"""The options of `verify`."""

from __future__ import annotations

import enum
from typing import Annotated, Any

import typer

from ckptctl.cli._options import OUTPUT

_HOW = "How far to look"


class Require(enum.Enum):
    """Verdicts on a resume that can be required."""

    EXACT = "exact"
    CONTINUES = "continues"


Quick = Annotated[bool, typer.Option("--quick", help="Structure only.", rich_help_panel=_HOW)]
Values = Annotated[bool, typer.Option("--values", help="Also look for NaN, Inf, dead tensors.", rich_help_panel=_HOW)]
Resume = Annotated[bool, typer.Option("--resume", help="Also say what a resume would find.", rich_help_panel=_HOW)]
Required = Annotated[
    Require | None, typer.Option("--require", help="Fail if a resume is less than this.", rich_help_panel=_HOW)
]
Strict = Annotated[bool, typer.Option("--strict", help="Fail what is unverified.", rich_help_panel=_HOW)]
AllowGlobal = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-global",
        metavar="MODULE.NAME",
        envvar="CKPTCTL_ALLOW_GLOBAL",
        help="A class of your own that is no finding. Repeatable.",
        rich_help_panel=_HOW,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", metavar="N", min=1, max=64, help="Threads that read; as many as processors if not said."),
]
Part = Annotated[
    str | None,
    typer.Option("--part", metavar="I/N", help="Be one worker of several; auto: as the launcher says."),
]
Write = Annotated[bool, typer.Option("--write", help="Write digests of what is good.", rich_help_panel=OUTPUT)]
LatestGood = Annotated[
    bool,
    typer.Option(
        "--latest-good",
        help="Print only the path of a run's newest checkpoint that is complete and undamaged.",
        rich_help_panel=OUTPUT,
    ),
]


def share(part: str | None) -> Any:
    """Return which worker of several this is; None for the only one."""
    if part is None:
        return None
    from ckptctl.storage.share import parse_share

    return parse_share(part)
