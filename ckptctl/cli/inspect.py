"""``ckptctl inspect``: what is in a checkpoint."""

from __future__ import annotations

import enum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ckptctl.cli import _options as options
from ckptctl.cli._errors import guarded_each

HELP = """
Say what is in a checkpoint: tensors, sizes, dtypes, step, optimizer, what a resume would lack, and
whether a loader would run code. Reads headers only, loads no weights, runs nothing.
"""
EPILOG = """
Examples:

  ckptctl inspect model.safetensors

  ckptctl inspect checkpoint.pt --only optimizer --tensors

  ckptctl inspect runs/gpt2/model.safetensors.index.json --json

Exit status: 0 it was read, also if it asks for code; 2 a path could not be read; 130 interrupted.
"""

_WHAT = "What to show"


class Sort(enum.Enum):
    """Orders of the list of tensors."""

    FILE = "file"
    NAME = "name"
    SIZE = "size"
    OFFSET = "offset"


def run(
    paths: options.Paths,
    *,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.", rich_help_panel=_WHAT)] = False,
    values: Annotated[
        bool, typer.Option("--values", help="Show the plain state: step, lr, betas, arguments.", rich_help_panel=_WHAT)
    ] = False,
    header: Annotated[
        bool, typer.Option("--header", help="Account for every byte of the file.", rich_help_panel=_WHAT)
    ] = False,
    depth: Annotated[int, typer.Option("--depth", min=0, help="Levels of the module tree.", rich_help_panel=_WHAT)] = 3,
    sort: Annotated[Sort, typer.Option("--sort", help="Order of --tensors.", rich_help_panel=_WHAT)] = Sort.FILE,
    only: options.Only = None,
    include: options.Include = None,
    exclude: options.Exclude = None,
    json: options.Json = False,
    brief: options.Brief = False,
    quiet: options.Quiet = False,
) -> int:
    """Inspect each path in turn; one that cannot be read does not stop the rest."""
    from ckptctl.cli import _inspect_text
    from ckptctl.cli._output import Printer, print_json, to_json
    from ckptctl.ops.inspect import Selection, inspect

    selection = Selection(include=tuple(include or ()), exclude=tuple(exclude or ()), only=only)
    documents: list[object] = []
    printer = None if json or quiet else Printer()

    def one(path: Path) -> None:
        report = inspect(path, selection=selection, tensors=tensors, values=values, header=header, sort=sort.value)
        documents.append(to_json(report) if json else None)
        if printer:
            if len(documents) > 1 and not brief:
                printer.line()
            _inspect_text.show(printer, report, depth=depth, brief=brief)

    def finish() -> None:
        if json and not quiet:
            print_json({"schema": "ckptctl.inspect/1", "checkpoints": documents})

    return guarded_each([*(partial(one, path) for path in paths), finish], as_json=json)
