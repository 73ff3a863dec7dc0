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
from ckptctl.storage.stores import asked, tag_of

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
_BEGINNING = b'{"schema": "ckptctl.set-aside/'
MARK = ".ckptctl-set-aside"
"""In a directory that was set aside, for whoever looks at it by its own address: the name of its record."""
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

    def only_adds(self, found: Iterable[Stored]) -> bool:
        """Whether all that was not moved is as it was, whatever else is there."""
        return {one for one in self.objects if one.name not in self.moved} <= set(found)

    def to_bytes(self) -> bytes:
        """Return it as it is written."""
        return json.dumps({"schema": _SCHEMA, **asdict(self)}).encode()


def record_of(raw: bytes) -> Record:
    """Return a record from what was written.

    Raises
    ------
    ValueError
        It is none, or says something that no prune would.
    """
    try:
        found: dict[str, Any] = {**json.loads(raw)}
        objects = tuple(
            Stored(str(one["name"]), int(one["size"]), str(one["tag"]), float(one["modified"]))
            for one in found["objects"]
        )
        record = Record(str(found["name"]), objects, tuple(map(str, found["moved"])), bool(found["restoring"]))
        sane = found["schema"] == _SCHEMA and _is_sane(record)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError("it does not say what was set aside") from error
    if not sane:
        raise ValueError("it does not say what was set aside")
    return record


def _is_sane(record: Record) -> bool:
    names = [one.name for one in record.objects]
    plain = record.name not in ("", ".", "..") and "/" not in record.name and not record.name.startswith(".ckptctl-")
    below = all(name == record.name or name.startswith(f"{record.name}/") for name in names)
    "".join((record.name, *names)).encode()  # a lone surrogate is no name
    return plain and below and bool(names) and set(record.moved) <= set(names)


def stored_below(directory: RemotePath, name: str, *, single: bool = False) -> tuple[Stored, ...]:
    """Ask the store for all objects of a name in a directory: those below it, or the one of that name.

    With `single` it is known to be the latter. A directory's own empty object, as some tools create it, does not
    count, nor does the mark of what was set aside.
    """
    path = directory / name
    every = [] if single else asked(path, lambda: [one for some in path.store.list(path.key) for one in some])
    every = [one for one in every if one["path"] != path.key]
    if not every:
        try:
            every = [asked(path, lambda: path.store.head(path.key))]
        except FileNotFoundError:
            return ()
    start = len(directory.key) + 1 if directory.key else 0
    return tuple(
        sorted(
            Stored(one["path"][start:], one["size"], tag_of(one), one["last_modified"].timestamp())
            for one in every
            if one["path"] != f"{path.key}/{MARK}"
        )
    )


def read_record(directory: RemotePath, entry: str) -> Record | None:
    """Return what a record says; None if there is no such object, or it is something else, of whatever size.

    Raises
    ------
    ValueError
        It is a record that cannot be understood.
    """
    path = directory / entry
    try:
        if not asked(path, lambda: path.store.head(path.key))["size"]:
            return None
        head = _read(path, _HEAD)
        if not head.startswith(_BEGINNING):
            return None
        return record_of(head if len(head) < _HEAD else _read(path, None))
    except FileNotFoundError:
        return None


def _read(path: RemotePath, length: int | None) -> bytes:
    options = {"range": (0, length)} if length else {}
    return bytes(asked(path, lambda: path.store.get(path.key, options=options).bytes()))


def hidden(directory: RemotePath, entries: Mapping[str, Entry]) -> frozenset[str]:
    """Return which of the names in a directory are those of what was set aside; a few are looked at side by side."""
    named = {entry: entry[len(PREFIX) :].partition("-")[2] for entry in entries if entry.startswith(PREFIX)}
    wanted = [entry for entry, name in named.items() if name in entries and entries[entry].size]
    found = [_pool.submit(partial(_hidden_by, directory, entry)) for entry in wanted]
    return frozenset(name for one in found if (name := one.result()))


def _hidden_by(directory: RemotePath, entry: str) -> str:
    try:
        record = read_record(directory, entry)
    except ValueError:
        return ""  # it hides nothing; who prunes is told
    return record.name if record and record.hides(stored_below(directory, record.name, single=record.single)) else ""


def is_set_aside(path: RemotePath) -> bool:
    """Whether what lies at an address itself is what a prune has set aside, and nothing was written there since."""
    if path.is_bucket or not (path / MARK).has_object():
        return False
    mark = path / MARK
    try:
        entry = bytes(asked(mark, lambda: mark.store.get(mark.key).bytes())).decode("utf-8", "replace")
        record = read_record(path.parent, entry) if entry.startswith(PREFIX) and "/" not in entry else None
    except (FileNotFoundError, ValueError):
        return False
    return bool(record and record.name == path.name and record.hides(stored_below(path.parent, path.name)))


def to_move(objects: Iterable[Stored], most: int = 1 << 62) -> tuple[Stored, ...]:
    """Return which objects make a checkpoint of the others: marks, indexes, or else the small and the first other.

    The first by name, of at most so many bytes where there is one: of the files of ranks that is rank 0.
    """
    every = sorted(objects, key=lambda one: one.name)
    known = [one for one in every if LAST_WRITTEN.fullmatch(one.name.rpartition("/")[2])]
    small = sorted((one for one in every if one.size <= _SMALL), key=lambda one: one.size)[:_FEW]
    others = sorted((one for one in every if one.size > _SMALL), key=lambda one: one.size > most)
    return tuple(known[:_FEW] or [*small, *others[:1]])
