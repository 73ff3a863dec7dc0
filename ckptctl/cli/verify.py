"""``ckptctl verify``: whether a checkpoint can be trusted."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from ckptctl.cli import _options as options

HELP = """
Say whether checkpoints can be trusted: whether they are whole, whether the bytes are those that were written, what
loading them would run, and, with --resume, whether training can really go on. Takes files, checkpoints and whole runs.
"""
EPILOG = """
Examples:

  ckptctl verify runs/gpt2/checkpoint-*

  ckptctl verify model.safetensors --write

  train.py --resume "$(ckptctl verify --latest-good runs/x)"

Exit status: 0 all good; 1 something is wrong (or no good one was found); 2 could not look; 130 interrupted.
"""
_HOW = "How far to look"


class Require(enum.Enum):
    """Verdicts on a resume that can be required."""

    EXACT = "exact"
    CONTINUES = "continues"


def run(
    paths: options.Paths,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Structure only.", rich_help_panel=_HOW)] = False,
    values: Annotated[
        bool, typer.Option("--values", help="Also look for NaN, Inf and dead tensors.", rich_help_panel=_HOW)
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Also say what a resume would find.", rich_help_panel=_HOW)
    ] = False,
    require: Annotated[
        Require | None, typer.Option("--require", help="Fail if a resume is less than this.", rich_help_panel=_HOW)
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Fail what is unverified.", rich_help_panel=_HOW)] = False,
    allow_global: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-global",
            metavar="MODULE.NAME",
            envvar="CKPTCTL_ALLOW_GLOBAL",
            rich_help_panel=_HOW,
            help="A class of your own that is no finding. Repeatable.",
        ),
    ] = None,
    write: Annotated[
        bool,
        typer.Option("--write", help="Write digests of what is good.", rich_help_panel=options.OUTPUT),
    ] = False,
    latest_good: Annotated[
        bool,
        typer.Option(
            "--latest-good",
            rich_help_panel=options.OUTPUT,
            help="Print only the path of a run's newest checkpoint that is complete and undamaged.",
        ),
    ] = False,
    json: options.Json = False,
    brief: options.Brief = False,
    quiet: options.Quiet = False,
) -> int:
    """Verify each path in turn, going on after a bad one."""
    from ckptctl.checks.resumable import Verdict
    from ckptctl.cli._verify_answer import Answer, newest
    from ckptctl.ops.verify import Level

    level = Level(
        quick=quick,
        values=values,
        resume=resume,
        strict=strict,
        allowed=frozenset(allow_global or ()),
        require=Verdict(require.value) if require else None,
        write=write,
    )
    if latest_good:
        return newest(paths, level, as_json=json)
    return Answer(level, json=json, quiet=quiet, brief=brief).of(list(map(Path, paths)))
