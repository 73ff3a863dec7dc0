"""Carry out a plan: rename to the trash first, flush, and then delete; the oldest first, links never followed."""

from __future__ import annotations

import contextlib
import errno
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ckptctl.errors import UnreadableError
from ckptctl.ops.prune.protection import survey_of
from ckptctl.runs.pointers import pointers_above, pointers_in
from ckptctl.runs.trash import companions, discard, leftovers, trash_in
from ckptctl.storage.daemons import Daemons

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime, timedelta
    from pathlib import Path

    from ckptctl.model.run import CheckpointInfo
    from ckptctl.ops.prune.plan import PrunePlan
    from ckptctl.runs.trash import Trash
    from ckptctl.storage.directory import Held

_BATCH, _ENOUGH = 16, 3
_pool = Daemons(4, "ckptctl-prune")
"""Threads that nobody waits for: a store may hang, and what they do is trash."""
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

    def __init__(self, directory: Held, plan: PrunePlan, *, now: datetime, trash_for: timedelta) -> None:
        self.directory, self.plan = directory, plan
        self.now, self.deadline, self.keep_trash = now, now + trash_for, bool(trash_for)
        self.deleted: list[Path] = []
        self.emptied: list[str] = []
        self.errors: list[str] = []
        self.count = self.freed = 0
        self._held: frozenset[str] = frozenset()
        self._looked = -_LOOK_AGAIN
        self._unreachable = 0
        self._left: list[CheckpointInfo] = []

    def run(self) -> PruneReport:
        """Finish what an earlier prune began, then delete what is planned."""
        try:
            self._finish_earlier()
            self._carry_out()
        except UnreadableError as error:  # a store that cannot be asked any more: what was done is still said
            self.errors.append(f"{error.message}; nothing more is done, the next prune goes on")
        return self.report()

    def _carry_out(self) -> None:
        victims = list(self.plan.victims)
        while victims:
            trash = list(self._discarded(victims))
            if trash:
                self.directory.flush()
            if not self.keep_trash:
                self._empty(trash)

    def report(self) -> PruneReport:
        """Return what has been done so far."""
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
            with self._noting(f"{name}: {{}}; left alone"):
                discard(self.directory, [name], of.deadline, for_good=of.deadline <= self.now)
        if left:
            self.directory.flush()
        due = [one for one in trash_in(self.directory) if one.deadline <= self.now]
        self.emptied += [one.name for one in self._empty(due)]

    def _discarded(self, victims: list[CheckpointInfo]) -> Iterator[Trash]:
        """Take some from the front of `victims` and rename them, each after a last look at it."""
        for done in range(_BATCH):
            if not victims:
                return
            before = self.count
            with self._noting(f"{victims[0].path.name}: {{}}; left alone"):
                try:
                    yield from self._discard(victims[0])
                except OSError as error:
                    if error.errno == errno.ENOSPC and done:
                        return  # a longer name may need room in the directory, which the others give once they are gone
                    raise
            if self.count == before:
                self._left.append(victims[0])
            del victims[0]

    def _discard(self, info: CheckpointInfo) -> tuple[Trash, ...]:
        names = [path.name for path in info.paths]
        why = self._changed(info, names)
        if why:
            raise OSError(errno.EBUSY, why)
        every = [*names, *companions(self.directory, names)]
        trash = discard(self.directory, every, self.deadline, for_good=not self.keep_trash)
        self.deleted += info.paths
        self.count += 1
        return trash

    def _changed(self, info: CheckpointInfo, names: Sequence[str]) -> str:
        """Say why something must not be deleted after all; empty if it may be."""
        if time.monotonic() - self._looked >= _LOOK_AGAIN:
            path = self.directory.path
            self.directory.look_anew()
            self._held = frozenset(one.target for one in (*pointers_in(path), *pointers_above(path)))
            self._looked = time.monotonic()
        if any(name in self._held for name in names):
            return "something points at it by now"
        delta = next((one.path.name for one in self._left if not set(names).isdisjoint(one.bases)), "")
        if delta:
            return f"it is the base of {delta}, which stays"
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

    @contextlib.contextmanager
    def _noting(self, text: str) -> Iterator[None]:
        """Say what could not be done, and go on; a store that fails again and again is not asked any more."""
        try:
            yield
        except OSError as error:
            self.errors.append(text.format(error.strerror))
        except UnreadableError as error:
            self.errors.append(text.format(error.message))
            self._unreachable += 1
            if self._unreachable >= _ENOUGH:
                raise
        else:
            self._unreachable = 0

    def _empty(self, trash: Sequence[Trash]) -> list[Trash]:
        """Delete trash for good, with a few threads; return what is gone."""

        def one(item: Trash) -> int | None:
            freed: list[int] = []
            with self._noting(f"{item.name}: {{}}; {self.directory.rest_of_it} {item.entry}"):
                freed.append(self.directory.remove(item.entry))
            return freed[0] if freed else None

        waiting = [_pool.submit(partial(one, item)) for item in trash]
        freed = [done.result() for done in waiting]
        self.freed += sum(nbytes or 0 for nbytes in freed)
        return [item for item, nbytes in zip(trash, freed, strict=True) if nbytes is not None]
