"""Tied tensors: names of the same bytes read in the same way, found, named and recorded."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ckptctl.model.tensors import TensorInfo

# Output layers that share the weights of an embedding: loaders expect the embedding in the file.
_HEAD = re.compile(
    r"(.*\.)?(lm_head|embed_out|output_projection|proj_out|generator|decoder|predictions|classifier|head)"
    r"\.(weight|bias)"
)
_SOURCE = re.compile(r"(^|\.)shared\.")


def tied_groups(tensors: Iterable[TensorInfo]) -> tuple[tuple[str, ...], ...]:
    """Return the groups of names that are the same bytes read in the same way."""
    by_place: dict[tuple[int, int], list[TensorInfo]] = {}
    for tensor in tensors:
        pieces = tensor.pieces or (tensor.parts[0].pieces if tensor.parts else ())
        if pieces and tensor.nbytes:
            place = pieces[0].range
            by_place.setdefault((id(place.file), place.offset), []).append(tensor)
    groups: list[tuple[str, ...]] = []
    for near in by_place.values():
        if len(near) > 1:
            same: dict[object, list[str]] = {}
            for tensor in near:
                same.setdefault(tensor.identity, []).append(tensor.name)
            groups += [tuple(names) for names in same.values() if len(names) > 1]
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
