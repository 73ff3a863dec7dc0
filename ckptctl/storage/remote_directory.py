"""A directory of checkpoints in a bucket, as `prune` needs it: looked into anew, locked, emptied in batches."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from ckptctl.errors import ExistsError, UnsupportedError
from ckptctl.storage.byterange import unreadable
from ckptctl.storage.lease import Lease
from ckptctl.storage.listing import Entry, every_entry
from ckptctl.storage.remote import forget
from ckptctl.storage.set_aside import MOVED, PREFIX, Record, hidden, read_record, stored_below, to_move
from ckptctl.storage.stores import asked, keeps_versions
from ckptctl.storage.survey import Survey
from ckptctl.storage.upload import put_small

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable
    from types import TracebackType

    from ckptctl.storage.remote import RemotePath
    from ckptctl.storage.set_aside import Stored

_SEEN_FOR = 1.0
"""Seconds for which a listing is taken to be what it was."""
_MOST_COPIED = 5 << 30
"""Bytes of the largest object that S3 copies in one request."""
_BATCH = 1000
"""So many objects S3 deletes in one request."""


class RemoteDirectory:
    """What lies below an address in a bucket. What is set aside stays in place, and is recorded beside it.

    Raises
    ------
    UnreadableError
        There is nothing, or it may not be read.
    UnsupportedError
        It is not in a bucket: nothing can be deleted there.
    """

    def __init__(self, path: RemotePath) -> None:
        self.path = path
        if not path.writable:
            raise UnsupportedError(f"{path}: nothing is deleted there, only in buckets", hint="s3://, gs:// or az://")
        self.identity: Hashable = (path.scheme, path.bucket, path.key)
        self._seen: dict[str, Entry] = {}
        self._seen_at = -_SEEN_FOR
        self._lease: Lease | None = None
        self._aside: set[str] = set()
        forget()
        if not self._entries():
            raise unreadable(path, FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))

    def __enter__(self) -> RemoteDirectory:  # noqa: PYI034  # Self came with Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lease:
            self._lease.release()

    @property
    def notices(self) -> tuple[str, ...]:
        """What is worth saying of its store."""
        if keeps_versions(self.path.scheme, self.path.bucket):
            return ("the bucket keeps versions: what is deleted takes room until its lifecycle rules remove it",)
        return ()

    def lock(self, *, wait: bool = False, needed: bool = True) -> None:
        """Let nobody else lock it meanwhile: an object beside the checkpoints says so, and is written again and again.

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
        for entry in self.names():
            record = read_record(self.path, entry) if entry.startswith(PREFIX) else None
            if record and record.restoring:
                self._back(entry, record)  # what was killed in the middle of it

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
        every = self._stored(name)
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
        """Set something aside: record what it is, then move what makes it whole, if it may have to come back.

        Raises
        ------
        OSError
            It could not be; it is as it was.
        """
        self._still_held()
        every = self._stored(name)
        if not every:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        moving = () if for_good else to_move(every)
        if any(one.size > _MOST_COPIED for one in moving):
            raise OSError(errno.EFBIG, "too large to be moved within the store; --trash-for 0 deletes it at once")
        record = Record(name=name, objects=every, moved=tuple(one.name for one in moving))
        self._record(entry, record)
        try:
            for one in moving:
                self._copy(one.name, f"{MOVED}/{entry}/{one.name}", one.size)
            self._delete(one.name for one in moving)
        except BaseException:
            self._back(entry, record)
            raise
        self._aside.add(name)
        self._seen.pop(name, None)
        self._seen[entry] = Entry(self.path / entry, modified=time.time())

    def bring_back(self, entry: str, name: str) -> None:
        """Undo `discard`.

        Raises
        ------
        OSError
            Some of it is not there any more.
        """
        record = read_record(self.path, entry)
        if record is None:
            raise OSError(errno.ENOTSUP, "it was put into the trash on a disk: rename it with the store's own tools")
        here, copies = set(self._stored(name)), {(one.name, one.size) for one in self._moved(entry)}
        lost = (one for one in record.objects if one not in here and (one.name, one.size) not in copies)
        gone = next((one.name for one in lost), "")
        if gone:
            raise FileNotFoundError(errno.ENOENT, f"{gone} is not there any more; nothing was restored", gone)
        self._back(entry, record)

    def remove(self, entry: str) -> int:
        """Remove what was set aside for good: what makes it whole, the rest, the record; return how many bytes.

        Where something was written since, that stays with all that lies there.

        Raises
        ------
        OSError
            Some of it could not be removed.
        """
        self._still_held()
        record = read_record(self.path, entry)
        if record is None:  # it was renamed on a disk and copied here, or it is gone
            return self._remove(self._stored(entry))
        if record.restoring:
            self._back(entry, record)
            return 0
        here = stored_below(self.path, record.name, single=record.single)
        freed = self._remove(here) if record.hides(here) else 0
        copies = self._stored(f"{MOVED}/{entry}") if record.moved else ()
        self._delete(one.name for one in copies)
        freed += sum(one.size for one in copies)
        self._delete([entry])
        self.look_anew()
        return freed

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
            raise OSError(errno.ENOLCK, "another prune has taken over the lock")

    def _stored(self, name: str) -> tuple[Stored, ...]:
        known = self._seen.get(name)
        return stored_below(self.path, name, single=bool(known and not known.directory))

    def _moved(self, entry: str) -> tuple[Stored, ...]:
        """Return what was moved under a record, under the names it had."""
        start = f"{MOVED}/{entry}/"
        found = self._stored(f"{MOVED}/{entry}")
        return tuple(replace(one, name=one.name.removeprefix(start)) for one in found)

    def _record(self, entry: str, record: Record) -> None:
        """Write a record where there is none; an answer that was lost makes it look as if there were one."""
        try:
            put_small(self.path / entry, record.to_bytes(), create=True)
        except ExistsError:
            if read_record(self.path, entry) != record:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), entry) from None

    def _back(self, entry: str, record: Record) -> None:
        """Bring back what was moved, what makes it whole last; then the record goes. Any prune finishes this."""
        put_small(self.path / entry, replace(record, restoring=True).to_bytes())
        there = {one.name: one for one in self._stored(record.name)}
        size_of = {one.name: one.size for one in record.objects}
        copies = {one.name for one in self._moved(entry)}
        for name in reversed(record.moved):
            if name not in there and name in copies:
                self._copy(f"{MOVED}/{entry}/{name}", name, size_of[name])
        self._delete(f"{MOVED}/{entry}/{name}" for name in copies)
        self._delete([entry])
        self._aside.discard(record.name)
        self.look_anew()

    def _remove(self, every: Iterable[Stored]) -> int:
        """Delete objects, those first that make a checkpoint of the others; return how many bytes they were."""
        found = tuple(every)
        first = {one.name for one in to_move(found)}
        self._delete(sorted(first))
        self._delete(one.name for one in found if one.name not in first)
        # What was deleted is not there any more: it is looked at, and not only believed.
        tops = {top: bool(below) for top, _, below in (one.name.partition("/") for one in found)}
        for name, several in tops.items():
            if set(stored_below(self.path, name, single=not several)) & set(found):
                raise OSError(errno.EBUSY, f"the store still has some of {name}")
        return sum(one.size for one in found)

    def _delete(self, names: Iterable[str]) -> None:
        every = [self._key(name) for name in names]
        for start in range(0, len(every), _BATCH):
            batch = every[start : start + _BATCH]
            asked(self.path, partial(self.path.store.delete, batch))
        forget()

    def _copy(self, source: str, target: str, nbytes: int) -> None:
        store: Any = self.path.store
        asked(self.path / source, lambda: store.copy(self._key(source), self._key(target)))
        found = asked(self.path / target, lambda: store.head(self._key(target)))
        if found["size"] != nbytes:
            raise OSError(errno.EIO, f"the store copied {found['size']} bytes of {nbytes}")

    def _key(self, name: str) -> str:
        return f"{self.path.key}/{name}" if self.path.key else name


def _parts(name: str) -> list[str]:
    return name.split("/")
