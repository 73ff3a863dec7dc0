"""The plain values that `convert` put into the metadata of safetensors files, or of the index of their shards."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckptctl.formats._pickle.levels import level_named
from ckptctl.model.ties import recorded_ties
from ckptctl.values import VALUES_KEY
from ckptctl.values.decode import decode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptctl.model import TensorInfo


@dataclass(frozen=True, slots=True)
class Restored:
    """A whole checkpoint again: its tensors, tied names among them, its values, and what else the metadata says.

    `problem` says why the values could not be used; then nothing else has changed.
    """

    tensors: Mapping[str, TensorInfo]
    values: object
    metadata: Mapping[str, str]
    problem: str = ""


def restore(tensors: Mapping[str, TensorInfo], metadata: Mapping[str, str]) -> Restored:
    """Take the plain values, and the ties, out of metadata that has the key of the former."""
    ties = recorded_ties(metadata, tensors)
    try:
        values = decode(metadata[VALUES_KEY], tensors, frozenset(tensors) | frozenset(ties), level_named)
    except ValueError as error:
        return Restored(tensors, None, metadata, str(error))
    tied = {name: replace(tensors[kept], name=name) for name, kept in ties.items()}
    rest = {key: text for key, text in metadata.items() if key not in ties and key != VALUES_KEY}
    return Restored({**tensors, **tied}, values, rest)
