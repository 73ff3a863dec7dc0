"""What a worker leaves beside a file that it has finished: its digest, and what it was planned from."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from typing import TYPE_CHECKING, Any

from ckptctl.errors import CkptctlError, CorruptError, ExistsError, UnreadableError
from ckptctl.rewrite.carry_out import Written
from ckptctl.storage import File, StoredFile, entries_of, has_file, is_remote, names_anew, open_file
from ckptctl.storage.atomic import flush_directory, remove, write_small
from ckptctl.storage.digest import sha256_of
from ckptctl.storage.share import Share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from ckptctl.model import Contents
    from ckptctl.rewrite.outputs import OutputFile, Outputs

SCHEMA = "ckptctl.part/1"
_PAUSE, _PATIENCE, _GRACE, _OLDEST, _TOGETHER = 0.2, 3600.0, 10.0, 900.0, 120.0
"""Seconds between two looks at what the others have finished; without any news before the first one gives up; until it
takes a failure that was there when it began for one of this attempt, and how old that may be; within which workers of
one attempt begin."""


def directory_of(target: Path) -> Path:
    """Return where the markers are of what is written to a file, or to its shards and their index."""
    return target.with_name(f".{target.name.removesuffix('.index.json')}.ckptctl-parts")


def note_failure(directory: Path, share: Share, error: Exception) -> None:
    """Tell the first worker of the same attempt that this one has failed, and why, if their directory is there."""
    text = error.message if isinstance(error, CkptctlError) else f"{type(error).__name__}: {error}"
    said = {"message": text, "at": time.time(), "attempt": share.attempt}
    with contextlib.suppress(OSError, CkptctlError):  # it may be the very disk that failed
        write_small(_of_part(directory, share.index, "failed"), json.dumps(said).encode())


def forget_failures(directory: Path) -> None:
    """Remove what other workers have told, and the directories that nothing else is in."""
    with contextlib.suppress(OSError, CkptctlError):
        for name in names_anew(directory):
            if name.endswith(".failed"):
                remove(directory / name)
        if not is_remote(directory):
            directory.rmdir()
            directory.parent.rmdir()


def _of_part(directory: Path, index: int, what: str) -> Path:
    return directory / f"part-{index}.{what}"


class Markers:
    """The markers of files, in a directory beside them: of those that were begun, and of those that are finished."""

    def __init__(self, outputs: Outputs, inputs: tuple[Contents, ...]) -> None:
        self._files = outputs.files
        self._directory = directory_of(outputs.index or outputs.files[0].path)
        self._plan = _plan_of(outputs, inputs)
        self._seen: set[str] = set()
        self.verified: dict[Path, int] = {}
        self._began, self._share = time.time(), Share(0, 1)

    def begin(self, share: Share) -> None:
        """Make the directory, say that this worker is here, and take back that an earlier attempt of it failed."""
        self._share = share
        if not is_remote(self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
        if has_file(_of_part(self._directory, share.index, "failed")):
            remove(_of_part(self._directory, share.index, "failed"))
        said = {"at": time.time(), "count": share.count, "attempt": share.attempt}
        write_small(_of_part(self._directory, share.index, "here"), json.dumps(said).encode())

    def claimed(self, file: OutputFile) -> bool:
        """Whether what has the name of a file now was written by an attempt at this result, whatever its plan."""
        begun = self._directory / f"{file.path.name}.begun"
        return has_file(begun) or self._said(self._directory / f"{file.path.name}.json") is not None

    def claim(self, file: OutputFile) -> bool:
        """Say that a file is about to be written; return whether that was said before: then it may be replaced.

        Raises
        ------
        ExistsError
            There is one, and nothing says that an attempt at this result has written it.
        """
        before = self.claimed(file)
        if not before and has_file(file.path):
            raise ExistsError(f"{file.path}: exists already, and no unfinished attempt at this result has written it")
        write_small(self._directory / f"{file.path.name}.begun", json.dumps({"plan": self._plan}).encode())
        flush_directory(self._directory)
        return before

    def taken_up(self, file: OutputFile, *, check: bool) -> Written | None:
        """Return what is known of a finished file, and say so anew; with `check`, only if its digest is what it was."""
        found = self.finished(file)
        if found is None or (check and _is_another(found)):
            return None
        return self.finish(found, self.verified[file.path])

    def finished(self, file: OutputFile) -> Written | None:
        """Return what is known of a file that this very plan has finished; None if it has not."""
        found = self._said(self._directory / f"{file.path.name}.json")
        if found is None:
            return None
        if found["plan"] != self._plan:
            return None
        made = Written(path=file.path, nbytes=found["nbytes"], sha256=found["sha256"])
        if not has_file(file.path) or _as_it_is(file.path) != found["as"]:
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
        kinds = {"schema": str, "plan": str, "at": float, "nbytes": int, "sha256": str, "verified": int, "as": str}
        good = isinstance(found, dict) and all(type(found.get(key)) is kind for key, kind in kinds.items())
        return found if good and found["schema"] == SCHEMA else None

    def finish(self, written: Written, verified: int) -> Written:
        """Say that a file is finished, and how many records were compared for it; return what is known of it."""
        document: dict[str, object] = {
            "schema": SCHEMA,
            "plan": self._plan,
            "nbytes": written.nbytes,
            "sha256": written.sha256,
            "as": _as_it_is(written.path),
        }
        document |= {"verified": verified, "at": time.time()}
        write_small(self._directory / f"{written.path.name}.json", json.dumps(document).encode())
        with contextlib.suppress(FileNotFoundError):  # that was the last, and the first worker has cleared them away
            flush_directory(self._directory)
        self.verified[written.path] = verified
        return written

    def fail(self, share: Share, error: BaseException) -> None:
        """Tell the first worker that this one has failed, and why; not that somebody stopped it."""
        if isinstance(error, Exception):
            note_failure(self._directory, share, error)

    def all(
        self, progress: Callable[[int], None], owners: Mapping[Path, int], *, anew: bool, check: bool
    ) -> tuple[Written, ...]:
        """Wait until every file is finished by its owner.

        With `anew`, what was finished in an earlier attempt is to be taken up by its owner; where that does not come,
        it is looked at here.

        Raises
        ------
        UnreadableError
            Another worker has failed, or there was no news for an hour.
        CorruptError
            A file is not what was finished.
        """
        found: dict[Path, Written] = {}
        news = time.monotonic()
        while len(found) < len(self._files):
            there = names_anew(self._directory)
            for file in self._files:
                waited_for = file.path not in found and f"{file.path.name}.json" in there
                made = self.finished(file) if waited_for else None
                if made and anew and owners[file.path] and not self._is_anew(file):
                    if time.time() - self._began < _GRACE or self._is_here(owners[file.path]):
                        continue
                    if check and _is_another(made):
                        raise CorruptError(
                            f"{file.path}: it is not what was finished", hint="remove it, then --continue"
                        )
                if made:
                    found[file.path], news = made, time.monotonic()
                    progress(made.nbytes if owners[file.path] else 0)
            self._check_failures(there)
            if time.monotonic() - news > _PATIENCE:
                lost = next(file.path for file in self._files if file.path not in found)
                raise UnreadableError(f"{lost}: no worker has finished it", hint="--continue takes up what is there")
            if len(found) < len(self._files):
                time.sleep(_PAUSE * (10 if is_remote(self._directory) else 1))
        return tuple(found[file.path] for file in self._files)

    def _is_anew(self, file: OutputFile) -> bool:
        """Whether a file was finished, or taken up, since this attempt began."""
        said = self._said(self._directory / f"{file.path.name}.json")
        return said is not None and said["at"] >= self._began

    def _is_here(self, owner: int) -> bool:
        """Whether a worker of this attempt is at work. Where nobody has named attempts, a killed one may seem to be."""
        path = _of_part(self._directory, owner, "here")
        try:
            said = json.loads(open_file(path).range().read()) if has_file(path) else {}
            at, count, attempt = float(said["at"]), said["count"], said["attempt"]
        except (CkptctlError, ValueError, TypeError, KeyError):
            return False
        if (count, attempt) != (self._share.count, self._share.attempt):
            return False
        return bool(attempt) or at >= self._began or self._began - at + time.time() - self._began < _TOGETHER

    def leave(self) -> None:
        """Say that this worker is not at work any more."""
        with contextlib.suppress(OSError, CkptctlError):
            remove(_of_part(self._directory, self._share.index, "here"))

    def clear(self) -> None:
        """Remove them all."""
        for entry in entries_of(self._directory):
            remove(self._directory / entry.name)
        self.tidy(committed=True)

    def tidy(self, *, committed: bool) -> None:
        """Remove the directory if nothing is in it; one that came late may have made it again."""
        if committed and not is_remote(self._directory):
            with contextlib.suppress(OSError):  # somebody is at work in it
                self._directory.rmdir()

    def _check_failures(self, there: Iterable[str]) -> None:
        with contextlib.suppress(FileNotFoundError):
            for name in there:
                self._check_plan(name)
                number = re.fullmatch(r"part-([0-9]+)\.failed", name)
                if number and int(number[1]):
                    said = json.loads(open_file(self._directory / name).range().read())
                    if said.get("attempt", "") != self._share.attempt:
                        continue
                    before = self._began - said["at"]  # of an attempt that came before, its worker takes it back
                    if before <= 0 or (before < _OLDEST and time.time() - self._began > _GRACE):
                        raise UnreadableError(
                            f"part {number[1]}: {said['message']}",
                            hint="--continue takes up what the others have finished",
                        )

    def _check_plan(self, name: str) -> None:
        """Make sure that a marker that was made since this attempt began is of this plan."""
        if not name.endswith(".json") or name in self._seen:
            return
        found = self._said(self._directory / name)
        if found and found["plan"] != self._plan and found["at"] > self._began:
            raise UnreadableError(
                f"{name.removesuffix('.json')}: another worker has made it of another plan",
                hint="all of them take the same sources and options, and the same number of parts",
            )
        if found and found["plan"] == self._plan:
            self._seen.add(name)


def _is_another(made: Written) -> bool:
    """Whether a file has another digest than it had when it was finished."""
    return bool(made.sha256) and sha256_of(open_file(made.path)) != made.sha256


def _as_it_is(path: Path) -> str:
    """Return what tells a file from what it may become: size, and time or tag."""
    file = open_file(path)
    return f"{file.size} {file.identity[-1]}"


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
