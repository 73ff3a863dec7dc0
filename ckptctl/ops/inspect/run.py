"""Look at a run: its checkpoints by step, which are whole, what points at them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ckptctl.errors import UnknownFormatError
from ckptctl.layouts import layout_of
from ckptctl.runs import checkpoint_names, find_runs

if TYPE_CHECKING:
    import os

    from ckptctl.model.run import CheckpointInfo, Run

_ROOTS = ("deepspeed", "rank-files")
_BEST_NAMES = ("eval_loss", "val_loss", "valid_loss", "validation_loss", "test_loss", "loss", "train_loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """One run: its checkpoints and totals. `metric` is the one worth a column; `newest` is the last that is whole."""

    run: Run
    nbytes: int
    whole: int
    newest: CheckpointInfo | None
    metric: str


def inspect_runs(path: str | os.PathLike[str], *, pattern: str | None = None) -> tuple[RunReport, ...]:
    """Describe the runs in a directory; none if it is a checkpoint itself, or holds none.

    Raises
    ------
    UnreadableError
        It may not be read.
    UsageError
        The pattern is no regular expression.
    """
    directory = Path(path)
    if not directory.is_dir() or (pattern is None and _is_checkpoint(directory)):
        return ()
    runs = tuple(_report(run) for run in find_runs(directory, pattern=pattern))
    if pattern is not None and not runs:
        raise UnknownFormatError(f"{directory}: no checkpoint in it has a name that matches --pattern in full")
    return runs


def _is_checkpoint(path: Path) -> bool:
    """Whether a directory is one checkpoint rather than a run that also holds, say, the final model."""
    layout = layout_of(path)
    if layout is None:
        return False
    names = checkpoint_names(path, directories=layout.name not in _ROOTS)
    return not names if layout.name not in _ROOTS else len({(n.family, n.step, n.epoch) for n in names}) < 2


def _report(run: Run) -> RunReport:
    whole = [info for info in run.checkpoints if info.complete]
    return RunReport(
        run=run,
        nbytes=sum(info.nbytes for info in run.checkpoints),
        whole=len(whole),
        newest=whole[-1] if whole else None,
        metric=_metric(run),
    )


def _metric(run: Run) -> str:
    """Return the metric that most checkpoints have, a loss on held-out data before others."""
    counts = Counter(name for info in run.checkpoints for name in info.metrics)
    ordered = sorted(counts, key=lambda name: (name not in _BEST_NAMES, -counts[name], name))
    return min(ordered, key=lambda name: _BEST_NAMES.index(name) if name in _BEST_NAMES else 99) if ordered else ""
