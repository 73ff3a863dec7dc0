"""The rows of an inspect report: one for each component, one for each tensor, and which are tied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptctl import checks
from ckptctl.model import Component, Part, TensorInfo
from ckptctl.ops.inspect.report import ComponentRow, TensorRow
from ckptctl.storage import StoredFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def component_row(part: Part, first_of: Mapping[str, str]) -> ComponentRow:
    """Sum up a component; `first_of` maps tied names to the one that counts."""
    counted = [tensor for name, tensor in part.tensors.items() if name not in first_of]
    about = ""
    slots: tuple[checks.Slot, ...] = ()
    match part.component:
        case Component.OPTIMIZER:
            about, slots = checks.optimizer_kind(part), checks.optimizer_slots(part)
        case Component.SCHEDULER:
            about = checks.scheduler_summary(part)
        case Component.RNG:
            about = ", ".join(checks.rng_kinds(part))
        case Component.TRAINER | Component.DATA | Component.OTHER:
            about = ", ".join(part.values)
    return ComponentRow(
        component=part.component,
        prefix=part.prefix,
        tensors=len(part.tensors),
        parameters=sum(tensor.numel for tensor in counted),
        nbytes=sum(tensor.nbytes for tensor in counted),
        dtypes=tuple(dict.fromkeys(tensor.dtype.name for tensor in part.tensors.values())),
        values=len(part.values),
        about=about,
        slots=slots,
    )


def tensor_rows(parts: Mapping[Component, Part], first_of: Mapping[str, str]) -> list[TensorRow]:
    """Describe every tensor for a list."""
    return [
        TensorRow(
            name=tensor.name,
            component=part.component,
            dtype=tensor.dtype.name,
            shape=tensor.shape,
            nbytes=tensor.nbytes,
            file=tensor.pieces[0].range.file.path.name if tensor.pieces else "",
            offset=_offset(tensor),
            layout=tensor.layout,
            shard=None if tensor.whole or len(tensor.pieces) != 1 else tensor.pieces[0].shape,
            tied=first_of.get(tensor.name, ""),
        )
        for part in parts.values()
        for tensor in part.tensors.values()
    ]


def _offset(tensor: TensorInfo) -> int | None:
    """Where the bytes of a tensor begin, if they lie in one piece of a file on disk."""
    place = tensor.pieces[0].range if len(tensor.pieces) == 1 else None
    return place.offset if place and isinstance(place.file, StoredFile) else None


def sort_rows(rows: list[TensorRow], sort: str) -> tuple[TensorRow, ...]:
    """Put the list in order: ``file`` (as it is), ``name``, ``size`` or ``offset``."""
    keys: dict[str, Callable[[TensorRow], tuple[object, ...]]] = {
        "name": lambda row: (row.name,),
        "size": lambda row: (-row.nbytes, row.name),
        "offset": lambda row: (row.file, row.offset if row.offset is not None else -1),
    }
    return tuple(sorted(rows, key=keys[sort])) if sort in keys else tuple(rows)
