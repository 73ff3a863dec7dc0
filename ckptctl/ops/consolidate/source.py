"""A sharded checkpoint as something to be rewritten: tensors under whole names, and the plain values beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptctl.model.ties import recorded_ties
from ckptctl.rewrite.source import Source
from ckptctl.values import Described, TensorRef, as_mapping, nested

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptctl.model import Checkpoint, Component, Part


def source_of(checkpoint: Checkpoint, parts: Mapping[Component, Part], *, everything: bool) -> Source:
    """Return what to rewrite. With `everything` plain values come along, under the keys at which they stand."""
    tensors = {name: TensorRef(name=name) for part in parts.values() for name in part.tensors}
    plain = {key: value for part in parts.values() for key, value in part.values.items() if key not in tensors}
    metadata = {key: text for one in checkpoint.files for key, text in one.metadata.items() if key != "format"}
    ties = recorded_ties(metadata, tensors)
    return Source(
        path=checkpoint.path,
        files=checkpoint.files,
        parts=parts,
        values={**tensors, **plain} if everything and plain else None,
        metadata=ties,
        findings=checkpoint.findings,
    )


def without_tensors(values: Mapping[str, object]) -> dict[str, object]:
    """Return plain values without what stands for tensors: those are known by their names."""
    return {key: kept for key, value in values.items() if (kept := _plain(value)) is not None}


def _plain(value: object) -> object:
    if isinstance(value, TensorRef):
        return None
    if not any(isinstance(inner, TensorRef) for inner in nested(value)):
        return value
    items = None if isinstance(value, Described) else as_mapping(value)
    if items is not None:
        return {key: kept for key, inner in items.items() if (kept := _plain(inner)) is not None} or None
    if isinstance(value, (list, tuple)):
        return [kept for inner in value if (kept := _plain(inner)) is not None] or None
    return None
