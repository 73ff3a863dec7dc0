"""Several workers verify one checkpoint: each reads some of its files, the first one gathers what they found.

What a worker found of a file is a small document in a directory beside the checkpoint, which the first one takes up
and removes. Only what was written in the last two minutes before it began, or since, counts, and of the very file: an
attempt that broke off says nothing.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptctl.errors import CkptctlError, LockedError, UnreadableError
from ckptctl.model import Aspect, Finding, Severity
from ckptctl.storage import has_file, is_remote, names_anew, open_file
from ckptctl.storage.atomic import remove, write_small

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from ckptctl.checks.file_bytes import FileBytes
    from ckptctl.storage.share import Share

_SCHEMA = "ckptctl.found/1"
_PAUSE, _PATIENCE, _OLDEST, _GRACE = 0.2, 3600.0, 120.0, 10.0
"""Seconds between two looks; without news before the first one gives up; since when what others said counts; until a
failure that was there before counts, which a worker that starts anew takes back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathering:
    """Which worker this is, and where all of them leave what they found: a directory beside the checkpoint."""

    share: Share
    place: Path

    @classmethod
    def of(cls, path: Path, share: Share) -> Gathering:
        """Return how the workers of one attempt gather what they find of the checkpoint at a path."""
        attempt = f"-{share.attempt}" if share.attempt else ""
        return cls(share=share, place=path.parent / f".{path.name}.ckptctl-verify{attempt}")

    def fail(self, why: str) -> None:
        """Tell the first worker that this one can say nothing of its files."""
        if self.share.index:
            with contextlib.suppress(OSError, CkptctlError):  # it may be the very place that failed
                self._make()
                write_small(self._failure(self.share.index), json.dumps({"at": time.time(), "why": why}).encode())

    def mine(self, files: Sequence[FileBytes]) -> list[FileBytes]:
        """Return the files of this worker."""
        owners = self.share.owners([one.nbytes for one in files], [self._named(one) for one in files])
        return [one for one, owner in zip(files, owners, strict=True) if owner == self.share.index]

    def carried_out(
        self, files: Sequence[FileBytes], work: Callable[[Sequence[FileBytes]], list[int]]
    ) -> tuple[list[FileBytes], int]:
        """Do the `work` on the files of this worker, which returns the bytes read of each; return what to judge by.

        That is what all have found for the first worker, and for the others what they have found themselves.
        """
        began, mine = time.time(), self.mine(files)
        try:
            self._begin(files)
            counts = work(mine)
            if self.share.index == 0:
                return list(files), sum(counts) + self._gather(files, began)
            self._make()  # another attempt may have removed it
            for one, count in zip(mine, counts, strict=True):
                self._tell(one, count)
        except Exception as error:
            self.fail(error.message if isinstance(error, CkptctlError) else f"{type(error).__name__}: {error}")
            raise
        return mine, sum(counts)

    def _sweep(self) -> None:
        """Remove what attempts that broke off have left, once nobody can be at work there any more."""
        if is_remote(self.place):
            return
        name = self.place.name.removesuffix(f"-{self.share.attempt}")
        for other in self.place.parent.glob(f"{glob.escape(name)}-*"):
            with contextlib.suppress(OSError):  # it is not ours, or another sweeps it too
                if time.time() - other.stat().st_mtime > _PATIENCE:
                    for path in other.iterdir():
                        path.unlink()
                    other.rmdir()

    def _make(self) -> None:
        if not is_remote(self.place):
            self.place.mkdir(exist_ok=True)

    def _begin(self, files: Sequence[FileBytes]) -> None:
        """Take back what this worker has said in an earlier attempt."""
        self._make()
        if self.share.index == 0:
            self._sweep()
        said = [self._failure(self.share.index), *map(self._of, self.mine(files))] if self.share.index else []
        for path in said:
            if has_file(path):
                remove(path)

    def _tell(self, one: FileBytes, read: int) -> None:
        """Say what was found of a file."""
        document = {
            "schema": _SCHEMA,
            "at": time.time(),
            "nbytes": one.nbytes,
            "identity": _identity(one),
            "digest": one.digest,
            "read": read,
            "findings": [_written(found) for found in one.findings],
            "notes": [_written(found) for found in one.notes],
        }
        with contextlib.suppress(LockedError):  # somebody else says the same of the same file at this moment
            write_small(self._of(one), json.dumps(document).encode())

    def _gather(self, files: Sequence[FileBytes], began: float) -> int:
        """Wait for what the other workers find, and take it over; return how many bytes they have read.

        Raises
        ------
        UnreadableError
            Another worker can say nothing of its files, or there was no news for an hour.
        """
        own = {one.path for one in self.mine(files)}
        waiting = [one for one in files if one.path not in own]
        oldest, news, total = began - _OLDEST, time.monotonic(), 0
        while waiting:
            still, there = [], names_anew(self.place)
            for one in waiting:
                found = self._told(one, oldest) if self._of(one).name in there else None
                if found is None:
                    still.append(one)
                else:
                    total, news = total + found, time.monotonic()
            waiting = still
            if waiting:
                self._check_failures(there, began)
            if time.monotonic() - news > _PATIENCE:
                raise UnreadableError(f"{waiting[0].path}: no worker has said anything of it for an hour")
            if waiting:
                time.sleep(_PAUSE * (10 if is_remote(self.place) else 1))
        for path in (*map(self._of, files), *map(self._failure, range(1, self.share.count))):
            if has_file(path):
                remove(path)
        if not is_remote(self.place):
            with contextlib.suppress(OSError):  # another attempt is at work in it
                self.place.rmdir()
        return total

    def _check_failures(self, there: Collection[str], began: float) -> None:
        """End if another worker has said that it can say nothing; one that began anew takes that back."""
        for index in range(1, self.share.count):
            path = self._failure(index)
            if path.name not in there:
                continue
            try:
                said = json.loads(open_file(path).range().read())
                before, why = began - float(said["at"]), str(said["why"])
            except (CkptctlError, ValueError, TypeError, KeyError):
                continue  # it is being written, or was taken back
            if before <= 0 or (before < _OLDEST and time.time() - began > _GRACE):
                raise UnreadableError(f"part {index}: {why}")

    def _failure(self, index: int) -> Path:
        return self.place / f"part-{index}.failed"

    def _told(self, one: FileBytes, oldest: float) -> int | None:
        path = self._of(one)
        if not has_file(path):
            return None
        try:
            found = json.loads(open_file(path).range().read())
            if found["schema"] != _SCHEMA or found["at"] < oldest or found["identity"] != _identity(one):
                return None
            findings, notes = [_read(each) for each in found["findings"]], [_read(each) for each in found["notes"]]
            one.digest, read = str(found["digest"]), int(found["read"])
        except (CkptctlError, ValueError, TypeError, KeyError, AttributeError):
            return None
        one.findings, one.notes = findings, notes
        return read

    def _named(self, one: FileBytes) -> str:
        """Return what a file is called below the place where the checkpoint lies, however that was spelled."""
        return str(one.path).removeprefix(str(self.place.parent)).lstrip("/")

    def _of(self, one: FileBytes) -> Path:
        number = hashlib.blake2b(self._named(one).encode(), digest_size=8).hexdigest()
        return self.place / f"{one.path.name}.{number}.json"


def _identity(one: FileBytes) -> list[object]:
    """Return what tells a file from what it was before: size, and time or tag."""
    if one.file is None:
        return [one.nbytes]
    return [one.nbytes, str(one.file.identity[-1])]


def _written(found: Finding) -> list[str]:
    return [found.aspect.value, found.severity.value, found.slug, found.where, found.message, found.advice]


def _read(raw: list[str]) -> Finding:
    aspect, severity, slug, where, message, advice = raw
    return Finding(
        aspect=Aspect(aspect), severity=Severity(severity), slug=slug, where=where, message=message, advice=advice
    )
