"""The checksums that a file keeps of its own records, compared with what their bytes give."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from ckptctl.checks.file_bytes import finding_of
from ckptctl.errors import CkptctlError, CorruptError, counted
from ckptctl.formats import Deflated
from ckptctl.storage import open_file

if TYPE_CHECKING:
    from ckptctl.checks.file_bytes import FileBytes
    from ckptctl.formats import Checksum
    from ckptctl.model import Finding
    from ckptctl.storage import StoredFile

_BLOCK = 1 << 20
_WORTH = 64 << 20
"""Bytes of records that are worth a thread of their own."""
_SHOWN = 3
Progress = Callable[[int], None]


def parted(checksums: Sequence[Checksum], most: int) -> list[Sequence[Checksum]]:
    """Cut the records of a file into runs of about the same length, for several threads if it is worth it."""
    total = sum(one.range.length for one in checksums)
    count = max(min(most, total // _WORTH), 1)
    sums = list(accumulate(one.range.length for one in checksums))
    cuts = [0, *(bisect_right(sums, total * n // count) for n in range(1, count)), len(checksums)]
    return [checksums[start:end] for start, end in pairwise(cuts) if end > start]


def compare_records(one: FileBytes, checksums: Sequence[Checksum], findings: list[Finding], progress: Progress) -> int:
    """Compare the CRC-32 of some records of a file; several threads may, each with `findings` of its own."""
    buffer, total = memoryview(bytearray(_BLOCK)), 0
    try:
        file = one.file.again() if one.file else open_file(one.path)
        for recorded in checksums:
            look = _wrong if recorded.unpacked is None else _wrong_inside
            wrong = look(file, recorded, buffer, progress)
            total += recorded.range.length
            if wrong:
                what = f"record {recorded.what} {wrong}"
                findings.append(finding_of(one, "bad-crc", f"{what}{_damaged(recorded, one)}"))
        file.release()
        file.check_in_place()
    except CkptctlError as error:
        findings.append(finding_of(one, error.slug, error.message))
    return total


def _wrong(file: StoredFile, recorded: Checksum, buffer: memoryview, progress: Progress) -> str:
    """Say what is wrong with a record by its CRC-32, if anything is."""
    at, end, crc = recorded.range.offset, recorded.range.offset + recorded.range.length, 0
    while at < end and (count := file.pread_into(buffer[: min(_BLOCK, end - at)], at)):
        progress(count)
        at += count
        crc = zlib.crc32(buffer[:count], crc)
    return "" if crc == recorded.crc else f"reads CRC {crc:08x}, recorded {recorded.crc:08x}"


def _wrong_inside(file: StoredFile, recorded: Checksum, buffer: memoryview, progress: Progress) -> str:
    """The same of a record that is packed, which is unpacked to its end."""
    size, done = recorded.unpacked or 0, 0
    place = replace(recorded.range, file=file)
    packed = Deflated(place, size, recorded.crc, "")
    try:
        for at in range(0, max(size, 1), len(buffer)):
            packed.read(at, min(len(buffer), size - at))
            progress(max(packed.consumed - done, 0))
            done = max(packed.consumed, done)
    except CorruptError as error:
        return error.message.strip()
    progress(place.length - done)
    return ""


def _damaged(recorded: Checksum, one: FileBytes) -> str:
    """Name the tensors that lie in a damaged record."""
    first, last = recorded.range.offset, recorded.range.offset + recorded.range.length
    hurt = list(dict.fromkeys(name for start, end, name in one.places if start < last and end > first))
    if not hurt:
        return ""
    more = f" and {len(hurt) - _SHOWN} more" if len(hurt) > _SHOWN else ""
    count = len({name for _, _, name in one.places})
    return f": damaged: {', '.join(hurt[:_SHOWN])}{more} ({len(hurt)} of {counted(count, 'tensor')})"
