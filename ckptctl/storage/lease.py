"""A lock in a store: an object that only one can create, and that is written again while its holder lives."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from concurrent.futures import TimeoutError as FutureTimeout
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ckptctl.errors import CkptctlError, LockedError, UnreadableError, UnsupportedError
from ckptctl.storage.daemons import in_daemon
from ckptctl.storage.remote import forget
from ckptctl.storage.set_aside import LOCK
from ckptctl.storage.stores import asked, note_version

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptctl.storage.remote import RemotePath

_AGAIN, _DOUBTFUL, _STALE = 60.0, 300.0, 600.0
"""Seconds after which it is written again, may not be relied on, and is free for others, if it was not."""
_PAUSE = 5.0


class Lease:
    """The lock of a directory in a store. `lost` tells that another has it, or that it could not be kept alive."""

    def __init__(self, directory: RemotePath) -> None:
        self.path: RemotePath = directory / LOCK
        self._ended = threading.Event()
        self._version: dict[str, Any] | None = None
        self._written = 0.0, 0.0
        self._lost = False
        self._since = ""
        self._token = uuid4().hex

    @property
    def lost(self) -> bool:
        """Whether it may not be relied on any more."""
        # A clock that goes on while the machine sleeps, as well as one that nobody sets.
        age = max(time.monotonic() - self._written[0], time.time() - self._written[1])
        return self._lost or (self._version is not None and age > _DOUBTFUL)

    def take(self, *, wait: bool, needed: bool) -> None:
        """Take it, from a holder that has died as well.

        Raises
        ------
        LockedError
            Another holds it, and `wait` is off.
        UnsupportedError
            The store cannot create an object only where there is none, and the lock is `needed`.
        """
        while not self._taken(needed=needed):
            if not wait:
                raise LockedError(
                    f"{self.path.parent}: another prune is at work here ({self._holder()})",
                    hint="--wait waits for it; one that was killed holds the lock for ten minutes more",
                )
            time.sleep(_PAUSE)
        if self._version is not None:
            threading.Thread(target=self._keep, name="ckptctl-lease", daemon=True).start()

    def release(self, *, quiet: bool = False) -> None:
        """Let others have it; with `quiet` a store that does not answer is not waited for, nor said."""
        self._ended.set()
        if self._version is None or self.lost:
            return
        self._version = None
        given = in_daemon(self._given_back, "ckptctl-lease")
        try:
            given.result(timeout=_PAUSE if quiet else None)
        except (CkptctlError, OSError, TimeoutError, FutureTimeout):
            if not quiet:
                raise

    def _given_back(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if self._said().get("token") == self._token:
                asked(self.path, lambda: self.path.store.delete(self.path.key))
        forget()

    def _taken(self, *, needed: bool) -> bool:
        try:
            self._put("create")
        except FileExistsError:
            return self._taken_over()
        except UnreadableError as error:
            return self._without(error.message, needed=needed)
        if self._is_refused_twice():
            return True
        self._version = None
        asked(self.path, lambda: self.path.store.delete(self.path.key))
        return self._without("it creates an object where there is one", needed=needed)

    def _without(self, why: str, *, needed: bool) -> bool:
        if not needed:
            return True
        hint = "--no-lock goes on without, if no other prune can run at the same time"
        raise UnsupportedError(f"{self.path}: no lock can be made there: {why}", hint=hint)

    def _is_refused_twice(self) -> bool:
        """Whether the store refuses what it should: some take the condition and pass over it."""
        store, key = self.path.store, self.path.key
        try:
            asked(self.path, lambda: store.put(key, b"{}", mode="create", use_multipart=False))
        except FileExistsError:
            return True
        return False

    def _taken_over(self) -> bool:
        """Take it from a holder that has not written it again for so long, by the store's clock, that it has died."""
        try:
            found = asked(self.path, lambda: self.path.store.head(self.path.key))
            if (self._now() - found["last_modified"]).total_seconds() < _STALE:
                return False
            self._put(_version_of(found))
        except (FileNotFoundError, FileExistsError):
            return False  # it has just been let go, or taken by another
        return True

    def _put(self, mode: Any) -> None:
        now = f"{datetime.now(tz=timezone.utc):%Y-%m-%dT%H:%M:%S.%fZ}"
        said = {"host": socket.gethostname(), "pid": os.getpid(), "since": self._since or now, "at": now}
        raw, store, key = json.dumps({**said, "token": self._token}).encode(), self.path.store, self.path.key
        try:
            found = asked(self.path, lambda: store.put(key, raw, mode=mode, use_multipart=False))
        except FileExistsError:
            if self._said().get("token") != self._token:
                raise
            found = asked(self.path, lambda: store.head(key))  # it was written, and the answer was lost
        note_version(self.path, found)
        self._since = self._since or now
        self._version = _version_of(found)
        self._written = time.monotonic(), time.time()

    def _now(self) -> datetime:
        """Return what time it is to the store: it may be another than here."""
        probe, store = self.path.with_name(f"{LOCK}-{self._token}"), self.path.store
        asked(probe, lambda: store.put(probe.key, b"", use_multipart=False))
        found = asked(probe, lambda: store.head(probe.key))
        with contextlib.suppress(FileNotFoundError):
            asked(probe, lambda: store.delete(probe.key))
        when: datetime = found["last_modified"]
        return when

    def _holder(self) -> str:
        said = self._said()
        return f"{said.get('host', '?')}, process {said.get('pid', '?')}, since {str(said.get('since', '?'))[:19]}Z"

    def _said(self) -> dict[str, Any]:
        """Return what its holder wrote; nothing if that cannot be told."""
        try:
            said = json.loads(bytes(asked(self.path, lambda: self.path.store.get(self.path.key).bytes())))
        except (FileNotFoundError, ValueError):
            return {}
        return said if isinstance(said, dict) else {}

    def _keep(self) -> None:
        while not self._ended.wait(_AGAIN):
            self._lost = not self._kept()
            if self._lost:
                return

    def _kept(self) -> bool:
        version = self._version
        if version is None:
            return True  # it has just been let go: written again, it would lock out others for nothing
        try:
            self._put(version)
        except FileExistsError:
            return False
        except (OSError, UnreadableError):
            return True  # it is tried again; `lost` tells when that has been in vain for too long
        return True


def _version_of(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in ("e_tag", "version") if found[name]}
