"""What was set aside in a store: its objects stay where they are, an object beside them says what they are.

Stores rename nothing, and copying terabytes to do so is no option. So the record ``.ckptctl-trash-TIME-NAME`` lists
the objects of NAME with size, tag and time, and what makes them a checkpoint in the eyes of others (indexes, marks) is
moved below ``.ckptctl-trash/``. Whoever lists the directory through `ckptctl.storage` does not see NAME any more,
unless something was written there since.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ckptctl.storage.daemons import Daemons
from ckptctl.storage.stores import asked

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ckptctl.storage.listing import Entry
    from ckptctl.storage.remote import RemotePath

PREFIX = ".ckptctl-trash-"
"""How the names of what was set aside begin, in stores and on disk."""
MOVED = ".ckptctl-trash"
"""Where in the same directory of a store what was moved lies."""
LOCK = ".ckptctl-lock"
OWN_NAMES = frozenset({MOVED, LOCK, ".ckptctl-upload"})
_SCHEMA = "ckptctl.set-aside/1"
_BEGINNING = f'{{"schema": "{_SCHEMA}"'.encode()
_HEAD = 64 << 10
_SMALL, _FEW = 1 << 20, 100
LAST_WRITTEN = re.compile(
    r"\.metadata|.+\.index\.json|manifest\.json|trainer_state\.json|latest|zarr\.json"
    r"|_CHECKPOINT_METADATA|_METADATA|commit_success(?:\.txt)?|manifest\.ocdbt|\.complete|_SUCCESS"
)
"""Names of what makes several objects one checkpoint: without it no framework takes the rest for one."""
_pool = Daemons(16, "ckptctl-set-aside")


@dataclass(frozen=True, slots=True, order=True)
class Stored:
    """An object as a listing has it. `name` is that below the directory; `modified` is in seconds since 1970."""

    name: str
    size: int
    tag: str
    modified: float


@dataclass(frozen=True, slots=True)
class Record:
    """What was set aside under a `name`: its objects, which of them were `moved`, whether it is on its way back."""

    name: str
    objects: tuple[Stored, ...]
    moved: tuple[str, ...] = ()
    restoring: bool = False

    @property
    def single(self) -> bool:
        """Whether it is an object, and no directory."""
        return [one.name for one in self.objects] == [self.name]

    def hides(self, found: Iterable[Stored]) -> bool:
        """Whether objects are those that were set aside, and nothing else."""
        return not self.restoring and set(found) <= set(self.objects)

    def to_bytes(self) -> bytes:
        """Return it as it is written."""
        return json.dumps({"schema": _SCHEMA, **asdict(self)}).encode()


def record_of(raw: bytes) -> Record:
    """Return a record from what was written.

    Raises
    ------
    ValueError
        It is none.
    """
    try:
        found: dict[str, Any] = {**json.loads(raw)}
        objects = tuple(
            Stored(str(one["name"]), int(one["size"]), str(one["tag"]), float(one["modified"]))
            for one in found["objects"]
        )
        moved = tuple(map(str, found["moved"]))
        return Record(name=str(found["name"]), objects=objects, moved=moved, restoring=bool(found["restoring"]))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError("it does not say what was set aside") from error


def stored_below(directory: RemotePath, name: str, *, single: bool = False) -> tuple[Stored, ...]:
    """Ask the store for all objects of a name in a directory: those below it, or the one of that name.

    With `single` it is known to be the latter.
    """
    path = directory / name
    every = [] if single else asked(path, lambda: [one for some in path.store.list(path.key) for one in some])
    if not every:
        try:
            every = [asked(path, lambda: path.store.head(path.key))]
        except FileNotFoundError:
            return ()
    start = len(directory.key) + 1 if directory.key else 0
    return tuple(
        sorted(
            Stored(one["path"][start:], one["size"], one["e_tag"] or "", one["last_modified"].timestamp())
            for one in every
        )
    )


def read_record(directory: RemotePath, entry: str) -> Record | None:
    """Return what a record says; None if there is no such object, or it is something else, of whatever size."""
    path = directory / entry
    try:
        head = _read(path, _HEAD)
        if not head.startswith(_BEGINNING):
            return None
        return record_of(head if len(head) < _HEAD else _read(path, None))
    except (FileNotFoundError, ValueError):
        return None


def _read(path: RemotePath, length: int | None) -> bytes:
    options = {"range": (0, length)} if length else {}
    return bytes(asked(path, lambda: path.store.get(path.key, options=options).bytes()))


def hidden(directory: RemotePath, entries: Mapping[str, Entry]) -> frozenset[str]:
    """Return which of the names in a directory are those of what was set aside; a few are looked at side by side."""
    named = {entry: entry[len(PREFIX) :].partition("-")[2] for entry in entries if entry.startswith(PREFIX)}
    wanted = [entry for entry, name in named.items() if name in entries and not entries[entry].directory]
    found = [_pool.submit(partial(_hidden_by, directory, entry)) for entry in wanted]
    return frozenset(name for one in found if (name := one.result()))


def _hidden_by(directory: RemotePath, entry: str) -> str:
    record = read_record(directory, entry)
    return record.name if record and record.hides(stored_below(directory, record.name, single=record.single)) else ""


def to_move(objects: Iterable[Stored]) -> tuple[Stored, ...]:
    """Return which objects make a checkpoint of the others: marks, indexes, or else the small and one more."""
    every = sorted(objects, key=lambda one: one.size)
    known = [one for one in every if LAST_WRITTEN.fullmatch(one.name.rpartition("/")[2])]
    small = [one for one in every if one.size <= _SMALL]
    return tuple(known[:_FEW] or [*small[:_FEW], *every[len(small) : len(small) + 1]])
