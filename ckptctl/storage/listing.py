"""What stores say of a directory: names, sizes, times and tags, in one question."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptctl.storage.stores import asked

if TYPE_CHECKING:
    from ckptctl.storage.remote import RemotePath

_REVISION = "main"


@dataclass(frozen=True, slots=True)
class Entry:
    """What a listing says of a name; of a directory it has only that."""

    path: RemotePath
    size: int = 0
    modified: float = 0.0
    tag: str = ""
    directory: bool = False

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.name

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:  # noqa: ARG002  # as os.DirEntry has it
        """Return its size and time, as a path has them."""
        mode = stat.S_IFDIR | 0o755 if self.directory else stat.S_IFREG | 0o644
        seconds = int(self.modified)
        number = int.from_bytes(hashlib.blake2b(str(self.path).encode(), digest_size=7).digest(), "big")
        return os.stat_result((mode, number, 0, 1, 0, 0, self.size, seconds, seconds, seconds))

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
    """Ask the store what lies directly below a path."""
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
            when = one["last_modified"].timestamp()
            entries[name] = Entry(path / name, size=one["size"], modified=when, tag=one["e_tag"] or "")
    return dict(sorted(entries.items()))


def hub_key(parts: tuple[str, ...]) -> str:
    """Return where the Hub serves a file: ``owner/model/resolve/REVISION/file``."""
    owner, model, *rest = parts
    model, _, revision = model.partition("@")
    return "/".join((owner, model, "resolve", revision or _REVISION, *rest))


def _listed_hub(path: RemotePath) -> dict[str, Entry]:
    owner, model, *rest = path.parts[1:]
    model, _, revision = model.partition("@")
    key = "/".join(("api/models", owner, model, "tree", revision or _REVISION, *rest))
    try:
        raw = asked(path, lambda: path.store.get(key).bytes())
    except FileNotFoundError:
        return {}
    entries = {}
    for one in json.loads(bytes(raw)):
        name = str(one["path"]).rpartition("/")[2]
        # Its ids of objects are not the tags that the server gives with the bytes.
        entries[name] = Entry(path / name, size=int(one.get("size", 0)), directory=one["type"] == "directory")
    return dict(sorted(entries.items()))
