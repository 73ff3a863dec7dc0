"""What the checkpoints of a run scored, and which one the trainer holds for the best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptctl.layouts import trainer_state
from ckptctl.model.run import Pointer
from ckptctl.runs.metrics import metrics_beside, metrics_of_history

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from ckptctl.runs._directory import Directory
    from ckptctl.runs._entry import Entry

_BEST, _STATE = "best", "trainer_state.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Metrics by step and by name, and what points at the best."""

    by_step: Mapping[int, Mapping[str, float]]
    by_name: Mapping[str, Mapping[str, float]]
    pointers: tuple[Pointer, ...]

    def of(self, step: int | None, entries: Iterable[Entry]) -> dict[str, float]:
        """Return what one checkpoint scored: in its name, inside it, in its trainer's state, beside it."""
        found: dict[str, float] = {}
        for entry in entries:
            found |= {**entry.named.metrics, **entry.metrics}
            for path in entry.paths:
                found |= self.by_name.get(path.name, {})
        return found | dict(self.by_step.get(step, {})) if step is not None else found


def scores_of(here: Directory, entries: Sequence[Entry]) -> Scores:
    """Read the metrics beside the checkpoints and what the newest of them record; newer records win."""
    by_step = metrics_beside(here.path, here.names)
    by_name: dict[str, dict[str, float]] = {}
    recorded = sorted((e for e in entries if e.step and e.record), key=lambda e: e.step.value if e.step else 0)
    for entry in recorded:
        if entry.record:
            _merge(by_step, entry.record.by_step)
            by_name |= {name: dict(found) for name, found in entry.record.by_name.items()}
    if recorded:
        _merge(by_step, metrics_of_history(trainer_state(recorded[-1].paths[0]).get("log_history")))
    return Scores(by_step=by_step, by_name=by_name, pointers=_best(here, recorded))


def _merge(into: dict[int, dict[str, float]], other: Mapping[int, Mapping[str, float]]) -> None:
    for step, found in other.items():
        into.setdefault(step, {}).update(found)


def _best(here: Directory, recorded: Sequence[Entry]) -> tuple[Pointer, ...]:
    """What the last records hold for the best: by step, by time (a run may have been resumed), and the run's own.

    Only the last component of a recorded path counts, and only in the run's own directory.
    """
    named = [entry for entry in recorded if entry.record and entry.record.best]
    paths = [entry.record.best for entry in named[-1:] if entry.record]
    latest = max(named, key=lambda entry: _written(entry.paths[0]), default=None)
    paths += [latest.record.best] if latest and latest.record else []
    own = trainer_state(here.path).get("best_model_checkpoint")
    paths += [own] if isinstance(own, str) else []
    targets = dict.fromkeys(path.replace("\\", "/").rstrip("/").rpartition("/")[2] for path in paths)
    return tuple(Pointer(name=_BEST, target=one, dangling=one not in here.names) for one in targets if one)


def _written(path: Path) -> float:
    """Return when the trainer's state in a checkpoint was written, or the file that is one."""
    state = path / _STATE
    try:
        return (state if state.exists() else path).stat().st_mtime
    except OSError:
        return 0.0
