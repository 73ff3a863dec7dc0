"""Checkpoints of the Hugging Face Trainer, and models and adapters of its libraries in one file.

``checkpoint-STEP/`` holds the model, ``optimizer.pt``, ``scheduler.pt``, ``rng_state*.pth`` and
``trainer_state.json``, which is written last.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckptctl.layouts._index import indexes_of
from ckptctl.layouts._layout import Layout, Scan
from ckptctl.layouts._members import find_members, missing, rank_gaps, read_members, table, unfinished
from ckptctl.layouts._trainer_state import NAME as _STATE
from ckptctl.layouts._trainer_state import read_trainer_state
from ckptctl.model import Checkpoint, Component, Finding, Found, Part

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_TABLE = table(
    (Component.MODEL, r"model\.safetensors|pytorch_model\.bin|adapter_model\.(safetensors|bin)"),
    (Component.OPTIMIZER, r"optimizer\.pt"),
    (Component.SCHEDULER, r"scheduler\.pt"),
    (Component.RNG, r"rng_state(_[0-9]{1,6})?\.pth"),
    (Component.TRAINER, r"scaler\.pt|training_args\.bin"),
)
_RANK = re.compile(r"rng_state_([0-9]{1,6})\.pth")


def accepts(seen: Scan) -> bool:
    """A directory with the trainer's state, or with a model in one file; shards alone have a layout of their own."""
    names = set(seen.names)
    if not seen.directory or any(name.startswith("random_states_") for name in names):
        return False
    whole = any(component is Component.MODEL for component, _ in find_members(seen, _TABLE))
    return whole or _STATE in names or ("optimizer.pt" in names and "scheduler.pt" in names)


def open_(seen: Scan) -> Checkpoint:
    """Describe the directory as one checkpoint."""
    members = find_members(seen, _TABLE)
    models = [path.name for path in indexes_of(seen)] + [n for c, n in members if c is Component.MODEL]
    # Beside a safetensors file, loaders pass over a pickle of the same weights.
    chosen = [(Component.MODEL, name) for name in sorted(models, key=lambda name: "safetensors" not in name)[:1]]
    files, parts, findings = read_members(seen, [*chosen, *(m for m in members if m[0] is not Component.MODEL)])
    state = read_trainer_state(seen)
    if state:
        parts = _with_state(parts, state)
    return Checkpoint(
        path=seen.path,
        layout=LAYOUT.name,
        title=_title(seen, models),
        files=files,
        parts=parts,
        step=_found(state, "global_step") or _step_in_name(seen),
        epoch=_found(state, "epoch"),
        metrics=tuple(_metrics(state)),
        findings=(*findings, *_incomplete(seen, models, state)),
    )


def _with_state(parts: Mapping[Component, Part], state: Mapping[str, object]) -> Mapping[Component, Part]:
    trainer = parts.get(Component.TRAINER)
    values = {**(trainer.values if trainer else {}), "trainer_state": dict(state)}
    tensors = trainer.tensors if trainer else {}
    made = Part(component=Component.TRAINER, prefix="", tensors=tensors, values=values)
    return {component: made if component is Component.TRAINER else parts[component]
            for component in Component if component in parts or component is Component.TRAINER}  # fmt: skip


def _title(seen: Scan, models: list[str]) -> str:
    if any(name.startswith("adapter_model") for name in models):
        kind = "PEFT adapter"
    else:
        trained = bool(_step_in_name(seen)) or _STATE in seen.names or "optimizer.pt" in seen.names
        kind = "" if trained else "Hugging Face model"
    return kind or "Hugging Face Trainer checkpoint"


def _found(state: Mapping[str, object], key: str) -> Found | None:
    value = state.get(key)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return (
        Found(name=key, value=value, where=f"{_STATE}: {key}") if number and isinstance(value, (int, float)) else None
    )


def _step_in_name(seen: Scan) -> Found | None:
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
        yield Found(name=key, value=value, where=f"{_STATE}: log_history")


def _is_metric(key: object, value: object) -> bool:
    rate = ("_runtime", "_per_second", "_time")
    named = isinstance(key, str) and key.startswith("eval_") and not key.endswith(rate)
    return named and isinstance(value, (int, float)) and not isinstance(value, bool)


def _incomplete(seen: Scan, models: list[str], state: Mapping[str, object]) -> Iterator[Finding]:
    """Yield what shows that the save did not reach its end."""
    names = set(seen.names)
    if not models:
        yield missing(seen, "the model")
    if "scheduler.pt" in names and "optimizer.pt" not in names:
        yield missing(seen, "optimizer.pt")
    if names & {"optimizer.pt", "scheduler.pt"} and _STATE not in names:
        yield unfinished(seen, f"{_STATE}, which is written last, is missing")
    if _STATE in names and not state:
        yield unfinished(seen, f"{_STATE}, which is written last, is cut or is no JSON object")
    yield from rank_gaps(seen, _RANK, "rng_state_{}.pth")


LAYOUT = Layout(
    name="hf-trainer",
    title="Hugging Face directory",
    about="a checkpoint of the Hugging Face Trainer, or a model or adapter directory of its libraries",
    accepts=accepts,
    open=open_,
)
