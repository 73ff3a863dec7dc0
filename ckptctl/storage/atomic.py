"""Write files so that a reader finds the old one or the whole new one, never anything in between.

A file grows under a temporary name beside its target, ``.NAME.ckptctl-tmp``, locked while its writer lives. It
is flushed before it takes its name, and the directory after. What a killed writer left is removed by the next
writer of the same target, or of the same directory: nobody holds its lock.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
from typing import TYPE_CHECKING

from ckptctl.errors import ExistsError, NoSpaceError, UnreadableError
from ckptctl.storage.claims import claimed
from ckptctl.storage.copy import Pump
from ckptctl.storage.places import is_remote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import TracebackType

    from ckptctl.storage.upload import Upload

_NO_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK, errno.EACCES})


class Staged:
    """A file that is being written, under a temporary name until `publish`.

    `fd` is open for reading and writing. Leaving the context without `publish` removes what was written.

    Raises
    ------
    ExistsError
        There is something under the target's name, and `force` is off.
    LockedError
        Somebody else is writing the same target.
    """

    def __init__(self, target: Path, *, force: bool) -> None:
        self.target, self.force = target, force
        self.path = temporary_of(target)
        check_target(target, force=force)
        self._file = claimed(self.path, target)
        self.fd = self._file.fileno()
        self._done = False

    def __enter__(self) -> Staged:  # noqa: PYI034  # Self came with Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._done:
            with contextlib.suppress(OSError):
                self.path.unlink()
        self._file.close()

    def publish(self) -> None:
        """Close the file and give it its name; it has been flushed before. The directory is still to be flushed."""
        if self.force:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(self.fd, stat.S_IMODE(self.target.stat().st_mode))
        held = os.dup(self.fd)  # it keeps the lock until the name is taken
        try:
            self._file.close()
            if self.force:
                self.path.replace(self.target)
            else:
                self._link()
            self._done = True
        finally:
            os.close(held)

    def _link(self) -> None:
        """Take a name that nobody has, even if somebody takes it at this moment."""
        try:
            os.link(self.path, self.target, follow_symlinks=False)
        except FileExistsError:
            raise _exists(self.target) from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            check_target(self.target, force=False)
            self.path.rename(self.target)  # the file system has no hard links
            return
        self.path.unlink()


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back Ctrl-C and SIGTERM until the end of the context, where they take effect.

    Between the creation of a file and the moment at which somebody is bound to remove it, nothing may come.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def temporary_of(target: Path) -> Path:
    """Return the name under which a file is written before it takes its own."""
    return target.with_name(f".{target.name}.ckptctl-tmp")


def check_target(target: Path, *, force: bool) -> None:
    """Make sure that a file may be written under a name.

    Raises
    ------
    ExistsError
        There is one, and `force` is off; or there is something else than a file.
    UnreadableError
        The directory is not there.
    """
    try:
        found = target.lstat()
    except FileNotFoundError:
        if not target.parent.is_dir():
            raise UnreadableError(f"{target}: its directory does not exist") from None
        return
    if not force:
        raise _exists(target)
    if not stat.S_ISREG(found.st_mode):
        raise ExistsError(f"{target}: something that is not a regular file has this name")


def check_space(directory: Path, needed: int) -> None:
    """Make sure that `needed` bytes can be written in a directory, before any is.

    Raises
    ------
    NoSpaceError
        The file system has fewer left.
    """
    found = os.statvfs(directory)
    free = found.f_bavail * found.f_frsize
    if needed > free:
        raise NoSpaceError(
            f"{directory}: {needed} bytes are needed, {free} are free",
            hint="make room, or write to another file system",
        )


def staged_for(target: Path, *, force: bool, nbytes: int = 0) -> Staged | Upload:
    """Return a file, or an object in a store, that is to be written and published; it will be of `nbytes`."""
    if not is_remote(target):
        return Staged(target, force=force)
    from ckptctl.storage.upload import Upload  # noqa: PLC0415  # only who writes to a store needs it

    return Upload(target, force=force, nbytes=nbytes)  # type: ignore[arg-type]  # it is remote


def pump_into(
    place: Staged | Upload, *, digest: bool, direct: bool = False, progress: Callable[[int], None] | None = None
) -> Pump:
    """Return what writes into a file, or an object, that is not yet published."""
    local = isinstance(place, Staged)
    return Pump(
        place.fd if isinstance(place, Staged) else -1,
        sink=None if isinstance(place, Staged) else place,
        digest=digest,
        direct=direct and local,
        progress=progress,
    )


def write_small(target: Path, data: bytes, *, create: bool = False) -> None:
    """Write a few bytes in place of whatever file has that name, flushed; the directory is still to be flushed.

    With `create`, in a store, only where nothing has that name.
    """
    if is_remote(target):
        from ckptctl.storage.upload import put_small  # noqa: PLC0415  # only who writes to a store needs it

        put_small(target, data, create=create)  # type: ignore[arg-type]  # it is remote
        return
    with uninterrupted(), Staged(target, force=True) as staged:
        while data:  # a disk that is nearly full takes a part of it, and says so only then
            data = data[os.write(staged.fd, data) :]
        os.fsync(staged.fd)
        staged.publish()


def remove(path: Path) -> None:
    """Remove a file, if it is there, for good."""
    if is_remote(path):
        from ckptctl.storage.upload import delete  # noqa: PLC0415  # only who writes to a store needs it

        delete(path)  # type: ignore[arg-type]  # it is remote
        return
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
        flush_directory(path.parent)


def flush_directory(path: Path) -> None:
    """Make the names in a directory outlast a crash."""
    if is_remote(path):
        return  # what a store has taken it keeps
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF):  # file systems that flush no directories
            raise
    finally:
        os.close(fd)


def _exists(target: Path) -> ExistsError:
    return ExistsError(f"{target}: exists already", hint="--force replaces it; -o gives another name")
