"""The `ckptctl` command: its subcommands, and `main`, where every error ends."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from ckptctl import __version__
from ckptctl.cli._errors import guarded, mute

COMMANDS = ("inspect", "verify", "convert", "prune", "consolidate", "diff")


def program(names: Sequence[str] = COMMANDS) -> typer.Typer:
    """Return the program with some of its commands. A command that is not asked for need not be loaded."""
    app = typer.Typer(
        name="ckptctl",
        help="Look into, trust, migrate, keep, merge and compare checkpoints of models. Runs no code from any file.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name in names:
        command = import_module(f"ckptctl.cli.{name}")
        app.command(name, help=command.HELP, epilog=command.EPILOG)(command.run)
    app.callback()(_root)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        print(f"ckptctl {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the program itself."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status: 0 yes or done, 1 no, 2 could not, 130 interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # A listing builds up to millions of small objects and frees them at exit; collecting in between
    # finds nothing and takes a third of the time.
    gc.disable()
    _prepare_streams()
    return guarded(lambda: _run(given), as_json="--json" in given)


def _prepare_streams() -> None:
    """Let no name be unprintable, and no stream be missing: a file would get the number of a closed one."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
            setattr(sys, name, Path(os.devnull).open("w" if descriptor else "r", encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _run(arguments: list[str]) -> int | None:
    asked = [name for name in COMMANDS if arguments[:1] == [name]]
    status: int | None = program(asked or COMMANDS)(arguments, prog_name="ckptctl", standalone_mode=False)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        mute()
    return status
