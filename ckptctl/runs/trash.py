"""The trash of a run: what was pruned keeps its place in the directory, under a name that says until when.

``.ckptctl-trash-20261206T120000Z-checkpoint-100`` may be emptied from that moment on. A crash at any point leaves
whole checkpoints and trash; the next prune finishes the work.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from ckptctl.errors import CkptctlError, ExistsError, UnreadableError
from ckptctl.model.endings import ENDINGS
from ckptctl.runs._slots import rank_stem
from ckptctl.storage.set_aside import PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckptctl.storage.directory import Held

_TIME = "%Y%m%dT%H%M%SZ"
_TRASH = re.compile(re.escape(PREFIX) + r"([0-9]{8}T[0-9]{6}Z)-(.+)", re.DOTALL)
_BESIDE = (".sha256", ".keep", "-unfinished")
_TOGETHER = timedelta(seconds=10)
"""How far apart the deadlines are of what went at once: one moment, and a second more for each name that was taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trash:
    """Something that was pruned: under which name it lies, what it was called, and when it may go for good (UTC)."""

    entry: str
    name: str
    deadline: datetime


def trash_in(directory: Held) -> tuple[Trash, ...]:
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


def discard(directory: Held, names: Iterable[str], deadline: datetime, *, for_good: bool) -> tuple[Trash, ...]:
    """Give things that belong together trash names: all of them or, if one cannot have one, none.

    They stay where they are, and nothing else of them changes. A name that would be too long is cut if it need never
    be known again (`for_good`).

    Raises
    ------
    OSError
        One of them could not be renamed. Those before it have their own names again.
    """
    done: list[Trash] = []
    try:
        for name in names:
            done.append(_renamed(directory, name, deadline, for_good=for_good))  # noqa: PERF401  # undone if one fails
    except (OSError, CkptctlError):
        for back in reversed(done):
            directory.bring_back(back.entry, back.name)
        raise
    return tuple(done)


def _renamed(directory: Held, name: str, deadline: datetime, *, for_good: bool) -> Trash:
    longest = directory.longest if for_good else 0
    while directory.stat(entry := _entry(name, deadline, longest)) is not None:
        deadline += timedelta(seconds=1)  # something of the same name was pruned at the same moment
    directory.discard(name, entry, for_good=for_good)
    return Trash(entry=entry, name=name, deadline=deadline)


def _entry(name: str, deadline: datetime, longest: int) -> str:
    prefix = f"{PREFIX}{deadline.astimezone(timezone.utc):{_TIME}}-"
    return prefix + (os.fsdecode(os.fsencode(name)[: longest - len(prefix)]) if longest else name)


def restore(directory: Held, name: str) -> tuple[str, ...]:
    """Bring something back from the trash, with its digest and the files of its other ranks; return the names.

    Of several that had the name it is the newest, or the one whose whole name in the trash is given; what went with
    it was renamed at the same moment.

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
    others = (one for one in every if one.name != last.name and _goes_with(one.name, last.name, stem))
    together = {one.name: one for one in others if abs(one.deadline - last.deadline) <= _TOGETHER}
    together = {last.name: last, **together}
    for taken in together:
        if directory.stat(taken) is not None:
            raise ExistsError(f"{directory.path / taken}: exists already; nothing was restored")
    for back in together.values():
        directory.check_back(back.entry)
    for back in reversed(together.values()):  # what makes it whole comes last
        directory.bring_back(back.entry, back.name)
    directory.flush()
    return tuple(together)


def leftovers(directory: Held) -> tuple[tuple[str, Trash], ...]:
    """Return what a prune that was killed left of checkpoints that are in the trash: digests, files of other ranks.

    Only what was there when they were renamed: what a trainer has written since is a new checkpoint.
    """
    names = directory.names()
    found: dict[str, Trash] = {}
    for one in trash_in(directory):
        stem = rank_stem(one.name)
        renamed = directory.stat(one.entry)
        beside = [] if one.name in names else [name for name in names if _is_left(name, one.name, stem, names)]
        for name in beside:
            status = directory.stat(name)
            if status and renamed and status.st_ctime_ns < renamed.st_ctime_ns:
                found[name] = one
    return tuple(sorted(found.items()))


def _is_left(name: str, of: str, stem: str, names: frozenset[str]) -> bool:
    """Whether something was left when only a part of a checkpoint was renamed: it is nothing by itself."""
    if stem and rank_stem(name) == stem:
        return True
    base = next((name.removesuffix(suffix) for suffix in _BESIDE if name.endswith(suffix)), "")
    if not base or base in names or any(f"{base}{suffix}" in names for suffix in ENDINGS):
        return False  # it is a file, or goes with one that is here
    return _goes_with(name, of, stem)


def companions(directory: Held, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of what goes with files or directories and is there: their digests, their marks."""
    going = set(names)
    found: dict[str, None] = {}
    for name in names:
        found |= dict.fromkeys(f"{name}{suffix}" for suffix in _BESIDE)
        path = Path(name)
        twins = {f"{path.stem}{suffix}" for suffix in ENDINGS} - going
        if path.suffix in ENDINGS and not any(directory.stat(twin) for twin in twins):
            found[f"{path.stem}.sha256"] = None
    return tuple(name for name in found if name not in going and directory.stat(name))


def _goes_with(name: str, of: str, stem: str) -> bool:
    """Whether a name belongs to the checkpoint of another: of another rank, in another format, a digest, a mark."""
    bare = next((name.removesuffix(suffix) for suffix in _BESIDE if name.endswith(suffix)), name)
    if stem and rank_stem(bare) == stem:
        return True
    path = Path(of)
    if bare == of or not path.suffix:
        return bare == of
    return bare == path.stem or (Path(bare).stem == path.stem and Path(bare).suffix in ENDINGS)
