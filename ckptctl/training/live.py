"""A live training state as tensors and plain values: what `save` writes.

Nothing is copied on the way out: the tensors described lie in the memory of the state itself.
"""

from __future__ import annotations

import collections
import enum
import pathlib
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ckptctl.errors import MissingExtraError, UnsupportedError
from ckptctl.model import Encoding, Piece, TensorInfo, contiguous_strides, dtype_of_torch
from ckptctl.storage import ByteRange
from ckptctl.training.sharded import described, is_sharded, offsets_of
from ckptctl.values import Described, TensorRef

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_PLAIN = (type(None), bool, int, float, str, bytes)
_MAX_BITS, _MAX_DEPTH, _MAX_KEY = 10_000, 90, 1024
PARAMETER, ARRAY = "torch.nn.Parameter", "numpy.ndarray"


class Memory:
    """The bytes of a storage in memory, a vector of torch, as if they were a file."""

    __slots__ = ("_flat", "_kept", "_view", "path", "size")

    def __init__(self, flat: Any, *, path: Path, kept: Any = None) -> None:
        self.path = path
        self._kept = kept
        """The storage on a device that this is a copy of: nothing else may come to lie there meanwhile."""
        self._take(flat)
        self.size = len(self._view)

    def move_to(self, copy: Any) -> None:
        """Copy the bytes into a vector of as many, and be that from then on."""
        self._take(copy.copy_(self._flat))

    def _take(self, flat: Any) -> None:
        self._flat = flat
        self._view = memoryview(flat.numpy()).cast("B")

    def pread(self, length: int, offset: int) -> bytes:
        """Return `length` bytes at `offset`, or fewer at the end."""
        return bytes(self._view[offset : offset + length])

    def pread_into(self, buffer: memoryview, offset: int) -> int:
        """Fill `buffer` with the bytes at `offset`; return how many there were."""
        part = self._view[offset : offset + len(buffer)]
        buffer[: len(part)] = part
        return len(part)


@dataclass(slots=True)
class Live:
    """A state taken apart: its tree, with references in the place of tensors, and the tensors by name.

    `blocks` has, for each tensor that is one rank's part of a larger one, the shape of the whole and its place there.
    """

    path: Path
    values: object = None
    tensors: dict[str, TensorInfo] = field(default_factory=dict)
    storages: dict[tuple[object, ...], Memory] = field(default_factory=dict)
    blocks: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)

    def of(self, value: object, at: str) -> object:
        """Return a value as a tree; `at` is the path to it."""
        import numpy as np
        import torch

        if isinstance(value, int) and value.bit_length() > _MAX_BITS:
            raise self._refused(at, f"an int of {value.bit_length()} bits")
        if isinstance(value, (torch.nn.parameter.UninitializedParameter, torch.nn.parameter.UninitializedBuffer)):
            raise self._refused(at, "a parameter that has no shape yet", hint="run the model once before")
        if type(value) in _PLAIN:
            return value
        if isinstance(value, str) and not isinstance(value, enum.Enum):
            return str.__str__(value)  # a version of torch, say
        if is_sharded(value):
            return self._block(value, at)
        if isinstance(value, torch.Tensor):
            return self._tensor(value, at)
        if type(value) is np.ndarray:
            return self._array(value, at)
        if isinstance(value, (np.bool_, np.integer, np.floating)):
            return value.item()
        special = _described(value)
        return special if special is not None else self._container(value, at)

    def _container(self, value: object, at: str) -> object:
        if id(value) in self.open or len(self.open) > _MAX_DEPTH:
            raise self._refused(at, "it holds itself" if id(value) in self.open else "values nested too deeply")
        self.open.add(id(value))
        made = self._inside(value, at)
        self.open.discard(id(value))
        return made

    def _inside(self, value: object, at: str) -> object:
        if type(value) is dict:
            return self._items(value, at)
        if type(value) is collections.OrderedDict:
            versions = getattr(value, "_metadata", None)
            state = {"_metadata": self.of(versions, f"{at}._metadata")} if versions else None
            return Described(type="collections.OrderedDict", items=self._items(value, at), state=state)
        if type(value) is collections.Counter:
            return Described(type="collections.Counter", items=self._items(value, at))
        if type(value) in (list, tuple) and isinstance(value, (list, tuple)):
            made = [self.of(inner, f"{at}.{index}" if at else str(index)) for index, inner in enumerate(value)]
            return made if isinstance(value, list) else tuple(made)
        if type(value) in (set, frozenset) and isinstance(value, (set, frozenset)):
            inside = [self.of(inner, f"{at}.{{}}") for inner in sorted(value, key=repr)]
            return Described(type=f"builtins.{type(value).__name__}", items=inside)
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise self._refused(at, f"a {kind}, which a checkpoint cannot hold without running code when it is loaded")

    def _items(self, value: Mapping[Any, Any], at: str) -> dict[object, object]:
        for key in value:
            parts = key if type(key) is tuple else (key,)
            if any(type(part) not in _PLAIN or _is_long(part) for part in parts):
                raise self._refused(at, f"a dict with a key of {type(key).__qualname__}, or a very long one")
        return {key: self.of(inner, f"{at}.{key}" if at else str(key)) for key, inner in value.items()}

    def _block(self, value: Any, at: str) -> TensorRef:
        try:
            offsets = offsets_of(value)
        except ValueError as error:
            raise self._refused(at, f"a DTensor {error}", hint="torch.distributed.checkpoint saves it") from None
        local = value.to_local().detach().requires_grad_(value.requires_grad)
        ref = self._tensor(local, at, apart=(*value.shape, *(offsets or ())))  # what is tied to it is cut alike
        if offsets is not None:
            self.blocks[ref.name] = tuple(value.shape), offsets
        return described(value, ref)

    def _tensor(self, value: Any, at: str, apart: tuple[int, ...] = ()) -> TensorRef:
        import torch

        if value.is_nested:
            raise self._refused(at, "a nested tensor")
        given = value.detach().resolve_conj().resolve_neg()
        kinds = (torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor))
        if type(value) not in kinds or given.layout is not torch.strided:
            raise self._refused(at, f"a {type(value).__qualname__} of layout {given.layout}")
        dtype = dtype_of_torch(str(given.dtype).removeprefix("torch."))
        if dtype is None or given.is_quantized or given.is_meta:
            raise self._refused(at, f"a tensor of {given.dtype} on {given.device}")
        shape, strides = tuple(given.shape), tuple(given.stride())
        width = given.element_size()
        memory = self._memory(given.untyped_storage(), apart)
        start = given.storage_offset() * width
        reach = 0 if 0 in shape else 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
        if reach and start + reach * width > memory.size:
            raise self._refused(at, "a tensor whose memory was let go of", hint="let FSDP put it together first")
        piece = Piece(
            range=ByteRange(file=memory, offset=start if reach else 0, length=reach * width),
            offsets=(0,) * len(shape),
            shape=shape,
            strides=None if strides == contiguous_strides(shape) else strides,
            encoding=Encoding.RAW,
        )
        name = self._named(at)
        self.tensors[name] = TensorInfo(name=name, dtype=dtype, shape=shape, pieces=(piece,))
        kind = PARAMETER if isinstance(value, torch.nn.Parameter) else "torch.Tensor"
        return TensorRef(name=name, type=kind, requires_grad=bool(value.requires_grad))

    def _array(self, value: Any, at: str) -> TensorRef:
        import numpy as np
        import torch

        if value.dtype.kind not in "biufc" or value.dtype.itemsize > (16 if value.dtype.kind == "c" else 8):
            raise self._refused(at, f"a NumPy array of {value.dtype}")
        little = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("="))
        with warnings.catch_warnings():  # torch warns of arrays that may not be written to; nobody writes here
            warnings.simplefilter("ignore")
            flat = torch.from_numpy(little.reshape(value.shape))
        made = self._tensor(flat, at)
        return TensorRef(name=made.name, type=ARRAY)

    def _memory(self, storage: Any, apart: tuple[int, ...]) -> Memory:
        import torch

        key = str(storage.device), int(storage.data_ptr()), int(storage.nbytes()), *apart
        if key not in self.storages or not key[1]:
            near = storage if storage.device.type == "cpu" else storage.cpu()  # whole, so that what is tied stays so
            flat: Any = torch.empty(0, dtype=torch.uint8).set_(near)
            self.storages[key] = Memory(flat, path=self.path, kept=storage if near is not storage else None)
        return self.storages[key]

    def _named(self, at: str) -> str:
        name, number = at or "tensor", 1
        while name in self.tensors:
            number += 1
            name = f"{at}#{number}"
        return name

    def _refused(self, at: str, what: str, hint: str = "save plain values of it") -> UnsupportedError:
        return UnsupportedError(f"{self.path}: the state has at {at or 'its root'} {what}", hint=hint)


def require_torch() -> None:
    """Make sure that torch is there.

    Raises
    ------
    MissingExtraError
        It is not.
    """
    try:
        import torch  # noqa: F401  # it is only looked for
    except ImportError:
        raise MissingExtraError("torch is not installed", hint="pip install 'ckptctl[torch]'") from None


def taken_apart(state: object, *, path: Path) -> Live:
    """Describe a live state; its tensors stay where they are.

    Raises
    ------
    UnsupportedError
        Something in it cannot be kept; the message says where and what.
    """
    require_torch()
    live = Live(path)
    live.values = live.of(state, "")
    return live


def _is_long(key: object) -> bool:
    """Whether a part of a key has no place in a name."""
    if isinstance(key, int):
        return key.bit_length() > _MAX_BITS
    return isinstance(key, bytes) and len(key) > _MAX_KEY


def _index_of(device: Any) -> int | None:
    index: int | None = device.index  # torch says that there always is one
    return index


def _described(value: object) -> object:
    """Return a value that is neither a container nor a tensor as what describes it; None if it is of no known kind."""
    import torch

    if isinstance(value, complex):
        return Described(type="builtins.complex", args=(value.real, value.imag))
    if isinstance(value, torch.Size):
        return Described(type="torch.Size", args=(tuple(value),))
    if isinstance(value, torch.dtype):
        return Described(type="type", args=(str(value),))
    if isinstance(value, torch.device):
        return Described(
            type="torch.device", args=(value.type, *([] if (index := _index_of(value)) is None else [index]))
        )
    return str(value) if isinstance(value, pathlib.PurePath) else None
