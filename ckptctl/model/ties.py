"""Tied tensors: names of the same bytes read in the same way, found, named and recorded."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ckptctl.model.tensors import TensorInfo

K = TypeVar("K")
# Output layers that share the weights of an embedding: loaders expect the embedding in the file.
_HEAD = re.compile(
    r"(.*\.)?(lm_head|embed_out|output_projection|proj_out|generator|decoder|predictions|classifier|head)"
    r"\.(weight|bias)"
)
_SOURCE = re.compile(r"(^|\.)shared\.")


def tied_groups(tensors: Iterable[TensorInfo]) -> tuple[tuple[str, ...], ...]:
    """Return the groups of names that are the same bytes read in the same way."""
    return tied_keys((tensor.name, tensor) for tensor in tensors)


def tied_keys(tensors: Iterable[tuple[K, TensorInfo]]) -> tuple[tuple[K, ...], ...]:
    """Return the groups of keys whose tensors are the same bytes read in the same way."""
    by_place: dict[tuple[int, int], list[tuple[K, TensorInfo]]] = {}
    for key, tensor in tensors:
        pieces = tensor.pieces or (tensor.parts[0].pieces if tensor.parts else ())
        if pieces and (pieces[0].range.length or tensor.nbytes):
            place = pieces[0].range
            by_place.setdefault((id(place.file), place.offset), []).append((key, tensor))
    groups: list[tuple[K, ...]] = []
    for near in by_place.values():
        if len(near) > 1:
            same: dict[object, list[K]] = {}
            for key, tensor in near:
                if tensor.nbytes:
                    same.setdefault(tensor.identity, []).append(key)
            groups += [tuple(keys) for keys in same.values() if len(keys) > 1]
    return tuple(groups)


def kept_name(names: Iterable[str]) -> str:
    """Return the one of tied names under which the tensor is stored, whatever their order.

    As in files of the Hugging Face libraries: an embedding rather than the output layer tied to it, what is
    called ``shared`` before all, else the first by name.
    """
    return min(names, key=lambda name: (not _SOURCE.search(name), bool(_HEAD.fullmatch(name)), name))


def recorded_ties(metadata: Mapping[str, str], tensors: Mapping[str, object]) -> dict[str, str]:
    """Return the ties that the metadata of a safetensors file records: a name that is not stored, and the one that is.

    This is how ``save_model`` of safetensors and ``huggingface_hub`` write them.
    """
    return {
        name: kept
        for name, kept in metadata.items()
        if name not in tensors and kept in tensors and name not in ("format", "")
    }
