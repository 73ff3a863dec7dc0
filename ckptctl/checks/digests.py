"""Digests that are on record beside files: ``.sha256`` sidecars, and ``SHA256SUMS`` or a manifest of a directory."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ckptctl.checks.digest_lines import MAX_SUMS, lines_of
from ckptctl.errors import CkptctlError
from ckptctl.layouts.saved_ranks import MANIFEST, manifest_of
from ckptctl.model.endings import ENDINGS
from ckptctl.storage import StoredFile, has_file, names_beside, stated_digest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckptctl.model import Checkpoint

SUMS = "SHA256SUMS"
SUFFIX = ".sha256"
_MAX_SIDECAR = 1 << 20
_SHARD = re.compile(r"(.+)-[0-9]{5,}-of-[0-9]{5,}(\.[A-Za-z0-9]+)")
_STORE = "the store's own listing"
_ABOVE = 3
"""So many directories above that of a file may have a list of digests that names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A digest on record: SHA-256 in hex, the file that records it, and whose it may be.

    `digest` is empty where that file holds none. If several files share a bare sidecar that names none of them,
    `shared` are the names of all.
    """

    digest: str
    source: Path
    shared: tuple[str, ...] = ()


def recorded_for(path: Path, names: Iterable[str], sums: dict[str, str]) -> tuple[Recorded, ...]:
    """Return the digests on record for a file; `names` are all in its directory, `sums` what its ``SHA256SUMS`` lists.

    Only the last component of a name that a sidecar states counts: a file that was moved still has its digest.
    """
    there = frozenset(names)
    found: list[Recorded] = []
    if path.name + SUFFIX in there:
        found.append(Recorded(digest=_only(path.with_name(path.name + SUFFIX), path.name), source=_beside(path)))
    elif path.suffix and path.stem + SUFFIX in there:
        bare = _bare(path, there)
        found += [bare] if bare else []
    if path.name in sums:
        found.append(Recorded(digest=sums[path.name], source=path.with_name(SUMS if SUMS in there else MANIFEST)))
    return tuple(found)


def sums_of(directory: Path, names: Iterable[str]) -> dict[str, str]:
    """Return what the ``SHA256SUMS`` of a directory, or its manifest, lists, by the names there."""
    found: dict[str, str] = {}
    with contextlib.suppress(CkptctlError):  # then there is no digest on record
        manifest = manifest_of(directory, names)
        found |= {name: one.sha256 for name, one in manifest.files.items()} if manifest else {}
    listed = [(name, digest) for digest, name in lines_of(directory / SUMS, MAX_SUMS)] if SUMS in names else []
    found |= {name.removeprefix("./"): digest for name, digest in listed if not name.startswith("/")}
    found |= _by_whole_paths(directory, {name: digest for name, digest in listed if name.startswith("/")})
    found.pop("", None)
    return found


def _by_whole_paths(directory: Path, listed: dict[str, str]) -> dict[str, str]:
    """Return what is listed by whole paths, by the names in a directory.

    A list that was made elsewhere is of the directory that all its paths have in common; that a file of it is not
    here proves nothing.
    """
    here = os.path.abspath(directory)  # noqa: PTH100  # the path as it is named, links and all
    inside = {name: digest for name, digest in listed.items() if name.startswith(f"{here}/")}
    found = {name.removeprefix(f"{here}/"): digest for name, digest in inside.items()}
    moved = {name: digest for name, digest in listed.items() if name not in inside}
    common = os.path.commonpath([os.path.dirname(name) for name in moved]) if moved else ""  # noqa: PTH120
    last = Counter(os.path.basename(name) for name in moved)  # noqa: PTH119
    for name, digest in moved.items():
        there, alone = name.removeprefix(common).lstrip("/"), os.path.basename(name)  # noqa: PTH119
        if not (directory / there).is_file() and last[alone] == 1:
            there = alone  # the list is of files of several directories, of which this may be one
        if there not in found and (directory / there).is_file():
            found[there] = digest
    return found


def recorded_digest(checkpoint: Checkpoint) -> str:
    """Return the SHA-256 on record for a checkpoint that is one file, in lower case; empty if there is none."""
    file = checkpoint.files[0].range.file if len(checkpoint.files) == 1 else None
    if not isinstance(file, StoredFile):
        return ""
    names = names_beside(file.path, (f"{file.path.name}{SUFFIX}",))
    found = recorded_for(file.path, names, sums_of(file.path.parent, names))
    return next((one.digest.lower() for one in found if one.digest and not one.shared), "")


def _beside(path: Path) -> Path:
    return path.with_name(path.name + SUFFIX)


def _bare(path: Path, there: frozenset[str]) -> Recorded | None:
    """``model.sha256`` beside ``model.pt``: it is of the file that it names, or of the only one with that stem."""
    source = path.with_name(path.stem + SUFFIX)
    lines = list(lines_of(source, _MAX_SIDECAR))
    by_name = {Path(name).name: digest for digest, name in lines if name}
    if path.name in by_name:
        return Recorded(digest=by_name[path.name], source=source)
    twins = tuple(sorted(n for n in there if Path(n).stem == path.stem and Path(n).suffix in ENDINGS))
    if any(twin in by_name for twin in twins) or (twins and path.suffix not in ENDINGS):
        return None  # it is of another one
    return Recorded(digest=lines[0][0] if lines else "", source=source, shared=twins if len(twins) > 1 else ())


def _only(source: Path, name: str) -> str:
    """Return the digest in a sidecar of one file: of the line that names it, or else of the first."""
    lines = list(lines_of(source, _MAX_SIDECAR))
    return next((digest for digest, said in lines if Path(said).name == name), lines[0][0] if lines else "")


class OnRecord:
    """The digests on record in the directories of a checkpoint, and in the lists of those above it."""

    def __init__(self, root: Path | None) -> None:
        self._listings: dict[Path, tuple[list[str], dict[str, str]]] = {}
        self._above: dict[Path, bool] = {}
        self._root = root if root and root.is_dir() else None
        if self._root:
            self._listing(self._root)

    def of(self, path: Path) -> tuple[Recorded, ...]:
        """Return what is on record of a file."""
        names, sums = self._listing(path.parent)
        found = recorded_for(path, names or names_beside(path, (f"{path.name}{SUFFIX}",)), sums)
        stated = stated_digest(path)
        if stated:
            found += (Recorded(digest=stated, source=path.with_name(_STORE)),)
        for above in list(path.parents)[1 : 1 + _ABOVE]:
            if above not in self._above:
                self._above[above] = has_file(above / SUMS)
            if self._above[above]:
                digest = self._listing(above)[1].get(path.relative_to(above).as_posix())
                found += (Recorded(digest=digest, source=above / SUMS),) if digest else ()
        return found

    def index_of(self, path: Path) -> Path | None:
        """Return the index of shards beside a file that is one by its name."""
        shard = _SHARD.fullmatch(path.name)
        name = f"{shard[1]}{shard[2]}.index.json" if shard else ""
        return path.with_name(name) if name and name in self._listing(path.parent)[0] else None

    def listed(self) -> list[Path]:
        """Return the files that the lists in a directory name, where it is one checkpoint."""
        root = self._root
        if not root:
            return []
        within = [
            (directory, sums) for directory, (_, sums) in self._listings.items() if directory.is_relative_to(root)
        ]
        return [directory / name for directory, sums in within for name in sorted(sums)]

    def _listing(self, directory: Path) -> tuple[list[str], dict[str, str]]:
        if directory not in self._listings:
            try:
                names = [entry.name for entry in directory.iterdir()]
            except OSError:
                names = []
            self._listings[directory] = names, sums_of(directory, names)
        return self._listings[directory]
