"""Delete the checkpoints of runs that no rule keeps: planned, said, then done by rename first."""

from __future__ import annotations

import contextlib
import resource
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ckptctl.errors import CkptctlError, ExistsError, PolicyError, UnknownFormatError, UnreadableError, UnsupportedError
from ckptctl.layouts.deltas import stated_bases
from ckptctl.ops.prune.carry_out import CarryOut
from ckptctl.ops.prune.group import Group
from ckptctl.ops.prune.plan import PrunePlan, directories_below, plan_prune
from ckptctl.ops.prune.report import PruneReport
from ckptctl.ops.prune.settings import Settings
from ckptctl.runs import is_run
from ckptctl.runs.trash import restore, trash_in
from ckptctl.storage import has_file, is_remote, is_writable, unreadable
from ckptctl.storage.directory import open_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable
    from datetime import datetime
    from pathlib import Path
    from types import TracebackType

    from ckptctl.storage.directory import Held

_T = TypeVar("_T")
_TRIES = 3
__all__ = ["Group", "PrunePlan", "PruneReport", "Pruning", "Settings", "missing_bases", "restore_from_trash"]


class Pruning:
    """The runs of some directories, each opened, locked and planned; a context that lets go of them at its end.

    `plans` are those that could be made, `errors` say why others could not; nothing is deleted before `apply`.

    Parameters
    ----------
    lock
        Whether to lock each directory; without it nothing may be applied.
    below
        Whether of a directory that is no run those in it are meant.
    """

    def __init__(
        self, paths: Iterable[Path], settings: Settings, now: datetime, *, lock: bool = True, below: bool = True
    ) -> None:
        self.settings, self.now = settings, now
        self._lock, self._below = lock, below
        self._stack = ExitStack()
        self._opened: dict[Path, Held] = {}
        self._known: set[Hashable] = set()
        self.running: CarryOut | None = None
        allow_many_files()
        self.plans: list[PrunePlan] = []
        self.errors: list[CkptctlError] = []
        try:
            for path in paths:
                self._try(partial(self._add, path), path)
        except BaseException:
            self._stack.close()  # those that were locked already
            raise

    def __enter__(self) -> Pruning:  # noqa: PYI034  # Self came with Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def count(self) -> int:
        """How many checkpoints are to be deleted."""
        return sum(len(plan.victims) for plan in self.plans)

    def refuse_more_than(self, most: int) -> None:
        """Make sure that not more than so many are deleted, over all runs.

        Raises
        ------
        PolicyError
            There are more.
        """
        if self.count > most:
            raise PolicyError(f"{self.count} checkpoints would be deleted, --max-delete is {most}; nothing is deleted")

    def plan_again(self) -> None:
        """Look at everything anew, as after a question: only what was planned before and still is stays planned."""
        shown, self.plans = self.plans, []
        for plan in shown:
            again = self._try(partial(self._planned, self._opened[plan.path]), plan.path)
            if again:
                self.plans.append(plan.only(again))

    def apply(self, plan: PrunePlan) -> PruneReport:
        """Carry out one of the plans."""
        self.running = CarryOut(self._opened[plan.path], plan, now=self.now, trash_for=self.settings.trash_for)
        return self.running.run()

    def _add(self, path: Path) -> None:
        """Plan a directory, or those one level below it that hold runs."""
        _check_deletable(path)
        if path.is_dir() and not is_run(path, least=1):
            raise UnknownFormatError(f"{path}: a checkpoint, not a run", hint="prune takes the directory that it is in")
        if self._plan(path):
            return
        every = directories_below(path) if self._below else ()
        found = [self._try(partial(self._plan, below), below) for below in every]
        if not any(one is not False for one in found):
            where = "neither it nor the directories in it hold" if self._below else "it does not hold"
            raise UnknownFormatError(f"{path}: not a run: {where} checkpoints")

    def _try(self, call: Callable[[], _T], path: Path) -> _T | None:
        """Do something about one directory; what goes wrong there does not stop the rest."""
        try:
            return call()
        except CkptctlError as error:
            self.errors.append(error)
        except OSError as error:
            self.errors.append(unreadable(path, error))
        return None

    def _plan(self, path: Path) -> bool:
        """Open, lock and plan one directory; return whether it holds a run."""
        with ExitStack() as opened:
            directory = opened.enter_context(open_directory(path))
            if directory.identity in self._known:
                return True  # it was named twice, or there is a link to it
            if self._lock:
                directory.lock(wait=self.settings.wait, needed=self.settings.lock_needed)
            plan = self._planned(directory)
            if not plan.groups and not plan.trash:
                return False
            self._stack.push(opened.pop_all())
        self._known.add(directory.identity)
        self._opened[path] = directory
        self.plans.append(plan)
        return True

    def _planned(self, directory: Held) -> PrunePlan:
        """Plan a directory; once more if something vanished meanwhile, as where a trainer deletes as well."""
        for _ in range(_TRIES - 1):
            try:
                return plan_prune(directory, self.settings, self.now)
            except FileNotFoundError:  # noqa: PERF203  # it is tried again
                continue
        return plan_prune(directory, self.settings, self.now)


def allow_many_files() -> None:
    """Let as many directories be open at once as the system allows: each run stays locked until all is done."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and (hard == resource.RLIM_INFINITY or soft < hard):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 1 << 20) if hard > 0 else 1 << 16, hard))


def _check_deletable(path: Path) -> None:
    if not is_writable(path):
        raise UnsupportedError(f"{path}: nothing is deleted there, only on disks and in buckets")


def restore_from_trash(path: Path, name: str, *, needed: bool = True, wait: bool = False) -> tuple[Path, ...]:
    """Bring a checkpoint back from the trash of a run, or of one of the runs one level below.

    Raises
    ------
    UnreadableError
        There is no such thing in the trash.
    ExistsError
        Something has its name already, or several runs have it in their trash.
    """
    _check_deletable(path)
    holding, alive = [], []  # one that is back already may lack its bases still
    for one in (path, *directories_below(path)):
        with open_directory(one) as directory:
            if any(name in (trash.name, trash.entry) for trash in trash_in(directory)):
                holding.append(one)
            elif directory.stat(name):
                alive.append(one)
    holding = holding or alive
    if len(holding) > 1:
        raise ExistsError(f"{path}: {name} is in the trash of {len(holding)} runs; name one", hint=str(holding[0]))
    if not holding and not path.is_dir():
        raise UnreadableError(f"{path}: no such directory")
    with open_directory(holding[0] if holding else path) as directory:
        directory.lock(wait=wait, needed=needed)
        if name in directory.brought_back:  # somebody was killed in the middle of it
            return (directory.path / name,)
        found = next((one for one in reversed(trash_in(directory)) if name in (one.name, one.entry)), None)
        called = found.name if found else name
        if found and directory.stat(called) is not None:
            raise ExistsError(f"{directory.path / called}: exists already; nothing was restored")
        held = directory.path / (found.entry if found and not is_remote(path) else called)
        bases: list[str] = []
        for base in reversed(stated_bases(held)):  # before what is nothing without them
            if directory.stat(base) is None and any(base == one.name for one in trash_in(directory)):
                bases += restore(directory, base)
        itself = restore(directory, name) if found or not bases else ()
        return tuple(directory.path / restored for restored in (*itself, *bases))


def missing_bases(path: Path) -> tuple[str, ...]:
    """Return the names of the files beside it that a checkpoint needs and that are not there."""
    return tuple(base for base in stated_bases(path) if not has_file(path.with_name(base)))
