"""The states of several ranks as one: blocks joined, and what only one rank has under its number."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from ckptctl.errors import CorruptError, listed
from ckptctl.layouts._components import split
from ckptctl.layouts._members import NOT_JOINED, missing
from ckptctl.model import Component, Severity
from ckptctl.values import BLOCKS_KEY, Numbers, Span, TensorRef, nested, with_references

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ckptctl.layouts._layout import Scan
    from ckptctl.model import Contents, Finding, TensorInfo

_MOST_VALUES = 1_000_000
_MAIN = (Component.MODEL, Component.OPTIMIZER)
"""What has to be the same on all ranks, or cut in a way that is known, to be one state."""


def joined(first: Contents, ranks: Mapping[int, Contents], shared: Contents | None) -> Contents:
    """Return what rank 0 has, blocks joined with those of the other ranks, and beside it what only others have."""
    whole = {**(shared.tensors if shared else {}), **first.tensors}
    cut = blocks_of(first)
    values = dict(first.values) if isinstance(first.values, dict) else {"state": first.values}
    for rank, contents in ranks.items():
        label, others = _label(rank, values, whole), {}
        for name, tensor in rank_tensors(contents, shared).items() if rank else ():
            known = whole.get(name)
            if known and name in cut and name in blocks_of(contents) and _fit(known, tensor):
                whole[name] = _with_block(known, tensor)
            else:
                others[name] = TensorRef(name=f"{label}.{name}")
                whole[f"{label}.{name}"] = replace(tensor, name=f"{label}.{name}")
        different = _different(first.values, contents.values, others)
        if others or different:  # what stands in no dict of the rank's values stands under its name
            values[label] = {**others, **different}
    alone = len(values) == 1 and not isinstance(first.values, dict)
    tree = first.values if alone else values
    plain = with_references(tree, lambda ref: replace(ref, state=None))
    return replace(first, tensors=whole, values=plain)


def with_different(first: object, ranks: Mapping[int, Contents]) -> object:
    """Return the plain values of the first rank, and beside them what those of others have otherwise."""
    if not isinstance(first, dict):
        return first
    values = dict(first)
    for rank, contents in sorted(ranks.items()):
        different = _different(first, contents.values, {})
        if different:
            values[_label(rank, values, contents.tensors)] = different
    return values


def own_tensors(contents: Contents, shared: Contents | None) -> dict[str, TensorInfo]:
    """Return the tensors that lie in the file of a rank."""
    common = shared.range.file if shared else None
    every = contents.tensors.items()
    return {name: tensor for name, tensor in every if not any(piece.range.file is common for piece in tensor.pieces)}


def rank_tensors(contents: Contents, shared: Contents | None) -> dict[str, TensorInfo]:
    """Return the tensors of a rank but those that only hold long lists and texts of its plain values."""
    every = nested(contents.values, most=_MOST_VALUES)
    places = {one.range.offset for one in every if isinstance(one, (Numbers, Span))}
    own = own_tensors(contents, shared)
    return {name: one for name, one in own.items() if not any(piece.range.offset in places for piece in one.pieces)}


def blocks_of(contents: Contents) -> frozenset[str]:
    """Return the names of the tensors of a rank that are blocks of larger ones, if only in name; tied ones too."""
    try:
        listed = frozenset(json.loads(contents.metadata.get(BLOCKS_KEY, "{}")))
    except (ValueError, TypeError, RecursionError):
        raise CorruptError(f"{contents.range.file.path}: {BLOCKS_KEY} in its metadata is malformed") from None
    mine = {name: one.pieces[0].range for name, one in contents.tensors.items() if one.pieces}
    places = {mine[name].offset for name in listed if name in mine and mine[name].length}
    file = contents.range.file
    tied = {name for name, at in mine.items() if at.file is file and at.length and at.offset in places}
    return listed | tied


def _label(rank: int, values: Mapping[object, object], tensors: Mapping[str, TensorInfo]) -> str:
    """Return under what to put that which only one rank has: a key that nobody uses."""
    label = f"rank_{rank}"
    while label in values or any(name.startswith(f"{label}.") for name in tensors):
        label += "_"
    return label


def _fit(known: TensorInfo, tensor: TensorInfo) -> bool:
    return known.shape == tensor.shape and known.dtype is tensor.dtype


def _with_block(known: TensorInfo, tensor: TensorInfo) -> TensorInfo:
    """Add a block, if there is something in it; what is there already is a copy of it."""
    there = [piece for piece in known.pieces if 0 not in piece.shape]
    places = {piece.offsets for piece in there}
    more = [piece for piece in tensor.pieces if 0 not in piece.shape]
    fresh = [piece for piece in more if piece.offsets not in places]
    again = [piece for piece in more if piece.offsets in places]
    return replace(known, pieces=(*there, *fresh), copies=(*known.copies, *again))


def _different(first: object, other: object, tensors: dict[str, TensorRef]) -> dict[object, object]:
    """Return what of a rank's plain values is not as on the first one, and its `tensors`, where its dicts have them.

    The tensors for which there is a place are taken out of `tensors`.
    """
    if not isinstance(first, dict) or not isinstance(other, dict):
        found = _with_own(other, tensors)
        return {} if first == other and found is other else {"state": found}
    different: dict[object, object] = {}
    for key, one in other.items():
        same = first.get(key)
        if isinstance(one, dict):
            inner = _different(same if isinstance(same, dict) else {}, one, tensors)
            different |= {key: inner} if inner else {}
            continue
        made = _with_own(one, tensors)
        if made is not one or (one != same and not isinstance(one, TensorRef)):
            different[key] = made
    return different


def _with_own(value: object, tensors: dict[str, TensorRef]) -> object:
    """Return a value in which the tensors that only one rank has are called as they are in the whole."""
    named = {one.name for one in nested(value, most=_MOST_VALUES) if isinstance(one, TensorRef)}
    mine = {name: tensors.pop(name) for name in named if name in tensors}
    return with_references(value, lambda ref: mine.get(ref.name, ref)) if mine else value


def apart(seen: Scan, ranks: Mapping[int, Contents], shared: Contents | None) -> Iterator[Finding]:
    """Yield a finding for weights that differ among ranks though nothing says that they are blocks of larger ones."""
    found: dict[str, None] = {}
    for contents in ranks.values() if len(ranks) > 1 else ():
        own = own_tensors(contents, shared).keys() - blocks_of(contents)
        for component, part in split(contents).items():
            if component in _MAIN:
                found |= dict.fromkeys(name for name in part.tensors if name in own)
    names = list(found)
    if names:
        message = f"ranks differ in {listed(names)}, and nothing says that these are parts of larger tensors"
        yield replace(missing(seen, ""), slug=NOT_JOINED, severity=Severity.WARNING, message=message)
