"""Where the data of the records of a zip archive lie, and their own headers held against the directory."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptctl.errors import CorruptError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptctl.storage import ByteRange

LOCAL_MAGIC = b"PK\x03\x04"
_DESCRIPTOR_MAGIC = b"PK\x07\x08"
LOCAL = struct.Struct("<4s5HIIIHH")
"""Signature, needed, flags, method, time, date, CRC, packed, size, lengths of name and extra field."""
_DESCRIPTORS = (16, 24)
"""Lengths of a data descriptor: with sizes of 32 and of 64 bits."""
_BETWEEN = max(_DESCRIPTORS)
_STORED = 0
_HAS_DESCRIPTOR = 0x0008
_ALLOWED_FLAGS = 0x0808  # a data descriptor follows; names are UTF-8
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF


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
    before: int = 0
    """Where what lies between the data of the record before and its own begins."""

    @property
    def stored(self) -> bool:
        """Whether the bytes lie in the archive as they are."""
        return self.method == _STORED

    @property
    def fixed(self) -> int:
        """Where the part of its header ends whose length the directory tells."""
        return self.header + LOCAL.size + len(self.name.encode())


def corrupt(source: ByteRange, what: str) -> CorruptError:
    """Return the error for a broken archive."""
    return CorruptError(f"{source.file.path}: damaged zip archive: {what}")


def locate(source: ByteRange, members: Sequence[Member], directory: int, *, aligned: int = 0) -> None:
    """Find the data of each member, making sure that the records follow each other without gaps.

    In a store, headers are looked at before the data behind them are read, if the directory tells where these lie: it
    does if no record has a descriptor, or if data begin at multiples of `aligned` bytes.
    """
    for member in members:
        _check_entry(source, member)
    if source.distant and _deduce(members, directory, aligned):
        spans = [(member.data, member.packed) for member in members]
        heads = [(member.before, member.data - member.before) for member in members]
        end = members[-1].end if members else 0
        spans.append((directory, 0))
        heads.append((end, directory - end))
        source.before_reading(spans, heads, lambda index: _confirm(source, members, index, directory))
        return
    source.expect([_around(member, directory) for member in members])
    end = 0
    for index, member in enumerate(members):
        if member.header < end or member.header - end > _BETWEEN:
            raise corrupt(source, f"{member.header - end} bytes lie between record {member.name} and the one before")
        if member.fixed > directory:
            raise corrupt(source, f"record {member.name} lies beyond the directory")
        member.before, member.data = end, member.fixed
        member.data += _look(source, members, index)
        member.end = end = member.data + member.packed
        if end > directory:
            raise corrupt(source, f"record {member.name} ends at byte {end}, the directory begins at {directory}")
    if directory - end > _BETWEEN:
        raise corrupt(source, f"{directory - end} bytes lie between the last record and the directory")
    _close(source, members[-1] if members else None, source.read(end, directory - end))


def _around(member: Member, directory: int) -> tuple[int, int]:
    """Return where the local header of a member lies, with what may come before it, and how long it is."""
    start = max(member.header - _BETWEEN, 0)
    return start, max(min(member.fixed, directory) - start, 0)


def _deduce(members: Sequence[Member], directory: int, aligned: int) -> bool:
    """Work out where the data of each member lie from where the next one begins, if that leaves no doubt."""
    end = 0
    for member, behind in zip(members, (*(one.header for one in members[1:]), directory), strict=True):
        lengths = _DESCRIPTORS if member.flags & _HAS_DESCRIPTOR else (0,)
        places = [
            place
            for length in lengths
            if 0 <= (place := behind - length - member.packed) - member.fixed <= _FULL16
            and (not length or (aligned and place % aligned == 0))
        ]
        if len(places) != 1 or not 0 <= member.header - end <= _BETWEEN:
            return False
        member.before, member.data = end, places[0]
        member.end = end = member.data + member.packed
    return not members or not members[0].header


def _confirm(source: ByteRange, members: Sequence[Member], index: int, directory: int) -> None:
    """Make sure that the data of a member lie where they were thought to lie; behind the last, that nothing does."""
    if index == len(members):
        end = members[-1].end if members else 0
        _close(source, members[-1] if members else None, source.read(end, directory - end))
        return
    member = members[index]
    if _look(source, members, index) != member.data - member.fixed:
        raise corrupt(source, f"the header of record {member.name} is not as long as the directory says")


def _look(source: ByteRange, members: Sequence[Member], index: int) -> int:
    """Look at what lies before the data of a member; return the length of the extra field in its header."""
    member = members[index]
    raw = source.sub(member.before, member.data - member.before).read()  # whoever reads this reads no farther
    _close(source, members[index - 1] if index else None, raw[: member.header - member.before])
    return _check_local(source, member, raw[member.header - member.before : member.fixed - member.before])


def _check_entry(source: ByteRange, member: Member) -> None:
    """Make sure that what the directory says of a member is what is read here."""
    if member.flags & ~_ALLOWED_FLAGS:
        raise corrupt(source, f"the flags of record {member.name} are {member.flags:#x}, method {member.method}")
    if member.stored and member.packed != member.size:
        raise corrupt(source, f"record {member.name} has two sizes, {member.packed} and {member.size}")


def _check_local(source: ByteRange, member: Member, raw: bytes) -> int:
    """Hold a local header against the directory; return the length of its extra field."""
    magic, _, flags, method, _, _, crc, packed, size, name_length, extra_length = LOCAL.unpack_from(raw)
    name = member.name.encode()
    if magic != LOCAL_MAGIC or name_length != len(name) or raw[LOCAL.size :] != name:
        raise corrupt(source, f"the header of record {member.name} is not where, or not what, the directory says")
    if flags != member.flags or method != member.method:
        raise corrupt(source, f"the flags of record {member.name} are {flags:#x}, method {method}")
    for here, there in ((crc, member.crc), (packed, member.packed), (size, member.size)):
        if here not in (there, _FULL32) and not (here == 0 and flags & _HAS_DESCRIPTOR):
            raise corrupt(source, f"the header of record {member.name} and the directory disagree on its size or CRC")
    return int(extra_length)


def _close(source: ByteRange, member: Member | None, raw: bytes) -> None:
    """Check what follows the data of `member`: nothing, or a data descriptor that agrees."""
    if not raw and not (member and member.flags & _HAS_DESCRIPTOR):
        return
    if member and member.flags & _HAS_DESCRIPTOR and len(raw) in _DESCRIPTORS:
        form = "<4sIII" if len(raw) == _DESCRIPTORS[0] else "<4sIQQ"
        if struct.unpack(form, raw) == (_DESCRIPTOR_MAGIC, member.crc, member.packed, member.size):
            return
    where = f"after record {member.name}" if member else "before the first record"
    raise corrupt(source, f"{len(raw)} bytes {where} are not its descriptor")
