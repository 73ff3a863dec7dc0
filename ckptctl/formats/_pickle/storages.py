"""Storages, the blocks of bytes behind tensors, and drafts, tensors that have no name yet."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from ckptctl.model import DType, Encoding, Piece, TensorInfo, contiguous_strides

if TYPE_CHECKING:
    from ckptctl.storage import ByteRange


@dataclass(slots=True, eq=False)
class Storage:
    """A block of bytes. `dtype` is None if it has none of its own; `spans` are the bytes in use."""

    key: str
    dtype: DType | None
    numel: int
    range: ByteRange
    swapped: bool = False
    spans: set[tuple[int, int]] = field(default_factory=set)


class Storages(Protocol):
    """Where a format keeps the storages that its pickle refers to."""

    def find(self, value: object) -> Storage:
        """Return the storage that a persistent id names.

        Raises
        ------
        CorruptError
            It is malformed, or there is no such storage, or it has another size.
        """


@dataclass(slots=True, eq=False)
class Draft:
    """A tensor as it is rebuilt, before its place in the tree gives it a name.

    `offset` and `strides` are in elements of `dtype`. `whole` is the shape of the tensor of which
    this is a block at `at`; `blocks` are the drafts that a tensor of several blocks is made of;
    `parts` those that one of another `layout` is stored as.
    """

    dtype: DType
    shape: tuple[int, ...]
    storage: Storage | None = None
    offset: int = 0
    strides: tuple[int, ...] = ()
    encoding: Encoding = Encoding.RAW
    layout: str = "strided"
    type: str = "torch.Tensor"
    requires_grad: bool = False
    state: object = None
    at: tuple[int, ...] | None = None
    blocks: tuple[Draft, ...] = ()
    parts: dict[str, Draft] = field(default_factory=dict)

    def like(self, **changes: object) -> Draft:
        """Return a copy with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def named(self, name: str) -> TensorInfo:
        """Return the tensor that this is under a name."""
        blocks = self.blocks or ((self,) if self.storage else ())
        return TensorInfo(
            name=name,
            dtype=self.dtype,
            shape=self.shape,
            pieces=tuple(block.piece() for block in blocks),
            layout=self.layout,
            parts=tuple(part.named(f"{name}.{key}") for key, part in self.parts.items()),
        )

    def piece(self) -> Piece:
        """Return the one block that this is, and count its bytes as used."""
        storage = self.storage
        if storage is None:
            raise ValueError("a draft without a storage has no bytes")
        strides = None if self.strides == contiguous_strides(self.shape) else self.strides
        width = self.dtype.bits
        span = extent(self.shape, self.strides)
        start, length = self.offset * width // 8, -(-span * width // 8)
        storage.spans.add((start, start + length))
        encoding = self.encoding
        if storage.swapped and width > 8:
            encoding |= Encoding.SWAPPED
        # What is stored as text is longer than what it stands for.
        text = bool(encoding & Encoding.LATIN1)
        part = storage.range if text else storage.range.sub(start, length)
        at = self.at or (0,) * len(self.shape)
        return Piece(range=part, offsets=at, shape=self.shape, strides=strides, encoding=encoding)


def extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Return how many elements lie from the first to the last of a view, both included."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
