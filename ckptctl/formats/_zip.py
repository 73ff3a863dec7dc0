"""A strict reader of the zip archives that torch, Keras and NumPy write.

https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, and of its many freedoms only those
that they use: where two readers could see two different files, this one refuses.
"""

from __future__ import annotations

import struct
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptctl.errors import CorruptError, LimitError
from ckptctl.formats._zip_headers import LOCAL, LOCAL_MAGIC, Member, corrupt, locate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptctl.storage import ByteRange

__all__ = [
    "LOCAL_MAGIC", "TORCH_ALIGNMENT",
    "Directory", "Member", "corrupt", "first_name", "has_directory", "mentions", "read_directory",
]  # fmt: skip

_ENTRY_MAGIC = b"PK\x01\x02"
_END_MAGIC = b"PK\x05\x06"
_END64_MAGIC = b"PK\x06\x06"
_LOCATOR_MAGIC = b"PK\x06\x07"

# signature, made by, needed, flags, method, time, date, crc, packed, size, name, extra, comment,
# disk, internal attributes, external attributes, offset of the local header
_ENTRY = struct.Struct("<4s6HIII5HII")
# signature, disk, directory's disk, entries here, entries, directory's size, its offset, comment
_END = struct.Struct("<4s4HIIH")
# signature, size of this, made by, needed, disk, directory's disk, entries here, entries, size, offset
_END64 = struct.Struct("<4sQHHIIQQQQ")
# signature, disk, offset of the record above, disks
_LOCATOR = struct.Struct("<4sIQI")

_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
_MAX_ENTRIES = 1_000_000
_MAX_DIRECTORY = 128 << 20
_CHUNK = 1 << 20
_MAX_NAME = 1024
TORCH_ALIGNMENT = 64
"""In a file that torch wrote, the bytes of records begin at multiples of this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """The members of an archive in the order of their bytes, and where the directory begins."""

    members: tuple[Member, ...]
    start: int
    end: int


def mentions(source: ByteRange, *words: bytes) -> bytes:
    """Return the first of `words` that occurs in the raw directory; empty if none does, or there is none."""
    try:
        start, end, _ = _find_directory(source)
    except (CorruptError, LimitError):
        return b""
    overlap = max(map(len, words)) - 1
    for at in range(start, end, _CHUNK):
        part = source.read(at, min(_CHUNK + overlap, end - at))
        for word in words:
            if word in part:
                return word
    return b""


def has_directory(source: ByteRange) -> bool:
    """Whether the end records are there and point at a directory."""
    try:
        _find_directory(source)
    except CorruptError:
        return False
    except LimitError:
        return True
    return True


def first_name(source: ByteRange) -> bytes:
    """Return the name in the first local header, as far as the file goes."""
    head = source.head(LOCAL.size + _MAX_NAME)
    if len(head) < LOCAL.size or not head.startswith(LOCAL_MAGIC):
        return b""
    return head[LOCAL.size : LOCAL.size + int(LOCAL.unpack_from(head)[9])]


def read_directory(source: ByteRange, *, paths: bool = True, aligned: int = 0) -> Directory:
    """Read the directory and hold every local header against it, in a store before the data behind it are read.

    Names that lead upwards are refused; if names are `paths`, also odd ones and those that differ only in case. That
    data begin at multiples of `aligned` bytes tells a store's reader where they lie.

    Raises
    ------
    CorruptError
        Something is missing, ambiguous, overlapping or out of place.
    """
    start, end, count = _find_directory(source)
    raw = source.read(start, end - start)
    members = sorted(_entries(source, raw, count), key=lambda member: member.header)
    _check_names(source, members, paths=paths)
    locate(source, members, start, aligned=aligned)
    return Directory(members=tuple(members), start=start, end=end)


def _find_directory(source: ByteRange) -> tuple[int, int, int]:
    """Return where the directory starts and ends, and how many entries it has."""
    at = source.length - _END.size
    tail = source.read(at) if at >= 0 else b""
    if not tail.startswith(_END_MAGIC):
        raise corrupt(source, f"no end record in its last {_END.size} bytes; it was cut, or something was added")
    _, disk, start_disk, here, count, size, start, comment = _END.unpack(tail)
    if comment or disk or start_disk or here != count:
        raise corrupt(source, "its end record is not one that is read here")
    end = at
    if at >= _LOCATOR.size and source.read(at - _LOCATOR.size, 4) == _LOCATOR_MAGIC:
        end, wide = _find_wide(source, at - _LOCATOR.size)
        for narrow, full, value in zip((count, size, start), (_FULL16, _FULL32, _FULL32), wide, strict=True):
            if narrow not in (value, full):
                raise corrupt(source, "its two end records disagree")
        count, size, start = wide
    if start + size != end:
        raise corrupt(source, f"its directory ends at byte {start + size}, its end record begins at {end}")
    if count * _ENTRY.size > size:
        raise corrupt(source, f"{count} entries cannot fit in a directory of {size} bytes")
    if count > _MAX_ENTRIES:
        raise LimitError(f"{source.file.path}: {count} entries in one archive (limit {_MAX_ENTRIES})")
    if size > _MAX_DIRECTORY:
        raise LimitError(f"{source.file.path}: an archive's directory of {size} bytes (limit {_MAX_DIRECTORY})")
    return start, end, count


def _find_wide(source: ByteRange, locator: int) -> tuple[int, tuple[int, int, int]]:
    """Read the zip64 end record: where it begins, and (entries, size, start) of the directory."""
    _, disk, at, disks = _LOCATOR.unpack(source.read(locator, _LOCATOR.size))
    if disk or disks != 1 or at + _END64.size != locator:
        raise corrupt(source, "its zip64 locator does not point at its end record")
    magic, length, _, _, disk, start_disk, here, count, size, start = _END64.unpack(source.read(at, _END64.size))
    if magic != _END64_MAGIC or length != _END64.size - 12 or disk or start_disk or here != count:
        raise corrupt(source, "its zip64 end record is not one that is read here")
    return at, (count, size, start)


def _entries(source: ByteRange, raw: bytes, count: int) -> Iterator[Member]:
    at = 0
    for index in range(count):
        if at + _ENTRY.size > len(raw):
            raise corrupt(source, f"its directory breaks off in entry {index} of {count}")
        fields = _ENTRY.unpack_from(raw, at)
        magic, _, _, flags, method, _, _, crc, packed, size = fields[:10]
        name_length, extra_length, comment_length, disk, _, _, header = fields[10:]
        following = at + _ENTRY.size + name_length + extra_length + comment_length
        if magic != _ENTRY_MAGIC or following > len(raw) or disk not in (0, _FULL16):
            raise corrupt(source, f"entry {index} of {count} in its directory is malformed")
        at += _ENTRY.size
        name = _name(source, raw[at : at + name_length])
        if _FULL32 in (packed, size, header):
            extra = raw[at + name_length : at + name_length + extra_length]
            size, packed, header = _widened(source, name, extra, (size, packed, header))
        yield Member(name, header, size, packed, crc, method, flags)
        at = following
    if at != len(raw):
        raise corrupt(source, f"{len(raw) - at} bytes after the last entry of its directory")


def _widened(source: ByteRange, name: str, extra: bytes, values: tuple[int, int, int]) -> tuple[int, int, int]:
    """Replace those of (size, packed size, offset) that are full by the 64-bit ones in the extra field."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            wide = extra[at + 4 : at + 4 + length]
            missing = sum(value == _FULL32 for value in values)
            if len(wide) < 8 * missing:
                break
            found = iter(struct.unpack_from(f"<{missing}Q", wide))
            size, packed, header = (next(found) if value == _FULL32 else value for value in values)
            return size, packed, header
        at += 4 + length
    raise corrupt(source, f"the zip64 sizes of {name} are missing")


def _name(source: ByteRange, raw: bytes) -> str:
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        raise corrupt(source, f"a record's name is not UTF-8: {raw[:80].decode('utf-8', 'backslashreplace')}") from None
    if len(raw) > _MAX_NAME or "\0" in name:
        raise corrupt(source, f"{name[:80]} is no name of a record that is read here")
    return name


def _check_names(source: ByteRange, members: list[Member], *, paths: bool) -> None:
    """Refuse names that are equal; of `paths`, or differ only in case (torch and Python pick different ones)."""
    seen: set[str] = set()
    for member in members:
        name = member.name
        parts = name.split("/")
        if ".." in parts or (paths and ("\\" in name or "" in parts or "." in parts)):
            raise corrupt(source, f"{name[:80]} is no name of a record that is read here")
        folded = name.lower() if name.isascii() else unicodedata.normalize("NFC", name).casefold()
        folded = folded if paths else name
        if folded in seen:
            raise corrupt(source, f"two records are called {name}")
        seen.add(folded)
