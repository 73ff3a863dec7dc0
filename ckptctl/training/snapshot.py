"""Hold what is to be uploaded of a checkpoint, so that neither a prune nor a later save changes what is sent."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
from dataclasses import replace
from typing import TYPE_CHECKING

from ckptctl.checks.digests import SUMS, recorded_for, sums_of
from ckptctl.errors import ChangedError, UnreadableError, UnsupportedError
from ckptctl.runs.pending import FILES, STAGING, TICKET, Pending, PendingFile, entries_in, has_ticket
from ckptctl.storage import unreadable
from ckptctl.storage.atomic import flush_directory, write_small
from ckptctl.storage.set_aside import LAST_WRITTEN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CLONE = 0x40049409
"""FICLONE of Linux: one file gets the bytes of another, without a copy, and without being that file."""
_NO_CLONE = frozenset(
    {errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.EXDEV, errno.EBADF, errno.ENOSYS, errno.EPERM}
)
_NO_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV, errno.EACCES})
_TRIES = 5


def taken(run: Path, name: str, number: int, step: int | None, to: str) -> Pending:
    """Hold the files of a checkpoint, and write down what is to be sent, and where.

    Raises
    ------
    UnreadableError
        It is not there, or it cannot be held.
    UnsupportedError
        There is something in it that is no file.
    ChangedError
        It is being written.
    """
    entry = run / STAGING / f"{number:06d}-{name}"
    wanted = Pending(entry=entry, to=to, name=name, directory=(run / name).is_dir(), step=step, files=())
    try:
        made = _taken(run, wanted)
        for one in made.files:
            if not one.linked:  # the ticket keeps it from a prune; but one may have been faster
                (run / one.name).lstat()
    except BaseException as error:
        with contextlib.suppress(OSError):
            (entry / TICKET).unlink()
        shutil.rmtree(entry, ignore_errors=True)
        if isinstance(error, OSError):
            raise unreadable(run / name, error) from None
        raise
    return made


def _taken(run: Path, wanted: Pending) -> Pending:
    entry, name = wanted.entry, wanted.name
    for _ in range(_TRIES):
        before = _listed(run, name)
        (entry / FILES).mkdir(parents=True)
        held = [_held(run, entry, *one) for one in before]
        if _listed(run, name) == before:
            return _ticket(run, wanted, held)
        shutil.rmtree(entry)
    raise ChangedError(f"{run / name}: it is being written", hint="upload it when the save has returned")


def _listed(run: Path, name: str) -> list[tuple[str, int, int, int]]:
    """Return the files of a checkpoint below its run: name, inode, bytes, time of the last change."""
    path = run / name
    if not path.is_dir():
        return [_seen(run, path)]
    return sorted(_seen(run, one) for one in _files(path))


def _files(directory: Path) -> Iterator[Path]:
    for one in directory.iterdir():
        if one.name == ".keep" or one.name.startswith(".ckptctl-"):
            continue
        if one.is_dir() and not one.is_symlink():
            yield from _files(one)
        else:
            yield one


def _seen(run: Path, path: Path) -> tuple[str, int, int, int]:
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise UnsupportedError(f"{path}: it is no file, and only files are uploaded")
    return path.relative_to(run).as_posix(), found.st_ino, found.st_size, found.st_mtime_ns


def _held(run: Path, entry: Path, name: str, _inode: int, size: int, mtime_ns: int) -> PendingFile:
    source, target = run / name, entry / FILES / name
    target.parent.mkdir(parents=True, exist_ok=True)
    linked = _cloned(source, target, mtime_ns) or _linked(source, target)
    return PendingFile(name=name, size=size, mtime_ns=mtime_ns, linked=linked)


def _cloned(source: Path, target: Path, mtime_ns: int) -> bool:
    with source.open("rb") as given, target.open("xb") as made:
        try:
            fcntl.ioctl(made.fileno(), _CLONE, given.fileno())
        except OSError as error:
            target.unlink()
            if error.errno in _NO_CLONE:
                return False
            raise
        os.utime(made.fileno(), ns=(mtime_ns, mtime_ns))
    return True


def _linked(source: Path, target: Path) -> bool:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno in _NO_LINKS:
            return False
        raise
    return True


def _ticket(run: Path, wanted: Pending, held: list[PendingFile]) -> Pending:
    """Write down what is held: data first, what makes it whole last, digests with what they say of it."""
    entry, name = wanted.entry, wanted.name
    files = [one for one in held if not wanted.directory or one.name != f"{name}/{SUMS}"]
    if not files:
        raise UnreadableError(f"{run / name}: it is empty")
    known = _recorded(run, [one.name for one in files])
    data = sorted(files, key=lambda one: (bool(LAST_WRITTEN.fullmatch(one.name.rpartition("/")[2])), one.name))
    made = replace(wanted, files=tuple(replace(one, sha256=known.get(one.name, "")) for one in data))
    flush_directory(entry / FILES)
    write_small(entry / TICKET, made.to_bytes())
    flush_directory(entry)
    flush_directory(entry.parent)
    return made


def _recorded(run: Path, names: list[str]) -> dict[str, str]:
    """Return the SHA-256 on record for files, by their names below the run."""
    found: dict[str, str] = {}
    listed: dict[Path, tuple[list[str], dict[str, str]]] = {}
    for name in names:
        path = run / name
        if path.parent not in listed:
            there = [one.name for one in path.parent.iterdir()]
            listed[path.parent] = there, sums_of(path.parent, there)
        there, sums = listed[path.parent]
        stated = (one.digest.lower() for one in recorded_for(path, there, sums) if one.digest and not one.shared)
        found[name] = next(stated, "")
    return found


def forget(pending: Pending) -> None:
    """Let go of what was held of a checkpoint that is confirmed, its ticket first; the next sweep takes the rest."""
    (pending.entry / TICKET).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        flush_directory(pending.entry)
    shutil.rmtree(pending.entry, ignore_errors=True)


def sweep(run: Path) -> None:
    """Remove what a killed uploader had begun to hold, or to let go of: what has no ticket."""
    for entry in entries_in(run):
        if not has_ticket(entry) and entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
