"""The metric that a trainer itself declared for its best checkpoint, and whether it is better low or high."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from ckptctl import formats
from ckptctl.errors import CkptctlError
from ckptctl.retention import Mode
from ckptctl.storage import open_file
from ckptctl.values import Described, as_mapping

if TYPE_CHECKING:
    from pathlib import Path

    from ckptctl.model.run import Run

_ARGUMENTS = "training_args.bin"
_LIGHTNING = re.compile(r"ModelCheckpoint\{'monitor': '([^']{1,200})', 'mode': '(min|max)'")
_LOSSES = r"loss|perplexity|ppl|err(?:or)?|nll|wer|cer|fid|mse|mae|rmse"
_HELD_OUT = re.compile(rf"(?:.*[_/.-])?(?:eval|val|valid|validation)[_/.-](?:.*[_/.-])?(?:{_LOSSES})", re.IGNORECASE)
_TURNED = re.compile(r"(?:^|[_/.-])(?:neg|negative|minus|inv|inverse)(?:$|[_/.-])", re.IGNORECASE)
"""What makes the better of a metric the worse."""
_LOWER = re.compile(rf"(?:.*[_/.-])?(?:{_LOSSES})", re.IGNORECASE)
_HIGHER = re.compile(
    r"(?:.*[_/.-])?(?:acc(?:uracy)?|f1|bleu|rouge[a-z0-9]*|auc|auroc|precision|recall|iou|dice)[0-9]*",
    re.IGNORECASE,
)


def declared_metric(run: Run) -> tuple[str, Mode | None]:
    """Return the metric of the best and its mode: declared by the trainer, or else the one loss on held-out data.

    Both are empty if nothing says.
    """
    newest = next((info for info in reversed(run.checkpoints) if info.complete), None)
    if newest:
        found = _of_trainer(newest.path) if newest.path.is_dir() else _of_lightning(newest.path)
        if found[0]:
            return found
    losses = Counter(name for info in run.checkpoints for name in info.metrics if _HELD_OUT.fullmatch(name))
    return (next(iter(losses)), Mode.MIN) if len(losses) == 1 else ("", None)


def mode_of(metric: str) -> Mode | None:
    """Return whether a metric is better low or high, as far as its name tells."""
    if _TURNED.search(metric):
        return None
    if _LOWER.fullmatch(metric):
        return Mode.MIN
    return Mode.MAX if _HIGHER.fullmatch(metric) else None


def _of_trainer(path: Path) -> tuple[str, Mode | None]:
    """The arguments that the Hugging Face Trainer was started with."""
    values = _values(path / _ARGUMENTS)
    state = (as_mapping(values.state) or {}) if isinstance(values, Described) else {}
    metric, greater = state.get("metric_for_best_model"), state.get("greater_is_better")
    if not isinstance(metric, str) or not metric:
        return "", None
    mode = {True: Mode.MAX, False: Mode.MIN}[greater] if isinstance(greater, bool) else None
    return metric if metric.startswith("eval_") else f"eval_{metric}", mode


def _of_lightning(path: Path) -> tuple[str, Mode | None]:
    """The key under which Lightning's ModelCheckpoint keeps its state."""
    callbacks = as_mapping((as_mapping(_values(path)) or {}).get("callbacks")) or {}
    for key in callbacks:
        found = _LIGHTNING.match(key) if isinstance(key, str) else None
        if found:
            return found[1], Mode(found[2])
    return "", None


def _values(path: Path) -> object:
    try:
        file = open_file(path)
        values = formats.read(file.range()).values
        file.release()
    except CkptctlError:
        return None  # it is not there, or says nothing that can be read
    return values
