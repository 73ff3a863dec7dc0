"""Checkpoints of a run whose upload is not confirmed: what is to be sent of each is held beside them.

``RUN/.ckptctl-upload/000001-NAME/`` has ``upload.json``, written last, and below ``files/`` a reflink or hard link of
each file; ``confirmed.jsonl`` gets a line for each that is at its destination. Nothing here is sent or deleted.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ckptctl.errors import CorruptError
from ckptctl.storage import unreadable

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
    """What is to be sent of one checkpoint, data first: `to` an address, from `entry`, where it is held."""

    entry: Path
    to: str
    name: str
    directory: bool
    step: int | None
    files: tuple[PendingFile, ...]

    def source(self, file: PendingFile) -> Path:
        """Return where the bytes of a file are read."""
        return self.entry / FILES / file.name if file.linked else self.entry.parent.parent / file.name

    def to_bytes(self) -> bytes:
        """Return what its ticket holds."""
        fields = asdict(self)
        del fields["entry"]
        return json.dumps({"schema": _SCHEMA, **fields}).encode()


def entries_in(run: Path) -> tuple[Path, ...]:
    """Return where something is held, or was begun to be, in the order in which it was asked for.

    Raises
    ------
    UnreadableError
        The file system says no.
    """
    staging = run / STAGING
    try:
        found = [one for one in staging.iterdir() if one.name.partition("-")[0].isdecimal()] if staging.is_dir() else []
    except OSError as error:
        raise unreadable(staging, error) from None
    return tuple(sorted(found, key=number_of))


def number_of(entry: Path) -> int:
    """Return the place in the queue of what is held there."""
    return int(entry.name.partition("-")[0])


def waiting_in(run: Path) -> frozenset[str]:
    """Return the names of the checkpoints whose upload is not confirmed, also where nobody can read what is to be sent.

    Raises
    ------
    UnreadableError
        The file system says no.
    """
    return frozenset(entry.name.partition("-")[2] for entry in entries_in(run) if has_ticket(entry))


def has_ticket(entry: Path) -> bool:
    """Whether a checkpoint is held there, all of it.

    Raises
    ------
    UnreadableError
        The file system says no.
    """
    try:
        (entry / TICKET).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise unreadable(entry / TICKET, error) from None
    return True


def ticket_of(entry: Path) -> Pending:
    """Return what a ticket says.

    Raises
    ------
    CorruptError
        It makes no sense, or another version of this tool wrote it.
    UnreadableError
        The file system says no.
    """
    ticket = entry / TICKET
    try:
        if ticket.stat().st_size <= _MOST:
            said: dict[str, Any] = {**json.loads(ticket.read_bytes())}
            files = tuple(PendingFile(**one) for one in said.pop("files"))
            right = said.pop("schema") == _SCHEMA and files and all(_is_right(one) for one in files)
            if right and set(said) == {"to", "name", "directory", "step"} and _is_name(said["name"], entry):
                return Pending(entry=entry, files=files, **said)
    except OSError as error:
        raise unreadable(ticket, error) from None
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise CorruptError(f"{ticket}: not what an uploader of this version wrote")


def _is_right(file: PendingFile) -> bool:
    kinds = {"name": str, "size": int, "mtime_ns": int, "sha256": str, "linked": bool}
    if any(type(getattr(file, field)) is not kind for field, kind in kinds.items()):
        return False
    return file.name[:1] not in ("", "/") and ".." not in file.name.split("/")


def _is_name(name: object, entry: Path) -> bool:
    return isinstance(name, str) and entry.name.partition("-")[2] == name
