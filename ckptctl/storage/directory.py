"""A directory held by a handle: locked, looked into and flushed without going by its name again."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING, Protocol

from ckptctl.errors import LockedError, UnsupportedError
from ckptctl.storage.local_file import unreadable
from ckptctl.storage.places import is_remote
from ckptctl.storage.removal import remove_tree
from ckptctl.storage.survey import Survey, survey

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from pathlib import Path
    from types import TracebackType

_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF})
_NO_FLUSH = frozenset({errno.EINVAL, errno.EBADF})


class Held(Protocol):
    """A directory that is held open, on disk or in a bucket: looked into, locked, and emptied of what was set aside.

    `identity` tells it from any other, by whatever name; `longest` is how many bytes a name may have; `rest_of_it`
    says where what could not be removed is found; `brought_back`
    are the names of what came back when it was locked; `notices` are what is worth saying of where it lies.
    """

    identity: Hashable
    longest: int
    rest_of_it: str
    brought_back: frozenset[str]

    @property
    def path(self) -> Path:
        """Where it is."""

    def __enter__(self) -> Held:  # noqa: PYI034  # Self came with Python 3.11
        """Hold it."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of it, and of its lock."""

    @property
    def notices(self) -> tuple[str, ...]:
        """What is worth saying of where it lies."""

    def lock(self, *, wait: bool = False, needed: bool = True) -> None:
        """Let nobody else lock it meanwhile."""

    def look_anew(self) -> None:
        """Let go of what is remembered of it."""

    def names(self) -> frozenset[str]:
        """Return the names in it."""

    def stat(self, name: str) -> os.stat_result | None:
        """Return what is known of a name in it, links not followed; None if it is not there."""

    def survey(self, name: str, suspects: Callable[[str, bool], bool] = lambda *_: False) -> Survey:
        """Look at everything under a name; `suspects` tells which names further down to note."""

    def discard(self, name: str, entry: str, *, for_good: bool) -> None:
        """Set something aside, to be found as `entry`; not to come back, if it is for good."""

    def check_back(self, entry: str) -> None:
        """Make sure that something can come back."""

    def bring_back(self, entry: str, name: str) -> None:
        """Undo `discard`."""

    def remove(self, entry: str) -> int:
        """Remove what was set aside; return how many bytes that freed."""

    def flush(self) -> None:
        """Make the names in it outlast a crash."""


def open_directory(path: Path) -> Held:
    """Hold a directory on disk or in a bucket.

    Raises
    ------
    UnreadableError
        It is not there, may not be read, or is no directory.
    UnsupportedError
        It is in a store where nothing can be deleted.
    """
    if not is_remote(path):
        return Directory(path)
    from ckptctl.storage.remote_directory import RemoteDirectory  # noqa: PLC0415  # only who has an address needs it

    directory: Held = RemoteDirectory(path)  # type: ignore[arg-type]  # it is remote
    return directory


class Directory:
    """An open directory. `fd` is its handle, `identity` tells it from any other; a lock lasts until it is closed.

    Raises
    ------
    UnreadableError
        It is not there, may not be read, or is no directory.
    """

    longest = 255
    rest_of_it = "the rest of it lies in"
    brought_back: frozenset[str] = frozenset()

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise unreadable(path, error) from None
        found = os.fstat(self.fd)
        self.identity: Hashable = (found.st_dev, found.st_ino)

    def __enter__(self) -> Directory:  # noqa: PYI034  # Self came with Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.fd)

    def lock(self, *, wait: bool = False, needed: bool = True, other: str = "") -> None:
        """Let nobody else lock the directory meanwhile. Nothing is created for it; the lock dies with its holder.

        `other` says who holds it, if somebody does: by default a prune, which one can wait for.

        Raises
        ------
        LockedError
            Somebody else holds it, and `wait` is off.
        UnsupportedError
            The file system has no locks, and one is `needed`.
        """
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            hint = None if other else "--wait waits for it"
            raise LockedError(f"{self.path}: {other or 'another prune is at work here'}", hint=hint) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            if not needed:
                return
            hint = "--no-lock goes on without, if no other prune can run at the same time"
            raise UnsupportedError(f"{self.path}: its file system has no locks", hint=hint) from None

    def names(self) -> frozenset[str]:
        """Return the names in it."""
        return frozenset(os.listdir(self.fd))  # noqa: PTH208  # by handle

    def stat(self, name: str) -> os.stat_result | None:
        """Return what is known of a name in it, links not followed; None if it is not there."""
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    @property
    def notices(self) -> tuple[str, ...]:
        """Return nothing: there is nothing to say of a disk."""
        return ()

    def look_anew(self) -> None:
        """Do nothing: nothing is remembered."""

    def survey(self, name: str, suspects: Callable[[str, bool], bool] = lambda *_: False) -> Survey:
        """Look at everything under a name; `suspects` tells which names further down to note."""
        return survey(self, name, suspects)

    def discard(self, name: str, entry: str, *, for_good: bool) -> None:  # noqa: ARG002
        """Set something aside under another name in it. The caller has made sure that nothing has that name."""
        self.rename(name, entry)

    def check_back(self, entry: str) -> None:
        """Do nothing: a name that is there can be changed."""

    def bring_back(self, entry: str, name: str) -> None:
        """Undo `discard`."""
        self.rename(entry, name)

    def remove(self, entry: str) -> int:
        """Remove what was set aside for good; return how many bytes on disk that freed."""
        return remove_tree(self, entry)

    def rename(self, old: str, new: str) -> None:
        """Give something in it another name in it. The caller has made sure that nothing has that name."""
        os.rename(old, new, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def flush(self) -> None:
        """Make the names in it outlast a crash."""
        try:
            os.fsync(self.fd)
        except OSError as error:
            if error.errno not in _NO_FLUSH:  # file systems that flush no directories
                raise
