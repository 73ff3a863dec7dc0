"""Are the bytes those that were written? Checksums inside files and digests beside them, on all cores."""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ckptctl.checks.digests import SUMS, OnRecord, Recorded
from ckptctl.checks.file_bytes import BytesReport, FileBytes, Outcome, Place, finding_of
from ckptctl.checks.records import compare_records, parted
from ckptctl.errors import CkptctlError, CorruptError
from ckptctl.formats import Checksum, checksums_of
from ckptctl.formats import read as read_contents
from ckptctl.model import Checkpoint, Encoding, Severity
from ckptctl.storage import ByteRange, StoredFile, open_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from ckptctl.checks.gather import Gathering
    from ckptctl.model import Contents, Finding

_BLOCK = 1 << 20
Progress = Callable[[int], None]


def check_bytes(  # noqa: PLR0913  # what is looked at, and by whom
    checkpoint: Checkpoint,
    *,
    root: Path | None = None,
    digest_all: bool = False,
    gathering: Gathering | None = None,
    workers: int | None = None,
    progress: Progress = lambda _: None,
) -> BytesReport:
    """Compare the bytes of a checkpoint with all that is on record of them; `digest_all` hashes the other files too.

    `root` is the directory of the whole: every file that a ``SHA256SUMS`` in it lists must be there. With `gathering`
    this is one worker of several, which reads its own files; the first one takes up what the others found. `workers`
    are the threads that read, by default as many as there are processors.
    """
    files = _files(checkpoint, root)
    work = partial(_read, digest_all=digest_all, workers=workers, progress=progress)
    files, read = gathering.carried_out(files, work) if gathering else (files, sum(work(files)))
    by_name = {one.path.name: one.digest for one in files}
    for one in files:
        _compare(one, by_name)
    outcomes = {one.outcome for one in files} - {None}
    order = (Outcome.FAILED, Outcome.UNVERIFIED, Outcome.VERIFIED)
    return BytesReport(
        outcome=next((outcome for outcome in order if outcome in outcomes), Outcome.UNVERIFIED),
        findings=tuple(finding for one in files for finding in (*one.findings, *one.notes)),
        compared=sum(any(found.digest == one.digest for found in one.recorded) for one in files if one.digest),
        digests={one.path: one.digest for one in files if one.digest},
        records=sum(len(one.checksums) for one in files),
        nbytes=read,
        unverified=tuple(one.path.name for one in files if one.outcome is Outcome.UNVERIFIED),
    )


def with_digests(files: Iterable[Contents]) -> list[FileBytes]:
    """Return those files, each once, that have a digest on record."""
    every = tuple(files)
    records = OnRecord(None)
    found: dict[Path, FileBytes] = {}
    for contents in every:
        file = contents.range.file
        if isinstance(file, StoredFile) and file.path not in found:
            said = (Recorded(digest=contents.sha256, source=every[0].range.file.path),) if contents.sha256 else ()
            recorded = (*records.of(file.path), *said)
            if recorded:
                size = contents.range.length
                found[file.path] = FileBytes(path=file.path, nbytes=size, file=file, recorded=recorded)
            _add_index(file.path, records, found)
    return list(found.values())


def _add_index(shard: Path, records: OnRecord, found: dict[Path, FileBytes]) -> None:
    """Add the index that a shard belongs to, if a digest of it is on record."""
    path = records.index_of(shard)
    if path and path not in found and (recorded := records.of(path)):
        file = open_file(path)
        found[path] = FileBytes(path=path, nbytes=file.size, file=file, recorded=recorded)


def hold_digests(files: Sequence[FileBytes]) -> int:
    """Hold the digests of files against those on record; return how many agree.

    Raises
    ------
    CorruptError
        One does not, so that whatever was made of it would be wrong.
    """
    for one in files:
        _compare(one, {each.path.name: each.digest for each in files})
        if one.findings:
            hint = "copy it again, or take an older checkpoint; --no-check copies the damage"
            raise CorruptError(f"{one.path}: {one.findings[0].message}", hint=hint)
    return sum(one.outcome is Outcome.VERIFIED for one in files)


def _read(files: Sequence[FileBytes], *, digest_all: bool, progress: Progress, workers: int | None = None) -> list[int]:
    """Hash files, and compare their checksums; return how many bytes were read of each."""
    workers = workers or os.cpu_count() or 1
    jobs: list[tuple[int, Callable[[], int]]] = []
    apart: list[tuple[FileBytes, list[Finding]]] = []
    for number, one in enumerate(files):
        if one.recorded or digest_all:
            jobs.append((number, partial(_digest, one, progress)))
        for part in parted(one.checksums, workers):
            found: list[Finding] = []
            apart.append((one, found))
            jobs.append((number, partial(compare_records, one, part, found, progress)))
    counts = [0] * len(files)
    with ThreadPoolExecutor(workers) as pool:
        for (number, _), count in zip(jobs, pool.map(lambda job: job[1](), jobs), strict=True):
            counts[number] += count
    for one, found in apart:  # in the order of the records, and what holds of the whole file once
        one.findings += [each for each in found if each not in one.findings]
    return counts


def _places(checkpoint: Checkpoint) -> tuple[dict[int, list[Place]], dict[int, dict[int, ByteRange]]]:
    """Return where tensors lie, by file: start, end, name; and the torch files inside those of a distributed save."""
    places: dict[int, list[Place]] = {}
    items: dict[int, dict[int, ByteRange]] = {}
    for part in checkpoint.parts.values():
        for name, tensor in part.tensors.items():
            for piece in (*tensor.pieces, *(piece for inner in tensor.parts for piece in inner.pieces)):
                at = piece.range
                if at.length:
                    places.setdefault(id(at.file), []).append((at.offset, at.offset + at.length, name))
                if Encoding.ITEM in piece.encoding:
                    items.setdefault(id(at.file), {})[at.offset] = at
    return places, items


def _files(checkpoint: Checkpoint, root: Path | None) -> list[FileBytes]:
    """Return the files of a checkpoint, each once, and others beside them that a ``SHA256SUMS`` lists."""
    found: dict[Path, FileBytes] = {}
    records = OnRecord(root)
    places, items = _places(checkpoint)
    for contents in checkpoint.files:
        path, number = contents.range.file.path, id(contents.range.file)
        if path in found or not isinstance(contents.range.file, StoredFile):
            continue
        one = found[path] = FileBytes(
            path=path,
            nbytes=contents.range.length,
            file=contents.range.file,
            recorded=records.of(path),
            places=places.get(number, []),
        )
        if number in items:
            one.checksums = _of_items(one, items[number].values())
            one.covered = bool(one.checksums)
        else:
            one.checksums = _of_records(one, contents)
            one.covered = _covered(one)
        _add_index(path, records, found)
    _add_bases(checkpoint, found)
    for path in records.listed():
        if path not in found and path.is_file():
            found[path] = FileBytes(path=path, nbytes=path.stat().st_size, recorded=records.of(path))
        elif path not in found:
            gone = found[path] = FileBytes(path=path, nbytes=0)
            gone.findings.append(finding_of(gone, "missing-file", f"{path.name} is missing, though {SUMS} lists it"))
    return list(found.values())


def _add_bases(checkpoint: Checkpoint, found: Mapping[Path, FileBytes]) -> None:
    """Note what a delta says of its base: that is on record as well."""
    for base, delta, contents in zip(checkpoint.bases, checkpoint.files, checkpoint.files[1:], strict=False):
        one = found.get(contents.range.file.path)
        if one:
            one.recorded = (*one.recorded, Recorded(digest=base.sha256, source=delta.range.file.path))


def _of_records(one: FileBytes, contents: Contents) -> tuple[Checksum, ...]:
    """Return the checksums of the records of a file, of which all has been looked at that could wait until now."""
    try:
        contents.range.confirm()
        return checksums_of(contents)
    except CkptctlError as error:
        one.findings.append(finding_of(one, error.slug, error.message))
        return ()


def _of_items(one: FileBytes, items: Iterable[ByteRange]) -> tuple[Checksum, ...]:
    """Return the checksums of the torch files that lie, one behind another, in a data file of a distributed save."""
    found: list[Checksum] = []
    for place in items:
        try:
            found += checksums_of(read_contents(place))
            place.confirm()
        except CkptctlError as error:  # noqa: PERF203  # a damaged item does not hide the rest
            one.findings.append(finding_of(one, error.slug, f"at byte {place.offset}: {error.message}"))
    return tuple(found)


def _covered(one: FileBytes) -> bool:
    """Whether a checksum is on record for all bytes of tensors in a file."""
    spans = sorted((found.range.offset, found.range.offset + found.range.length) for found in one.checksums)
    starts = [start for start, _ in spans]
    for start, end, _ in one.places:
        at = bisect_right(starts, start) - 1
        if at < 0 or end > spans[at][1]:
            return False
    return bool(spans)


def _digest(one: FileBytes, progress: Progress) -> int:
    """Compute the SHA-256 of a file."""
    digest, at = hashlib.sha256(), 0
    buffers = [memoryview(bytearray(_BLOCK)) for _ in range(2)]
    try:
        file = one.file.again() if one.file else open_file(one.path)
        with ThreadPoolExecutor(1) as reader:  # one block is read while the one before is hashed
            coming = reader.submit(file.pread_into, buffers[0], 0)
            while count := coming.result():
                buffer, buffers = buffers[0], buffers[::-1]
                coming = reader.submit(file.pread_into, buffers[0], at + count)
                digest.update(buffer[:count])
                progress(count)
                at += count
        file.release()
        file.check_in_place()
    except CkptctlError as error:
        one.findings.append(finding_of(one, error.slug, error.message))
        return 0
    one.digest = digest.hexdigest()
    return at


def _compare(one: FileBytes, digests: Mapping[str, str]) -> None:
    """Hold the digest of a file against those on record."""
    for recorded in one.recorded:
        if not recorded.digest:
            what = f"{recorded.source.name} holds no digest, or cannot be read"
            one.notes.append(replace(finding_of(one, "no-digest", what), severity=Severity.WARNING))
        if not one.digest or not recorded.digest or recorded.digest == one.digest:
            continue
        others = [name for name in recorded.shared if name != one.path.name]
        if others and any(_digest_of(one.path.with_name(name), digests) == recorded.digest for name in others):
            continue  # the sidecar is of a file that has the same stem
        what = f"sha256 is {_short(one.digest)}, {recorded.source.name} says {_short(recorded.digest)}"
        why = "the file was changed after its digest was made, or it is damaged"
        one.findings.append(finding_of(one, "digest-mismatch", f"{what}: {why}"))


def _digest_of(path: Path, digests: Mapping[str, str]) -> str:
    if digests.get(path.name):
        return digests[path.name]
    other = FileBytes(path=path, nbytes=0)
    _digest(other, lambda _: None)
    return other.digest


def _short(digest: str) -> str:
    return f"{digest[:8]}…{digest[-8:]}"
