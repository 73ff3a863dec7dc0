"""The trash of a run: what was pruned keeps its place in the directory, under a name that says until when.

``.ckptctl-trash-20261206T120000Z-checkpoint-100`` may be emptied from that moment on. A crash at any point leaves
whole checkpoints and trash; the next prune finishes the work.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from ckptctl.errors import ExistsError, UnreadableError
from ckptctl.runs._slots import rank_stem

if TYPE_CHECKING:
    from ckptctl.storage.directory import Directory

PREFIX = ".ckptctl-trash-"
_TIME = "%Y%m%dT%H%M%SZ"
_TRASH = re.compile(re.escape(PREFIX) + r"([0-9]{8}T[0-9]{6}Z)-(.+)", re.DOTALL)
_BESIDE = (".sha256", ".keep", "-unfinished")
_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".h5", ".keras", ".pkl", ".pickle", ".hdf5", ".tar")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trash:
    """Something that was pruned: under which name it lies, what it was called, and when it may go for good (UTC)."""

    entry: str
    name: str
    deadline: datetime


def trash_in(directory: Directory) -> tuple[Trash, ...]:
    """Return what lies in the trash of a directory, the oldest deadline first."""
    found = (one for name in directory.names() if (one := _parsed(name)))
    return tuple(sorted(found, key=lambda one: (one.deadline, one.name)))


def _parsed(entry: str) -> Trash | None:
    found = _TRASH.fullmatch(entry)
    if not found:
        return None
    try:
        deadline = datetime.strptime(found[1], _TIME).replace(tzinfo=timezone.utc)
    except ValueError:
        return None
    return Trash(entry=entry, name=found[2], deadline=deadline)


def discard(directory: Directory, name: str, deadline: datetime) -> Trash:
    """Give something a trash name. It stays where it is, and nothing else of it changes."""
    while directory.stat(entry := f"{PREFIX}{deadline.astimezone(timezone.utc):{_TIME}}-{name}") is not None:
        deadline += timedelta(seconds=1)  # something of the same name was pruned at the same moment
    directory.rename(name, entry)
    return Trash(entry=entry, name=name, deadline=deadline)


def restore(directory: Directory, name: str) -> tuple[str, ...]:
    """Bring something back from the trash, with its digest and the files of its other ranks; return the names.

    Raises
    ------
    UnreadableError
        There is no such thing in the trash.
    ExistsError
        Something has its name already.
    """
    every = trash_in(directory)
    found = [one for one in every if name in (one.name, one.entry)]
    if not found:
        there = ", ".join(dict.fromkeys(one.name for one in every[-5:])) or "nothing"
        raise UnreadableError(f"{directory.path}: no {name} in the trash", hint=f"there is {there}")
    last = found[-1]
    stem = rank_stem(last.name)
    newest = {one.name: one for one in every if one.name == last.name or _goes_with(one.name, last.name, stem)}
    for taken in newest:
        if directory.stat(taken) is not None:
            raise ExistsError(f"{directory.path / taken}: exists already; nothing was restored")
    for back in reversed(newest.values()):  # what makes it whole comes last
        directory.rename(back.entry, back.name)
    directory.flush()
    return tuple(newest)


def leftovers(directory: Directory) -> tuple[tuple[str, Trash], ...]:
    """Return what a prune that was killed left of checkpoints that are in the trash: digests, files of other ranks.

    Only what was there when they were renamed: what a trainer has written since is a new checkpoint.
    """
    names = directory.names()
    found: dict[str, Trash] = {}
    for one in trash_in(directory):
        stem = rank_stem(one.name)
        renamed = directory.stat(one.entry)
        beside = [] if one.name in names else [name for name in names if _goes_with(name, one.name, stem)]
        for name in beside:
            status = directory.stat(name)
            if status and renamed and status.st_ctime_ns < renamed.st_ctime_ns:
                found[name] = one
    return tuple(sorted(found.items()))


def companions(directory: Directory, name: str) -> tuple[str, ...]:
    """Return the names of what goes with a file or directory and is there: its digest, its marks."""
    found = [f"{name}{suffix}" for suffix in _BESIDE]
    path = Path(name)
    twins = (f"{path.stem}{suffix}" for suffix in _SUFFIXES if suffix != path.suffix)
    if path.suffix in _SUFFIXES and not any(directory.stat(twin) for twin in twins):
        found.append(f"{path.stem}.sha256")
    return tuple(name for name in found if directory.stat(name))


def _goes_with(name: str, of: str, stem: str) -> bool:
    if stem and rank_stem(name) == stem:
        return True
    path = Path(of)
    return name in {f"{of}{suffix}" for suffix in _BESIDE} or (bool(path.suffix) and name == f"{path.stem}.sha256")
