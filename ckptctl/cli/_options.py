"""Options that mean the same on every command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ckptctl.model import Component
from ckptctl.storage import address

SELECT, OUTPUT = "What to select", "Output"

Paths = Annotated[
    list[Path], typer.Argument(parser=address, metavar="PATH...", help="Files or checkpoint directories.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.", rich_help_panel=OUTPUT)]
Brief = Annotated[
    bool, typer.Option("-q", "--brief", help="Print only the verdict line of each path.", rich_help_panel=OUTPUT)
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.", rich_help_panel=OUTPUT)]
Only = Annotated[
    Component | None, typer.Option("--only", help="Only one component.", show_choices=True, rich_help_panel=SELECT)
]
Include = Annotated[
    list[str] | None,
    typer.Option(
        "--include", metavar="GLOB", help="Only tensors whose name matches. Repeatable.", rich_help_panel=SELECT
    ),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude", metavar="GLOB", help="No tensors whose name matches. Repeatable.", rich_help_panel=SELECT
    ),
]
