"""Flat parameters of FSDP: all parameters of a module in one row, without their names, shapes or order.

A reference gives those: its names in the order in which the modules registered them. Each belongs to the innermost
module that was wrapped.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from ckptctl.errors import UnsupportedError
from ckptctl.model import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ckptctl.model import Piece
    from ckptctl.rewrite.cuts import Cuts

_FLAT = "_flat_param"


def named(path: Path, tensors: Mapping[str, TensorInfo], cuts: Cuts, *, prefix: str) -> dict[str, TensorInfo]:
    """Return tensors with the parameters of the reference in the place of flat ones; the rest as it is.

    Raises
    ------
    UnsupportedError
        There is no reference, its order is not known, or it does not fit.
    """
    flats = {name: one for name, one in tensors.items() if name.rpartition(".")[2] == _FLAT}
    if not flats:
        return dict(tensors)
    if not cuts.shapes or not cuts.ordered:
        raise UnsupportedError(
            f"{path}: {', '.join(list(flats)[:3])}: flat parameters: names, shapes and order are not in the files",
            hint="--like JSON of name and shape, or a .pt state dict, in the order of the model's parameters",
        )
    cut = f"{prefix}." if prefix else ""
    modules = {name: name.removeprefix(cut).removesuffix(_FLAT) for name in flats}
    found = {name: one for name, one in tensors.items() if name not in flats}
    wanted: dict[str, list[str]] = {name: [] for name in flats}
    for bare in cuts.shapes:
        owners = [name for name, module in modules.items() if bare.startswith(module)]
        if cut + bare not in found and owners:
            wanted[max(owners, key=lambda name: len(modules[name]))].append(bare)
    for name, flat in flats.items():
        at = 0
        for bare in wanted[name]:
            shape = cuts.shapes[bare]
            found[cut + bare] = TensorInfo(
                name=cut + bare, dtype=flat.dtype, shape=shape, pieces=_run(flat, at, math.prod(shape))
            )
            at += math.prod(shape)
        if at != flat.numel:
            raise UnsupportedError(
                f"{path}: {name} has {flat.numel} elements, those of the reference that belong there "
                f"({', '.join(wanted[name][:4]) or 'none'}) have {at}"
            )
    return found


def _run(flat: TensorInfo, start: int, count: int) -> tuple[Piece, ...]:
    """Return the pieces that hold so many elements from one on, as runs of a parameter's own elements."""
    width = flat.dtype.bits // 8
    pieces: list[Piece] = []
    for piece in sorted(flat.pieces, key=lambda one: one.offsets):
        at, size = piece.offsets[0], piece.shape[0]
        first, last = max(start, at), min(start + count, at + size)
        if first < last and piece.strides in (None, (1,)):
            place = piece.range.sub((first - at) * width, (last - first) * width)
            pieces.append(replace(piece, range=place, offsets=(first - start,), shape=(last - first,), strides=None))
    return tuple(pieces)
