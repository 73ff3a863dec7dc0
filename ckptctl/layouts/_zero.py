"""Where DeepSpeed ZeRO keeps each parameter: runs of elements in the flat partitions of all ranks.

Stages 1 and 2 join the parameters of a group into one row, in the order of `param_shapes`, which is cut at the ranks.
What each rank's file says of its part (`param_slice_mappings`) is only held against it: with ``round_robin_gradients``
DeepSpeed makes that of another order than the one in which the parameters lie.
Stage 3 cuts each parameter by itself: every rank has a run of ceil(elements / ranks) of each, one after another.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckptctl.errors import CorruptError
from ckptctl.model import TensorInfo
from ckptctl.values import Described, as_mapping, attributes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ckptctl.model import Contents, DType, Piece

_STATE = "optimizer_state_dict"
_FLAT12, _FLAT3 = f"{_STATE}.single_partition_of_fp32_groups", f"{_STATE}.fp32_flat_groups"
_SLOT12 = re.compile(rf"{_STATE}\.base_optimizer_state\.(?:state\.)?([0-9]+)\.(.+)")
_SLOT3 = re.compile(rf"{_STATE}\.{_STATE}\.state\.([0-9]+)\.(.+)")
FROZEN = "frozen_param_fragments"
_SETTINGS = frozenset({"loss_scaler", "dynamic_loss_scale", "overflow", "clip_grad", "ds_version"})
WEIGHTS = ""
"""The name under which the fp32 weights stand among the slots of the optimizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Zero:
    """What the files of all ranks come to: weights in fp32 by parameter, and the optimizer's moments."""

    weights: Mapping[str, TensorInfo]
    moments: Mapping[str, TensorInfo]


@dataclass(frozen=True, slots=True)
class _Run:
    """Elements of a parameter: from which on, how many, and where they are in a rank's part."""

    name: str
    at: int
    count: int
    start: int


def stage_of(contents: Contents) -> int:
    """Return the ZeRO stage that an optimizer file states; 0 if it does not."""
    state = as_mapping((as_mapping(contents.values) or {}).get(_STATE)) or {}
    stage = state.get("zero_stage")
    value = stage.args[0] if isinstance(stage, Described) and stage.args else stage
    return value if type(value) is int and 0 < value < 4 else 0


def read_zero(model: Mapping[int, Contents], optimizer: Mapping[int, Contents]) -> Zero:
    """Bring parameters together from model and optimizer states by rank.

    Raises
    ------
    CorruptError
        The files say different things of a parameter, or too little.
    """
    first = as_mapping(model[min(model)].values) or {}
    groups = _shapes(first.get("param_shapes"))
    shapes = {name: shape for group in groups for name, shape in group.items()}
    ranks = [optimizer[rank] for rank in sorted(optimizer)]
    slots: dict[str, dict[str, list[Piece]]] = {}
    if stage_of(ranks[0]) == 3:
        for rank, contents in enumerate(ranks):
            runs = list(_runs_of_stage3(groups, rank, len(ranks)))
            for slot, flats in _flats(contents, _FLAT3, _SLOT3).items():
                _place(slots.setdefault(slot, {}), runs, [one for _, one in sorted(flats.items())])
    else:
        for group, names in enumerate(groups):
            for slot, parts in _of_group(ranks, group).items():
                every = _runs_of_group(ranks, group, names, parts)
                for one, flat in zip(every, parts, strict=True):
                    _place(slots.setdefault(slot, {}), one, [flat])
    dtype = {slot: _dtype(ranks[0], slot) for slot in slots}
    made = {
        (slot, name): TensorInfo(name=name, dtype=dtype[slot], shape=shapes[name], pieces=tuple(pieces))
        for slot, found in slots.items()
        for name, pieces in found.items()
    }
    weights = {name: tensor for (slot, name), tensor in made.items() if slot == WEIGHTS}
    weights |= _frozen(model, _shapes([first.get("frozen_param_shapes")])[0])
    moments = {f"{name}.{slot}": tensor for (slot, name), tensor in made.items() if slot != WEIGHTS}
    return Zero(weights=weights, moments=moments)


def _shapes(value: object) -> list[dict[str, tuple[int, ...]]]:
    """Return names and shapes by group, as model states record them."""
    groups = value if isinstance(value, (list, tuple)) else [value]
    found: list[dict[str, tuple[int, ...]]] = []
    for group in groups:
        items = as_mapping(group) or {}
        found.append({str(name): shape for name, one in items.items() if (shape := _shape(one)) is not None})
    return found


def _shape(value: object) -> tuple[int, ...] | None:
    sizes = value.args[0] if isinstance(value, Described) and value.args else value
    if isinstance(sizes, (list, tuple)) and all(type(size) is int and size >= 0 for size in sizes):
        return tuple(sizes)
    return None


def _flats(contents: Contents, weights: str, slot: re.Pattern[str]) -> dict[str, dict[int, TensorInfo]]:
    """Return the flat partitions of one rank: by slot of the optimizer, and by group."""
    found: dict[str, dict[int, TensorInfo]] = {}
    for name, tensor in contents.tensors.items():
        group = name.removeprefix(f"{weights}.")
        state = slot.fullmatch(name)
        if group != name and group.isascii() and group.isdigit():
            found.setdefault(WEIGHTS, {})[int(group)] = tensor
        elif state and len(tensor.shape) == 1 and state[2] != "step":
            found.setdefault(state[2], {})[int(state[1])] = tensor
    return found


def _of_group(ranks: Sequence[Contents], group: int) -> dict[str, list[TensorInfo]]:
    """Return the partitions of a group, of all ranks, by slot."""
    found: dict[str, list[TensorInfo]] = {}
    for contents in ranks:
        for slot, flats in _flats(contents, _FLAT12, _SLOT12).items():
            if group in flats:
                found.setdefault(slot, []).append(flats[group])
    for slot, parts in found.items():
        if len(parts) != len(ranks):
            what = slot or "the fp32 weights"
            raise CorruptError(f"{_where(ranks[0])}: of group {group}, {what} are there for {len(parts)} ranks only")
    return found


def _runs_of_group(
    ranks: Sequence[Contents], group: int, names: Mapping[str, tuple[int, ...]], parts: Sequence[TensorInfo]
) -> list[list[_Run]]:
    """Return which runs of which parameters lie in the partition of each rank.

    Raises
    ------
    CorruptError
        The partitions hold more or less than the parameters, or are not those of their ranks.
    """
    _check_order(ranks, group, parts)
    gaps = _gaps(ranks[0], group, len(names))
    runs: list[list[_Run]] = [[] for _ in parts]
    bounds = [0]
    for part in parts:
        bounds.append(bounds[-1] + part.numel)
    offset = 0
    for (name, shape), gap in zip(names.items(), gaps, strict=True):
        size = math.prod(shape)
        for rank, (first, end) in enumerate(itertools.pairwise(bounds)):
            start, stop = max(first, offset), min(end, offset + size)
            if start < stop:
                runs[rank].append(_Run(name, start - offset, stop - start, start - first))
        offset += size + gap
    unit = 2 * len(ranks)
    if -(-offset // unit) != -(-bounds[-1] // unit):
        what = f"the parameters of group {group} are {offset} elements, its partitions hold {bounds[-1]}"
        raise CorruptError(f"{_where(ranks[0])}: {what}")
    return runs


def _gaps(contents: Contents, group: int, count: int) -> list[int]:
    """Return how many elements of padding follow each parameter of a group."""
    state = as_mapping((as_mapping(contents.values) or {}).get(_STATE)) or {}
    groups = state.get("param_alignment_paddings")
    found = groups[group] if isinstance(groups, (list, tuple)) and group < len(groups) else None
    if found is None:
        return [0] * count
    if not isinstance(found, (list, tuple)) or len(found) != count or not all(type(n) is int and n >= 0 for n in found):
        raise CorruptError(f"{_where(contents)}: the paddings of group {group} are not those of {count} parameters")
    return list(found)


def _check_order(ranks: Sequence[Contents], group: int, parts: Sequence[TensorInfo]) -> None:
    """Make sure, as far as the files tell, that each is of its rank: only the end is padded, and parts continue."""
    for rank, contents in enumerate(ranks):
        state = as_mapping((as_mapping(contents.values) or {}).get(_STATE)) or {}
        paddings = state.get("group_paddings")
        padding = paddings[group] if isinstance(paddings, (list, tuple)) and group < len(paddings) else 0
        if padding and any(part.numel for part in parts[rank + 1 :]):
            raise CorruptError(f"{_where(contents)}: it is padded, and not the last of its ranks")
    seen: set[str] = set()
    for rank, contents in enumerate(ranks):
        for name, (start, _) in (_mapping(contents, group) or {}).items():
            if name in seen and start:
                message = f"the part of {name} that continues on rank {rank} does not begin there"
                raise CorruptError(f"{_where(contents)}: {message}")
            seen.add(name)


def _mapping(contents: Contents, group: int) -> dict[str, tuple[int, int]] | None:
    """Return start and number of elements that a rank records of each parameter; None if it does not."""
    state = as_mapping((as_mapping(contents.values) or {}).get(_STATE)) or {}
    groups = state.get("param_slice_mappings")
    if not isinstance(groups, (list, tuple)) or group >= len(groups):
        return None
    found: dict[str, tuple[int, int]] = {}
    for name, address in (as_mapping(groups[group]) or {}).items():
        items = attributes(address) or {}
        start, count = items.get("start"), items.get("numel")
        if type(start) is not int or type(count) is not int or start < 0 or count < 0:
            return None
        found[str(name)] = start, count
    return found


def _runs_of_stage3(groups: Sequence[Mapping[str, tuple[int, ...]]], rank: int, world: int) -> Iterator[_Run]:
    start = 0
    for name, shape in (item for group in groups for item in group.items()):
        size = math.prod(shape)
        each = -(-size // world)
        at = min(rank * each, size)
        yield _Run(name, at, min(each, size - at), start)
        start += each


def _place(into: dict[str, list[Piece]], runs: Sequence[_Run], flats: Sequence[TensorInfo]) -> None:
    """Cut runs out of partitions that follow each other."""
    for run in runs:
        pieces = into.setdefault(run.name, [])
        at, start, left = run.at, run.start, run.count
        for flat in flats:
            if start >= flat.numel:
                start -= flat.numel
                continue
            count = min(left, flat.numel - start)
            if count:
                pieces.append(_cut(flat, start, count, at))
            at, start, left = at + count, 0, left - count
            if not left:
                break


def _cut(flat: TensorInfo, start: int, count: int, at: int) -> Piece:
    piece = flat.pieces[0] if len(flat.pieces) == 1 else None
    if piece is None or piece.strides not in (None, (1,)) or piece.unpack or piece.inner:
        raise CorruptError(f"{flat.name} is not stored as one row")
    width = flat.dtype.bits // 8
    return replace(
        piece, range=piece.range.sub(start * width, count * width), offsets=(at,), shape=(count,), strides=None
    )


def _frozen(model: Mapping[int, Contents], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, TensorInfo]:
    """Parameters that are not trained: whole in one file, or a run of each in the file of every rank."""
    found: dict[str, TensorInfo] = {}
    for name, shape in shapes.items():
        key = f"{FROZEN}.{name}"
        parts = [model[rank].tensors[key] for rank in sorted(model) if key in model[rank].tensors]
        if not parts:
            continue
        if len(model) == 1 and parts[0].numel == math.prod(shape):
            found[name] = replace(parts[0], name=name, shape=shape)
            continue
        pieces: list[Piece] = []
        size, each = math.prod(shape), -(-math.prod(shape) // len(model))
        for rank, part in enumerate(parts):
            count = min(each, max(size - rank * each, 0))
            pieces += [_cut(part, 0, count, rank * each)] if count else []
        found[name] = replace(parts[0], name=name, shape=shape, pieces=tuple(pieces))
    return found


def _dtype(contents: Contents, slot: str) -> DType:
    for weights, pattern in ((_FLAT12, _SLOT12), (_FLAT3, _SLOT3)):
        flats = _flats(contents, weights, pattern).get(slot)
        if flats:
            return next(iter(flats.values())).dtype
    raise CorruptError(f"{_where(contents)}: it has no {slot or 'fp32 weights'}")


def _where(contents: Contents) -> str:
    return str(contents.range.file.path)


def shared(values: object) -> dict[str, str]:
    """Return the parameters that are another one under a second name."""
    items = as_mapping((as_mapping(values) or {}).get("shared_params")) or {}
    return {str(alias): str(source) for alias, source in items.items() if isinstance(source, str)}


def settings(contents: Contents) -> dict[str, object]:
    """Return what an optimizer file says that is not of its rank alone: rates, betas, the scale of losses."""
    state = as_mapping((as_mapping(contents.values) or {}).get(_STATE)) or {}
    inner = as_mapping(state.get("base_optimizer_state")) or as_mapping(state.get(_STATE)) or {}
    kept = {str(key): value for key, value in state.items() if key in _SETTINGS}
    return {"optimizer": kept | {"param_groups": inner["param_groups"]} if "param_groups" in inner else kept}
