"""Metrics that stand beside checkpoints: ``metrics.jsonl``, ``metrics.json``, ``metrics.csv``, a trainer's history."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from typing import TYPE_CHECKING

from ckptctl.errors import CkptctlError
from ckptctl.storage import is_there, open_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

_FILES = ("metrics.jsonl", "metrics.json", "metrics.csv")
METRICS = frozenset(_FILES)
_MOST_BYTES, _LARGE = 64 << 20, 1 << 53
_STEPS = ("step", "global_step", "iteration", "iter")
_NOT_METRICS = ("epoch", "time", "timestamp", "lr", "learning_rate", *_STEPS)
_RATES = ("_runtime", "_per_second", "_time")


def metrics_beside(directory: Path, names: Iterable[str]) -> dict[int, dict[str, float]]:
    """Return the metrics of each step that the files in a directory record; later rows win."""
    by_step: dict[int, dict[str, float]] = {}
    for name in _FILES:
        if name in names:
            _merge(by_step, _rows(directory / name))
    return by_step


def unread_metrics(directory: Path) -> str:
    """Say which file of metrics is there and cannot be read; empty if there is none."""
    for name in _FILES:
        path = directory / name
        if not is_there(path):
            continue
        try:
            file = open_file(path)
            file.range().head(1)
            file.release()
        except CkptctlError as error:
            return error.message
        if file.size > _MOST_BYTES:
            return f"{path}: {file.size} bytes are more than are read ({_MOST_BYTES})"
    return ""


def metrics_of_history(history: object) -> dict[int, dict[str, float]]:
    """Return the metrics of each step in the history of the Hugging Face Trainer: what evaluations gave."""
    by_step: dict[int, dict[str, float]] = {}
    rows = [row for row in history if isinstance(row, dict)] if isinstance(history, list) else []
    _merge(by_step, ({k: v for k, v in row.items() if k in _STEPS or str(k).startswith("eval_")} for row in rows))
    return by_step


def _merge(by_step: dict[int, dict[str, float]], rows: Iterable[Mapping[object, object]]) -> None:
    for row in rows:
        step = next((number for key in _STEPS if (number := _number(row.get(key))) is not None), None)
        found = {
            key: number
            for key, value in row.items()
            if isinstance(key, str) and key.lower() not in _NOT_METRICS and not key.endswith(_RATES)
            if (number := _number(value)) is not None
        }
        if step is not None and step == step // 1 and found:
            by_step.setdefault(int(step), {}).update(found)


def _rows(path: Path) -> Iterator[Mapping[object, object]]:
    """Yield the rows of a file; one that is too large or malformed has none, a cut last line is passed over."""
    try:
        file = open_file(path)
        if file.size > _MOST_BYTES:
            return
        text = file.range().read().decode("utf-8-sig", "replace")
        file.release()
    except CkptctlError:
        return
    if path.suffix == ".csv":
        with contextlib.suppress(csv.Error):
            yield from csv.DictReader(io.StringIO(text))
        return
    whole = _parsed(text) if path.suffix == ".json" else None
    rows = whole if isinstance(whole, list) else [whole] if whole is not None else map(_parsed, text.split("\n"))
    yield from (row for row in rows if isinstance(row, dict))


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _number(value: object) -> float | None:
    """Return a number, also one written as text; NaN counts, as the trainers write it."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        return value if abs(value) < _LARGE else float(value)
    except OverflowError:
        return None
