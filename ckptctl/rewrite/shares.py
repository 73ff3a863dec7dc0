"""Several workers, one result: each writes some of the files, and the first one commits when all are there.

They need nothing of each other but the place that they write to: a file that is finished has a marker, in a directory
beside the files, with its digest and with what it was planned from. A worker that dies leaves no result, and its
finished files for the next attempt.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ckptctl.checks.intact import compare_digests
from ckptctl.errors import CkptctlError, CorruptError, ExistsError, UnreadableError, UsageError
from ckptctl.rewrite.carry_out import Outcome, Written, carry_out
from ckptctl.rewrite.outputs import Outputs
from ckptctl.rewrite.targets import check_outputs
from ckptctl.storage import File, StoredFile, entries_of, has_file, is_remote, open_file
from ckptctl.storage.atomic import flush_directory, remove, write_small
from ckptctl.storage.share import Share

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ckptctl.model import Contents
    from ckptctl.rewrite.options import Options
    from ckptctl.rewrite.outputs import OutputFile

SCHEMA = "ckptctl.part/1"
_PAUSE, _PATIENCE, _GRACE, _OLDEST = 0.2, 3600.0, 10.0, 900.0
"""Seconds between two looks at what the others have finished; without any news before the first one gives up; until it
takes a failure that was there when it began for one of this attempt, and how old that may be."""


def written_out(
    outputs: Outputs, inputs: tuple[Contents, ...], options: Options, progress: Callable[[int], None]
) -> Outcome:
    """Write what was planned, alone or as one worker of several; digests of the source are compared before.

    Raises
    ------
    CkptctlError
        The source is not what its digest says, or it could not be done; nothing was changed.
    """
    if options.share:
        return _shared_out(outputs, inputs, options, progress)
    compared = compare_digests(inputs) if options.check else 0
    return replace(carry_out(outputs, inputs, options, progress), compared=compared)


def _shared_out(
    outputs: Outputs, inputs: tuple[Contents, ...], options: Options, progress: Callable[[int], None]
) -> Outcome:
    """Write the files that are this worker's; as the first one, wait for those of the others, and write the index.

    Raises
    ------
    CkptctlError
        It could not be done, or another worker could not; there is no index then.
    """
    share = options.share or Share(0, 1)
    markers = _Markers(outputs, inputs)
    mine = owned(outputs.files, share)
    start, overflows, compared = time.monotonic(), dict[str, int](), 0
    if share.index and not mine:
        return Outcome(files=(), seconds=0, verified=0, overflows={})
    markers.begin(share)
    try:
        if options.check and share.index == 0:
            compared = compare_digests(inputs)
        todo = [file for file in mine if not markers.finished(file)]
        progress(sum(file.writer.nbytes for file in mine) - sum(file.writer.nbytes for file in todo))
        for file in todo:
            alone = replace(options, share=None, force=options.resume)
            made = carry_out(Outputs(files=(file,)), inputs, alone, progress)
            overflows |= made.overflows
            markers.finish(made.files[0], made.verified)
        files = markers.all(progress, mine) if share.index == 0 else tuple(markers.told(file) for file in mine)
        if share.index == 0:
            _commit(outputs, markers)
    except BaseException as error:
        markers.fail(share, error)
        raise
    seconds = time.monotonic() - start
    verified = sum(markers.verified.values())
    return Outcome(files=files, seconds=seconds, verified=verified, overflows=overflows, compared=compared)


def owned(files: tuple[OutputFile, ...], share: Share) -> tuple[OutputFile, ...]:
    """Return the files of one worker."""
    owners = share.owners([one.writer.nbytes for one in files], [one.path.name for one in files])
    return tuple(file for file, owner in zip(files, owners, strict=True) if owner == share.index)


def checked(outputs: Outputs, inputs: tuple[Contents, ...], options: Options) -> int:
    """Make sure, before anything is written, that all of it can be; return how many bytes it will be.

    Of several workers, each looks at its own files: what others have finished meanwhile is no obstacle.

    Raises
    ------
    ExistsError
        There is something that is not to be replaced; or an earlier attempt has finished files.
    NoSpaceError
        It does not fit.
    """
    if not options.share:
        return check_outputs(outputs, inputs, options)
    if options.force:
        raise UsageError(
            "--force: several workers do not replace what is there",
            hint="remove it first, or give another name with -o",
        )
    try:
        _check_shared(outputs, inputs, options)
        remote = is_remote(outputs.files[0].path)
        return 0 if remote else check_outputs(outputs, inputs, replace(options, force=True))
    except CkptctlError as error:
        with contextlib.suppress(OSError, CkptctlError):  # it may be the very disk that failed
            if options.share.index:
                markers = _Markers(outputs, inputs)
                markers.begin(options.share)
                markers.fail(options.share, error)
        raise


def _check_shared(outputs: Outputs, inputs: tuple[Contents, ...], options: Options) -> None:
    markers = _Markers(outputs, inputs)
    mine = {file.path for file in owned(outputs.files, options.share or Share(0, 1))}
    if not mine:
        return
    for file in outputs.files:
        finished = markers.finished(file)
        if finished and file.path in mine and not options.resume:
            raise ExistsError(f"{file.path}: an earlier attempt has finished it", hint="--continue takes it up")
        if not finished and file.path in mine and has_file(file.path) and not options.resume:
            raise ExistsError(f"{file.path}: exists already", hint="remove it first, or give another name with -o")
    if outputs.index and has_file(outputs.index):
        raise ExistsError(f"{outputs.index}: exists already", hint="remove it first, or give another name with -o")


def _commit(outputs: Outputs, markers: _Markers) -> None:
    """Write the index, from which on the result is there; and clear the markers away."""
    if outputs.index:
        remove(outputs.index)
        write_small(outputs.index, outputs.index_text.encode(), create=True)
        flush_directory(outputs.index.parent)
    markers.clear()


class _Markers:
    """The markers of finished files, in a directory beside them."""

    def __init__(self, outputs: Outputs, inputs: tuple[Contents, ...]) -> None:
        first = outputs.index or outputs.files[0].path
        self._files = outputs.files
        self._directory = first.parent / f".{first.name}.ckptctl-parts"
        self._plan = _plan_of(outputs, inputs)
        self.verified: dict[Path, int] = {}
        self._began = time.time()

    def begin(self, share: Share) -> None:
        """Make the directory, and take back that an earlier attempt of this worker failed."""
        if not is_remote(self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
        if has_file(self._failure(share.index)):
            remove(self._failure(share.index))

    def finished(self, file: OutputFile) -> Written | None:
        """Return what is known of a file that this very plan has finished; None if it has not."""
        found = self._said(self._directory / f"{file.path.name}.json")
        if found is None:
            return None
        if found["plan"] != self._plan:
            return None
        made = Written(path=file.path, nbytes=found["nbytes"], sha256=found["sha256"])
        if not has_file(file.path) or open_file(file.path).size != made.nbytes:
            return None
        self.verified[file.path] = found["verified"]
        return made

    def _said(self, path: Path) -> dict[str, Any] | None:
        if not has_file(path):
            return None
        try:
            found = json.loads(open_file(path).range().read())
        except (CkptctlError, ValueError):
            return None
        kinds = {"schema": str, "plan": str, "at": float, "nbytes": int, "sha256": str, "verified": int}
        good = isinstance(found, dict) and all(type(found.get(key)) is kind for key, kind in kinds.items())
        return found if good and found["schema"] == SCHEMA else None

    def told(self, file: OutputFile) -> Written:
        """Return what is known of a file that was finished just now.

        Raises
        ------
        CorruptError
            It is not any more.
        """
        found = self.finished(file)
        if not found:
            raise CorruptError(f"{file.path}: it was changed, or its marker was, since it was written")
        return found

    def finish(self, written: Written, verified: int) -> None:
        """Say that a file is finished, and how many records were compared for it."""
        document: dict[str, object] = {
            "schema": SCHEMA,
            "plan": self._plan,
            "nbytes": written.nbytes,
            "sha256": written.sha256,
        }
        document |= {"verified": verified, "at": time.time()}
        write_small(self._directory / f"{written.path.name}.json", json.dumps(document).encode())
        flush_directory(self._directory)

    def fail(self, share: Share, error: BaseException) -> None:
        """Tell the first worker that this one has failed, and why; not that somebody stopped it."""
        if not isinstance(error, Exception):
            return
        text = error.message if isinstance(error, CkptctlError) else f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError, CkptctlError):  # it may be the very disk that failed
            write_small(self._failure(share.index), json.dumps({"message": text, "at": time.time()}).encode())

    def all(self, progress: Callable[[int], None], mine: tuple[OutputFile, ...]) -> tuple[Written, ...]:
        """Wait until every file is finished.

        Raises
        ------
        UnreadableError
            Another worker has failed, or there was no news for an hour.
        """
        found: dict[Path, Written] = {}
        own = {file.path for file in mine}
        news = time.monotonic()
        while len(found) < len(self._files):
            for file in self._files:
                made = None if file.path in found else self.finished(file)
                if made:
                    found[file.path], news = made, time.monotonic()
                    progress(0 if file.path in own else made.nbytes)
            self._check_failures()
            if time.monotonic() - news > _PATIENCE:
                lost = next(file.path for file in self._files if file.path not in found)
                raise UnreadableError(f"{lost}: no worker has finished it", hint="--continue takes up what is there")
            if len(found) < len(self._files):
                time.sleep(_PAUSE)
        return tuple(found[file.path] for file in self._files)

    def clear(self) -> None:
        """Remove them all."""
        for entry in entries_of(self._directory):
            remove(self._directory / entry.name)
        if not is_remote(self._directory):
            self._directory.rmdir()

    def _check_failures(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            for entry in entries_of(self._directory):
                self._check_plan(entry.name)
                number = re.fullmatch(r"part-([0-9]+)\.failed", entry.name)
                if number and int(number[1]):
                    said = json.loads(open_file(self._directory / entry.name).range().read())
                    before = self._began - said["at"]  # of an attempt that came before, its worker takes it back
                    if before <= 0 or (before < _OLDEST and time.time() - self._began > _GRACE):
                        raise UnreadableError(
                            f"part {number[1]}: {said['message']}",
                            hint="--continue takes up what the others have finished",
                        )

    def _check_plan(self, name: str) -> None:
        """Make sure that a marker that was made since this attempt began is of this plan."""
        found = self._said(self._directory / name) if name.endswith(".json") else None
        if found and found["plan"] != self._plan and found["at"] > self._began:
            raise UnreadableError(
                f"{name.removesuffix('.json')}: another worker has made it of another plan",
                hint="all of them take the same sources and options, and the same number of parts",
            )

    def _failure(self, index: int) -> Path:
        return self._directory / f"part-{index}.failed"


def _identity(source: File) -> tuple[object, ...]:
    """Return what tells a source from any other, on all machines that see it."""
    if isinstance(source, StoredFile) and is_remote(source.path):
        return source.identity
    return os.path.abspath(source.path), source.size, source.path.stat().st_mtime_ns  # noqa: PTH100  # links stay


def _plan_of(outputs: Outputs, inputs: tuple[Contents, ...]) -> str:
    """Return a digest of what is to be written and of what it is made from: equal for all workers of one attempt."""
    digest = hashlib.sha256(outputs.index_text.encode())
    for file in outputs.files:
        items = [(name, item.stored.dtype.name, item.stored.shape) for name, item in file.items.items()]
        digest.update(repr((file.path.name, file.writer.nbytes, items, sorted(file.metadata.items()))).encode())
    for contents in inputs:
        source = contents.range.file
        digest.update(repr((_identity(source), contents.range.offset)).encode())
    return digest.hexdigest()
