"""When to save: by time, steps, epochs, a better metric, on a signal or on demand; each step is asked once."""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_RECENT = 5
URGENT = frozenset({"signal", "SIGTERM", "on demand"})
"""Reasons that do not wait, and that hold for all processes if one has them."""


@dataclass(slots=True, kw_only=True)
class CheckpointScheduler:
    """Says at each step whether to save, and why.

    Parameters
    ----------
    every_seconds
        Save when so much time has passed since the last save of any kind; 0 for never.
    every_steps, every_epochs
        Save at each multiple of so many; 0 for never.
    minimum_seconds
        At least so much time lies between saves: one that is due before waits for the first step after it. Signals and
        what is asked for on demand do not wait.
    best
        Whether ``min`` or ``max`` of the metric is best; empty if it does not count. NaN is never best, nor is a tie.
    top
        Save if the metric is among so many best ones.
    milestones
        Steps at which the learning rate changes: the last step before each is saved.
    on_demand
        A file: if it is there, a save is due, and the file is removed.
    grace_seconds
        How long after a signal the process is left alive; 0 if it is not known.
    clock
        Seconds that never go back; ``time.monotonic`` by default.
    decide
        Under several processes: is given what this one would do and returns what all do. By default, if
        ``torch.distributed`` is initialized, what rank 0 would do, and what any would do at once.
    """

    every_seconds: float = 1800.0
    every_steps: int = 5000
    every_epochs: int = 0
    minimum_seconds: float = 0.0
    best: str = ""
    top: int = 1
    milestones: tuple[int, ...] = ()
    on_demand: str | os.PathLike[str] | None = None
    grace_seconds: float = 0.0
    clock: Callable[[], float] = time.monotonic
    decide: Callable[[tuple[str, ...]], tuple[str, ...]] | None = None
    _last: float = field(init=False)
    _step: int = field(init=False, default=0)
    _epoch: int = field(init=False, default=0)
    _scores: list[float] = field(init=False, default_factory=list)
    _waiting: dict[str, None] = field(init=False, default_factory=dict)
    _signalled: bool = field(init=False, default=False)
    _stopping: bool = field(init=False, default=False)
    _durations: deque[float] = field(init=False, default_factory=lambda: deque(maxlen=_RECENT))

    def __post_init__(self) -> None:
        if self.best not in ("", "min", "max"):
            raise ValueError(f"best is {self.best!r}, not 'min' or 'max'")
        numbers = (self.every_seconds, self.every_steps, self.every_epochs, self.minimum_seconds, self.grace_seconds)
        if any(not math.isfinite(one) or one < 0 for one in numbers) or self.top < 1:
            raise ValueError("intervals are finite and not negative, and top at least 1")
        self._last = self.clock()

    @property
    def stopping(self) -> bool:
        """Whether SIGTERM has come, and `due` has said so on all processes: the loop is to end after the save."""
        return self._stopping

    def due(self, step: int, *, epoch: int | None = None, metric: float | None = None) -> tuple[str, ...]:
        """Return why to save after `step`, nothing if not to.

        To be asked once for each step that was finished, on every process; `epoch` is how many are finished, `metric`
        the score of this step, where it was taken. After a save, call `saved`.
        """
        for reason in self._reasons(step, epoch, metric):
            self._waiting[reason] = None
        self._step, self._epoch = max(step, self._step), max(epoch or 0, self._epoch)
        ready = self.clock() - self._last >= self.minimum_seconds or not URGENT.isdisjoint(self._waiting)
        wanted = tuple(self._waiting) if ready else ()
        agreed = self._agreed(wanted)
        self._stopping = self._stopping or "SIGTERM" in agreed
        for reason in URGENT.intersection(wanted, agreed):  # told; one that comes while it is saved waits for the next
            self._waiting.pop(reason, None)
        return agreed

    def saved(self, seconds: float | None = None) -> None:
        """Say that a save was made, and how long it took: the time until the next one begins now."""
        self._last = self.clock()
        for reason in [one for one in tuple(self._waiting) if one not in URGENT]:
            self._waiting.pop(reason, None)
        if seconds is not None:
            self._durations.append(seconds)

    def warning(self, step_seconds: float = 0.0) -> str:
        """Return what to warn of: that a save would not be finished in the time that is left after a signal."""
        longest = max(self._durations, default=0.0) + step_seconds
        if not self.grace_seconds or longest <= self.grace_seconds:
            return ""
        return f"a step and a save take {longest:.0f} s, {self.grace_seconds:.0f} s are left after a signal"

    @contextlib.contextmanager
    def signals(self, numbers: Iterable[int] = _SIGNALS) -> Iterator[None]:
        """Let signals make a save due at the end of the step, once; the handlers do nothing else.

        Only in the main thread, where Python takes signals.
        """
        before = {number: signal.signal(number, self._on_signal) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  # as handlers are called
        if number != signal.SIGTERM:
            self._waiting["signal"] = None
        elif not self._signalled:
            self._signalled = True
            self._waiting["SIGTERM"] = None

    def _reasons(self, step: int, epoch: int | None, metric: float | None) -> Iterator[str]:
        if self.every_steps and step // self.every_steps > self._step // self.every_steps:
            yield "steps"
        if self.every_epochs and epoch is not None and epoch // self.every_epochs > self._epoch // self.every_epochs:
            yield "epochs"
        if self.every_seconds and self.clock() - self._last >= self.every_seconds:
            yield "time"
        if any(self._step < milestone - 1 <= step for milestone in self.milestones):
            yield "milestone"
        if metric is not None and self.best and self._enters(metric):
            yield "best"
        if self.on_demand is not None and _taken(Path(self.on_demand)):
            yield "on demand"

    def _enters(self, metric: float) -> bool:
        """Whether a score is among the best, which it then is counted with."""
        score = metric if self.best == "max" else -metric
        if math.isnan(score) or (len(self._scores) >= self.top and score <= self._scores[-1]):
            return False
        self._scores = sorted([*self._scores, score], reverse=True)[: self.top]
        return True

    def _agreed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        if self.decide is not None:
            return self.decide(wanted)
        from ckptctl.training.ranks import of_first_rank  # noqa: PLC0415  # torch, if somebody has loaded it

        return of_first_rank(wanted, URGENT)

    def state_dict(self) -> dict[str, Any]:
        """Return what belongs into a checkpoint, plain values: as it is once the save that they go into is made."""
        return {
            "step": self._step,
            "epoch": self._epoch,
            "scores": list(self._scores),
            "durations": list(self._durations),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the save that the state was loaded from: the time until the next one begins now."""
        self._last = self.clock()
        for reason in [one for one in tuple(self._waiting) if one not in URGENT]:  # a signal that came stays
            self._waiting.pop(reason, None)
        self._step, self._epoch = int(state["step"]), int(state["epoch"])
        self._scores = [float(score) for score in state["scores"]]
        self._durations = deque((float(one) for one in state["durations"]), maxlen=_RECENT)


def _taken(path: Path) -> bool:
    """Whether a file is there; it is not, after that."""
    try:
        path.unlink()
    except OSError:  # it is not there; or the file system is in trouble, which is no reason to stop
        return False
    return True
