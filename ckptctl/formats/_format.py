"""What a format is: how to know it, how to read it, how to account for its bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptctl.model import Contents, DType, Region
    from ckptctl.storage import ByteRange


@dataclass(frozen=True, slots=True)
class Checksum:
    """The CRC-32 that a file records of some of its own bytes, called `what`.

    Where they are deflated, it is that of the `unpacked` bytes that they stand for, so many of them.
    """

    range: ByteRange
    crc: int
    what: str
    unpacked: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One way in which tensors lie in bytes.

    `accepts` looks at a few bytes only and never raises on bad content; `read` describes the whole
    without reading tensors and raises a `CkptctlError` on content that breaks a rule of the format;
    `account` says what each byte of a file that `read` described is for. `check`, where reading costs more, only
    makes sure that all records are there and as long as stated. `checksums` are those that the file records of its
    own bytes. `claims` are endings of
    names: a file of that name that no format accepts is given to this reader, to say what is wrong.
    """

    name: str
    title: str
    about: str
    accepts: Callable[[ByteRange], bool]
    read: Callable[[ByteRange], Contents]
    account: Callable[[Contents], tuple[Region, ...]]
    check: Callable[[ByteRange], Contents] | None = None
    checksums: Callable[[Contents], tuple[Checksum, ...]] | None = None
    claims: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor as it will lie in a file: row by row, little-endian. `shape` is in elements of `dtype`."""

    dtype: DType
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """How many bytes it takes."""
        return math.prod(self.shape) * self.dtype.bits // 8
