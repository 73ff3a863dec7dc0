"""Write objects to stores: in parts, seen by nobody before the last one is there; what is broken off is taken back."""

from __future__ import annotations

import contextlib
import queue
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING, Any

from ckptctl.errors import ChangedError, ExistsError, UnreadableError, UnsupportedError
from ckptctl.storage.daemons import in_daemon
from ckptctl.storage.remote import forget
from ckptctl.storage.stores import asked, tag_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from types import TracebackType

    from ckptctl.storage.remote import RemotePath

_PART = 8 << 20
"""Bytes of a part: a store takes 10,000 of them, so 80 GB in one object; larger ones take larger parts."""
_MOST_PARTS = 9_000
_TO_TAKE_BACK = 20.0
"""Seconds to wait for the store to take back what was sent of an object that is not to be."""
_WAITING = 4
"""So many blocks wait to be sent."""


class _BrokenOffError(Exception):
    """Ends an upload that is not to be finished."""


class Upload:
    """An object that is being written; it is there from `publish` on. Leaving the context before takes it back.

    `part` is how many bytes each part of it has, `tag` what the store calls it then.

    Raises
    ------
    ExistsError
        There is an object of that name, and `force` is off.
    """

    def __init__(self, target: RemotePath, *, force: bool, nbytes: int = 0) -> None:
        self.target, self.force, self.written = target, force, 0
        if not target.writable:
            raise UnsupportedError(f"{target}: nothing is written there, only to buckets", hint="s3://, gs:// or az://")
        check_free(target, force=force)
        self._blocks: queue.Queue[bytes | None] = queue.Queue(_WAITING)
        self._broken = self._ended = self.done = False
        self.part, self.tag = max(_PART, -(-nbytes // _MOST_PARTS)), ""
        self._sent: Future[Any] = in_daemon(self._send, "ckptctl-upload")

    def __enter__(self) -> Upload:  # noqa: PYI034  # Self came with Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.done:
            self._broken = True
            self._give(None)
            with contextlib.suppress(TimeoutError, FutureTimeout):  # a store that answers nothing is not waited for
                self._sent.exception(timeout=_TO_TAKE_BACK)
            if not self._sent.done():
                return
            if self._ended and not self.force and not self._sent.exception():
                delete(self.target)  # it was interrupted at the very end

    def write(self, view: memoryview) -> int:
        """Take some bytes; return how many."""
        self._give(bytes(view))
        self.written += len(view)
        return len(view)

    def publish(self) -> None:
        """Send what is left, and let it be seen.

        Raises
        ------
        ExistsError
            Somebody else has written an object of that name meanwhile.
        ChangedError
            The store has another number of bytes than were sent.
        """
        check_free(self.target, force=self.force)
        self._ended = True
        self._give(None)
        put = self._sent.result()
        self.done = True
        forget()
        found = asked(self.target, lambda: self.target.store.head(self.target.key))
        if found["size"] != self.written or (put and put.get("e_tag") and tag_of(found) != tag_of(put)):
            raise ChangedError(
                f"{self.target}: somebody else has written it meanwhile, or it is not what was sent",
                hint=f"{self.written} bytes were sent, the store has {found['size']}",
            )
        self.tag = tag_of(found)

    def _give(self, block: bytes | None) -> None:
        """Hand a block to the sender, if that has not given up."""
        while True:
            if self._sent.done():
                if block is not None:
                    self._sent.result()
                return
            try:
                self._blocks.put(block, timeout=0.2)
            except queue.Full:
                continue
            return

    def _send(self) -> Any:
        """Put the blocks into the store as they come; one request where they are few."""
        first = self._blocks.get()
        if first is None:
            return None if self._broken else self._put(b"")
        try:
            return self._put(self._rest(first), use_multipart=True, chunk_size=self.part, max_concurrency=_WAITING)
        except _BrokenOffError:
            return None

    def _put(self, data: object, **options: Any) -> Any:
        return asked(self.target, lambda: self.target.store.put(self.target.key, data, **options), tries=1)

    def _rest(self, first: bytes) -> Iterator[bytes]:
        yield first
        while (block := self._blocks.get()) is not None:
            yield block
        if self._broken:
            raise _BrokenOffError


def check_free(target: RemotePath, *, force: bool) -> None:
    """Make sure that an object may be written.

    Raises
    ------
    ExistsError
        There is one of that name, and `force` is off.
    """
    forget()
    try:
        there = not force and target.has_object()
    except PermissionError:
        raise UnreadableError(
            f"{target}: the store does not tell whether it exists", hint="--force writes it all the same"
        ) from None
    if there:
        raise ExistsError(f"{target}: exists already", hint="--force replaces it; -o gives another name")


def put_small(target: RemotePath, data: bytes, *, create: bool = False) -> None:
    """Write a few bytes, in place of what is there or, with `create`, only where nothing is.

    Raises
    ------
    ExistsError
        Something is, and `create` is on.
    """
    mode = "create" if create else "overwrite"
    try:
        asked(target, lambda: target.store.put(target.key, data, mode=mode, use_multipart=False))
    except FileExistsError:
        raise ExistsError(f"{target}: exists already", hint="somebody else has written it meanwhile") from None
    forget()


def delete(target: RemotePath) -> None:
    """Remove an object, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        asked(target, lambda: target.store.delete(target.key))
    forget()
