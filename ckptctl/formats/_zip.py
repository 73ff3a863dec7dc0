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

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptctl.storage import ByteRange

LOCAL_MAGIC = b"PK\x03\x04"
_ENTRY_MAGIC = b"PK\x01\x02"
_END_MAGIC = b"PK\x05\x06"
_END64_MAGIC = b"PK\x06\x06"
_LOCATOR_MAGIC = b"PK\x06\x07"
_DESCRIPTOR_MAGIC = b"PK\x07\x08"

# signature, made by, needed, flags, method, time, date, crc, packed, size, name, extra, comment,
# disk, internal attributes, external attributes, offset of the local header
_ENTRY = struct.Struct("<4s6HIII5HII")
# signature, needed, flags, method, time, date, crc, packed, size, name, extra
_BETWEEN = 24
"""At most so many bytes lie between two records: a data descriptor."""
_LOCAL = struct.Struct("<4s5HIIIHH")
# signature, disk, directory's disk, entries here, entries, directory's size, its offset, comment
_END = struct.Struct("<4s4HIIH")
# signature, size of this, made by, needed, disk, directory's disk, entries here, entries, size, offset
_END64 = struct.Struct("<4sQHHIIQQQQ")
# signature, disk, offset of the record above, disks
_LOCATOR = struct.Struct("<4sIQI")

_STORED = 0
_HAS_DESCRIPTOR = 0x0008
_ALLOWED_FLAGS = 0x0808  # a data descriptor follows; names are UTF-8
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
_MAX_ENTRIES = 1_000_000
_MAX_DIRECTORY = 128 << 20
_CHUNK = 1 << 20
_MAX_NAME = 1024


@dataclass(slots=True, eq=False)
class Member:
    """One record: where its header and its data lie, and what the directory says of it."""

    name: str
    header: int
    size: int
    packed: int
    crc: int
    method: int
    flags: int
    data: int = 0
    end: int = 0

    @property
    def stored(self) -> bool:
        """Whether the bytes lie in the archive as they are."""
        return self.method == _STORED


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
    head = source.head(_LOCAL.size + _MAX_NAME)
    if len(head) < _LOCAL.size or not head.startswith(LOCAL_MAGIC):
        return b""
    return head[_LOCAL.size : _LOCAL.size + int(_LOCAL.unpack_from(head)[9])]


def read_directory(source: ByteRange, *, paths: bool = True) -> Directory:
    """Read the directory and hold every local header against it.

    Names that lead upwards are refused; if names are `paths`, also odd ones and those that differ only in case.

    Raises
    ------
    CorruptError
        Something is missing, ambiguous, overlapping or out of place.
    """
    start, end, count = _find_directory(source)
    raw = source.read(start, end - start)
    members = sorted(_entries(source, raw, count), key=lambda member: member.header)
    _check_names(source, members, paths=paths)
    _locate(source, members, start)
    return Directory(members=tuple(members), start=start, end=end)


def corrupt(source: ByteRange, what: str) -> CorruptError:
    """Return the error for a broken archive."""
    return CorruptError(f"{source.file.path}: damaged zip archive: {what}")


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


def _locate(source: ByteRange, members: list[Member], directory: int) -> None:
    """Find the data of each member, making sure that the records follow each other without gaps."""
    end = 0
    source.expect([_around(member, directory) for member in members])
    for index, member in enumerate(members):
        if member.header < end or member.header - end > _BETWEEN:
            raise corrupt(source, f"{member.header - end} bytes lie between record {member.name} and the one before")
        name = member.name.encode()
        head = member.header + _LOCAL.size + len(name)
        if head > directory:
            raise corrupt(source, f"record {member.name} lies beyond the directory")
        raw = source.read(end, head - end)
        _close(source, members[index - 1] if index else None, raw[: member.header - end])
        extra = _check_local(source, member, raw[member.header - end :], name)
        member.data = head + extra
        member.end = end = member.data + member.packed
        if end > directory:
            raise corrupt(source, f"record {member.name} ends at byte {end}, the directory begins at {directory}")
    if directory - end > _BETWEEN:
        raise corrupt(source, f"{directory - end} bytes lie between the last record and the directory")
    _close(source, members[-1] if members else None, source.read(end, directory - end))


def _around(member: Member, directory: int) -> tuple[int, int]:
    """Return where the local header of a member lies, with what may come before it, and how long it is."""
    start = max(member.header - _BETWEEN, 0)
    return start, max(min(member.header + _LOCAL.size + len(member.name.encode()), directory) - start, 0)


def _check_local(source: ByteRange, member: Member, raw: bytes, name: bytes) -> int:
    """Hold a local header against the directory; return the length of its extra field."""
    magic, _, flags, method, _, _, crc, packed, size, name_length, extra_length = _LOCAL.unpack_from(raw)
    if magic != LOCAL_MAGIC or name_length != len(name) or raw[_LOCAL.size :] != name:
        raise corrupt(source, f"the header of record {member.name} is not where, or not what, the directory says")
    if flags != member.flags or method != member.method or flags & ~_ALLOWED_FLAGS:
        raise corrupt(source, f"the flags of record {member.name} are {flags:#x}, method {method}")
    if member.stored and member.packed != member.size:
        raise corrupt(source, f"record {member.name} has two sizes, {member.packed} and {member.size}")
    for here, there in ((crc, member.crc), (packed, member.packed), (size, member.size)):
        if here not in (there, _FULL32) and not (here == 0 and flags & _HAS_DESCRIPTOR):
            raise corrupt(source, f"the header of record {member.name} and the directory disagree on its size or CRC")
    return int(extra_length)


def _close(source: ByteRange, member: Member | None, raw: bytes) -> None:
    """Check what follows the data of `member`: nothing, or a data descriptor that agrees."""
    if not raw and not (member and member.flags & _HAS_DESCRIPTOR):
        return
    if member and member.flags & _HAS_DESCRIPTOR and len(raw) in (16, 24):
        form = "<4sIII" if len(raw) == 16 else "<4sIQQ"
        if struct.unpack(form, raw) == (_DESCRIPTOR_MAGIC, member.crc, member.packed, member.size):
            return
    where = f"after record {member.name}" if member else "before the first record"
    raise corrupt(source, f"{len(raw)} bytes {where} are not its descriptor")
