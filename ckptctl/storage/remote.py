"""Addresses of objects in stores, as paths: ``s3://bucket/key``, ``https://host/file``, ``hf://owner/model/file``.

Where a path is taken, such an address is one: what reads directories and files asks it as it asks any path. What has
no answer there (links, owners, renaming) is refused or empty. Listings are remembered for a while.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from dataclasses import dataclass
from pathlib import PosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ckptctl.errors import UnsupportedError, UsageError
from ckptctl.storage.listing import Entry, listing_of, listings_below
from ckptctl.storage.stores import asked, hub_parts, store_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_REMEMBERED = 10.0
"""Seconds for which a listing is taken to be what it was."""
_WEB = ("http", "https")
_ROOT = 2
"""Parts of the address of a bucket or server."""


class RemotePath(PosixPath):
    """The address of an object, or of all objects whose keys begin with it."""

    __slots__ = ()
    remote = True

    def __str__(self) -> str:
        return super().__str__().replace(":/", "://", 1)

    def __fspath__(self) -> str:
        return str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return RemotePath, (str(self),)

    @property
    def scheme(self) -> str:
        """What comes before the colon."""
        return self.parts[0].rstrip(":")

    @property
    def bucket(self) -> str:
        """The bucket, container or server; of the Hugging Face Hub, nothing."""
        return "" if self.scheme == "hf" else self.parts[1] if len(self.parts) > 1 else ""

    @property
    def key(self) -> str:
        """What the store calls it."""
        rest = self.parts[1:] if self.scheme == "hf" else self.parts[2:]
        if self.scheme == "hf":
            return "/".join(hub_parts(rest))
        return unquote("/".join(rest)) if self.scheme in _WEB else "/".join(rest)

    @property
    def store(self) -> Any:
        """The store that has it."""
        return store_of(self.scheme, self.bucket)

    @property
    def parent(self) -> RemotePath:
        """What it lies in; of a bucket, that bucket."""
        return self if self.is_bucket else super().parent

    @property
    def is_bucket(self) -> bool:
        """Whether it is a whole bucket, server or repository."""
        return len(self.parts) <= (_ROOT + 1 if self.scheme == "hf" else _ROOT)

    def with_name(self, name: str) -> RemotePath:
        """Return the address of something beside it.

        Raises
        ------
        UsageError
            It is a whole bucket: nothing is beside that.
        """
        if self.is_bucket:
            raise UsageError(f"{self}: a whole bucket, where something in one is needed", hint=f"{self}/…")
        return super().with_name(name)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:  # noqa: ARG002
        """Return kind, size and time, as the store has them."""
        return self.entry().stat()

    def lstat(self) -> os.stat_result:
        """Return the same: there are no links."""
        return self.stat()

    def entry(self) -> Entry:
        """Return what the store says of it: an object, or else whether there are any below it.

        Raises
        ------
        OSError
            Neither is there, or it may not be looked at.
        """
        if self.is_bucket and self.scheme not in _WEB:
            self._listing()
            return Entry(self, directory=True)
        above = _listings.get(str(self.parent))
        if above and above.is_fresh:
            found = above.entries.get(self.name)
            if found is None:
                raise self._missing()
            return found
        if self._is_below_an_object():
            raise self._missing()
        if self.key and (self.suffix or self.scheme in _WEB):
            found = self._object()
            if found:
                return found
        if self.scheme not in _WEB and (self._listing() or not self.key):
            return Entry(self, directory=True)
        found = self._object() if self.key and not self.suffix else None
        if found is None:
            raise self._missing()
        return found

    def listed(self) -> Entry | None:
        """Return what is known of it without a question to the store; None if nothing is."""
        above = None if self.is_bucket else _listings.get(str(self.parent))
        return above.entries.get(self.name) if above and above.is_fresh else None

    def has_object(self) -> bool:
        """Whether there is an object of this name, in one question at most.

        Raises
        ------
        PermissionError
            The store does not tell.
        """
        if self.is_bucket:
            return False
        above = _listings.get(str(self.parent))
        if above and above.is_fresh:
            return self.name in above.entries
        if not self.key or self._is_below_an_object():
            return False
        try:
            asked(self, lambda: self.store.head(self.key))
        except FileNotFoundError:
            return False
        return True

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        """Whether there are objects below it."""
        return stat.S_ISDIR(self._mode())

    def is_file(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        """Whether it is an object."""
        return stat.S_ISREG(self._mode())

    def exists(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        """Whether it is one or the other."""
        return bool(self._mode())

    def is_symlink(self) -> bool:
        """Return false: stores have no links."""
        return False

    def is_mount(self) -> bool:
        """Return false."""
        return False

    def resolve(self, strict: bool = False) -> RemotePath:  # noqa: ARG002, FBT001, FBT002  # as paths have it
        """Return itself: there are no links."""
        return self

    def absolute(self) -> RemotePath:
        """Return itself."""
        return self

    def expanduser(self) -> RemotePath:
        """Return itself."""
        return self

    def is_absolute(self) -> bool:
        """Return true."""
        return True

    def iterdir(self) -> Iterator[RemotePath]:  # type: ignore[override]
        """Return what lies directly below it."""
        entries = self._listing()
        if not entries and self.scheme not in _WEB and self.entry().is_file():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(self))
        return iter([one.path for one in entries.values()])

    def rglob(self, pattern: str, **_: Any) -> Iterator[RemotePath]:  # type: ignore[override]
        """Yield what lies anywhere below it and matches."""
        for path in self.iterdir():
            if path.match(pattern):
                yield path
            if path.is_dir():
                yield from path.rglob(pattern)

    def glob(self, pattern: str, **_: Any) -> Iterator[RemotePath]:  # type: ignore[override]
        """Return what lies directly below it and matches."""
        return (path for path in self.iterdir() if path.match(pattern))

    def list_ahead(self) -> None:
        """Ask for all that lies below it at once, for whoever looks there next."""
        if self.writable:
            now = time.monotonic()
            _listings.update({where: _Listing(entries, now) for where, entries in listings_below(self).items()})

    @property
    def listable(self) -> bool:
        """Whether its store says what lies in a directory."""
        return self.scheme not in _WEB

    @property
    def writable(self) -> bool:
        """Whether it is in a bucket, to which something may be written."""
        return self.scheme in ("s3", "gs", "az")

    def entries(self) -> list[Entry]:
        """Return what lies in it, as ``os.scandir`` does for directories."""
        return list(self._listing().values())

    def open(self, *_: Any, **__: Any) -> Any:
        """Refuse: what is written goes through `ckptctl.storage`."""
        raise UnsupportedError(f"{self}: an object in a store is not opened as a file")

    mkdir = unlink = rename = replace = rmdir = touch = chmod = symlink_to = hardlink_to = readlink = open  # noqa: A003

    def _mode(self) -> int:
        try:
            return self.stat().st_mode
        except OSError:  # who reads it is told why it cannot be
            return 0

    def _is_below_an_object(self) -> bool:
        known = self.parent.listed()
        return str(self.parent) in _objects or bool(known and not known.directory)

    def _missing(self) -> FileNotFoundError:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))

    def _object(self) -> Entry | None:
        """Ask for the object itself, and for its first bytes in the same request."""
        from ckptctl.storage.opening import ahead  # noqa: PLC0415  # it needs addresses

        try:
            file = ahead(self)
        except FileNotFoundError:
            return None
        _objects.add(str(self))
        return Entry(self, size=file.size, modified=file.modified, tag=file.tag)

    def _listing(self) -> dict[str, Entry]:
        if self.scheme in _WEB:
            return {}  # a web server lists nothing
        known = _listings.get(str(self))
        if known is None or not known.is_fresh:
            known = _listings[str(self)] = _Listing(listing_of(self), time.monotonic())
        return known.entries


@dataclass(frozen=True, slots=True)
class _Listing:
    entries: dict[str, Entry]
    at: float

    @property
    def is_fresh(self) -> bool:
        return time.monotonic() - self.at < _REMEMBERED


_listings: dict[str, _Listing] = {}
_objects: set[str] = set()
"""Addresses that are those of objects: there is nothing below them."""


def forget() -> None:
    """Let go of all that is remembered of stores: something there was changed."""
    from ckptctl.storage.opening import let_go  # noqa: PLC0415  # it needs addresses

    _listings.clear()
    _objects.clear()
    let_go()
