"""Look at a run: its checkpoints by step, which are whole, what points at them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptctl.errors import UnknownFormatError
from ckptctl.runs import find_runs, is_run
from ckptctl.storage import address

if TYPE_CHECKING:
    import os

    from ckptctl.model.run import CheckpointInfo, Run

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
    directory = address(path)
    if not directory.is_dir() or (pattern is None and not is_run(directory)):
        return ()
    runs = tuple(_report(run) for run in find_runs(directory, pattern=pattern))
    if pattern is not None and not runs:
        raise UnknownFormatError(f"{directory}: no checkpoint in it has a name that matches --pattern in full")
    return runs


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
