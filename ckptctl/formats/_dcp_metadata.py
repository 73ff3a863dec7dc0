"""The ``.metadata`` of torch.distributed.checkpoint: a bare pickle that says which block lies where.

Read off files of torch 2.4 to 2.13, as `torch/distributed/checkpoint/metadata.py` lays them out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckptctl.errors import CkptctlError, CorruptError, LimitError
from ckptctl.formats._pickle import interpret_calls, record
from ckptctl.formats._pickle.interpret import value_of
from ckptctl.formats._pickle.loop import outranked
from ckptctl.formats._pickle.records import Call, Global, NodeToken
from ckptctl.model import DTYPES, DType, GlobalUse, dtype_of_torch

if TYPE_CHECKING:
    from ckptctl.formats._pickle import Context, Storage
    from ckptctl.storage import ByteRange

_MODULE = "torch.distributed.checkpoint.metadata"
_MAX_DEPTH = 32
_LEAST, _CHUNK_BYTES = 1000, 16
"""So many bytes describe a block at least, beyond the first thousand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Where one item lies: a file beside the metadata, and its bytes there."""

    path: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One block of a tensor, in elements, and the item that holds it; None if the metadata has none."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    item: Item | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DcpTensor:
    """A tensor by its full shape and the blocks that it is cut into."""

    dtype: DType
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DcpMetadata:
    """What one metadata file says; `values` are the names of items that are no tensors.

    `paths` are the keys that led to each item before their names were joined by dots, where the planner kept them; a
    number is a place in a list.
    """

    tensors: dict[str, DcpTensor]
    values: dict[str, Item | None]
    globals: tuple[GlobalUse, ...]
    paths: dict[str, tuple[str | int, ...]]


def _unpacked(tensor: DcpTensor) -> DcpTensor:
    """Two 4-bit values a byte: count values, as the items themselves are read, not bytes, as torch does."""
    if tensor.dtype.name != "F4X2" or not tensor.shape:
        return tensor

    def doubled(sizes: tuple[int, ...]) -> tuple[int, ...]:
        return (*sizes[:-1], sizes[-1] * 2)

    chunks = (replace(one, offsets=doubled(one.offsets), sizes=doubled(one.sizes)) for one in tensor.chunks)
    return DcpTensor(dtype=DTYPES["F4"], shape=doubled(tensor.shape), chunks=tuple(chunks))


class _Outside:
    def __init__(self, source: ByteRange) -> None:
        self.path = source.file.path

    def find(self, value: object) -> Storage:  # noqa: ARG002  # as every keeper of storages has it
        """Refuse: metadata holds no tensors."""
        raise CorruptError(f"{self.path}: damaged metadata: it refers to a storage")


def read_metadata(source: ByteRange) -> DcpMetadata:
    """Read a metadata file; nothing in it is run.

    Raises
    ------
    CorruptError, LimitError, UnsafePickleError
        It is malformed, or not what the name says.
    """
    pickle = record(source)
    outside = _Outside(source)
    context = interpret_calls(pickle, source, outside)
    try:
        return _Reader(context, _LEAST + source.length // _CHUNK_BYTES).metadata(pickle.root, pickle.globals)
    except CkptctlError as error:
        raise outranked(error, pickle.globals) from None


def _paths(planner: object) -> dict[str, tuple[str | int, ...]]:
    """Return the keys of each item, of those that are names and numbers of a sensible depth."""
    found: dict[str, tuple[str | int, ...]] = {}
    for name, path in planner.items() if isinstance(planner, dict) else ():
        plain = isinstance(path, tuple) and all(type(step) in (str, int) for step in path)
        if isinstance(name, str) and plain and 0 < len(path) <= _MAX_DEPTH:
            found[name] = path
    return found


class _Reader:
    def __init__(self, context: Context, most: int) -> None:
        self._context, self._left = context, most

    def metadata(self, root: object, uses: tuple[GlobalUse, ...]) -> DcpMetadata:
        fields = self._fields(root, "Metadata")
        described, stored = fields.get("state_dict_metadata"), fields.get("storage_data")
        if not isinstance(described, dict) or not isinstance(stored, dict):
            raise self._context.bad("the metadata has no state_dict_metadata or no storage_data")
        items = dict(self._stored(key, info) for key, info in stored.items())
        tensors, values = {}, {}
        for name, node in described.items():
            if not isinstance(name, str):
                raise self._context.bad("the metadata describes something without a name")
            if isinstance(node, Call) and node.pair == (_MODULE, "TensorStorageMetadata"):
                tensors[name] = self._tensor(name, node, items)
            else:
                values[name] = items.get((name, None))
        return DcpMetadata(tensors=tensors, values=values, globals=uses, paths=_paths(fields.get("planner_data")))

    def _tensor(self, name: str, node: Call, items: dict[tuple[str, tuple[int, ...] | None], Item]) -> DcpTensor:
        fields = node.attributes()
        shape = self._context.size(fields.get("size"))
        nodes = fields.get("chunks")
        chunks = tuple(self._chunk(name, chunk, shape, items) for chunk in nodes) if isinstance(nodes, list) else ()
        return _unpacked(DcpTensor(dtype=self._dtype(fields.get("properties")), shape=shape, chunks=chunks))

    def _chunk(
        self, name: str, node: object, shape: tuple[int, ...], items: dict[tuple[str, tuple[int, ...] | None], Item]
    ) -> Chunk:
        self._left -= 1
        if self._left < 0:
            raise LimitError(f"{self._context.source.file.path}: it describes more blocks than it has room for")
        fields = self._fields(node, "ChunkStorageMetadata")
        offsets, sizes = self._context.size(fields.get("offsets")), self._context.size(fields.get("sizes"))
        inside = len(offsets) == len(sizes) == len(shape) and all(
            at + size <= whole for at, size, whole in zip(offsets, sizes, shape, strict=True)
        )
        if not inside:
            raise self._context.bad(f"a block of {name} of shape {sizes} at {offsets} does not fit into {shape}")
        return Chunk(offsets=offsets, sizes=sizes, item=items.get((name, offsets)))

    def _dtype(self, node: object) -> DType:
        """Properties are a tuple of dtype, layout and more, or attributes of these names in older files."""
        states = node.state if isinstance(node, Call) else None
        state = states[0] if states else None
        dtype = state[0] if isinstance(state, tuple) and state else self._fields(node, "TensorProperties").get("dtype")
        found = dtype_of_torch(dtype.name) if isinstance(dtype, Global) and dtype.module == "torch" else None
        if found is None:
            raise self._context.bad("a tensor in the metadata has an unknown dtype")
        return found

    def _stored(self, key: object, info: object) -> tuple[tuple[str, tuple[int, ...] | None], Item]:
        index = self._fields(key.node if isinstance(key, NodeToken) else key, "MetadataIndex")
        place = self._fields(info, "_StorageInfo")
        name, path = index.get("fqn"), place.get("relative_path")
        offset, length = place.get("offset"), place.get("length")
        if not isinstance(name, str) or not isinstance(path, str):
            raise self._context.bad("an item of the metadata has no name or no file")
        if type(offset) is not int or type(length) is not int or offset < 0 or length < 0:
            raise self._context.bad(f"the item {name} lies at an impossible place")
        at = index.get("offset")
        offsets = None if at is None else self._context.size(at)
        return (name, offsets), Item(path=path, offset=offset, length=length)

    def _fields(self, node: object, kind: str) -> dict[object, object]:
        node = value_of(node)
        if not isinstance(node, Call) or node.pair[1] != kind:
            raise self._context.bad(f"the metadata has something else where a {kind} belongs")
        return node.attributes()
