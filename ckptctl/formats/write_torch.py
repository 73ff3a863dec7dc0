"""Write files of ``torch.save``, byte by byte as torch 2.13 lays them out.

A zip archive as miniz writes it for torch: stored records, each behind a header without sizes and before a
descriptor with them; data aligned to 64 bytes. So torch can map it, and find each storage without a search.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple

from ckptctl.formats._pickle.emit_objects import open_described
from ckptctl.formats._pickle.emit_tensors import Tensors
from ckptctl.formats._pickle.writer import Writer
from ckptctl.storage.copy import Crc
from ckptctl.values import Described, TensorRef

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ckptctl.formats._format import Stored
    from ckptctl.storage.copy import Pump

# signature, needed, flags, method, time, date, crc, packed, size, name, extra
_LOCAL = struct.Struct("<4s5HIIIHH")
# signature, made by, needed, flags, method, time, date, crc, packed, size, name, extra, comment, disk,
# internal attributes, external attributes, offset of the local header
_ENTRY = struct.Struct("<4s6HIII5HII")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR = struct.Struct("<4sIQI")
_END = struct.Struct("<4s4HIIH")
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
_UTF8, _DESCRIBED = 0x0800, 0x0008
_ALIGNMENT = 64
_ROOT = b"archive/"


class Record(NamedTuple):
    """A record of the archive: its name, its length, and where its header begins."""

    name: bytes
    size: int
    offset: int

    @property
    def large(self) -> bool:
        """Whether its size or offset needs 64 bits."""
        return self.size >= _FULL32 or self.offset >= _FULL32

    @property
    def extra(self) -> bytes:
        """The zip64 field: size, packed size and offset, as far as they need it."""
        wide = [self.size] * 2 if self.size >= _FULL32 else []
        wide += [self.offset] if self.offset >= _FULL32 else []
        return struct.pack(f"<HH{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b""

    def header(self) -> bytes:
        """What stands before the data, padded so that the data is aligned."""
        extra = self.extra
        padding = -(self.offset + _LOCAL.size + len(self.name) + len(extra) + 4) % _ALIGNMENT
        extra += struct.pack("<2sH", b"FB", padding) + b"Z" * padding
        flags = _flags(self.size)
        return _LOCAL.pack(b"PK\3\4", 0, flags, 0, 0, 0, 0, 0, 0, len(self.name), len(extra)) + self.name + extra

    def descriptor(self, crc: int) -> bytes:
        """What stands behind the data; nothing if there is none."""
        if not self.size:
            return b""
        return struct.pack("<4sIQQ" if self.large else "<4sIII", b"PK\7\x08", crc, self.size, self.size)

    def entry(self, crc: int) -> bytes:
        """What the directory says of it."""
        size, offset, extra = min(self.size, _FULL32), min(self.offset, _FULL32), self.extra
        flags, length = _flags(self.size), len(self.name)
        fixed = _ENTRY.pack(b"PK\1\2", 0, 0, flags, 0, 0, 0, crc, size, size, length, len(extra), 0, 0, 0, 0, offset)
        return fixed + self.name + extra

    @property
    def end(self) -> int:
        """Where the next record begins."""
        return self.offset + len(self.header()) + self.size + len(self.descriptor(0))


def end_records(count: int, size: int, start: int) -> bytes:
    """Return what follows a directory of so many entries and bytes that begins at `start`."""
    wide = _END64.pack(b"PK\6\6", _END64.size - 12, 0x31E, 45, 0, 0, count, count, size, start)
    locator = _LOCATOR.pack(b"PK\6\7", 0, start + size, 1)
    few = min(count, _FULL16)
    return wide + locator + _END.pack(b"PK\5\6", 0, 0, few, few, min(size, _FULL32), min(start, _FULL32), 0)


class TorchWriter:
    """A file of torch.save about to be written.

    Parameters
    ----------
    root
        The values. Each `TensorRef` in them names a key of `tensors` or of `ties`.
    tensors
        How each tensor will be stored.
    ties
        Names whose tensors share the storage of another, which `tensors` has: same dtype, same shape.
    read
        Returns the bytes of a NumPy array, row by row, little-endian: arrays lie in the pickle.

    Raises
    ------
    UnsupportedError
        A value that torch has no form for, or that is not safe to load.
    LimitError
        The pickle becomes too long.
    ValueError
        No reference names one of `tensors`.
    """

    nbytes: int
    """The size of the file, known before anything is written."""

    def __init__(
        self,
        root: object,
        tensors: Mapping[str, Stored],
        ties: Mapping[str, str],
        *,
        read: Callable[[str], bytes] | None = None,
    ) -> None:
        found = Tensors(tensors, ties, read or _nothing)
        data = Writer({TensorRef: found.open, Described: open_described}).pickle(root)
        if unnamed := tensors.keys() - found.named:
            raise ValueError(f"nothing refers to the tensors {sorted(unnamed)[:5]}")
        self._tensors = found.records
        self._before: dict[bytes, bytes | bytearray] = {
            b"data.pkl": data,
            b".format_version": b"1",
            b".storage_alignment": b"64",
            b"byteorder": b"little",
        }
        self._after: dict[bytes, bytes | bytearray] = {b"version": b"3\n"}
        sizes = [(name, len(record)) for name, record in self._before.items()]
        sizes += [(b"data/%d" % key, tensors[name].nbytes) for key, name in enumerate(self._tensors)]
        self._records: list[Record] = []
        self._start = 0
        for name, size in [*sizes, *((name, len(record)) for name, record in self._after.items())]:
            record = Record(_ROOT + name, size, self._start)
            self._records.append(record)
            self._start = record.end
        directory = sum(_ENTRY.size + len(record.name) + len(record.extra) for record in self._records)
        self.nbytes = self._start + directory + _END64.size + _LOCATOR.size + _END.size

    def write(self, pump: Pump, pour: Callable[[str, Pump, Crc], None]) -> None:
        """Write the whole file; ``pour(name, pump, crc)`` writes the bytes of one tensor, adding them to `crc`."""
        directory = bytearray()
        rest = iter(self._records)
        for data in self._before.values():
            directory += _put(pump, next(rest), data)
        for name in self._tensors:
            record, crc = next(rest), Crc()
            pump.put(record.header())
            pour(name, pump, crc)
            value = pump.settle(crc)
            pump.put(record.descriptor(value))
            directory += record.entry(value)
        for data in self._after.values():
            directory += _put(pump, next(rest), data)
        pump.put(directory)
        pump.put(end_records(len(self._records), len(directory), self._start))


def _put(pump: Pump, record: Record, data: bytes | bytearray) -> bytes:
    """Write a record that is at hand; return its entry in the directory."""
    crc = zlib.crc32(data)
    pump.put(record.header())
    pump.put(data)
    pump.put(record.descriptor(crc))
    return record.entry(crc)


def _flags(size: int) -> int:
    return _UTF8 | _DESCRIBED if size else _UTF8


def _nothing(name: str) -> bytes:
    raise ValueError(f"{name} is an array, and there is no way to read it")
