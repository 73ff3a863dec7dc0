"""Runs: the checkpoints of a directory, by step, with what is whole, what points at them and what they scored."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckptctl.errors import UnknownFormatError, UnreadableError, UsageError, counted
from ckptctl.layouts import layout_of, open_checkpoint
from ckptctl.model.run import Run
from ckptctl.runs._directory import Directory
from ckptctl.runs._directory import look as look_into
from ckptctl.runs._names import name_of
from ckptctl.runs._slots import rank_stem, runs_of
from ckptctl.storage import address, names_beside

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from ckptctl.model import Checkpoint
    from ckptctl.model.run import CheckpointInfo
    from ckptctl.runs._names import Named

_FILE_FAMILIES = ("checkpoint", "ckpt", "step", "global_step", "ckpt_step", "checkpoint_step", "lightning")

_ROOTS = ("deepspeed", "rank-files")

__all__ = [
    "checkpoint_names",
    "directories_in",
    "files_of_ranks",
    "find_checkpoints",
    "find_runs",
    "is_run",
    "look_into",
    "may_be_of_a_run",
    "open_one",
    "parts_of",
    "runs_in",
    "step_in_name",
]


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


def files_of_ranks(path: Path) -> tuple[str, ...]:
    """Return the names of the files of all ranks that a file belongs with; none if it is not of a rank."""
    stem = rank_stem(path.name)
    return tuple(sorted(name for name in names_beside(path, ()) if rank_stem(name) == stem)) if stem else ()


def open_one(path: Path, *, tag: str = "", narrow: bool = False) -> Checkpoint:
    """Describe one checkpoint, as `open_checkpoint` does; where there are several, say so and name one.

    Raises
    ------
    UsageError
        It is a directory of several checkpoints.
    CkptctlError
        It cannot be read.
    """
    try:
        return open_checkpoint(path, tag=tag, narrow=narrow)
    except UnknownFormatError:
        found = find_checkpoints(path) if path.is_dir() else ()
        if not found:
            raise
        what = f"{path}: a directory of {counted(len(found), 'checkpoint')}, not one"
        raise UsageError(what, hint=f"name one, such as {found[-1].path}") from None


def find_runs(root: str | os.PathLike[str], *, pattern: str | None = None) -> tuple[Run, ...]:
    """Return the runs in `root`: those whose checkpoints lie in it or else, one level down, in its directories."""
    try:
        compiled = re.compile(pattern) if pattern is not None else None
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"--pattern {(pattern or '')[:80]!r} is no regular expression: {error}") from None
    here = look_into(address(root), compiled)
    runs = runs_of(here)
    if runs:
        return runs
    below = [_below(path, compiled) for path in directories_in(here)]
    return (
        tuple(run for found in below for run in found) if any(r.checkpoints for found in below for r in found) else ()
    )


def runs_in(path: Path) -> tuple[Run, ...]:
    """Return the runs whose checkpoints lie in a directory itself.

    Raises
    ------
    UnreadableError
        It is not there, or may not be read.
    """
    return runs_of(look_into(path, None))


def directories_in(here: Directory) -> tuple[Path, ...]:
    """Return the directories in one that holds no run itself; one of them may be called like a checkpoint."""
    named = (named.name for named in here.checkpoints if (here.path / named.name).is_dir())
    return tuple(here.path / name for name in sorted({*here.directories, *named}))


def _below(path: Path, pattern: re.Pattern[str] | None) -> tuple[Run, ...]:
    """Return the runs in a directory; one that may not be read is a run of which nothing is known."""
    try:
        return runs_of(look_into(path, pattern))
    except UnreadableError as error:
        why = error.message.removeprefix(f"{path}: ")
        return (Run(path=path, family="", title=f"not read: {why}", checkpoints=()),)


def parts_of(info: CheckpointInfo) -> tuple[tuple[Path, tuple[str, ...] | None], ...]:
    """Return what a checkpoint's names are to be opened as: each path by itself, the files of all ranks together.

    Of those the path is their directory, and the names of the files come with it.
    """
    ranked = tuple(path.name for path in info.paths if rank_stem(path.name))
    if len(ranked) < 2:
        return tuple((path, None) for path in info.paths)
    return ((info.path.parent, ranked), *((path, None) for path in info.paths if path.name not in ranked))


def step_in_name(name: str) -> int | None:
    """Return the step that the name of a checkpoint states; None if it states none."""
    named = name_of(name, directory=False) or name_of(name, directory=True)
    return named.step if named else None


def may_be_of_a_run(name: str, *, directory: bool) -> bool:
    """Whether something inside a checkpoint is called like a checkpoint of a run of its own."""
    return name_of(name, directory=directory) is not None


def is_run(path: Path, *, least: int = 2) -> bool:
    """Whether a directory is one of checkpoints, rather than one checkpoint that also holds, say, a step of its own.

    What some trainers save is a checkpoint in its directory as well as a run: that counts as one from `least` on.
    """
    if not path.is_dir():
        return False
    layout = layout_of(path)
    if layout is None:
        return True
    names = checkpoint_names(path, directories=layout.name not in _ROOTS)
    if layout.name not in _ROOTS:
        return bool(names)
    return len({(n.family, n.step, n.epoch) for n in names}) >= least


def checkpoint_names(path: Path, *, directories: bool) -> tuple[Named, ...]:
    """Return the names in a directory that are names of checkpoints of a run.

    On demand only those of directories, and of files that no checkpoint has among its own. A bare number, and
    what DeepSpeed puts into the checkpoint of another trainer, do not count then.
    """
    named = look_into(path, None).checkpoints
    if not directories:
        return named
    named = tuple(n for n in named if not n.bare and n.family != "global_step")
    return tuple(n for n in named if (path / n.name).is_dir() or n.family in _FILE_FAMILIES)
