"""Checkpoints of a run whose upload is not confirmed: what is to be sent of each is held beside them.

``RUN/.ckptctl-upload/000001-NAME/`` has ``upload.json``, written last, and below ``files/`` a reflink or hard link of
each file; ``confirmed.jsonl`` gets a line for each that is at its destination. Nothing here is sent or deleted.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

STAGING = ".ckptctl-upload"
TICKET, FILES, CONFIRMED = "upload.json", "files", "confirmed.jsonl"
_SCHEMA = "ckptctl.upload/1"
_MOST = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingFile:
    """A file to send: `name` below the run's directory, bytes, time of its last change, SHA-256 on record or nothing.

    `linked` says that it is held in the staging directory; else the file itself has to stay as it is.
    """

    name: str
    size: int
    mtime_ns: int
    sha256: str = ""
    linked: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """What is to be sent of one checkpoint, data first; `entry` is where it is held."""

    entry: Path
    name: str
    directory: bool
    step: int | None
    files: tuple[PendingFile, ...]

    @property
    def number(self) -> int:
        """Its place in the queue."""
        return int(self.entry.name.partition("-")[0])

    def source(self, file: PendingFile) -> Path:
        """Return where the bytes of a file are read."""
        return self.entry / FILES / file.name if file.linked else self.entry.parent.parent / file.name

    def to_bytes(self) -> bytes:
        """Return what its ticket holds."""
        fields = asdict(self)
        del fields["entry"]
        return json.dumps({"schema": _SCHEMA, **fields}).encode()


def pending_in(run: Path) -> tuple[Pending, ...]:
    """Return what waits to be sent from a run, in the order in which it was asked for."""
    staging = run / STAGING
    if not staging.is_dir():
        return ()
    found = [one for entry in staging.iterdir() if (one := ticket_of(entry))]
    return tuple(sorted(found, key=lambda one: one.number))


def ticket_of(entry: Path) -> Pending | None:
    """Return what a ticket says; None for what was begun and never finished."""
    ticket = entry / TICKET
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        if not entry.name.partition("-")[0].isdigit() or ticket.stat().st_size > _MOST:
            return None
        said: dict[str, Any] = {**json.loads(ticket.read_bytes())}
        if said.pop("schema") != _SCHEMA:
            return None
        files = tuple(PendingFile(**one) for one in said.pop("files"))
        if all(_is_inside(one.name) for one in files):
            return Pending(entry=entry, files=files, **said)
    return None


def _is_inside(name: str) -> bool:
    return not name.startswith("/") and ".." not in name.split("/")
