"""How often to save: what saving costs against what a failure costs.

Failures are taken to be independent and exponentially distributed. Young, Communications of the ACM 17(9), 1974,
https://doi.org/10.1145/361147.361115; Daly, Future Generation Computer Systems 22(3), 2006,
https://doi.org/10.1016/j.future.2004.11.016, equation 37.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

Model = Literal["exact", "daly", "young"]
_STEPS, _TINY = 200, 1e-7


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """How long to train between saves.

    `seconds` of useful work from the end of a save to the beginning of the next, `steps` the whole steps in them (0 if
    the time of a step was not given); `overhead` is the part of the time spent saving, `waste` the part spent saving,
    on work that is lost, and on restarts. `notes` say where the assumptions are doubtful.
    """

    seconds: float
    steps: int
    overhead: float
    waste: float
    notes: tuple[str, ...] = ()


def optimal_interval(  # noqa: PLR0913  # two are needed, the rest has a meaning of its own
    save_seconds: float,
    mtbf_seconds: float,
    *,
    restart_seconds: float = 0.0,
    persist_seconds: float = 0.0,
    step_seconds: float = 0.0,
    nodes: int = 1,
    model: Model = "exact",
) -> Interval:
    """Return how often to save so that the least time is lost.

    Parameters
    ----------
    save_seconds, mtbf_seconds
        How long training stands still for a save; the mean time between failures of a node.
    restart_seconds
        From a failure to the first step after it. It does not move the optimum, only the waste.
    persist_seconds
        How long an asynchronous save takes until it is durable: no interval is shorter.
    step_seconds, nodes
        How long a step takes; how many nodes have to be up.
    model
        ``young`` is the square root rule, ``daly`` its correction, ``exact`` the root of what Daly approximates.

    Raises
    ------
    ValueError
        A time is negative, or not finite; or nothing ever fails or is saved.
    """
    mtbf = mtbf_seconds / max(nodes, 1)
    times = (save_seconds, mtbf_seconds, restart_seconds, persist_seconds, step_seconds)
    if not all(math.isfinite(one) and one >= 0 for one in times) or not save_seconds or not mtbf or nodes < 1:
        raise ValueError("times are in seconds, finite and not negative; a save and the time between failures not zero")
    seconds = max({"young": _young, "daly": _daly, "exact": _exact}[model](save_seconds, mtbf), persist_seconds)
    steps = max(int(seconds / step_seconds), math.ceil(persist_seconds / step_seconds), 1) if step_seconds else 0
    seconds = steps * step_seconds if steps else seconds
    return Interval(
        seconds=seconds,
        steps=steps,
        overhead=save_seconds / (seconds + save_seconds),
        waste=waste(seconds, save_seconds, mtbf, restart_seconds=restart_seconds),
        notes=tuple(_notes(save_seconds, mtbf, crowded=0 < persist_seconds >= seconds)),
    )


def _notes(save: float, mtbf: float, *, crowded: bool) -> Iterator[str]:
    if save >= mtbf / 10:
        yield "a save takes a tenth of the time between failures, or more: save faster, or on fewer nodes"
    if crowded:
        yield "saves follow each other as fast as they become durable"


def waste(seconds: float, save_seconds: float, mtbf_seconds: float, *, restart_seconds: float = 0.0) -> float:
    """Return the part of the time that is lost, from 0 to 1, if so many `seconds` of work lie between saves.

    Raises
    ------
    ValueError
        There is no time between saves, or between failures.
    """
    if seconds <= 0 or mtbf_seconds <= 0:
        raise ValueError("there has to be some time between saves, and between failures")
    exponent = (seconds + save_seconds) / mtbf_seconds
    if exponent + restart_seconds / mtbf_seconds > 700:
        return 1.0
    return 1 - seconds / (mtbf_seconds * math.exp(restart_seconds / mtbf_seconds) * math.expm1(exponent))


def _young(save: float, mtbf: float) -> float:
    return math.sqrt(2 * save * mtbf)


def _daly(save: float, mtbf: float) -> float:
    if save >= 2 * mtbf:
        return mtbf
    part = save / (2 * mtbf)
    return math.sqrt(2 * save * mtbf) * (1 + math.sqrt(part) / 3 + part / 9) - save


def _exact(save: float, mtbf: float) -> float:
    """The root x of (1 - x) e^x = e^(-save / mtbf), by bisection."""
    if save < mtbf * _TINY:
        return _daly(save, mtbf)  # which is exact then, where this equation has no digits left
    target = math.exp(-save / mtbf)
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if (1 - middle) * math.exp(middle) > target else (low, middle)
    return mtbf * (low + high) / 2
