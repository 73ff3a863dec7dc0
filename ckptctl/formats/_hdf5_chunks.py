"""Unpack chunks of HDF5 datasets, when somebody asks for their values.

The library does not compare what a chunk unpacks to with what it should: a short one is read on into whatever lies
behind it in memory. So chunks are unpacked here; of lzf, which only h5py has, the length is worked out before.
"""

from __future__ import annotations

import math
import threading
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptctl.errors import CkptctlError, CorruptError, LimitError, UnsupportedError
from ckptctl.formats._hdf5_file import Opened

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptctl.storage import ByteRange

_MAX_CHUNK = 64 << 20
GZIP, SHUFFLE, LZF = 1, 2, 32000
_LITERAL, _LONG = 32, 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How the chunks of a dataset are packed: its path, their shape, bytes of an element, filters in their order."""

    path: str
    shape: tuple[int, ...]
    width: int
    filters: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of a chunk, unpacked."""
        return math.prod(self.shape) * self.width


class Chunks:
    """The chunks of one file. Several threads may ask."""

    def __init__(self, h5py: Any, source: ByteRange) -> None:
        self._h5py, self._source = h5py, source
        self._lock = threading.Lock()
        self._file: Any = None

    def unpacker(
        self, packing: Packing, block: ByteRange, skipped: int, at: tuple[int, ...], shape: tuple[int, ...]
    ) -> Callable[[], bytes]:
        """Return what unpacks `block`, the chunk at `at`: its bytes up to `shape`, row by row, as stored.

        `skipped` has a bit for each filter that was not applied. It raises CorruptError if they cannot be unpacked,
        LimitError if the chunk is larger than 64 MiB.
        """
        return lambda: self._unpack(packing, block, skipped, at, shape)

    def _unpack(
        self, packing: Packing, block: ByteRange, skipped: int, at: tuple[int, ...], shape: tuple[int, ...]
    ) -> bytes:
        if packing.nbytes > _MAX_CHUNK:
            raise LimitError(f"{self._where(packing)} has chunks of {packing.nbytes} bytes (limit {_MAX_CHUNK})")
        applied = [code for index, code in enumerate(packing.filters) if not skipped >> index & 1]
        raw = block.read()
        if LZF in applied:
            if applied[-1] != LZF or applied.count(LZF) > 1:
                raise UnsupportedError(f"{self._where(packing)} is packed by lzf and again, which is not read")
            self._check(packing, _lzf_length(raw))
            return self._by_library(packing, at, shape)
        if len(raw) == packing.nbytes and shape != packing.shape and applied.count(GZIP) and raw[:1] != b"x":
            applied = []  # chunks that stick out may have been left as they are
        for code in reversed(applied):
            raw = self._inflated(packing, raw) if code == GZIP else _unshuffled(raw, packing.width)
        self._check(packing, len(raw))
        import numpy as np

        whole = np.frombuffer(raw, f"V{packing.width}").reshape(packing.shape)
        values: bytes = whole[tuple(slice(size) for size in shape)].tobytes()
        return values

    def _inflated(self, packing: Packing, raw: bytes) -> bytes:
        inflating = zlib.decompressobj()
        try:
            found = inflating.decompress(raw, packing.nbytes + 1)
        except zlib.error as error:
            raise self._bad(packing, str(error)) from None
        if len(found) <= packing.nbytes and not inflating.eof:
            raise self._bad(packing, "it breaks off")
        return found

    def _check(self, packing: Packing, nbytes: int) -> None:
        if nbytes != packing.nbytes:
            raise self._bad(packing, f"it is not of {packing.nbytes} bytes")

    def _by_library(self, packing: Packing, at: tuple[int, ...], shape: tuple[int, ...]) -> bytes:
        place = tuple(slice(begin, begin + size) for begin, size in zip(at, shape, strict=True))
        try:
            with self._lock:
                if self._file is None:
                    self._file = self._h5py.File(Opened(self._source), "r")
                raw: bytes = self._file[packing.path][place].tobytes()
        except (CkptctlError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001  # whatever its C part reports
            raise self._bad(packing, " ".join(str(error).split())[:200]) from None
        return raw

    def _bad(self, packing: Packing, why: str) -> CorruptError:
        return CorruptError(f"{self._where(packing)}: a chunk cannot be unpacked: {why}")

    def _where(self, packing: Packing) -> str:
        return f"{self._source.file.path}: {packing.path.strip('/').replace('/', '.')}"


def _unshuffled(raw: bytes, width: int) -> bytes:
    """Put the bytes of each element together again, which were sorted by their place in it."""
    if width == 1 or len(raw) % width:
        return raw
    import numpy as np

    together: bytes = np.frombuffer(raw, np.uint8).reshape(width, -1).T.tobytes()
    return together


def _lzf_length(raw: bytes) -> int:
    """Return how many bytes a chunk packed by lzf unpacks to; -1 if it breaks off, or refers to what is not there.

    A byte below 32 is followed by one literal more than it says; else its upper three bits are the length of a
    reference less 2 (7: another byte is added), and its lower five, with the last byte, how far it leads back.
    """
    at, length = 0, 0
    while at < len(raw):
        control = raw[at]
        if control < _LITERAL:
            at += control + 2
            length += control + 1
            continue
        count, extra = control >> 5, 1
        if count == _LONG and at + 1 < len(raw):
            count, extra = count + raw[at + 1], 2
        if at + extra >= len(raw) or ((control & 31) << 8 | raw[at + extra]) + 1 > length:
            return -1
        at += extra + 1
        length += count + 2
    return length if at == len(raw) else -1
