"""A directory of checkpoints in a bucket, as `prune` needs it: looked into anew, locked, emptied in batches."""

from __future__ import annotations

import errno
import os
import time
from hashlib import blake2b
from typing import TYPE_CHECKING

from ckptctl.errors import UnsupportedError
from ckptctl.storage.bucket_trash import BucketTrash
from ckptctl.storage.lease import Lease
from ckptctl.storage.listing import Entry, every_entry
from ckptctl.storage.local_file import unreadable
from ckptctl.storage.remote import forget
from ckptctl.storage.set_aside import PREFIX, hidden, stored_below
from ckptctl.storage.stores import keeps_versions
from ckptctl.storage.survey import Survey

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from types import TracebackType

    from ckptctl.storage.remote import RemotePath
    from ckptctl.storage.set_aside import Stored

_SEEN_FOR = 1.0
"""Seconds for which a listing is taken to be what it was."""


class RemoteDirectory:
    """What lies below an address in a bucket. What is set aside stays in place, and is recorded beside it.

    Raises
    ------
    UnreadableError
        There is nothing, or it may not be read.
    UnsupportedError
        It is not in a bucket: nothing can be deleted there.
    """

    longest = 900
    """Bytes of the longest name: a key has 1024 in all."""

    rest_of_it = "what is left of it stands in"

    def __init__(self, path: RemotePath) -> None:
        self.path = path
        if not path.writable:
            raise UnsupportedError(f"{path}: nothing is deleted there, only in buckets", hint="s3://, gs:// or az://")
        self.identity: Hashable = (path.scheme, path.bucket, path.key)
        self.brought_back: frozenset[str] = frozenset()
        self._trash = BucketTrash(path)
        self._seen: dict[str, Entry] = {}
        self._seen_at = -_SEEN_FOR
        self._lease: Lease | None = None
        self._aside: set[str] = set()
        self._surveyed: dict[str, tuple[Stored, ...]] = {}
        forget()
        if not self._entries():
            raise unreadable(path, FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))

    def __enter__(self) -> RemoteDirectory:  # noqa: PYI034  # Self came with Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lease:
            self._lease.release(quiet=error is not None)

    @property
    def notices(self) -> tuple[str, ...]:
        """What is worth saying of its store."""
        if keeps_versions(self.path.scheme, self.path.bucket):
            return ("the bucket keeps versions: what is deleted takes room until its lifecycle rules remove it",)
        return ()

    def lock(self, *, wait: bool = False, needed: bool = True) -> None:
        """Let nobody else lock it meanwhile: an object beside the checkpoints says so, and is written again and again.

        What somebody was bringing back when he was killed comes back now.

        Raises
        ------
        LockedError
            Somebody else holds it, and `wait` is off.
        UnsupportedError
            The store cannot create an object only where there is none, and the lock is `needed`.
        """
        self._lease = Lease(self.path)
        self._lease.take(wait=wait, needed=needed)
        self.look_anew()
        back = set()
        for entry in self.names():
            record = self._trash.unfinished(entry) if entry.startswith(PREFIX) else None
            if record:
                self._trash.back(entry, record)
                back.add(record.name)
        if back:
            self.brought_back = frozenset(back)
            self.look_anew()

    def look_anew(self) -> None:
        """Let go of all that is remembered."""
        forget()
        self._seen_at = -_SEEN_FOR

    def names(self) -> frozenset[str]:
        """Return the names in it, without those of what was set aside."""
        return frozenset(self._entries())

    def stat(self, name: str) -> os.stat_result | None:
        """Return what is known of a name in it; None if it is not there, or was set aside."""
        found = self._entries().get(name)
        return found.stat() if found else None

    def survey(self, name: str, suspects: Callable[[str, bool], bool] = lambda *_: False) -> Survey:
        """Look at everything under a name; `suspects` tells which names further down to note."""
        every = self._surveyed[name] = self._stored(name)
        if not every:
            return Survey(why="it is gone")
        print_of = blake2b(repr(every).encode(), digest_size=16).digest()
        size = sum(one.size for one in every)
        inner = {one.name.removeprefix(f"{name}/"): False for one in every if one.name != name}
        inner |= {"/".join(parts[:end]): True for parts in map(_parts, inner) for end in range(1, len(parts))}
        return Survey(
            top=(int.from_bytes(print_of[:8], "big"), int.from_bytes(print_of[8:], "big"), 0, 0),
            files=len(every),
            size=size,
            newest=int(max(one.modified for one in every) * 1e9),
            own=size,
            suspects=[one for one, directory in sorted(inner.items()) if suspects(_parts(one)[-1], directory)],
        )

    def discard(self, name: str, entry: str, *, for_good: bool) -> None:
        """Set something aside, as it was when it was last surveyed: what is written there since is not meant.

        Raises
        ------
        OSError
            It could not be; it is as it was.
        """
        self._still_held()
        every = self._surveyed.pop(name, None) or self._stored(name)
        if not every:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        self._trash.discard(name, every, entry, for_good=for_good)
        self._aside.add(name)
        self._seen.pop(name, None)
        self._seen[entry] = Entry(self.path / entry, size=1, modified=time.time())

    def check_back(self, entry: str) -> None:
        """Make sure that something can come back.

        Raises
        ------
        OSError
            Some of it is not there any more.
        """
        self._trash.check_back(entry)

    def bring_back(self, entry: str, name: str) -> None:
        """Undo `discard`.

        Raises
        ------
        OSError
            Some of it is not there any more.
        """
        self._trash.back(entry, self._trash.check_back(entry))
        self._aside.discard(name)
        self.look_anew()

    def remove(self, entry: str) -> int:
        """Remove what was set aside for good; return how many bytes that were.

        Raises
        ------
        OSError
            Some of it could not be removed; or somebody has written there since: that stays with all that lies there.
        """
        self._still_held()
        try:
            return self._trash.remove(entry)
        finally:
            self.look_anew()

    def flush(self) -> None:
        """Do nothing: what a store has acknowledged outlasts a crash."""

    def _entries(self) -> dict[str, Entry]:
        if time.monotonic() - self._seen_at >= _SEEN_FOR:
            try:
                every = every_entry(self.path)
                others = {name: entry for name, entry in every.items() if name not in self._aside}
                gone = hidden(self.path, others)
            except OSError as error:
                raise unreadable(self.path, error) from None
            self._seen = {name: entry for name, entry in others.items() if name not in gone}
            self._seen_at = time.monotonic()
        return self._seen

    def _still_held(self) -> None:
        if self._lease and self._lease.lost:
            raise OSError(errno.ENOLCK, "the lock is lost, another prune may be at work")

    def _stored(self, name: str) -> tuple[Stored, ...]:
        known = self._seen.get(name)
        return stored_below(self.path, name, single=bool(known and not known.directory))


def _parts(name: str) -> list[str]:
    return name.split("/")
