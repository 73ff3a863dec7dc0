"""Set aside what lies in a bucket, bring it back, or remove it: every step leaves what the next prune can finish."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ckptctl.errors import ExistsError
from ckptctl.storage.remote import forget
from ckptctl.storage.set_aside import MARK, MOVED, Record, read_record, stored_below, to_move
from ckptctl.storage.stores import asked
from ckptctl.storage.upload import put_small

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckptctl.storage.remote import RemotePath
    from ckptctl.storage.set_aside import Stored

_MOST_COPIED = 5 << 30
"""Bytes of the largest object that S3 copies in one request."""
_BATCH = 1000
"""So many objects S3 deletes in one request."""
_CHANGED = "somebody has written there meanwhile"


class BucketTrash:
    """What is set aside in one directory of a bucket."""

    def __init__(self, path: RemotePath) -> None:
        self.path = path

    def discard(self, name: str, every: tuple[Stored, ...], entry: str, *, for_good: bool) -> None:
        """Record what lies under a name, mark it, and move what makes it whole, if it may have to come back.

        Raises
        ------
        OSError
            It could not be; it is as it was.
        """
        moving = () if for_good else to_move(every, _MOST_COPIED)
        if any(one.size > _MOST_COPIED for one in moving):
            raise OSError(errno.EFBIG, "too large to be moved within the store; --trash-for 0 deletes it at once")
        record = Record(name=name, objects=every, moved=tuple(one.name for one in moving))
        self._write(entry, record)
        try:
            if not record.single:
                put_small(self.path / name / MARK, entry.encode())
            for one in moving:
                self._copy(one.name, f"{MOVED}/{entry}/{one.name}", one.size)
            self._check_same(record, looked=bool(moving))
            self._delete(one.name for one in moving)
        except BaseException:
            self.back(entry, record)
            raise

    def _check_same(self, record: Record, *, looked: bool) -> None:
        if looked and set(self._now(record)) != set(record.objects):
            raise OSError(errno.EBUSY, _CHANGED)

    def check_back(self, entry: str) -> Record:
        """Return what is to come back, if all of it is there.

        Raises
        ------
        OSError
            Some of it is not.
        """
        record = self._read(entry)
        if record is None:
            raise OSError(errno.ENOTSUP, "it was put into the trash on a disk: rename it with the store's own tools")
        here, copies = set(self._now(record)), {(one.name, one.size) for one in self._moved(entry, record)}
        lost = (one for one in record.objects if one not in here and (one.name, one.size) not in copies)
        gone = next((one.name for one in lost), "")
        if gone:
            raise FileNotFoundError(errno.ENOENT, "part of it is not there any more; nothing was restored", gone)
        return record

    def back(self, entry: str, record: Record) -> None:
        """Bring back what was moved, what makes it whole last; then the record goes. Any prune finishes this."""
        put_small(self.path / entry, replace(record, restoring=True).to_bytes())
        there = {one.name for one in self._now(record)}
        size_of = {one.name: one.size for one in record.objects}
        copies = {one.name for one in self._moved(entry, record)}
        for name in reversed(record.moved):
            if name not in there and name in copies:
                self._copy(f"{MOVED}/{entry}/{name}", name, size_of[name])
        self._delete(f"{MOVED}/{entry}/{name}" for name in sorted(copies))
        self._end(entry, record)

    def unfinished(self, entry: str) -> Record | None:
        """Return what was on its way back when somebody was killed; None if nothing was."""
        try:
            record = read_record(self.path, entry)
        except ValueError:
            return None
        return record if record and record.restoring else None

    def remove(self, entry: str) -> int:
        """Remove what was set aside: what makes it whole, the rest, the record; return how many bytes that were.

        Raises
        ------
        OSError
            Some of it could not be removed; or somebody has written there since: that stays with all that lies there.
        """
        record = self._read(entry)
        if record is None:
            return self._remove_of_a_disk(entry)
        if record.restoring:
            self.back(entry, record)
            return 0
        here = self._now(record)
        if not record.hides(here):
            return self._given_up(entry, record, here)
        freed = self._remove(record, here)
        copies = self._moved(entry, record)
        self._delete(f"{MOVED}/{entry}/{one.name}" for one in copies)
        self._end(entry, record)
        return freed + sum(one.size for one in copies)

    def _given_up(self, entry: str, record: Record, here: tuple[Stored, ...]) -> int:
        """Leave what somebody has written under the name since; what was moved of it comes back if it belongs there."""
        if record.only_adds(here):
            self.back(entry, record)
        elif record.moved:  # it was saved anew: that what was in the trash is of no use is as it should be
            self._delete(f"{MOVED}/{entry}/{one.name}" for one in self._moved(entry, record))
            self._end(entry, record)
            return 0
        else:
            self._end(entry, record)
        raise OSError(errno.EBUSY, f"{_CHANGED}; all of it was left there")

    def _remove(self, record: Record, here: tuple[Stored, ...]) -> int:
        """Delete objects, those first that make a checkpoint of the others, after a look before each batch."""
        first = to_move(here)
        rest = [one for one in here if one not in first]
        batches = [first, *(rest[start : start + _BATCH] for start in range(0, len(rest), _BATCH))]
        for number, batch in enumerate(batches):
            if number and not record.hides(self._now(record)):
                raise OSError(errno.EBUSY, f"{_CHANGED}; the rest was left there")
            self._delete(one.name for one in batch)
        # What was deleted is not there any more: it is looked at, and not only believed.
        left = self._now(record)
        if set(left) & set(here):
            raise OSError(errno.EBUSY, "the store still has some of it")
        return sum(one.size for one in here)

    def _remove_of_a_disk(self, entry: str) -> int:
        """Remove what was renamed on a disk, and then copied here; nothing that has just been a record."""
        every = stored_below(self.path, entry)
        if self._read(entry):
            raise OSError(errno.EBUSY, _CHANGED)
        self._delete(one.name for one in every)
        return sum(one.size for one in every)

    def _read(self, entry: str) -> Record | None:
        try:
            return read_record(self.path, entry)
        except ValueError as error:
            raise OSError(errno.EBADMSG, f"{entry}: {error}; it is left alone") from None

    def _now(self, record: Record) -> tuple[Stored, ...]:
        return stored_below(self.path, record.name, single=record.single)

    def _moved(self, entry: str, record: Record) -> tuple[Stored, ...]:
        """Return what was moved under a record, under the names it had."""
        start = f"{MOVED}/{entry}/"
        found = stored_below(self.path, f"{MOVED}/{entry}") if record.moved else ()
        return tuple(replace(one, name=one.name.removeprefix(start)) for one in found)

    def _write(self, entry: str, record: Record) -> None:
        """Write a record where there is none; an answer that was lost makes it look as if there were one."""
        try:
            put_small(self.path / entry, record.to_bytes(), create=True)
        except ExistsError:
            if self._read(entry) != record:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), entry) from None

    def _end(self, entry: str, record: Record) -> None:
        self._delete([*([] if record.single else [f"{record.name}/{MARK}"]), entry])

    def _delete(self, names: Iterable[str]) -> None:
        every = [self._key(name) for name in names]
        for start in range(0, len(every), _BATCH):
            batch = every[start : start + _BATCH]
            try:
                asked(self.path, partial(self.path.store.delete, batch))
            except FileNotFoundError:  # some stores say so of what is gone already
                for key in batch:
                    self._delete_one(key)
        forget()

    def _delete_one(self, key: str) -> None:
        try:
            asked(self.path, partial(self.path.store.delete, key))
        except FileNotFoundError:
            return

    def _copy(self, source: str, target: str, nbytes: int) -> None:
        store: Any = self.path.store
        asked(self.path / source, lambda: store.copy(self._key(source), self._key(target)))
        found = asked(self.path / target, lambda: store.head(self._key(target)))
        if found["size"] != nbytes:
            raise OSError(errno.EIO, f"the store copied {found['size']} bytes of {nbytes}")

    def _key(self, name: str) -> str:
        return f"{self.path.key}/{name}" if self.path.key else name
