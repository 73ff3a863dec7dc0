"""DTensor and ShardedTensor: one rank's blocks of a whole that the file only describes.

A DTensor is cut by its placements, one for each dimension of the device mesh, as
``torch.distributed.tensor`` cuts it; a ShardedTensor says the offsets of each of its blocks.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ckptctl.formats._pickle.interpret import Context, value_of
from ckptctl.formats._pickle.records import Call, Global
from ckptctl.formats._pickle.storages import Draft

if TYPE_CHECKING:
    from ckptctl.model import DType

_DTENSOR = frozenset({"torch.distributed.tensor", "torch.distributed._tensor", "torch.distributed._tensor.api"})
_SHARDED = "torch.distributed._shard.sharded_tensor.api"


def sharded_kind(kind: object) -> bool:
    """Whether a class is one of the two."""
    return isinstance(kind, Global) and (
        (kind.module in _DTENSOR and kind.name == "DTensor") or kind.pair == (_SHARDED, "ShardedTensor")
    )


def rebuild_sharded(context: Context, kind: object, dtype: DType, state: object) -> Draft:
    """Return the whole tensor, made of the blocks that this file holds."""
    if isinstance(kind, Global) and kind.name == "DTensor":
        return _dtensor(context, dtype, state)
    return _sharded_tensor(context, dtype, state)


def local_block(
    shape: tuple[int, ...], mesh: tuple[int, ...], place: tuple[int, ...], cuts: list[tuple[int | None, bool]]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return offsets and shape of the block at `place` of a `mesh`.

    `cuts` says for each mesh dimension which dimension of the tensor it cuts (None for a replica),
    and whether that cut is strided, that is, made after those to its right.
    """
    offsets, sizes = [0] * len(shape), list(shape)
    for index in _cut_order(cuts):
        dim = cuts[index][0]
        if dim is None:
            continue
        step = -(-sizes[dim] // mesh[index])
        start = min(step * place[index], sizes[dim])
        offsets[dim] += start
        sizes[dim] = min(step, sizes[dim] - start)
    return tuple(offsets), tuple(sizes)


def _cut_order(cuts: list[tuple[int | None, bool]]) -> list[int]:
    order: list[int] = []
    for index in reversed(range(len(cuts))):
        order = [*order, index] if cuts[index][1] else [index, *order]
    return order


def _dtensor(context: Context, dtype: DType, state: object) -> Draft:
    fields = _attributes(state)
    spec = _attributes(fields.get("_spec"))
    local = context.draft(fields.get("_local_tensor"))
    meta = _fields_of_meta(spec.get("tensor_meta"))
    if not meta:
        raise context.bad("a DTensor does not say its full shape")
    shape = context.size(meta[0])
    if local.layout != "strided" or local.storage is None:
        # A tensor whose shard is of a kind of its own, such as one quantized by a library: named, not placed.
        inner = {"_local_tensor": fields["_local_tensor"]}
        return Draft(dtype, shape, layout="subclass", type="torch.distributed.tensor.DTensor", state=inner)
    mesh, place = _mesh(context, spec.get("mesh"))
    placements = spec.get("placements")
    cuts = [_cut(context, node, len(shape)) for node in placements] if isinstance(placements, tuple) else []
    if len(cuts) != len(mesh) or len(place) != len(mesh):
        raise context.bad("a DTensor has another number of placements than its mesh has dimensions")
    offsets, sizes = local_block(shape, mesh, place, cuts)
    if sizes != local.shape:
        raise context.bad(f"a DTensor's local shape is {local.shape}, its placement says {sizes}")
    block = local.like(at=offsets)
    return Draft(dtype, shape, blocks=(block,), type="torch.distributed.tensor.DTensor",
                 requires_grad=local.requires_grad)  # fmt: skip


def _fields_of_meta(node: object) -> tuple[object, ...]:
    """Return (shape, stride, dtype) of a TensorMeta, a named tuple."""
    if isinstance(node, Call):
        return node.args
    return node if isinstance(node, tuple) else ()


def _cut(context: Context, node: object, ndim: int) -> tuple[int | None, bool]:
    kind = node.pair[1] if isinstance(node, Call) else ""
    if kind == "Replicate":
        return None, False
    dim = _attributes(node).get("dim")
    if kind not in ("Shard", "_StridedShard") or type(dim) is not int or not 0 <= dim < ndim:
        raise context.bad(f"a DTensor has a placement that is not read: {kind or 'unknown'}")
    return dim, kind == "_StridedShard"


def _mesh(context: Context, node: object) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape of a device mesh and this rank's place in it."""
    fields = _attributes(node)
    context.dismiss({name: fields.get(name) for name in ("mesh", "_mesh", "_rank_map")})
    place = fields.get("_coordinate_on_dim")
    axes = _attributes(fields.get("_layout")).get("axes")
    shape: tuple[int, ...]
    if isinstance(axes, tuple):
        shape = tuple(math.prod(context.ints(_attributes(axis).get("shape"))) for axis in axes)
    else:
        shape = context.draft(fields.get("mesh")).shape
    if place is None:
        raise context.bad("a DTensor does not say its place in the device mesh")
    found = context.ints(place)
    if any(size < 1 for size in shape) or any(not 0 <= at < size for at, size in zip(found, shape, strict=False)):
        raise context.bad(f"a DTensor lies at {found} in a mesh of {shape}")
    return shape, found


def _sharded_tensor(context: Context, dtype: DType, state: object) -> Draft:
    shards, metadata = state[:2] if isinstance(state, tuple) and len(state) >= 2 else (None, None)
    fields = _attributes(metadata)
    if not isinstance(shards, list) or "size" not in fields:
        raise context.bad("a ShardedTensor does not say its shards or its full size")
    shape = context.size(fields["size"])
    blocks = tuple(_block(context, shard, shape) for shard in shards)
    return Draft(dtype, shape, blocks=blocks, type=f"{_SHARDED}.ShardedTensor")


def _block(context: Context, shard: object, shape: tuple[int, ...]) -> Draft:
    fields = _attributes(shard)
    local, place = context.strided(fields.get("tensor")), _attributes(fields.get("metadata"))
    at, sizes = context.ints(place.get("shard_offsets")), context.ints(place.get("shard_sizes"))
    fits = len(at) == len(sizes) == len(shape) and all(
        a >= 0 and a + n <= whole for a, n, whole in zip(at, sizes, shape, strict=True)
    )
    if sizes != local.shape or not fits:
        raise context.bad(f"a shard of shape {local.shape} at {at} does not fit into {shape}")
    return local.like(at=at)


def _attributes(node: object) -> dict[object, object]:
    node = value_of(node)
    if isinstance(node, Call):
        return node.attributes()
    found = Call("", None, ())
    found.state = [node]
    return found.attributes()
