"""``ckptctl inspect``: what is in a checkpoint."""

from __future__ import annotations

import enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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

  ckptctl inspect runs/gpt2

  ckptctl inspect runs/gpt2/model.safetensors.index.json --json

Exit status: 0 it was read, also if it asks for code; 2 a path could not be read; 130 interrupted.
"""

if TYPE_CHECKING:
    from ckptctl.ops.inspect.run import RunReport

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
    pattern: Annotated[
        str | None,
        typer.Option("--pattern", help="Names of a run's checkpoints, as a regular expression.", rich_help_panel=_WHAT),
    ] = None,
    only: options.Only = None,
    include: options.Include = None,
    exclude: options.Exclude = None,
    json: options.Json = False,
    brief: options.Brief = False,
    quiet: options.Quiet = False,
) -> int:
    """Inspect each path in turn; one that cannot be read does not stop the rest."""
    from ckptctl.cli._inspect_answer import Answer
    from ckptctl.ops.inspect import Selection, inspect

    selection = Selection(include=tuple(include or ()), exclude=tuple(exclude or ()), only=only)
    answer = Answer(json=json, quiet=quiet, brief=brief, depth=depth)

    def one(path: Path) -> None:
        runs = _runs(path, pattern) if path.is_dir() else ()
        for report in runs:
            answer.add_run(report)
        if not runs:
            answer.add(
                inspect(path, selection=selection, tensors=tensors, values=values, header=header, sort=sort.value)
            )

    return guarded_each([*(partial(one, path) for path in paths), answer.finish], as_json=json)


def _runs(path: Path, pattern: str | None) -> tuple[RunReport, ...]:
    """Loaded for directories only: files are looked into sooner without it."""
    from ckptctl.ops.inspect.run import inspect_runs

    return inspect_runs(path, pattern=pattern)
