"""Step, epoch and metrics of a checkpoint, each with the place where it was found."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptctl.model import Contents, Found
from ckptctl.tensors import scalar
from ckptctl.values import Described, TensorRef, as_mapping, text_items

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_MAX_KEY = 64
_STEPS = ("global_step", "global_steps", "step", "steps", "iteration", "iter", "num_updates", "current_step")
_EPOCHS = ("epoch", "epochs", "current_epoch")
_BEST = re.compile(r"best_?(\w*)")
_METRIC = re.compile(r"((val|valid|validation|eval|test|train)_.+|loss|acc(uracy)?\d*|perplexity|ppl|bleu|metric)")
_NOT_METRIC = re.compile(r".*(step|epoch|path|batch|size|iter|idx|index|count|seed).*")
_STEP_IN_NAME = re.compile(r"(?:^|[^a-z])(?:step|steps|iter|iteration|checkpoint|ckpt)[-_=]?([0-9]{1,18})(?![0-9])")
_EPOCH_IN_NAME = re.compile(r"(?:^|[^a-z])epoch[-_=]?([0-9]{1,9})(?![0-9])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a checkpoint says of its own progress."""

    step: Found | None
    epoch: Found | None
    metrics: tuple[Found, ...]


def facts(path: Path, contents: Contents) -> Facts:
    """Look inside first, then at the string metadata, then at the name."""
    root = dict(text_items(as_mapping(contents.values) or {}))
    short = {key: value for key, value in root.items() if len(key) <= _MAX_KEY}
    inside = {key: number for key, value in short.items() if (number := number_of(contents, value)) is not None}
    name = path.name.lower()
    return Facts(
        step=_known(_STEPS, inside, contents.metadata) or _in_name("step", _STEP_IN_NAME, name),
        epoch=_known(_EPOCHS, inside, contents.metadata) or _in_name("epoch", _EPOCH_IN_NAME, name),
        metrics=tuple(_metrics(contents, root, inside)),
    )


def number_of(contents: Contents, value: object) -> float | None:
    """Return the number that a value is: plain, NumPy's, or a tensor of one element."""
    if isinstance(value, TensorRef):
        tensor = contents.tensors.get(value.name)
        return scalar(tensor) if tensor else None
    if isinstance(value, Described) and value.type.startswith("numpy.") and len(value.args) == 1:
        value = value.args[0]
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _known(keys: tuple[str, ...], inside: Mapping[str, float], metadata: Mapping[str, str]) -> Found | None:
    for key in keys:
        if key in inside:
            return Found(name=key, value=inside[key], where=f"inside: {key}")
    for key in keys:
        if re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,18})?", metadata.get(key, "")):
            text = metadata[key]
            return Found(name=key, value=float(text) if "." in text else int(text), where=f"metadata: {key}")
    return None


def step_in_name(name: str) -> Found | None:
    """Return the step that stands in a name behind such a word as step, checkpoint or iter."""
    return _in_name("step", _STEP_IN_NAME, name.lower())


def _in_name(what: str, pattern: re.Pattern[str], name: str) -> Found | None:
    found = pattern.findall(name)
    return Found(name=what, value=int(found[-1]), where="in the name") if found else None


def _metrics(contents: Contents, root: Mapping[str, object], inside: Mapping[str, float]) -> Iterator[Found]:
    """Yield best values first, then others that are called like a metric."""
    yield from _lightning(contents, root)
    named = [(key, value) for key, value in inside.items() if not _NOT_METRIC.fullmatch(key.lower())]
    for key, value in named:
        best = _BEST.fullmatch(key.lower())
        if best:
            yield Found(name=f"best {best[1]}".strip(), value=value, where=f"inside: {key}")
    for key, value in named:
        if _METRIC.fullmatch(key.lower()):
            yield Found(name=key, value=value, where=f"inside: {key}")


def _lightning(contents: Contents, root: Mapping[str, object]) -> Iterator[Found]:
    """The best score that Lightning's ModelCheckpoint callback keeps."""
    for key, state in (as_mapping(root.get("callbacks")) or {}).items():
        if isinstance(key, str) and key.startswith("ModelCheckpoint"):
            fields = as_mapping(state) or {}
            value = number_of(contents, fields.get("best_model_score"))
            if value is not None:
                monitor = fields.get("monitor")
                name = monitor if isinstance(monitor, str) else "score"
                yield Found(name=f"best {name}", value=value, where="inside: callbacks.ModelCheckpoint")
