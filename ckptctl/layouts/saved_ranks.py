"""What `ckptctl.training.save` writes into a directory: a file for each rank, one of what all have, and a manifest.

``manifest.json`` is written last: with it, and every file that it lists, the checkpoint is whole. What no two ranks
share lies in ``rank_00000.safetensors`` and so on, with the plain values of the rank; tensors that are the same on all
ranks lie in ``shared.safetensors``. When a checkpoint is replaced the new files have a number more in their names.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckptctl.errors import CorruptError, UnreadableError, counted, listed
from ckptctl.formats import restore_rank
from ckptctl.layouts._components import split
from ckptctl.layouts._facts import facts
from ckptctl.layouts._layout import Layout, Scan
from ckptctl.layouts._members import missing, unfinished
from ckptctl.layouts.joined_ranks import apart, joined
from ckptctl.model import Checkpoint, Contents, Finding
from ckptctl.storage import open_ahead, open_file
from ckptctl.values import BLOCKS_KEY, RANK_KEY, RANK_VALUES_KEY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

MANIFEST = "manifest.json"
SCHEMA = "ckptctl.manifest/1"
_FILE = re.compile(r"\.?(?:rank_([0-9]{5,6})|shared)(?:-[0-9]{1,9})?\.safetensors(?:\.ckptctl-tmp)?")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_RANK = re.compile(r"([0-9]{1,6}) of ([0-9]{1,6})")
_MOST = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A file as the manifest lists it: its bytes, its SHA-256, and whose it is; None for what all ranks share."""

    nbytes: int
    sha256: str
    rank: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Of how many ranks a checkpoint is, and its files by name; `generation` counts how often it was replaced."""

    world_size: int
    generation: int
    files: Mapping[str, Listed]

    @property
    def text(self) -> str:
        """The manifest as it is written."""
        files = {name: {"nbytes": one.nbytes, "sha256": one.sha256} for name, one in self.files.items()}
        document = {"schema": SCHEMA, "world_size": self.world_size, "generation": self.generation, "files": files}
        return json.dumps(document, indent=2) + "\n"


def file_names(generation: int, rank: int) -> tuple[str, str]:
    """Return what the files of a rank, and of what all share, are called."""
    number = f"-{generation}" if generation > 1 else ""
    return f"rank_{rank:05d}{number}.safetensors", f"shared{number}.safetensors"


def is_ours(name: str) -> bool:
    """Whether a name is that of such a file, or of a manifest, finished or not."""
    return bool(_FILE.fullmatch(name)) or name in (MANIFEST, f".{MANIFEST}.ckptctl-tmp")


def manifest_of(directory: Path, names: Iterable[str]) -> Manifest | None:
    """Read the manifest of a directory in which there are `names`; None if it has none.

    Raises
    ------
    CorruptError
        It is malformed.
    """
    if MANIFEST not in names or not any(map(_FILE.fullmatch, names)):
        return None
    file = open_file(directory / MANIFEST)
    try:
        document = json.loads(file.range().read() if file.size <= _MOST else b"")
        listed = {str(name): _listed(name, entry) for name, entry in document["files"].items()}
        world, generation = document["world_size"], document["generation"]
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise CorruptError(f"{file.path}: it is no {SCHEMA}") from None
    file.release()
    ranks = sorted(one.rank for one in listed.values() if one.rank is not None)
    numbers = type(world) is type(generation) is int and generation > 0
    all_there = bool(ranks) and world == len(ranks) and ranks == list(range(len(ranks)))
    if document.get("schema") != SCHEMA or not numbers or not all_there:
        raise CorruptError(f"{file.path}: it is no {SCHEMA}, or its ranks are not as many as it says")
    return Manifest(world_size=world, generation=generation, files=listed)


def _listed(name: str, entry: Mapping[str, object]) -> Listed:
    found, nbytes, digest = _FILE.fullmatch(name), entry["nbytes"], entry["sha256"]
    if not found or name.startswith(".") or type(nbytes) is not int or not isinstance(digest, str):
        raise ValueError(name)
    if nbytes < 0 or not _SHA256.fullmatch(digest):
        raise ValueError(name)
    return Listed(nbytes=nbytes, sha256=digest, rank=int(found[1]) if found[1] else None)


def accepts(seen: Scan) -> bool:
    """A directory with such files, whole or half-written."""
    return seen.directory and any(map(_FILE.fullmatch, seen.names))


def open_(seen: Scan) -> Checkpoint:
    """Describe all ranks as one checkpoint; what only one of them has bears its number in its name."""
    manifest = manifest_of(seen.path, seen.names)
    if manifest is None:
        found = unfinished(seen, f"{MANIFEST}, which is written last, is missing")
        return Checkpoint(
            path=seen.path, layout=LAYOUT.name, title="unfinished files of ranks", files=(), parts={}, findings=(found,)
        )
    findings = list(_incomplete(seen, manifest))
    there = {name: one for name, one in manifest.files.items() if name not in {finding.where for finding in findings}}
    if seen.glance:  # sizes tell whether it is whole, the first rank how far it has come
        there = {name: one for name, one in there.items() if not one.rank}
    open_ahead(seen.path / name for name in there)
    files = {name: seen.read(name) for name in there}
    findings += [found for name, one in there.items() for found in _exchanged(seen, manifest, one, files[name])]
    shared = next((files[name] for name, one in there.items() if one.rank is None), None)
    ranks = {one.rank: files[name] for name, one in there.items() if one.rank is not None}
    if not findings and ranks:
        ranks = {rank: restore_rank(one, shared) for rank, one in ranks.items()}
    whole = joined(ranks[0], ranks, shared) if 0 in ranks else None
    findings += [] if seen.glance else apart(seen, ranks, shared)
    progress = facts(seen.path, ranks[0]) if 0 in ranks else None
    return Checkpoint(
        path=seen.path,
        layout=LAYOUT.name,
        title=f"training state of ckptctl, {counted(manifest.world_size, 'rank')}",
        files=tuple(_as_member(one) for one in files.values()),
        parts=split(whole) if whole else {},
        values=whole.values if whole else None,
        step=progress.step if progress else None,
        epoch=progress.epoch if progress else None,
        metrics=progress.metrics if progress else (),
        findings=tuple(findings),
    )


def rank_of(seen: Scan, manifest: Manifest, rank: int) -> tuple[Contents, Contents | None]:
    """Describe what one rank has, with all that its values name, and the file of what all ranks share.

    Raises
    ------
    CkptctlError
        A file is missing, or cannot be read.
    """
    wrong = [one.message for one in _incomplete(seen, manifest)]
    if wrong:
        raise CorruptError(f"{seen.path}: {listed(wrong)}")
    by_rank = {one.rank: name for name, one in manifest.files.items()}
    shared = seen.read(by_rank[None]) if None in by_rank else None
    return restore_rank(seen.read(by_rank[rank]), shared), shared


def _incomplete(seen: Scan, manifest: Manifest) -> Iterator[Finding]:
    """Yield files that are missing, or not as long as they were."""
    for name, one in manifest.files.items():
        try:
            size = (seen.path / name).stat().st_size if name in seen.names else -1
        except OSError as error:
            raise UnreadableError(f"{seen.path / name}: {error.strerror}") from None
        if size < 0:
            yield replace(missing(seen, name), where=name)
        elif size != one.nbytes:
            message = f"{name} has {size} of {one.nbytes} bytes"
            yield replace(missing(seen, name), slug="truncated", where=name, message=message)


def _exchanged(seen: Scan, manifest: Manifest, one: Listed, contents: Contents) -> Iterator[Finding]:
    """Yield a finding for a file that was written by another rank, or for another number of ranks."""
    said = _RANK.fullmatch(contents.metadata.get(RANK_KEY, ""))
    if one.rank is not None and (not said or (int(said[1]), int(said[2])) != (one.rank, manifest.world_size)):
        name = contents.range.file.path.name
        message = f"{name} is not of rank {one.rank} of {manifest.world_size}: {said[0] if said else 'it does not say'}"
        yield replace(missing(seen, name), slug="exchanged", where=name, message=message)


def _as_member(contents: Contents) -> Contents:
    """Return a file of the whole without what only matters where it stands alone."""
    metadata = {
        key: text for key, text in contents.metadata.items() if key not in (RANK_KEY, RANK_VALUES_KEY, BLOCKS_KEY)
    }
    findings = tuple(found for found in contents.findings if found.slug != "one-rank")
    return replace(contents, metadata=metadata, findings=findings)


LAYOUT = Layout(
    name="saved-ranks",
    title="a file for each rank, and a manifest",
    about="`rank_00000.safetensors` and so on with `manifest.json`, as `ckptctl.training.save` writes them",
    accepts=accepts,
    open=open_,
)
