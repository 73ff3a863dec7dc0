"""Unpack chunks of HDF5 datasets by h5py, when somebody asks for their values."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

from ckptctl.errors import CkptctlError, CorruptError, LimitError
from ckptctl.formats._hdf5_file import Opened

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptctl.storage import ByteRange

_MAX_CHUNK = 64 << 20


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
