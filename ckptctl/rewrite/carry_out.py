"""Write planned files: beside their targets first, checked, then under their names, the index last."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptctl.errors import CorruptError, NoSpaceError, OverflowRefusedError
from ckptctl.formats.write_safetensors import SafetensorsWriter
from ckptctl.rewrite.checksums import Checksums
from ckptctl.rewrite.pour import Pouring
from ckptctl.rewrite.read_back import read_back
from ckptctl.rewrite.source_digests import SourceDigests
from ckptctl.rewrite.targets import is_abandoned
from ckptctl.rewrite.workers import write_shared
from ckptctl.storage import StoredFile, has_file, is_remote, open_file
from ckptctl.storage.atomic import (
    Staged,
    flush_directory,
    pump_into,
    remove,
    staged_for,
    uninterrupted,
    write_small,
)
from ckptctl.storage.digest import sidecar_line, sidecar_of
from ckptctl.storage.upload import Upload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from ckptctl.model import Contents
    from ckptctl.rewrite.options import Options
    from ckptctl.rewrite.outputs import OutputFile, Outputs


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A file that was written: its size in bytes, its SHA-256 (empty if none was made)."""

    path: Path
    nbytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of it.

    `verified` counts the records whose checksums were compared on the way, `compared` the files of the source whose
    digests were; `overflows` the numbers that became infinite, by tensor.
    """

    files: tuple[Written, ...]
    seconds: float
    verified: int
    overflows: Mapping[str, int]
    compared: int = 0


def carry_out(
    outputs: Outputs,
    inputs: tuple[Contents, ...],
    options: Options,
    progress: Callable[[int], None],
    digests: SourceDigests | None = None,
) -> Outcome:
    """Write all files of a plan; either all of them get their names, or none.

    Digests on record of the inputs are compared before that; `digests` are those of a caller who writes more of them.

    Raises
    ------
    CkptctlError
        The source is damaged, changed meanwhile, or there was no room. Nothing is left behind.
    """
    start = time.monotonic()
    sources = digests or SourceDigests(inputs if options.check else ())
    work = _Work(options, Checksums(inputs) if options.check else None, sources, {}, progress)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_directory(outputs.files[0].path.parent))
        staged: list[tuple[Staged | Upload, Written]] = []
        for file in outputs.files:
            with uninterrupted():
                place = staged_for(file.path, force=options.force, nbytes=file.writer.nbytes)
                stack.enter_context(place)
            written = _write(place, file, work)
            staged.append((place, written))
            if isinstance(place, Upload) and outputs.index:
                stack.enter_context(_sent_ahead(place, written, options))
        compared = sources.compare(inputs)
        _check_sources(outputs, inputs, work)
        _publish(outputs, staged, sidecars=options.digest and options.sidecar)
    return Outcome(
        files=tuple(written for _, written in staged),
        seconds=time.monotonic() - start,
        verified=work.checksums.verified if work.checksums else 0,
        overflows=work.overflows,
        compared=compared,
    )


@dataclass(frozen=True, slots=True)
class _Work:
    """What all files of a plan share while they are written."""

    options: Options
    checksums: Checksums | None
    digests: SourceDigests
    overflows: dict[str, int]
    progress: Callable[[int], None]


def _check_sources(outputs: Outputs, inputs: tuple[Contents, ...], work: _Work) -> None:
    """Make sure that what was read is still there, unchanged, and that all of it could be written."""
    for contents in inputs:
        if work.options.check:
            contents.range.confirm()
        if isinstance(contents.range.file, StoredFile):
            contents.range.file.release()
    if work.overflows and not work.options.allow_overflow:
        raise _overflow(outputs.files[0].path, work.overflows, work.options)
    for needed in outputs.needed:
        needed.check_in_place()


def _write(place: Staged | Upload, file: OutputFile, work: _Work) -> Written:
    options = work.options
    pouring = Pouring(file.items, work.checksums, work.digests, work.overflows)
    if options.workers > 1 and isinstance(file.writer, SafetensorsWriter) and isinstance(place, Staged):
        with _full_disk(file):
            digest = write_shared(place.path, file.writer, pouring, options, work.progress)
        return _checked(place, file, digest)
    pump = pump_into(place, digest=options.digest, direct=not options.check, progress=work.progress)
    try:
        with _full_disk(file):
            file.writer.write(pump, pouring.pour)
            digest = pump.finish()
    finally:
        pump.close()
    return _checked(place, file, digest)


@contextlib.contextmanager
def _full_disk(file: OutputFile) -> Iterator[None]:
    """Say of a full disk that nothing was written, and of any other trouble with which file it was."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise NoSpaceError(f"{file.path}: the disk became full; nothing was written") from None
        error.filename = error.filename or str(file.path)
        raise


def _checked(place: Staged | Upload, file: OutputFile, digest: str) -> Written:
    """Make sure that what was written is what was planned."""
    written = os.fstat(place.fd).st_size if isinstance(place, Staged) else place.written
    if written != file.writer.nbytes:
        raise CorruptError(f"{file.path}: {written} bytes were written, {file.writer.nbytes} were planned")
    if isinstance(place, Staged):
        read_back(place.path, file)
    return Written(path=file.path, nbytes=written, sha256=digest)


@contextlib.contextmanager
def _directory(path: Path) -> Iterator[None]:
    """Make a directory where there is none; remove it again if nothing comes to lie in it."""
    if is_remote(path) or path.exists():
        yield
        return
    path.mkdir()
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            path.rmdir()
        raise
    flush_directory(path.parent)


def _publish(outputs: Outputs, staged: list[tuple[Staged | Upload, Written]], *, sidecars: bool) -> None:
    """Give the files their names. A digest is never beside a file that it is not of, an index never without shards."""
    directory = outputs.files[0].path.parent
    if outputs.index:
        remove(outputs.index)  # an old one would join new shards to old ones
    for place, written in staged:
        if isinstance(place, Staged) or not place.done:
            _publish_file(place, written, sidecars=sidecars)
    if outputs.index:
        write_small(outputs.index, outputs.index_text.encode(), create=True)  # the one before was removed
    flush_directory(directory)


def _publish_object(place: Upload, written: Written, *, sidecars: bool) -> None:
    """Let an object be seen after its digest, which only one writer can create; if that fails, all is as before.

    Where no digest is wanted, something else is created in its place, and removed again.
    """
    sidecar = sidecar_of(written.path)
    before = open_file(sidecar).range().read() if has_file(sidecar) else None
    claim = sidecar if sidecars else written.path.with_name(f".{written.path.name}.ckptctl-claim")
    text = sidecar_line(written.sha256, written.path.name) if sidecars else b""
    taken_up = before in (None, text) and is_abandoned(written.path, claim)
    write_small(claim, text, create=not place.force and not taken_up)
    try:
        if not sidecars and before is not None:
            remove(sidecar)
        place.publish()
    except BaseException:
        if sidecars and before is None:
            remove(sidecar)
        elif before is not None:
            write_small(sidecar, before)
        raise
    finally:
        if not sidecars:
            remove(claim)


def _publish_file(place: Staged | Upload, written: Written, *, sidecars: bool) -> None:
    if isinstance(place, Upload):
        _publish_object(place, written, sidecars=sidecars)
        return
    sidecar, there = sidecar_of(written.path), has_file(written.path)
    if there or (not sidecars and has_file(sidecar)):
        remove(sidecar)
    if sidecars and not there:
        write_small(sidecar, sidecar_line(written.sha256, written.path.name))
        flush_directory(written.path.parent)
    place.publish()
    flush_directory(written.path.parent)
    if sidecars and there:
        write_small(sidecar, sidecar_line(written.sha256, written.path.name))


@contextlib.contextmanager
def _sent_ahead(place: Upload, written: Written, options: Options) -> Iterator[None]:
    """Publish one of several objects at once, which is none of a result before the index is there; else take it back.

    An object that is not finished holds on to the memory of its last part.
    """
    _publish_file(place, written, sidecars=options.digest and options.sidecar)
    try:
        yield
    except BaseException:
        remove(written.path)
        remove(sidecar_of(written.path))
        raise


def _overflow(path: Path, overflows: Mapping[str, int], options: Options) -> OverflowRefusedError:
    total, first = sum(overflows.values()), next(iter(overflows))
    return OverflowRefusedError(
        f"{path}: {total} numbers in {len(overflows)} of its tensors are too large for "
        f"{options.dtype} and would become infinite (the first tensor is {first})",
        hint="--dtype bf16 has the range of f32; --allow-overflow writes them as infinite",
    )
