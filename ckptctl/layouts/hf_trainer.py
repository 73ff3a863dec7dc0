"""Checkpoints of the Hugging Face Trainer, and models and adapters of its libraries in one file.

``checkpoint-STEP/`` holds the model, ``optimizer.pt``, ``scheduler.pt``, ``rng_state*.pth`` and
``trainer_state.json``, which is written last.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckptctl.layouts._index import indexes_of
from ckptctl.layouts._layout import Layout, Scan
from ckptctl.layouts._members import find_members, missing, read_members, read_text, table
from ckptctl.layouts._trainer import step_in_name, with_trainer
from ckptctl.layouts._trainer_state import NAME as _STATE
from ckptctl.model import Checkpoint, Component

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptctl.model import Finding

_TABLE = table(
    (Component.MODEL, r"model\.safetensors|pytorch_model\.bin|adapter_model\.(safetensors|bin)"),
    (Component.OPTIMIZER, r"optimizer\.pt"),
)


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
    optimizers = [member for member in members if member[0] is Component.OPTIMIZER]
    files, parts, findings = read_members(seen, [*chosen, *optimizers])
    described = Checkpoint(
        path=seen.path,
        layout=LAYOUT.name,
        title=_title(seen, models),
        files=files,
        parts=parts,
        step=step_in_name(seen),
        findings=(*findings, *_incomplete(seen, models)),
    )
    return with_trainer(seen, described)


def _title(seen: Scan, models: list[str]) -> str:
    if any(name.startswith("adapter_model") for name in models):
        kind = "PEFT adapter"
    else:
        trained = bool(step_in_name(seen)) or _STATE in seen.names or "optimizer.pt" in seen.names
        kind = "" if trained else "Hugging Face model"
    return kind or "Hugging Face Trainer checkpoint"


def _incomplete(seen: Scan, models: list[str]) -> Iterator[Finding]:
    """Yield what the Trainer always writes and is not there."""
    if not models:
        yield missing(seen, "the model")
    tag = read_text(seen, "latest")
    if tag and tag not in seen.names:
        yield replace(missing(seen, tag), message=f"{tag} is missing, though latest names it")
    if "scheduler.pt" in seen.names and "optimizer.pt" not in seen.names:
        yield missing(seen, "optimizer.pt")


LAYOUT = Layout(
    name="hf-trainer",
    title="Hugging Face directory",
    about="a checkpoint of the Hugging Face Trainer, or a model or adapter directory of its libraries",
    accepts=accepts,
    open=open_,
)
