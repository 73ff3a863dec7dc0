"""What a checkpoint lacks for a resume, and what happens without it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckptctl.checks.optimizer import was_scheduled
from ckptctl.model import Aspect, Checkpoint, Component, Finding, Part, Severity
from ckptctl.values import TensorRef, as_mapping, key_text

if TYPE_CHECKING:
    from collections.abc import Iterator

_WITHOUT = {
    Component.MODEL: ("model", "there is nothing to resume from"),
    Component.OPTIMIZER: ("optimizer", "moments start from zero: a spike in the loss"),
    Component.SCHEDULER: ("scheduler", "the learning rate would start over"),
    Component.RNG: ("rng", "dropout and shuffling would differ"),
    Component.DATA: ("data position", "a resume would repeat or skip samples"),
}
_RNG_KINDS = {
    "python": (r"(?:.*_)?(?:python|py)(?:_.*)?|random(?:_rng)?(?:_states?)?", "augmentation in Python would differ"),
    "numpy": (r".*numpy.*|(?:.*_)?np(?:_.*)?", "augmentation in NumPy would differ"),
    "torch": (r"(?!.*(?:cuda|gpu)).*(?:torch|cpu).*|rng(?:_state)?", "dropout and shuffling would differ"),
    "cuda": (r".*(?:cuda|gpu).*", "dropout would differ on the GPU"),
}


def resume_gaps(checkpoint: Checkpoint) -> tuple[Finding, ...]:
    """Return what is missing, each with its consequence; nothing for a lone component of a checkpoint."""
    parts = checkpoint.parts
    if Component.MODEL not in parts and (len(parts) < 2 or not checkpoint.step):
        return ()  # a file that holds one component, or one rank's part of it
    if not parts.keys() & {Component.OPTIMIZER, Component.SCHEDULER, Component.RNG} and not checkpoint.step:
        gaps = [("all but weights", "a resume would start optimizer, schedule and data afresh")]
    else:
        gaps = list(_gaps(checkpoint))
    return tuple(
        Finding(aspect=Aspect.RESUME, severity=Severity.NOTE, slug="missing", where=what, message=without)
        for what, without in gaps
    )


def without(what: str) -> str:
    """Return what happens to a resume that lacks something."""
    every = dict(_WITHOUT.values())
    return every.get(what) or _RNG_KINDS[what.removesuffix(" rng")][1]


def rng_kinds(part: Part) -> tuple[str, ...]:
    """Return whose random states are there: python, numpy, torch, cuda."""
    keys = [key_text(key).lower() for key, value in _two_levels(part) if value is not None]
    return tuple(kind for kind, (name, _) in _RNG_KINDS.items() if any(re.fullmatch(name, key) for key in keys))


def _gaps(checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
    parts = checkpoint.parts
    for component in (Component.MODEL, Component.OPTIMIZER, Component.SCHEDULER):
        unused = component is Component.SCHEDULER and was_scheduled(parts.get(Component.OPTIMIZER)) is False
        if component not in parts and not unused:
            yield _WITHOUT[component]
    if not checkpoint.step and not checkpoint.epoch:
        yield "step", "counters, schedules and logs would start at zero"
    rng = parts.get(Component.RNG)
    if rng is None:
        yield _WITHOUT[Component.RNG]
    else:
        there = rng_kinds(rng)
        yield from ((f"{kind} rng", without) for kind, (_, without) in _RNG_KINDS.items() if kind not in there)
    if not data_position(checkpoint):
        yield _WITHOUT[Component.DATA]


def data_position(checkpoint: Checkpoint) -> str:
    """Say by what a resume finds its place in the data; empty if by nothing."""
    part = checkpoint.parts.get(Component.DATA)
    if part is not None:
        return ", ".join(list(part.values)[:4]) or "there"
    counts = checkpoint.layout == "hf-trainer" and checkpoint.step is not None
    return "the Trainer skips what its global_step has seen" if counts else ""


def _two_levels(part: Part) -> Iterator[tuple[object, object]]:
    for key, value in part.values.items():
        inner = as_mapping(value)
        yield from inner.items() if inner else ((key, value),)
    yield from ((name.rpartition(".")[2], TensorRef(name=name)) for name in part.tensors)
