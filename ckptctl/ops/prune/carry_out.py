"""Carry out a plan: rename to the trash first, flush, and then delete; the oldest first, links never followed."""

from __future__ import annotations

import errno
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptctl.ops.prune.plan import survey_of
from ckptctl.runs import pointers_in
from ckptctl.runs.trash import companions, discard, leftovers, trash_in
from ckptctl.storage.removal import remove_tree

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime, timedelta
    from pathlib import Path

    from ckptctl.model.run import CheckpointInfo
    from ckptctl.ops.prune.plan import PrunePlan
    from ckptctl.runs.trash import Trash
    from ckptctl.storage.directory import Directory

_THREADS, _BATCH = 4, 16
_LOOK_AGAIN = 1.0
"""Seconds after which links and marks are looked at anew, while a long prune goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneReport:
    """What was done in one directory.

    `deleted` are the paths of the `count` checkpoints that are gone, or in the trash; `emptied` the names of what was
    in the trash from before and is gone for good; `freed` is in bytes on disk; `errors` say what could not be done.
    """

    path: Path
    deleted: tuple[Path, ...] = ()
    count: int = 0
    emptied: tuple[str, ...] = ()
    freed: int = 0
    errors: tuple[str, ...] = ()


class CarryOut:
    """A plan being carried out in a locked directory. A crash at any point leaves whole checkpoints and trash."""

    def __init__(self, directory: Directory, plan: PrunePlan, *, now: datetime, trash_for: timedelta) -> None:
        self.directory, self.plan = directory, plan
        self.now, self.deadline, self.keep_trash = now, now + trash_for, bool(trash_for)
        self.deleted: list[Path] = []
        self.emptied: list[str] = []
        self.errors: list[str] = []
        self.count = self.freed = 0
        self._held: frozenset[str] = frozenset()
        self._looked = -_LOOK_AGAIN

    def run(self) -> PruneReport:
        """Finish what an earlier prune began, then delete what is planned."""
        self._finish_earlier()
        victims = list(self.plan.victims)
        while victims:
            trash = list(self._discarded(victims))
            if trash:
                self.directory.flush()
            if not self.keep_trash:
                self._empty(trash)
        return PruneReport(
            path=self.plan.path,
            deleted=tuple(self.deleted),
            count=self.count,
            emptied=tuple(self.emptied),
            freed=self.freed,
            errors=tuple(self.errors),
        )

    def _finish_earlier(self) -> None:
        left = leftovers(self.directory)
        for name, of in left:
            discard(self.directory, name, of.deadline)
        if left:
            self.directory.flush()
        due = [one for one in trash_in(self.directory) if one.deadline <= self.now]
        self._empty(due)
        self.emptied += [one.name for one in due]

    def _discarded(self, victims: list[CheckpointInfo]) -> Iterator[Trash]:
        """Take some from the front of `victims` and rename them, each after a last look at it."""
        for done in range(_BATCH):
            if not victims:
                return
            try:
                yield from self._discard(victims[0])
            except OSError as error:
                if error.errno == errno.ENOSPC and done:
                    return  # a longer name may need room in the directory, which the others give once they are gone
                self.errors.append(f"{victims[0].path.name}: {error.strerror}; left alone")
            del victims[0]

    def _discard(self, info: CheckpointInfo) -> Iterator[Trash]:
        names = [path.name for path in info.paths]
        why = self._changed(info, names)
        if why:
            self.errors.append(f"{info.path.name}: {why}; left alone")
            return
        beside = [name for one in names for name in companions(self.directory, one)]
        for name in dict.fromkeys([*names, *beside]):
            yield discard(self.directory, name, self.deadline)
        self.deleted += info.paths
        self.count += 1

    def _changed(self, info: CheckpointInfo, names: Sequence[str]) -> str:
        """Say why something must not be deleted after all; empty if it may be."""
        if time.monotonic() - self._looked >= _LOOK_AGAIN:
            self._held = frozenset(pointer.target for pointer in pointers_in(self.directory.path))
            self._looked = time.monotonic()
        if any(name in self._held for name in names):
            return "something points at it by now"
        if any(self.directory.stat(f"{name}.keep") for name in names):
            return "it was pinned since it was planned"
        if self.directory.stat(self.plan.newest[info.family]) is None:
            return f"{self.plan.newest[info.family]}, which was to remain, is gone"
        for name in names:
            found = survey_of(self.directory, name)
            if found.why:
                return found.why
            if found != self.plan.surveys[name]:
                return "it was changed since it was planned"
        return ""

    def _empty(self, trash: list[Trash]) -> None:
        """Delete trash for good, with a few threads."""

        def one(item: Trash) -> int:
            try:
                return remove_tree(self.directory, item.entry)
            except OSError as error:
                self.errors.append(f"{item.name}: {error.strerror}; the rest of it lies in {item.entry}")
                return 0

        if trash:
            with ThreadPoolExecutor(_THREADS) as pool:
                self.freed += sum(pool.map(one, trash))
