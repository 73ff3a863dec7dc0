"""Files and directories wherever they lie: on disk, or in a store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from ckptctl.storage.daemons import Daemons
from ckptctl.storage.local_file import LocalFile, unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ckptctl.storage.byterange import StoredFile
    from ckptctl.storage.listing import Entry

T = TypeVar("T")
_pool = Daemons(16, "ckptctl-look")


class Listed(Protocol):
    """What a listing says of a name, without another question where that can be: as ``os.DirEntry``."""

    @property
    def name(self) -> str:
        """The name."""

    def is_symlink(self) -> bool:
        """Whether it is a link."""

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a directory."""

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a file."""

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return its size and time."""


def is_remote(path: Path) -> bool:
    """Whether a path is an address in a store."""
    return getattr(path, "remote", False)


def is_writable(path: Path) -> bool:
    """Whether something may be written there: on disk and in buckets, not to web servers and not to the Hub."""
    return not is_remote(path) or bool(path.writable)  # type: ignore[attr-defined]  # it is remote


def address(text: str | os.PathLike[str]) -> Path:
    """Return the path that a text is: on disk, or in a store, such as ``s3://bucket/run``.

    Raises
    ------
    UsageError
        It is an address without a bucket or server.
    """
    if isinstance(text, Path) and is_remote(text):
        return text
    raw = os.fspath(text)
    if ":/" not in raw:
        return Path(text)
    from ckptctl.storage.addresses import parsed  # noqa: PLC0415  # only who has an address needs it

    return parsed(raw)


def open_file(path: Path, *, window: int = 0, anew: bool = False) -> StoredFile:
    """Open a file for reading.

    Of one in a store the first megabyte is asked for at once, or `window` bytes, where it is known that they do. What
    changes often is opened `anew`: what a listing said of it is not held against it.

    Raises
    ------
    UnreadableError
        There is none, or it may not be read.
    """
    if not is_remote(path):
        return LocalFile(path)
    from ckptctl.storage.opening import opened  # noqa: PLC0415  # only who has an address needs a client

    try:
        return opened(path, window, anew=anew)  # type: ignore[arg-type]  # it is remote
    except OSError as error:
        raise unreadable(path, error) from None


def open_ahead(paths: Iterable[Path], *, window: int = 0) -> None:
    """Say that files will be opened one after another: those in stores are asked for side by side."""
    wanted = [path for path in paths if is_remote(path)]
    if wanted:
        from ckptctl.storage.opening import begin  # noqa: PLC0415

        begin(wanted, window)  # type: ignore[arg-type]  # they are remote


def entries_of(path: Path) -> Sequence[Listed]:
    """Return what lies in a directory.

    Raises
    ------
    OSError
        It is none, or may not be looked into.
    """
    if is_remote(path):
        found: list[Entry] = path.entries()  # type: ignore[attr-defined]  # it is remote
        return found
    with os.scandir(path) as entries:
        return list(entries)


def list_ahead(path: Path) -> None:
    """Say that what lies below a directory will be looked at: a store is asked for all of it at once."""
    if is_remote(path):
        path.list_ahead()  # type: ignore[attr-defined]  # it is remote


def meanwhile(path: Path, call: Callable[[], T]) -> Callable[[], T]:
    """Ask something of a store while other things are asked; return what gives the answer. A disk is asked then."""
    return _pool.submit(call).result if is_remote(path) else call


def side_by_side(path: Path, calls: Sequence[Callable[[], T]]) -> Iterator[T]:
    """Call all of these, in their order, and yield what comes of each; of what is in a store several at a time."""
    return (answer() for answer in [meanwhile(path, call) for call in calls])


def has_file(path: Path) -> bool:
    """Whether a file, or a link, has that name."""
    if not is_remote(path):
        return os.path.lexists(path)
    try:
        return path.has_object()  # type: ignore[attr-defined,no-any-return]  # it is remote
    except PermissionError:
        return False  # nobody who may not read it can use it


def names_beside(path: Path, wanted: Iterable[str]) -> tuple[str, ...]:
    """Return the names in the directory of a file; of a web server, which lists none, those of the `wanted` there.

    Raises
    ------
    OSError
        The directory may not be looked into.
    """
    if is_remote(path) and not path.listable:  # type: ignore[attr-defined]  # it is remote
        return tuple(name for name in wanted if has_file(path.with_name(name)))
    return tuple(entry.name for entry in entries_of(path.parent))


def names_anew(path: Path) -> frozenset[str]:
    """Return the names in a directory as they are now, in one question to a store; none if it is not there."""
    if is_remote(path):
        from ckptctl.storage.remote import forget  # noqa: PLC0415  # only who has an address needs it

        forget()
    try:
        return frozenset(entry.name for entry in entries_of(path))
    except FileNotFoundError:
        return frozenset()


def stated_digest(path: Path) -> str:
    """Return the SHA-256 that the store of a file states of it, where a listing has said; nothing otherwise."""
    known = path.listed() if is_remote(path) else None  # type: ignore[attr-defined]  # it is remote
    return known.sha256 if known else ""


def is_there(path: Path) -> bool:
    """Whether there is something under a name, if only a link that leads nowhere."""
    return path.exists() if is_remote(path) else os.path.lexists(path)
