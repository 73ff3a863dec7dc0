"""What every byte of a zip archive is for, and the checksums that it records of them."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from ckptctl.formats import _zip
from ckptctl.formats._format import Checksum
from ckptctl.formats._pieces import region, spans_of

_STORED, _DEFLATED = 0, 8

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ckptctl.model import Contents, Region


def account(contents: Contents) -> tuple[Region, ...]:
    """Return the regions of a file of torch in order, without a gap."""
    spans = spans_of(contents)

    def inside(member: _zip.Member) -> Iterator[Region]:
        if member.name.partition("/")[2].startswith(("data/", "constants/")):
            return _storage(member, spans)
        return region(member.data, member.end, "header", member.name)

    return account_for(contents, _directory(contents), inside)


def account_for(
    contents: Contents, directory: _zip.Directory, inside: Callable[[_zip.Member], Iterable[Region]]
) -> tuple[Region, ...]:
    """Return the regions of an archive in order, without a gap; `inside` gives those of the bytes of a record."""
    regions: list[Region] = []
    end = 0
    for member in directory.members:
        name_end = member.header + 30 + len(member.name.encode())
        regions += region(end, member.header, "header", "data descriptor")
        regions += region(member.header, name_end, "header", f"header of {member.name}")
        regions += region(name_end, member.data, "padding", f"before {member.name}")
        regions += inside(member)
        end = member.end
    regions += region(end, directory.start, "header", "data descriptor")
    regions += region(directory.start, directory.end, "index", "directory")
    regions += region(directory.end, contents.range.length, "index", "end records")
    return tuple(regions)


def checksums(contents: Contents) -> tuple[Checksum, ...]:
    """Return the CRC of every record of a file of torch that has one; it can save without, and then writes zero."""
    return checksums_for(contents, _directory(contents))


def checksums_for(contents: Contents, directory: _zip.Directory) -> tuple[Checksum, ...]:
    """Return the CRC of every record of an archive that has one."""
    source = contents.range
    return tuple(
        Checksum(
            source.sub(member.data, member.packed),
            member.crc,
            member.name.partition("/")[2] or member.name,
            None if member.stored else member.size,
        )
        for member in directory.members
        if member.crc and member.method in (_STORED, _DEFLATED)
    )


def _directory(contents: Contents) -> _zip.Directory:
    return _zip.read_directory(contents.range, aligned=_zip.TORCH_ALIGNMENT)


def _storage(member: _zip.Member, spans: list[tuple[int, int]]) -> Iterator[Region]:
    """Split a storage into what some tensor uses and what none does."""
    reached = member.data
    first = bisect_left(spans, (member.data, 0))
    for start, end in spans[first : bisect_left(spans, (member.end, 0), first)]:
        yield from region(reached, start, "unused", f"{member.name}: no tensor uses it")
        yield from region(start, end, "data", member.name)
        reached = end
    yield from region(reached, member.end, "unused", f"{member.name}: no tensor uses it")
