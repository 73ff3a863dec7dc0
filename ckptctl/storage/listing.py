"""What stores say of a directory: names, sizes, times and tags, in one question."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ckptctl.storage.set_aside import hidden
from ckptctl.storage.stores import asked, tag_of, transferred

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptctl.storage.remote import RemotePath

_PAGE, _MOST_AT_ONCE = 1000, 20_000


@dataclass(frozen=True, slots=True)
class Entry:
    """What a listing says of a name; of a directory it has only that. Only the Hub says a digest."""

    path: RemotePath
    size: int = 0
    modified: float = 0.0
    tag: str = ""
    directory: bool = False
    sha256: str = ""

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.name

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:  # noqa: ARG002  # as os.DirEntry has it
        """Return its size and time, as a path has them."""
        mode = stat.S_IFDIR | 0o755 if self.directory else stat.S_IFREG | 0o644
        seconds, exact = int(self.modified), int(self.modified * 1e9)
        number = int.from_bytes(hashlib.blake2b(str(self.path).encode(), digest_size=7).digest(), "big")
        fields = (mode, number, 0, 1, 0, 0, self.size, seconds, seconds, seconds)
        times = dict.fromkeys(("st_atime", "st_mtime", "st_ctime"), self.modified)
        return os.stat_result(fields, {**times, **{f"{name}_ns": exact for name in times}})

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        """Whether it is a directory."""
        return self.directory

    def is_file(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        """Whether it is an object."""
        return not self.directory

    def is_symlink(self) -> bool:
        """Return false: stores have none."""
        return False


def listing_of(path: RemotePath) -> dict[str, Entry]:
    """Ask the store what lies directly below a path; what was set aside there is left out."""
    entries = every_entry(path)
    gone = hidden(path, entries)
    return {name: entry for name, entry in entries.items() if name not in gone}


def every_entry(path: RemotePath) -> dict[str, Entry]:
    """Ask the store for the same, with what was set aside."""
    if path.scheme == "hf":
        return _listed_hub(path)
    found = asked(path, lambda: path.store.list_with_delimiter(path.key or None))
    entries = {}
    for prefix in found["common_prefixes"]:
        name = prefix.rstrip("/").rpartition("/")[2]
        entries[name] = Entry(path / name, directory=True)
    for one in found["objects"]:
        name = one["path"].rpartition("/")[2]
        if name and one["path"] != path.key:
            entries[name] = _of_object(path, name, one)
    return dict(sorted(entries.items()))


def listings_below(path: RemotePath) -> dict[str, dict[str, Entry]]:
    """Ask the store for all that lies below a path at once; return what each directory there holds, by its address.

    Where there is too much, nothing: then it takes fewer requests to ask where somebody looks.
    """
    found = asked(path, partial(_everything, path))
    listings: dict[str, dict[str, Entry]] = {}
    directories: dict[str, RemotePath] = {}
    start = len(path.key) + 1 if path.key else 0
    for one in found:
        if one["path"] == path.key:
            continue  # the empty object that some tools create for a directory
        *above, name = one["path"][start:].split("/")
        directory = path
        for part in above:
            directories[str(directory)] = directory
            listings.setdefault(str(directory), {})[part] = Entry(directory / part, directory=True)
            directory /= part
        directories[str(directory)] = directory
        there = listings.setdefault(str(directory), {})
        if name not in there:  # else it is the empty object that some tools create for a directory
            there[name] = _of_object(directory, name, one)
    return {
        where: {name: entry for name, entry in sorted(entries.items()) if name not in gone}
        for where, entries in listings.items()
        for gone in [hidden(directories[where], entries)]
    }


def _everything(path: RemotePath) -> list[Mapping[str, Any]]:
    """Return all objects below a path, or none if there are too many; each page after the first is one more request."""
    found: list[Mapping[str, Any]] = []
    for number, batch in enumerate(path.store.list(path.key or None, chunk_size=_PAGE)):
        if number:
            transferred.note()
        found += batch
        if len(found) > _MOST_AT_ONCE:
            return []
    return found


def _of_object(directory: RemotePath, name: str, one: Mapping[str, Any]) -> Entry:
    when = one["last_modified"].timestamp()
    return Entry(directory / name, size=one["size"], modified=when, tag=tag_of(one))


def _listed_hub(path: RemotePath) -> dict[str, Entry]:
    from ckptctl.storage.hub import listed_by_the_hub  # noqa: PLC0415  # only who looks there needs it

    entries = {}
    for one in listed_by_the_hub(path):
        name = one["path"].rpartition("/")[2]
        # Its ids of objects are not the tags that the server gives with the bytes.
        directory = one["type"] == "directory"
        entries[name] = Entry(path / name, size=one["size"], directory=directory, sha256=one["sha256"])
    return dict(sorted(entries.items()))
