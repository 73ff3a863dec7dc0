"""Delete the checkpoints of runs that no rule keeps: planned, said, then done by rename first."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from ckptctl.errors import CkptctlError, ExistsError, PolicyError, UnknownFormatError, UnreadableError
from ckptctl.ops.prune.carry_out import CarryOut, PruneReport
from ckptctl.ops.prune.plan import Group, PrunePlan, directories_below, plan_prune
from ckptctl.ops.prune.settings import Settings
from ckptctl.runs import is_run
from ckptctl.runs.trash import restore, trash_in
from ckptctl.storage.directory import Directory

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime
    from pathlib import Path
    from types import TracebackType

__all__ = ["Group", "PrunePlan", "PruneReport", "Pruning", "Settings", "restore_from_trash"]


class Pruning:
    """The runs of some directories, each opened, locked and planned; a context that lets go of them at its end.

    `plans` are those that could be made, `errors` say why others could not; nothing is deleted before `apply`.

    Parameters
    ----------
    lock
        Whether to lock each directory; without it nothing may be applied but where no other prune can be at work.
    wait
        Whether to wait for a directory that somebody else has locked.
    """

    def __init__(
        self, paths: Iterable[Path], settings: Settings, now: datetime, *, lock: bool = True, wait: bool = False
    ) -> None:
        self.settings, self.now = settings, now
        self._lock, self._wait = lock, wait
        self._stack = ExitStack()
        self._opened: dict[Path, Directory] = {}
        self.plans: list[PrunePlan] = []
        self.errors: list[CkptctlError] = []
        for path in paths:
            try:
                self._add(path)
            except CkptctlError as error:  # noqa: PERF203  # one that is refused does not stop the rest
                self.errors.append(error)

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
            try:
                again = plan_prune(self._opened[plan.path], self.settings, self.now)
            except CkptctlError as error:  # noqa: PERF203  # nor does one that is refused now
                self.errors.append(error)
            else:
                self.plans.append(plan.only(again))

    def apply(self, plan: PrunePlan) -> PruneReport:
        """Carry out one of the plans."""
        carry_out = CarryOut(self._opened[plan.path], plan, now=self.now, trash_for=self.settings.trash_for)
        return carry_out.run()

    def _add(self, path: Path) -> None:
        """Plan a directory, or those one level below it that hold runs."""
        if path.is_dir() and not is_run(path, least=1):
            raise UnknownFormatError(f"{path}: a checkpoint, not a run", hint="prune takes the directory that it is in")
        if self._plan(path):
            return
        found = False
        for below in directories_below(path):
            try:
                found = self._plan(below) or found
            except CkptctlError as error:  # noqa: PERF203  # nor does one of several in a directory
                found = True
                self.errors.append(error)
        if not found:
            raise UnknownFormatError(f"{path}: not a run: neither it nor the directories in it hold checkpoints")

    def _plan(self, path: Path) -> bool:
        """Open, lock and plan one directory; return whether it holds a run."""
        if path in self._opened:
            return True
        with ExitStack() as opened:
            directory = opened.enter_context(Directory(path))
            if self._lock:
                directory.lock(wait=self._wait)
            plan = plan_prune(directory, self.settings, self.now)
            if not plan.groups and not plan.trash:
                return False
            self._stack.push(opened.pop_all())
        self._opened[path] = directory
        self.plans.append(plan)
        return True


def restore_from_trash(path: Path, name: str, *, lock: bool = True, wait: bool = False) -> tuple[Path, ...]:
    """Bring a checkpoint back from the trash of a run, or of one of the runs one level below.

    Raises
    ------
    UnreadableError
        There is no such thing in the trash.
    ExistsError
        Something has its name already, or several runs have it in their trash.
    """
    holding = []
    for one in (path, *directories_below(path)):
        with Directory(one) as directory:
            if any(name in (trash.name, trash.entry) for trash in trash_in(directory)):
                holding.append(one)
    if len(holding) > 1:
        raise ExistsError(f"{path}: {name} is in the trash of {len(holding)} runs; name one", hint=str(holding[0]))
    if not holding and not path.is_dir():
        raise UnreadableError(f"{path}: no such directory")
    with Directory(holding[0] if holding else path) as directory:
        if lock:
            directory.lock(wait=wait)
        return tuple(directory.path / back for back in restore(directory, name))
