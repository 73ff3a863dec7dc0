"""What the Hugging Face Trainer writes beside a model and its optimizer, whoever wrote those: itself, DeepSpeed, FSDP.

``trainer_state.json`` is written last.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from ckptctl.layouts._components import merged
from ckptctl.layouts._members import find_members, rank_gaps, read_members, table, unfinished
from ckptctl.layouts._trainer_state import NAME, read_trainer_state
from ckptctl.model import Checkpoint, Component, Finding, Found, Part

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ckptctl.layouts._layout import Scan

TABLE = table(
    (Component.SCHEDULER, r"scheduler\.pt"),
    (Component.RNG, r"rng_state(_[0-9]{1,6})?\.pth"),
    (Component.TRAINER, r"scaler\.pt|training_args\.bin"),
)
_RANK = re.compile(r"rng_state_([0-9]{1,6})\.pth")


def with_trainer(seen: Scan, checkpoint: Checkpoint) -> Checkpoint:
    """Add what the Trainer wrote in a directory to a checkpoint in it; its step, epoch and metrics come first."""
    there = {contents.range.file.path.name for contents in checkpoint.files}
    members = [member for member in find_members(seen, TABLE) if member[1] not in there]
    if not members and NAME not in seen.names:
        return checkpoint
    files, parts, findings = read_members(seen, members)
    state = read_trainer_state(seen)
    if state:
        trainer = Part(component=Component.TRAINER, prefix="", tensors={}, values={"trainer_state": dict(state)})
        parts = merged(parts, {Component.TRAINER: trainer})
    return replace(
        checkpoint,
        path=seen.path,
        files=(*checkpoint.files, *files),
        parts=merged(checkpoint.parts, parts),
        step=_found(state, "global_step") or step_in_name(seen) or checkpoint.step,
        epoch=_found(state, "epoch") or checkpoint.epoch,
        metrics=tuple(_metrics(state)) or checkpoint.metrics,
        findings=(*checkpoint.findings, *findings, *_incomplete(seen, state)),
    )


def _found(state: Mapping[str, object], key: str) -> Found | None:
    value = state.get(key)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return Found(name=key, value=value, where=f"{NAME}: {key}") if number and isinstance(value, (int, float)) else None


def step_in_name(seen: Scan) -> Found | None:
    found = re.fullmatch(r"(?:tmp-)?checkpoint-([0-9]{1,18})", seen.path.name)
    return Found(name="step", value=int(found[1]), where="in the name") if found else None


def _metrics(state: Mapping[str, object]) -> Iterator[Found]:
    """Yield the best metric, then what the newest evaluation at or before this step gave."""
    best = _found(state, "best_metric")
    if best:
        yield Found(name="best metric", value=best.value, where=best.where)
    history = state.get("log_history")
    newest: dict[str, float] = {}
    for entry in history if isinstance(history, list) else ():
        if isinstance(entry, dict):
            newest.update({k: v for k, v in entry.items() if _is_metric(k, v)})
    for key, value in newest.items():
        yield Found(name=key, value=value, where=f"{NAME}: log_history")


def _is_metric(key: object, value: object) -> bool:
    rate = ("_runtime", "_per_second", "_time")
    named = isinstance(key, str) and key.startswith("eval_") and not key.endswith(rate)
    return named and isinstance(value, (int, float)) and not isinstance(value, bool)


def _incomplete(seen: Scan, state: Mapping[str, object]) -> Iterator[Finding]:
    """Yield what shows that the save did not reach its end."""
    if {"optimizer.pt", "scheduler.pt"} & set(seen.names) and NAME not in seen.names:
        yield unfinished(seen, f"{NAME}, which is written last, is missing")
    if NAME in seen.names and not state:
        yield unfinished(seen, f"{NAME}, which is written last, is cut or is no JSON object")
    yield from rank_gaps(seen, _RANK, "rng_state_{}.pth")
