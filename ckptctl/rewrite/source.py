"""What is to be rewritten: a described checkpoint, and whether it may be at all."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ckptctl.errors import CorruptError, UnsafePickleError, UnsupportedError, UsageError, counted
from ckptctl.model import Component, Level, Severity
from ckptctl.values import Described, TensorRef, as_mapping, is_module, nested

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ckptctl.model import Contents, Finding, Part, TensorInfo

_REFUSED = frozenset({"duplicate-name", "duplicate-tensor", "data-never-written", "values-ignored", "unlisted-tensor"})
"""Findings that are no errors to a reader, and that a copy would hide."""
_SHOWN = 4
_HINT = "ckptctl consolidate, on the directory of all ranks, makes one file of them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file, or shards that make one whole.

    `values` is the whole tree of plain values, None if there is none; `shards` maps the name of each file to its
    tensors, where there are several; `beside` are files of the same checkpoint that stay behind. What is `live` comes
    out of the memory of a training: nothing in it was left by somebody else.
    """

    path: Path
    files: tuple[Contents, ...]
    parts: Mapping[Component, Part]
    values: object = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    shards: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    beside: tuple[str, ...] = ()
    live: bool = False

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        """All tensors by name, in the order of their components."""
        return {name: tensor for part in self.parts.values() for name, tensor in part.tensors.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What of a source is to be written: tensors by their names there, and the tree above them.

    `prefix` is cut off the names; `aside` says what stays behind.
    """

    tensors: Mapping[str, TensorInfo]
    values: object
    prefix: str = ""
    aside: tuple[str, ...] = ()


def check_source(source: Source) -> None:
    """Refuse what must not be rewritten.

    Raises
    ------
    UnsafePickleError
        A loader would run code.
    CorruptError
        Something is missing, doubled, or was never written.
    UnsupportedError
        It is one rank's shard, or weights that were never gathered.
    """
    dangerous = sorted({str(use) for one in source.files for use in one.globals if use.level is Level.DANGEROUS})
    if dangerous:
        raise UnsafePickleError(
            f"{source.path}: a loader would run {', '.join(dangerous[:4])}; it is not converted, whatever is selected",
            hint="ckptctl inspect shows what it names; ask its maker for a file without code",
        )
    for finding in (*source.findings, *(finding for one in source.files for finding in one.findings)):
        if finding.severity is Severity.ERROR or finding.slug in _REFUSED:
            message = finding.message if finding.where in str(source.path) else f"{finding.where}: {finding.message}"
            raise CorruptError(f"{source.path}: {message}", hint="ckptctl inspect shows all that is there")
    if not source.live:
        _check_shards(source)


def _check_shards(source: Source) -> None:
    tensors = source.tensors
    shards = [name for name, tensor in tensors.items() if not tensor.whole]
    if shards:
        raise UnsupportedError(
            f"{source.path}: one rank's shard of a larger whole ({len(shards)} of {counted(len(tensors), 'tensor')}, "
            f"the first is {shards[0]})",
            hint=_HINT,
        )
    rank = next((finding for one in source.files[:1] for finding in one.findings if finding.slug == "one-rank"), None)
    if rank and len(source.files) == 1:
        raise UnsupportedError(f"{source.path}: {rank.message}", hint=_HINT)
    zero = as_mapping((as_mapping(source.values) or {}).get("optimizer_state_dict")) or {}
    if "zero_stage" in zero and "partition_count" in zero:
        raise UnsupportedError(f"{source.path}: one rank's part of an optimizer of DeepSpeed ZeRO", hint=_HINT)
    model = source.parts[Component.MODEL].tensors if Component.MODEL in source.parts else {}
    empty = [name for name, tensor in model.items() if tensor.shape == (0,)]
    if len(model) > len(empty) >= 2 and 2 * len(empty) > len(model):
        raise UnsupportedError(
            f"{source.path}: {len(empty)} of {counted(len(model), 'tensor')} of the model are empty placeholders, "
            "as DeepSpeed ZeRO-3 saves weights that were not gathered",
            hint="ckptctl consolidate, on the directory of the sharded checkpoint, brings the weights together",
        )


def choose(source: Source, only: Component | None) -> Chosen:
    """Take the whole, or one component.

    Raises
    ------
    UsageError
        There is no such component.
    """
    if only is None:
        return Chosen(tensors=source.tensors, values=source.values)
    part = source.parts.get(only)
    if part is None:
        there = ", ".join(component.value for component in source.parts) or "nothing"
        raise UsageError(f"{source.path}: it has no {only.value}", hint=f"it has {there}")
    others = [_named(other) for component, other in source.parts.items() if component is not only]
    values: object = part.values.get(part.prefix) if part.prefix else dict(part.values) or None
    prefix = part.prefix
    if not others and not prefix:
        values = source.values  # all of the file is this component
    if prefix and values is not None and as_mapping(values) is None and not is_module(values):
        prefix, values = "", {prefix: values}  # a lone value keeps its key
    if only is not Component.MODEL:
        return Chosen(tensors=part.tensors, values=values, prefix=prefix, aside=tuple(others))
    tensors, values, strays = _without_strays(part.tensors, values)
    return Chosen(tensors=tensors, values=values, prefix=part.prefix, aside=(*others, *strays))


def _named(part: Part) -> str:
    """Say what a component holds: how many tensors, or else under which keys its values stand."""
    if part.tensors:
        return f"{part.component.value} ({counted(len(part.tensors), 'tensor')})"
    keys = list(part.values)
    return f"{part.component.value} ({', '.join(keys[:_SHOWN])}{', …' if len(keys) > _SHOWN else ''})"


def _without_strays(
    tensors: Mapping[str, TensorInfo], values: object
) -> tuple[Mapping[str, TensorInfo], object, list[str]]:
    """Leave out dicts with tensors that lie among the weights of a flat state dict: they are not weights of it."""
    items = as_mapping(values) or {}
    direct = [key for key, value in items.items() if isinstance(value, TensorRef)]
    inner: dict[object, set[str]] = {
        key: {ref.name for ref in nested(value) if isinstance(ref, TensorRef)}
        for key, value in items.items()
        if as_mapping(value) is not None
    }
    strays = {key: names for key, names in inner.items() if names}
    if not strays or 2 * len(direct) <= len(items):
        return tensors, values, []
    lost = set().union(*strays.values())
    kept = {key: value for key, value in items.items() if key not in strays}
    said = [f"{key}, a dict among the weights ({counted(len(names), 'tensor')})" for key, names in strays.items()]
    values = replace(values, items=kept) if isinstance(values, Described) else kept
    return {name: tensor for name, tensor in tensors.items() if name not in lost}, values, said
