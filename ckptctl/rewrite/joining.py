"""Bring together what several ranks hold under one name: replicas that agree, or parts of a larger whole.

What the files record decides. Where they record nothing, only a rule or the shapes of a reference can: that parts are
equal, or have shapes that would fit, says nothing about how they were cut.
"""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from ckptctl.errors import CorruptError, UnsupportedError, UsageError, counted
from ckptctl.rewrite.flat import named
from ckptctl.tensors.compare import replicas
from ckptctl.tensors.coverage import uncovered

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ckptctl.model import Part, Piece, TensorInfo
    from ckptctl.rewrite.cuts import Cuts

_HINT = "--like REFERENCE (a checkpoint, or JSON of name and shape) or --split 'GLOB=DIM' says how it was cut"


def joined(  # noqa: PLR0913  # two of them only say more of the tensors
    path: Path, tensors: Mapping[str, TensorInfo], cuts: Cuts, *, prefix: str, absent: frozenset[str], compare: bool
) -> dict[str, TensorInfo]:
    """Return the tensors whole, each element from exactly one place; `prefix` is cut off names for `cuts`.

    `absent` are names that some rank does not have. With `compare`, replicas are read and have to agree; what may be
    parts always has to.

    Raises
    ------
    CorruptError
        Elements are missing, or in two places; or replicas differ.
    UnsupportedError
        Nothing says how a tensor was cut.
    """
    unused = [glob for glob, _ in cuts.rules if not any(_matches(glob, name, prefix) for name in tensors)]
    if unused:
        raise UsageError(f"{path}: --split {unused[0]}: no name matches")
    found: dict[str, TensorInfo] = {}
    for name, tensor in named(path, tensors, cuts, prefix=prefix).items():
        bare = name.removeprefix(f"{prefix}.") if prefix else name
        whole = _of_parts(path, tensor, cuts, bare, everywhere=name not in absent)
        wrong = uncovered(whole)
        if wrong:
            raise CorruptError(f"{path}: {name}: {wrong}", hint="ckptctl verify says which files are not whole")
        if whole.copies and (compare or _is_part(whole)):
            _agree(path, whole)
        found[name] = replace(whole, copies=()) if whole.copies else whole
    return found


def _matches(glob: str, name: str, prefix: str) -> bool:
    return fnmatchcase(name, glob) or bool(prefix and fnmatchcase(name.removeprefix(f"{prefix}."), glob))


def taken_as_replicas(before: Part, after: Part, cuts: Cuts) -> list[str]:
    """Return the names of what every rank has alike, and nothing says that it was not cut."""
    return [
        name
        for name, one in before.tensors.items()
        if one.copies and _is_part(one) and name in after.tensors and after.tensors[name].shape == one.shape
        and name not in cuts.shapes and name.removeprefix(f"{before.prefix}.") not in cuts.shapes
    ]  # fmt: skip


def _is_part(tensor: TensorInfo) -> bool:
    """Whether a rank has it as one piece that seems whole: nothing says whether it is."""
    return len(tensor.pieces) == 1 and tensor.pieces[0].shape == tensor.shape


def _of_parts(path: Path, tensor: TensorInfo, cuts: Cuts, bare: str, *, everywhere: bool) -> TensorInfo:
    """Return a tensor of which every rank has a part as one of all parts, if it is said how it was cut."""
    if not _is_part(tensor) or (everywhere and not tensor.copies):
        return tensor
    parts = (tensor.pieces[0], *tensor.copies)
    rule = next((dim for glob, dim in cuts.rules if fnmatchcase(tensor.name, glob) or fnmatchcase(bare, glob)), None)
    shape = cuts.shapes.get(tensor.name) or cuts.shapes.get(bare)
    if rule is None and shape is not None:
        rule = _cut_of(path, tensor, parts, shape)
    if not everywhere and (shape is None or rule is not None):
        message = f"{path}: {tensor.name} is in {counted(len(parts), 'file')}, not in all: a part of it may be lost"
        raise CorruptError(message, hint="--like REFERENCE says what shape it has")
    if rule is None:
        if any(part.shape != tensor.shape for part in parts):
            raise UnsupportedError(f"{path}: {tensor.name} has other shapes on other ranks: it was cut", hint=_HINT)
        return tensor
    if rule >= len(tensor.shape) or any(_without(p.shape, rule) != _without(tensor.shape, rule) for p in parts):
        raise UnsupportedError(f"{path}: {tensor.name} of shape {list(tensor.shape)} was not cut along {rule}")
    at, pieces = 0, []
    for part in parts:
        pieces.append(replace(part, offsets=(*(0,) * rule, at, *(0,) * (len(tensor.shape) - rule - 1))))
        at += part.shape[rule]
    whole = (*tensor.shape[:rule], at, *tensor.shape[rule + 1 :])
    if shape is not None and whole != shape:
        raise UnsupportedError(
            f"{path}: {tensor.name} joined along {rule} is {list(whole)}, the reference {list(shape)}"
        )
    return replace(tensor, shape=whole, pieces=tuple(pieces), copies=())


def _cut_of(path: Path, tensor: TensorInfo, parts: tuple[Piece, ...], shape: tuple[int, ...]) -> int | None:
    """Return along which dimension parts make a shape; None if each part has it, so that they are replicas."""
    if all(part.shape == shape for part in parts):
        return None
    dims = [
        dim
        for dim in range(len(shape))
        if len(tensor.shape) == len(shape)
        and all(_without(part.shape, dim) == _without(shape, dim) for part in parts)
        and sum(part.shape[dim] for part in parts) == shape[dim]
    ]
    if len(dims) != 1:
        raise UnsupportedError(
            f"{path}: {counted(len(parts), 'part')} of {tensor.name}, the first of shape {list(tensor.shape)}, "
            f"do not make {list(shape)} in one way"
        )
    return dims[0]


def _without(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    return (*shape[:dim], *shape[dim + 1 :])


def _agree(path: Path, tensor: TensorInfo) -> None:
    """Compare each replica with the piece that it is one of."""
    for first, copy, same in replicas(tensor):
        if first is None:
            raise CorruptError(f"{path}: {tensor.name}: blocks of two ranks overlap, and not wholly")
        if not same:
            names = f"{first.range.file.path.name} and {copy.range.file.path.name}"
            plain = first.shape == tensor.shape
            hint = f"if they are parts of a larger one: {_HINT}" if plain else None
            raise CorruptError(f"{path}: {tensor.name} differs between {names}: no replicas", hint=hint)
