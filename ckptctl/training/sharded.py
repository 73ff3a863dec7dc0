"""DTensors: which block of the whole a rank has, and how to put it back among the same ranks."""

from __future__ import annotations

import math
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ckptctl.errors import UnsupportedError
from ckptctl.training.ranks import world

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptctl.values import TensorRef

_MESHES: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()
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
    sizes = value.device_mesh.mesh.shape
    whole = all(one.is_replicate() or size == 1 for one, size in zip(value.placements, sizes, strict=True))
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
    UnsupportedError
        The ranks are not as many, and this is only a block.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

    placed, ranks = state["placements"], math.prod(state["mesh"])
    if ranks != world()[1] or not dist.is_initialized():
        if ranks > 1 and any(dim is not None for dim in placed):
            raise UnsupportedError(
                f"a block of a DTensor that was cut for {ranks} ranks, here are {world()[1]}",
                hint="ckptctl consolidate, on the directory of all ranks, makes one file of them",
            )
        return local
    mesh = _mesh(str(state["device"]), tuple(state["mesh"]), tuple(state["names"]))
    placements: list[Placement] = [Replicate() if dim is None else Shard(dim) for dim in placed]
    stride, step = [], 1
    for size in reversed(state["shape"]):
        stride.append(step)
        step *= max(size, 1)
    return DTensor.from_local(
        local.detach(),
        mesh,
        placements,
        run_check=False,
        shape=torch.Size(state["shape"]),
        stride=tuple(reversed(stride)),
    )


def _mesh(device: str, shape: tuple[int, ...], names: tuple[str, ...]) -> Any:
    """Return a mesh of all ranks, one for all tensors: each has process groups of its own."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    known = _MESHES.setdefault(dist.group.WORLD, {})
    key = device, shape, names
    if key not in known:
        known[key] = init_device_mesh(device, shape, mesh_dim_names=names or None)
    return known[key]


def placed_as(have: Any, value: Any) -> Any:
    """Return a tensor cut as the one is that a rank has in its place; anything else as it is; in dicts, each.

    Where it is cut otherwise, or not at all, all ranks have to call this; what rank 0 has is taken.
    """
    if type(value) is dict and isinstance(have, dict):
        return {key: placed_as(have.get(key), one) for key, one in value.items()}
    sharded = is_sharded(value)
    if getattr(value, "shape", None) != getattr(have, "shape", ()) or not (is_sharded(have) or sharded):
        return value
    if sharded and is_sharded(have) and _alike(have, value):
        return value
    whole = value.full_tensor() if sharded else value
    if not is_sharded(have):
        return whole
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole.to(have.device), have.device_mesh, have.placements)


def _alike(have: Any, value: Any) -> bool:
    return bool(value.device_mesh == have.device_mesh and tuple(value.placements) == tuple(have.placements))
