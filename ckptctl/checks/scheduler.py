"""Which learning-rate schedule a state belongs to: the keys of ``torch.optim.lr_scheduler``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptctl.values import as_mapping, nested

if TYPE_CHECKING:
    from ckptctl.model import Part

_KINDS = (
    ("sequential", "_schedulers"),
    ("one cycle", "_schedule_phases"),
    ("cosine, warm restarts", "T_mult"),
    ("cosine", "T_max"),
    ("plateau", "num_bad_epochs"),
    ("lambda", "lr_lambdas"),
    ("steps", "milestones"),
    ("step", "step_size"),
    ("linear", "start_factor"),
    ("polynomial", "power"),
    ("constant", "factor"),
    ("exponential", "gamma"),
)
_MANY = 10**15


def scheduler_summary(part: Part) -> str:
    """Return kind and position of each schedule in a few words: ``cosine, last_epoch 12,000``."""
    found: list[str] = []
    inside: set[int] = set()
    for value in nested(dict(part.values)):
        items = as_mapping(value)
        if not items or "last_epoch" not in items or id(value) in inside:
            continue
        kind = next((kind for kind, key in _KINDS if key in items), "")
        at = items["last_epoch"]
        place = f"last_epoch {at:,}" if isinstance(at, int) and at < _MANY else ""
        found.append(", ".join(word for word in (kind, place) if word))
        inside.update(id(inner) for inner in nested(value))  # the schedules that this one is made of
    return "; ".join(dict.fromkeys(found))
