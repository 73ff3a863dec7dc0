"""Which learning-rate schedule a state belongs to: the keys of ``torch.optim.lr_scheduler``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptctl.values import as_mapping, children

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
_MAX_STATES = 100


def scheduler_summary(part: Part) -> str:
    """Return kind and position of each schedule in a few words: ``cosine, last_epoch 12,000``."""
    found: list[str] = []
    todo: list[object] = [dict(part.values)]
    for _ in range(_MAX_STATES):
        if not todo:
            break
        value = todo.pop(0)
        items = as_mapping(value)
        if items and "last_epoch" in items:
            kind = next((kind for kind, key in _KINDS if key in items), "")
            at = items["last_epoch"]
            place = f"last_epoch {at:,}" if isinstance(at, int) else ""
            found.append(", ".join(word for word in (kind, place) if word))
        else:
            todo += [inner for _, inner in children(value)]
    return "; ".join(dict.fromkeys(found))
