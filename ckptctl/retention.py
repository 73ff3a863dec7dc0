"""Which checkpoints of a run to keep: a pure function of what is known of them, without clock or disk.

Rules are united: a checkpoint goes only if no rule and no protection holds it. Nothing is ever decided by a name.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from ckptctl.model.run import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime, timedelta

    from ckptctl.model.run import CheckpointInfo


_Position = Callable[["CheckpointInfo"], "float | None"]


class AnchorMode(enum.Enum):
    """Which checkpoint stands for a multiple of the anchor's steps."""

    FIRST = "first"
    """The first complete one at or after it."""
    EXACT = "exact"
    """One of exactly that step."""
    CLOSEST = "closest"
    """The complete one nearest to it, the later of two."""


class Mode(enum.Enum):
    """Whether a metric is better the lower or the higher it is."""

    MIN = "min"
    MAX = "max"


class Action(enum.Enum):
    """What becomes of a checkpoint. `SKIP` is for what is not complete: it is left alone, and takes no place."""

    KEEP = "keep"
    DELETE = "delete"
    SKIP = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What to keep; rules are united.

    Parameters
    ----------
    last
        So many complete ones of the highest steps.
    best, metric, mode
        So many of the best by a metric. Without a mode the lowest and the highest are kept, so many of each.
    anchor_every, anchor_mode
        Steps: one for each multiple.
    within
        What was saved so long before the newest complete one, or later.
    every
        The oldest, and then one for each such time.
    steps, globs
        Exactly these steps, and these names.
    remove_incomplete
        The age at which what is not complete is deleted too; None to leave it alone.
    """

    last: int = 3
    best: int = 2
    metric: str = ""
    mode: Mode | None = None
    anchor_every: int = 50_000
    anchor_mode: AnchorMode = AnchorMode.FIRST
    within: timedelta | None = None
    every: timedelta | None = None
    steps: frozenset[int] = frozenset()
    globs: tuple[str, ...] = ()
    remove_incomplete: timedelta | None = None

    @property
    def keeps_nothing(self) -> bool:
        """Whether every rule is off."""
        rules = (self.last, self.best, self.anchor_every, self.within, self.every, self.steps, self.globs)
        return not any(rules)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What becomes of one checkpoint, and why: every rule and protection that holds it, or why it is skipped."""

    checkpoint: CheckpointInfo
    action: Action
    reasons: tuple[str, ...] = ()


@dataclass(slots=True)
class _Held:
    """The reasons that hold each checkpoint, by its place in the list."""

    every: Sequence[CheckpointInfo]
    position: _Position
    reasons: dict[int, list[str]] = field(default_factory=dict)

    def by(self, index: int, reason: str) -> None:
        self.reasons.setdefault(index, []).append(reason)


def decide(
    checkpoints: Iterable[CheckpointInfo],
    policy: Policy,
    now: datetime,
    *,
    verified: Callable[[CheckpointInfo], bool] = lambda _: True,
) -> tuple[Decision, ...]:
    """Decide about the checkpoints of one run, in the order in which they are given.

    `verified` tells whether a complete one passes verification; the newest that does is never deleted. `now` is
    only compared with the age of what is not complete.
    """
    every = list(checkpoints)
    position = _position_in(every)
    held = _Held(every, position)
    complete = sorted((i for i, info in enumerate(every) if info.complete), key=lambda i: _order(every[i], position))
    placed = [i for i in complete if position(every[i]) is not None]
    _rules(held, placed, complete, policy)
    _protections(held, placed, complete, policy, verified)
    newest = placed[-1] if placed else None
    return tuple(_decided(held, index, policy, now, newest) for index in range(len(every)))


def _position_in(every: Sequence[CheckpointInfo]) -> _Position:
    """Return what orders checkpoints among their siblings: steps, or epochs if not all have a step and all an epoch.

    A step is never compared with an epoch: what lacks the one that counts has no place.
    """
    complete = [info for info in every if info.complete]
    by_epoch = any(info.step is None for info in complete) and all(info.epoch for info in complete)

    def position(info: CheckpointInfo) -> float | None:
        found = info.epoch if by_epoch else info.step
        return found.value if found else None

    return position


def _order(info: CheckpointInfo, position: _Position) -> tuple[float, datetime, str]:
    place = position(info)
    return (-math.inf if place is None else place), info.saved_at, info.path.name


def _rules(held: _Held, placed: list[int], complete: list[int], policy: Policy) -> None:
    for rank, index in enumerate(reversed(placed[-policy.last :] if policy.last else []), 1):
        held.by(index, f"last {rank} of {policy.last}")
    _anchors(held, placed, policy)
    _best(held, placed, policy)
    _times(held, complete, policy)
    for index in complete:
        info = held.every[index]
        if info.step and info.step.value in policy.steps:
            held.by(index, f"step {int(info.step.value):,}")
        for glob in policy.globs:
            if any(fnmatchcase(path.name, glob) for path in info.paths):
                held.by(index, f"name {glob}")


def _anchors(held: _Held, placed: list[int], policy: Policy) -> None:
    """One for each multiple of so many steps; inert where there are only epochs."""
    width = policy.anchor_every
    steps = [(found.value, index) for index in placed if (found := held.every[index].step)]
    if not width or not steps:
        return
    for step, index in steps:
        if step == 0:
            held.by(index, "anchor 0")
    positive = [(step, index) for step, index in steps if step > 0]
    for multiple, index in _anchored(positive, width, policy.anchor_mode).items():
        held.by(index, f"anchor {multiple:,}")


def _anchored(steps: list[tuple[float, int]], width: int, mode: AnchorMode) -> dict[int, int]:
    """Return the place of the checkpoint that stands for each multiple; of equal steps the later one."""
    found: dict[int, tuple[float, int]] = {}
    for step, index in steps:
        below = int(step // width) * width
        # The multiple above counts as well: what is nearest to it so far must be there when it is passed.
        near = (below,) if mode is not AnchorMode.CLOSEST else (below, below + width)
        for multiple in near:
            if multiple == 0 or (mode is AnchorMode.EXACT and step != multiple):
                continue
            distance = abs(step - multiple)
            known = found.get(multiple)
            if known is None or distance <= known[0]:
                found[multiple] = (distance, index)
    return {multiple: index for multiple, (_, index) in found.items()}


def _best(held: _Held, placed: list[int], policy: Policy) -> None:
    """The best by a metric: NaN never, of equal ones the later step."""
    if not policy.best or not policy.metric:
        return
    scored = [
        (value, -place, index)
        for place, index in enumerate(placed)
        if (value := held.every[index].metrics.get(policy.metric)) is not None and not math.isnan(value)
    ]
    for mode in (policy.mode,) if policy.mode else tuple(Mode):
        if mode is Mode.MAX:
            ranked = sorted((-value, place, index) for value, place, index in scored)
        else:
            ranked = sorted(scored)
        what = "best" if policy.mode else ("lowest" if mode is Mode.MIN else "highest")
        for rank, (_, _, index) in enumerate(ranked[: policy.best], 1):
            held.by(index, f"{what} {rank} of {policy.best} by {policy.metric}")


def _times(held: _Held, complete: list[int], policy: Policy) -> None:
    by_time = sorted(complete, key=lambda index: (held.every[index].saved_at, _order(held.every[index], held.position)))
    if policy.within is not None and by_time:
        since = held.every[by_time[-1]].saved_at - policy.within
        for index in by_time:
            if held.every[index].saved_at >= since:
                held.by(index, "recent")
    last: datetime | None = None
    for index in by_time if policy.every else ():
        saved_at = held.every[index].saved_at
        if last is None or (policy.every and saved_at >= last + policy.every):
            held.by(index, "spaced in time")
            last = saved_at


def _protections(
    held: _Held,
    placed: list[int],
    complete: list[int],
    policy: Policy,
    verified: Callable[[CheckpointInfo], bool],
) -> None:
    """What is never deleted, whatever the rules say."""
    every = held.every
    if placed:
        held.by(placed[-1], "newest")
        sound = next((index for index in reversed(placed) if verified(every[index])), None)
        if sound is not None and sound != placed[-1]:
            held.by(sound, "newest that passes verification")
    if complete:
        # Of what was saved at the same time, only the latest step.
        latest = max(complete, key=lambda index: (every[index].saved_at, _order(every[index], held.position)))
        if not placed or latest != placed[-1]:
            held.by(latest, "saved last")
    for index, info in enumerate(every):
        if info.pinned:
            held.by(index, "pinned")
        if info.pointers:
            held.by(index, ", ".join(info.pointers))
        if info.complete and held.position(info) is None:
            held.by(index, "its step cannot be read")
    _waiting(held, placed, policy)


def _waiting(held: _Held, placed: list[int], policy: Policy) -> None:
    """While the rule for the best waits for a metric, nothing newer than the last measured one goes."""
    if not policy.best or not policy.metric:
        return
    measured = [index for index in placed if policy.metric in held.every[index].metrics]
    last = max((held.every[index].saved_at for index in measured), default=None)
    after = set(placed[placed.index(measured[-1]) + 1 if measured else 0 :])
    for index in placed:
        info = held.every[index]
        waits = index in after or (last is not None and info.saved_at > last)
        if waits and policy.metric not in info.metrics:
            held.by(index, f"not measured yet ({policy.metric})")


def _decided(held: _Held, index: int, policy: Policy, now: datetime, newest: int | None) -> Decision:
    info, reasons = held.every[index], tuple(held.reasons.get(index, ()))
    if info.complete:
        return Decision(checkpoint=info, action=Action.KEEP if reasons else Action.DELETE, reasons=reasons)
    if reasons:
        return Decision(checkpoint=info, action=Action.KEEP, reasons=reasons)
    why = info.completeness.state.value
    age = policy.remove_incomplete
    if newest is None:
        return Decision(checkpoint=info, action=Action.SKIP, reasons=(f"{why}, and none is whole",))
    other = held.every[newest]
    place, whole = held.position(info), held.position(other)
    if info.saved_at > other.saved_at or (place is not None and whole is not None and place > whole):
        return Decision(checkpoint=info, action=Action.SKIP, reasons=(f"{why}, newer than the newest whole one",))
    unknown = info.completeness.state is State.UNKNOWN
    if age is None or unknown or now - info.saved_at < age:
        return Decision(checkpoint=info, action=Action.SKIP, reasons=(why,))
    return Decision(checkpoint=info, action=Action.DELETE, reasons=(f"{why}, and older than asked for",))
