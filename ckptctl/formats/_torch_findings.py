"""What is odd about a torch file, though it can be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptctl.errors import counted
from ckptctl.model import Aspect, Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ckptctl.formats._pickle import Storage, Unpickled
    from ckptctl.formats._zip import Member
    from ckptctl.storage import ByteRange

_FEW_BYTES = 1024
Note = tuple[Severity, str, str]


def findings(
    source: ByteRange, found: Unpickled, storages: Sequence[Storage], members: Iterable[Member]
) -> tuple[Finding, ...]:
    """Return everything worth a note about an archive, in words."""
    records = {m.name.partition("/")[2]: m for m in members}
    return (
        *notes_on_tensors(source, found, storages),
        *_as_findings(source, [*_never_written(records, storages), *_about_records(records, found, storages)]),
    )


def notes_on_tensors(source: ByteRange, found: Unpickled, storages: Sequence[Storage]) -> tuple[Finding, ...]:
    """Return what is worth a note about the tensors and values of any torch file."""
    left_out = [(Severity.WARNING, "left-out", f"a part of the values is left out: {why}") for why in found.elided]
    return _as_findings(source, [*_unused(storages), *_shards(found), *left_out])


def _as_findings(source: ByteRange, notes: Iterable[Note]) -> tuple[Finding, ...]:
    where = source.file.path.name
    return tuple(
        Finding(aspect=Aspect.STRUCTURE, severity=severity, slug=slug, where=where, message=message)
        for severity, slug, message in notes
    )


def _about_records(records: dict[str, Member], found: Unpickled, storages: Sequence[Storage]) -> Iterable[Note]:
    trailing = records["data.pkl"].size - found.length
    if trailing:
        yield Severity.WARNING, "trailing-bytes", f"data.pkl goes on for {counted(trailing, 'byte')} after its end"
    wanted = {_record(storage) for storage in storages}
    orphans = [
        member for name, member in records.items() if name.startswith(("data/", "constants/")) and name not in wanted
    ]
    if orphans:
        size = sum(m.size for m in orphans)
        yield (
            Severity.WARNING,
            "unused-records",
            f"no tensor uses {counted(len(orphans), 'storage')} of it ({size} bytes)",
        )
    if not any(m.crc for m in records.values()):
        yield Severity.NOTE, "no-checksums", "saved without checksums: damage to the data cannot be seen"


def used(storage: Storage) -> int:
    """Return how many bytes of a storage lie within some view of it."""
    total, reached = 0, 0
    for start, end in sorted(storage.spans):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _unused(storages: Sequence[Storage]) -> Iterable[Note]:
    dead = [(storage.range.length - used(storage), storage) for storage in storages]
    wasted = sum(count for count, _ in dead)
    total = sum(storage.range.length for storage in storages)
    if wasted < _FEW_BYTES:
        return
    several = sum(1 for count, _ in dead if count)
    kept = "a storage" if several == 1 else f"{several} storages"
    share = f"{total - wasted} of {total} bytes are used, {100 * wasted / total:.1f} % are dead"
    yield Severity.NOTE, "storage-kept-alive", f"views keep {kept} alive: {share}"


def _never_written(records: dict[str, Member], storages: Sequence[Storage]) -> Iterable[Note]:
    """A CRC of zero beside others that are not: storages whose data was skipped when saving."""
    empty = [s.key for s in storages if s.range.length and records[_record(s)].crc == 0]
    if len(empty) >= 2 and records["data.pkl"].crc:
        yield (
            Severity.WARNING,
            "data-never-written",
            f"{len(empty)} storages have no checksum while the rest has: their data was never written (skip_data)",
        )


def _shards(found: Unpickled) -> Iterable[Note]:
    parts = [t for t in found.tensors.values() if not t.whole]
    if parts:
        yield (
            Severity.WARNING,
            "one-rank",
            f"one rank's shard of a larger whole: {len(parts)} of {counted(len(found.tensors), 'tensor')}",
        )


def _record(storage: Storage) -> str:
    """Return the name of the record of a storage; only those of frozen modules say in which folder theirs lies."""
    return storage.key if "/" in storage.key else f"data/{storage.key}"
