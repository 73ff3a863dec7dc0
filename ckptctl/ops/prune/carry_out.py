"""Carry out a plan: rename to the trash first, flush, and then delete; the oldest first, links never followed."""

from __future__ import annotations

import contextlib
import errno
import time
from functools import partial
from typing import TYPE_CHECKING

from ckptctl.errors import UnreadableError
from ckptctl.ops.prune.needs import needed_in_trash, needed_since
from ckptctl.ops.prune.report import PruneReport
from ckptctl.ops.prune.touchable import survey_of
from ckptctl.runs.pending import waiting_in
from ckptctl.runs.pointers import pointers_above, pointers_in
from ckptctl.runs.trash import companions, discard, leftovers, restore, trash_in
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
"""Seconds after which links, marks and deltas are looked for anew, while a long prune goes on."""
_SHARE = 10
"""A look that takes long is made again only after so many times as long."""


class CarryOut:
    """A plan being carried out in a locked directory. A crash at any point leaves whole checkpoints and trash."""

    def __init__(self, directory: Held, plan: PrunePlan, *, now: datetime, trash_for: timedelta) -> None:
        self.directory, self.plan = directory, plan
        self.now, self.deadline, self.keep_trash = now, now + trash_for, bool(trash_for)
        self.deleted: list[Path] = []
        self.emptied: list[str] = []
        self.errors: list[str] = []
        self.count = self.freed = 0
        self._held: dict[str, str] = {}
        self._in_trash: dict[str, datetime] = {}
        self._renamed: list[tuple[CheckpointInfo, tuple[Trash, ...], bool]] = []
        self._full = False
        self._looked, self._every = -_LOOK_AGAIN, _LOOK_AGAIN
        self._unreachable = 0
        self._going = {one.path.name for one in plan.victims}
        self._deltas: dict[str, list[str]] = {}
        for delta, bases in plan.bases.items():
            for base in bases:
                self._deltas.setdefault(base, []).append(delta)

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
        while victims or self._renamed:
            if victims and self._discard_some(victims):
                self.directory.flush()
            if not victims or self._full or self._is_time_to_look:
                self._look()
                self._settle()

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
        stuck = self._bring_back([one for one in trash_in(self.directory) if one.deadline <= self.now])
        trash = trash_in(self.directory)
        self._in_trash = needed_in_trash(self.directory) if trash else {}
        due = [
            one
            for one in trash
            if one.deadline <= self.now and one not in stuck and self._in_trash.get(one.name, self.now) <= self.now
        ]
        self.emptied += [one.name for one in self._empty(due)]

    def _bring_back(self, due: list[Trash]) -> list[Trash]:
        """Bring back what a prune that was killed had renamed although something needs it; return what cannot come."""
        stuck = []
        for one in due:
            delta = self._staying_delta_on(one.name)
            if delta and self.directory.stat(one.name) is None:
                with self._noting(f"{one.name}: {{}}; it stays in the trash"):
                    stuck.append(one)
                    restore(self.directory, one.entry)
                    stuck.remove(one)
                    self.errors.append(f"{one.name}: it is the base of {delta}; brought back from the trash")
        return stuck

    def _discard_some(self, victims: list[CheckpointInfo]) -> bool:
        """Take some from the front of `victims` and rename them, each after a last look at it; say if any was."""
        before = len(self._renamed)
        for _ in range(_BATCH):
            if not victims:
                break
            known = len(self._renamed)
            with self._noting(f"{victims[0].path.name}: {{}}; left alone"):
                try:
                    self._discard(victims[0])
                except OSError as error:
                    if error.errno == errno.ENOSPC and self._renamed:
                        self._full = True  # a longer name may need room in the directory, which the others give
                        break
                    raise
            if len(self._renamed) == known:
                self._going.discard(victims[0].path.name)
            del victims[0]
        return len(self._renamed) > before

    def _discard(self, info: CheckpointInfo) -> None:
        names = [path.name for path in info.paths]
        why = self._changed(info, names)
        if why:
            raise OSError(errno.EBUSY, why)
        every = [*names, *companions(self.directory, names)]
        until = max(self._in_trash.get(name, self.deadline) for name in names)
        keep = self.keep_trash or until > self.now
        trash = discard(self.directory, every, max(until, self.deadline), for_good=not keep)
        self._renamed.append((info, trash, keep))
        self.deleted += info.paths
        self.count += 1

    def _settle(self) -> None:
        """Delete what was renamed before the last look for good, but give back what that look found to be needed."""
        renamed, self._renamed, self._full = self._renamed, [], False
        self._hold_bases([info for info, _, _ in renamed])
        gone: list[Trash] = []
        for info, trash, keep in renamed:
            why = next((self._held[path.name] for path in info.paths if path.name in self._held), "")
            if not why:
                gone += [] if keep else trash
                continue
            self.deleted = [path for path in self.deleted if path not in info.paths]
            self.count -= 1
            self._going.discard(info.path.name)
            with self._noting(f"{info.path.name}: {why}, and cannot be brought back from the trash: {{}}"):
                for one in reversed(trash):
                    self.directory.bring_back(one.entry, one.name)
                self.errors.append(f"{info.path.name}: {why}; brought back")
                self.directory.flush()
        self._empty(gone)

    def _staying_delta_on(self, name: str) -> str:
        """Return a delta that needs something and stays: it was never to go, or could not."""
        return next((delta for delta in self._deltas.get(name, ()) if delta not in self._going), "")

    def _hold_bases(self, renamed: list[CheckpointInfo]) -> None:
        """Hold what is needed by those that will be given back, and by what these need."""
        todo = [info for info in renamed if any(path.name in self._held for path in info.paths)]
        for info in todo:
            for base in self.plan.bases.get(info.path.name, ()):
                self._held.setdefault(base, f"it is the base of {info.path.name}, which stays")

    @property
    def _is_time_to_look(self) -> bool:
        return time.monotonic() - self._looked >= self._every

    def _look(self) -> None:
        """Look anew at what points at checkpoints, needs them, or is to be uploaded."""
        began, path = time.monotonic(), self.directory.path
        self.directory.look_anew()
        pointers = (*pointers_in(path), *pointers_above(path))
        self._held = {one.target: "something points at it by now" for one in pointers}
        self._held |= dict.fromkeys(waiting_in(path), "its upload is not confirmed")
        needed = needed_since(self.directory, self.plan.seen)
        self._held |= {base: f"it is the base of {name}, which was saved meanwhile" for base, name in needed.items()}
        self._looked = time.monotonic()
        self._every = max(_LOOK_AGAIN, _SHARE * (self._looked - began))

    def _changed(self, info: CheckpointInfo, names: Sequence[str]) -> str:
        """Say why something must not be deleted after all; empty if it may be."""
        if self._is_time_to_look:
            self._look()
        held = next((self._held[name] for name in names if name in self._held), "")
        if held:
            return held
        delta = next(filter(None, map(self._staying_delta_on, names)), "")
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
