"""Unpack chunks of HDF5 datasets by h5py, when somebody asks for their values."""

from __future__ import annotations

import io
import math
import struct
import threading
from typing import TYPE_CHECKING, Any

from ckptctl.errors import CkptctlError, CorruptError, LimitError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptctl.storage import ByteRange

_MAX_CHUNK, _MAX_HEAP = 64 << 20, 256 << 20
_HEAP, _HEAD = b"GCOL", 16
"""How a global heap begins, and how many bytes the head of it, and that of each object, takes."""


class Opened(io.RawIOBase):
    """A byte range as a file that can be read and sought; h5py asks for no more.

    A damaged heap of texts, in which the library would go round for ever, is refused when it comes by.
    """

    def __init__(self, source: ByteRange) -> None:
        super().__init__()
        self._source, self._at = source, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._source.length}[whence]
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        length = max(min(len(view), self._source.length - self._at), 0)
        view[:length] = self._source.read(self._at, length) if length else b""
        if view[:4] == _HEAP:
            self._check_heap(self._at)
        self._at += length
        return length

    def _check_heap(self, start: int) -> None:
        """Make sure that each object of a global heap leads to the next one, up to its end."""
        left = self._source.length - start
        (size,) = struct.unpack("<Q", self._source.read(start + 8, 8)) if left >= _HEAD else (0,)
        if not _HEAD < size <= min(left, _MAX_HEAP):
            return  # the library finds that by itself
        heap, at = self._source.read(start, size), _HEAD
        while at + _HEAD <= size:
            number, length = struct.unpack_from("<H6xQ", heap, at)
            needed = _HEAD + -(-length // 8) * 8 if number else length
            if needed < _HEAD:
                raise CorruptError(f"{self._source.file.path}: damaged HDF5 file: a heap of texts leads nowhere")
            at += needed


class Chunks:
    """The chunks of one file, which is opened again when the first of them is unpacked. Several threads may ask."""

    def __init__(self, h5py: Any, source: ByteRange) -> None:
        self._h5py, self._source = h5py, source
        self._lock = threading.Lock()
        self._file: Any = None
        self._path = ""
        self._dataset: Any = None

    def unpacker(self, path: str, at: tuple[int, ...], shape: tuple[int, ...]) -> Callable[[], bytes]:
        """Return what unpacks the block at `at` of the dataset at `path`: its bytes, row by row, as stored.

        It raises CorruptError if they cannot be unpacked, LimitError if the chunk is larger than 64 MiB.
        """
        return lambda: self._unpack(path, at, shape)

    def _unpack(self, path: str, at: tuple[int, ...], shape: tuple[int, ...]) -> bytes:
        place = tuple(slice(begin, begin + size) for begin, size in zip(at, shape, strict=True))
        try:
            with self._lock:
                if path != self._path:
                    self._dataset = self._open(path)
                    self._path = path
                raw: bytes = self._dataset[place].tobytes()
        except (CkptctlError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001  # whatever its C part reports
            reason = " ".join(str(error).split())[:200]
            raise CorruptError(f"{self._where(path)}: a chunk cannot be unpacked: {reason}") from None
        return raw

    def _open(self, path: str) -> Any:
        if self._file is None:
            self._file = self._h5py.File(Opened(self._source), "r")
        dataset = self._file[path]
        size = math.prod(dataset.chunks) * dataset.dtype.itemsize
        if size > _MAX_CHUNK:
            raise LimitError(f"{self._where(path)} has chunks of {size} bytes (limit {_MAX_CHUNK})")
        return dataset

    def _where(self, path: str) -> str:
        return f"{self._source.file.path}: {path.strip('/').replace('/', '.')}"
