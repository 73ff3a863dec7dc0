"""One name in a run, or the names of all ranks, with the little that is kept of a look at it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckptctl.checks.marks import base_name
from ckptctl.layouts import number_of
from ckptctl.model import Component, Found
from ckptctl.runs.metrics import metrics_of_history
from ckptctl.values import as_mapping

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ckptctl.checks.completeness import Glance
    from ckptctl.model import Checkpoint
    from ckptctl.model.run import Completeness
    from ckptctl.runs._names import Named

_IN_NAME = "in the name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a trainer's own state in a checkpoint says of its siblings: scores by step or name, path of the best."""

    by_step: Mapping[int, Mapping[str, float]]
    by_name: Mapping[str, Mapping[str, float]]
    best: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One name, or the names of all ranks. Tensors and values are not kept: a run may have thousands of entries."""

    named: Named
    paths: tuple[Path, ...]
    completeness: Completeness
    recognised: bool
    layout: str
    title: str
    step: Found | None
    epoch: Found | None
    metrics: Mapping[str, float]
    record: Record | None
    world: bool
    bases: tuple[str, ...] = ()

    @property
    def slot(self) -> tuple[object, ...]:
        """Entries with the same slot are one checkpoint: same step, or without steps the same epoch.

        A number in the name that is no step must be the same too.
        """
        temporary = base_name(self.named.name) is not None
        if self.step:
            other = self.named.step if self.named.step != self.step.value else None
            return (temporary, "step", self.step.value, other)
        return (temporary, "epoch", self.epoch.value) if self.epoch else (temporary, "name", self.named.name)


def entry_of(named: Named, paths: tuple[Path, ...], seen: Glance) -> Entry:
    """Keep of a look what its run needs. Step and epoch stand inside, or else in the name."""
    checkpoint = seen.checkpoint
    step = checkpoint.step if checkpoint else None
    epoch = checkpoint.epoch if checkpoint else None
    if step and (step.where == _IN_NAME or step.value != step.value // 1 or step.value < 0):
        step = None
    if epoch and epoch.where == _IN_NAME:
        epoch = None
    return Entry(
        named=named,
        paths=paths,
        completeness=seen.completeness,
        recognised=seen.recognised,
        layout=checkpoint.layout if checkpoint else "",
        title=_title(named, checkpoint),
        step=replace(step, value=int(step.value)) if step else _in_name("step", named.step),
        epoch=epoch or _in_name("epoch", named.epoch),
        metrics=_metrics(checkpoint),
        world=any("world_size" in part.values for part in checkpoint.parts.values()) if checkpoint else False,
        bases=tuple(base.name for base in checkpoint.bases) if checkpoint else (),
        record=(_trainer(checkpoint) or _lightning(checkpoint)) if checkpoint else None,
    )


def _title(named: Named, checkpoint: Checkpoint | None) -> str:
    if named.family.endswith("lightning"):
        return "Lightning"
    return checkpoint.title.partition(",")[0].removesuffix(" checkpoint") if checkpoint else ""


def _in_name(what: str, number: int | None) -> Found | None:
    return Found(name=what, value=number, where=_IN_NAME) if number is not None else None


def _metrics(checkpoint: Checkpoint | None) -> dict[str, float]:
    """Return the values of this step. The Trainer's are looked up by step; a best value may be of another one."""
    if not checkpoint or _state(checkpoint):
        return {}
    return {found.name: found.value for found in checkpoint.metrics if not found.name.startswith("best")}


def _state(checkpoint: Checkpoint) -> Mapping[object, object]:
    trainer = checkpoint.parts.get(Component.TRAINER)
    return as_mapping(trainer.values.get("trainer_state")) or {} if trainer else {}


def _trainer(checkpoint: Checkpoint) -> Record | None:
    """The state of the Hugging Face Trainer: of its history, which is cumulative, only what belongs to this step."""
    state = _state(checkpoint)
    if not state:
        return None
    best = state.get("best_model_checkpoint")
    step = checkpoint.step.value if checkpoint.step else None
    history = metrics_of_history(state.get("log_history"))
    own = {key: found for key, found in history.items() if key == step}
    return Record(by_step=own, by_name={}, best=best if isinstance(best, str) else "")


def _lightning(checkpoint: Checkpoint) -> Record | None:
    """The states of Lightning's ModelCheckpoints: scores by path; without a monitor the "best" is only the newest."""
    scores: dict[str, dict[str, float]] = {}
    best = ""
    for part in checkpoint.parts.values():
        for key, state in (as_mapping(part.values.get("callbacks")) or {}).items():
            fields = as_mapping(state) or {}
            if not isinstance(key, str) or not key.startswith("ModelCheckpoint") or not fields.get("monitor"):
                continue
            for name, found in _scores(checkpoint, fields):
                scores.setdefault(name, {}).update(found)
            path = fields.get("best_model_path")
            best = best or (path if isinstance(path, str) else "")
    return Record(by_step={}, by_name=scores, best=best) if scores or best else None


def _scores(checkpoint: Checkpoint, fields: Mapping[object, object]) -> list[tuple[str, dict[str, float]]]:
    monitor = fields.get("monitor")
    return [
        (path.rpartition("/")[2], {monitor: value})
        for path, score in (as_mapping(fields.get("best_k_models")) or {}).items()
        if isinstance(path, str) and isinstance(monitor, str)
        if (value := number_of(checkpoint.files[0], score)) is not None
    ]
