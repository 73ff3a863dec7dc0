"""Runs: the checkpoints of a directory, by step, with what is whole, what points at them and what they scored."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from ckptctl.errors import UnreadableError, UsageError
from ckptctl.layouts import layout_of
from ckptctl.model.run import Run
from ckptctl.runs._directory import look
from ckptctl.runs._slots import runs_of

if TYPE_CHECKING:
    import os

    from ckptctl.model.run import CheckpointInfo
    from ckptctl.runs._names import Named

_FILE_FAMILIES = ("checkpoint", "ckpt", "step", "global_step", "ckpt_step", "checkpoint_step", "lightning")

_ROOTS = ("deepspeed", "rank-files")

__all__ = ["find_checkpoints", "find_runs", "is_run"]


def find_checkpoints(root: str | os.PathLike[str], *, pattern: str | None = None) -> tuple[CheckpointInfo, ...]:
    """Return the checkpoints of the runs in `root`, run by run, each in the order of its steps.

    Structure only: names, sizes, headers and small metadata; no tensor is read, nothing is run.

    Parameters
    ----------
    pattern
        A regular expression that the whole name of a checkpoint matches, instead of the known names. Its group
        ``step``, or else the last digits of the name, give the step where the content does not.

    Raises
    ------
    UnreadableError
        There is no such directory, or it may not be read.
    UsageError
        The pattern is no regular expression.
    """
    return tuple(info for run in find_runs(root, pattern=pattern) for info in run.checkpoints)


def find_runs(root: str | os.PathLike[str], *, pattern: str | None = None) -> tuple[Run, ...]:
    """Return the runs in `root`: those whose checkpoints lie in it or else, one level down, in its directories."""
    try:
        compiled = re.compile(pattern) if pattern is not None else None
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"--pattern {(pattern or '')[:80]!r} is no regular expression: {error}") from None
    here = look(Path(root), compiled)
    runs = runs_of(here)
    if runs:
        return runs
    below = [_below(here.path / name, compiled) for name in here.directories]
    return (
        tuple(run for found in below for run in found) if any(r.checkpoints for found in below for r in found) else ()
    )


def _below(path: Path, pattern: re.Pattern[str] | None) -> tuple[Run, ...]:
    """Return the runs in a directory; one that may not be read is a run of which nothing is known."""
    try:
        return runs_of(look(path, pattern))
    except UnreadableError as error:
        why = error.message.removeprefix(f"{path}: ")
        return (Run(path=path, family="", title=f"not read: {why}", checkpoints=()),)


def is_run(path: Path) -> bool:
    """Whether a directory is one of checkpoints, rather than one checkpoint that also holds, say, a step of its own."""
    if not path.is_dir():
        return False
    layout = layout_of(path)
    if layout is None:
        return True
    names = checkpoint_names(path, directories=layout.name not in _ROOTS)
    return bool(names) if layout.name not in _ROOTS else len({(n.family, n.step, n.epoch) for n in names}) > 1


def checkpoint_names(path: Path, *, directories: bool) -> tuple[Named, ...]:
    """Return the names in a directory that are names of checkpoints of a run.

    On demand only those of directories, and of files that no checkpoint has among its own. A bare number, and
    what DeepSpeed puts into the checkpoint of another trainer, do not count then.
    """
    named = look(path, None).checkpoints
    if not directories:
        return named
    named = tuple(n for n in named if not n.bare and n.family != "global_step")
    return tuple(n for n in named if (path / n.name).is_dir() or n.family in _FILE_FAMILIES)
