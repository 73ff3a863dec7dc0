"""DTensors: which block of the whole a rank has, and how to put it back among the same ranks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ckptctl.training.ranks import world

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptctl.values import TensorRef

_FIELDS = frozenset({"shape", "placements", "mesh", "names", "device"})


def is_sharded(value: object) -> bool:
    """Whether a tensor is a DTensor."""
    kind = type(value)
    return kind.__name__ == "DTensor" and kind.__module__.startswith("torch.distributed")


def was_sharded(state: object) -> bool:
    """Whether what hung on a tensor says that it was a DTensor, in the words of `described`."""
    return isinstance(state, dict) and state.keys() == _FIELDS


def offsets_of(value: Any) -> tuple[int, ...] | None:
    """Return where in the whole the local block of a DTensor begins; None if it is all of it.

    Raises
    ------
    ValueError
        It is cut in a way that no block describes; the message says how.
    """
    import torch.distributed as dist

    cut = [str(one) for one in value.placements if not (one.is_replicate() or type(one).__name__ == "Shard")]
    if cut:
        raise ValueError(f"placed as {cut[0]}")
    if value.device_mesh.mesh.flatten().tolist() != list(range(dist.get_world_size())):
        raise ValueError("on a mesh of some of the ranks")
    chunks = value.__create_chunk_list__()
    if len(chunks) != 1:
        raise ValueError(f"in {len(chunks)} blocks on this rank")
    whole = all(one.is_replicate() for one in value.placements)
    return None if whole else tuple(int(one) for one in chunks[0].offsets)


def described(value: Any, ref: TensorRef) -> TensorRef:
    """Return what stands for a DTensor: the name of its local block, with its placements and its mesh."""
    mesh = value.device_mesh
    return replace(
        ref,
        state={
            "shape": list(value.shape),
            "placements": [None if one.is_replicate() else int(one.dim) for one in value.placements],
            "mesh": list(mesh.mesh.shape),
            "names": list(mesh.mesh_dim_names or ()),
            "device": mesh.device_type,
        },
    )


def put_back(local: Any, state: Mapping[Any, Any]) -> Any:
    """Return the DTensor of which this is the local block; of all ranks, every one has to do so.

    Where the ranks are not as many, one that is whole on each of them becomes an ordinary tensor.

    Raises
    ------
    ValueError
        The ranks are not as many, and this is only a block.
    """
    import torch

    placed = state["placements"]
    if math.prod(state["mesh"]) != world()[1]:
        if any(dim is not None for dim in placed):
            raise ValueError("a block of a DTensor belongs among as many ranks as it was cut for")
        return local
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

    names = tuple(state["names"]) or None
    mesh = init_device_mesh(state["device"], tuple(state["mesh"]), mesh_dim_names=names)
    placements: list[Placement] = [Replicate() if dim is None else Shard(dim) for dim in placed]
    shape = torch.Size(state["shape"])
    stride, step = [], 1
    for size in reversed(state["shape"]):
        stride.append(step)
        step *= max(size, 1)
    return DTensor.from_local(
        local.detach(), mesh, placements, run_check=False, shape=shape, stride=tuple(reversed(stride))
    )


def placed_as(have: Any, value: Any) -> Any:
    """Return a whole tensor cut as the one is that a rank has in its place; anything else as it is.

    Where it is cut all ranks have to do so; what rank 0 has is taken.
    """
    if not is_sharded(have) or is_sharded(value) or getattr(value, "shape", None) != have.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(have.device), have.device_mesh, have.placements)
