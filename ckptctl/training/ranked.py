"""Save the state of all ranks into one directory: what all share, once; what is each rank's own; a manifest, last."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptctl.checks.digests import SUMS
from ckptctl.errors import CkptctlError, CorruptError, ExistsError, LockedError, UnreadableError
from ckptctl.layouts.saved_ranks import MANIFEST, Listed, Manifest, file_names, is_ours, manifest_of
from ckptctl.rewrite.carry_out import Written, carry_out
from ckptctl.rewrite.outputs import OutputFile, Outputs
from ckptctl.rewrite.targets import check_outputs
from ckptctl.storage.atomic import flush_directory, remove, write_small
from ckptctl.storage.directory import Directory
from ckptctl.tensors.gather import blocks
from ckptctl.values import BLOCKS_KEY, RANK_KEY, RANK_VALUES_KEY, VALUES_KEY

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ckptctl.model import TensorInfo
    from ckptctl.rewrite.options import Options
    from ckptctl.training.live import Live
    from ckptctl.training.ranks import Ranks

_HASHERS = 4
_CHUNK = 4 << 20


@dataclass(frozen=True, slots=True)
class _Place:
    """Where to write: whether the directory was made for it, and how often it was written before, and one more."""

    made: bool
    generation: int


def write_ranks(whole: OutputFile, live: Live, ranks: Ranks, options: Options) -> str:
    """Write what each rank has, `whole` for this one, into the directory of `live`; return the manifest's SHA-256."""
    directory = live.path
    with contextlib.ExitStack() as held:
        place = ranks.first(lambda: _prepare(directory, held))
        written: list[Written] = []
        try:
            shared = _shared(whole, live, ranks)
            outputs = _files(whole, live, ranks, shared, place.generation)
            ranks.agree(lambda: check_outputs(outputs, (), options))
            ranks.agree(lambda: written.extend(carry_out(outputs, (), options, lambda _: None).files))
            mine = tuple(written)
            if ranks.rank:
                written.clear()  # once rank 0 has been told it may commit: nobody else takes anything back
            listed = {one.path.name: one for found in ranks.gather(mine) for one in found}
            if not ranks.rank:
                written[:] = listed.values()
            return ranks.first(lambda: _commit(directory, place, listed, ranks.size))
        except BaseException:
            _clear(directory, written, made=place.made and ranks.rank == 0)
            raise


def _prepare(directory: Path, held: contextlib.ExitStack) -> _Place:
    """Make the directory where there is none, keep others from writing into it, and find names that nothing uses."""
    made = not os.path.lexists(directory)
    if made:
        if not directory.parent.is_dir():
            raise UnreadableError(f"{directory}: its directory does not exist")
        directory.mkdir()
        flush_directory(directory.parent)
    if not directory.is_dir():
        raise ExistsError(f"{directory}: something that is not a directory has this name")
    handle = held.enter_context(Directory(directory))
    try:
        handle.lock(needed=False)
    except LockedError:
        raise LockedError(f"{directory}: somebody else is saving to it", hint="one job for each directory") from None
    names = [entry.name for entry in directory.iterdir() if not entry.name.startswith(".nfs")]
    try:
        known = manifest_of(directory, names)
    except CorruptError:
        known = None  # nobody can load what is there
    if known is None:
        _check_ours(directory, names)
    return _Place(made=made, generation=known.generation + 1 if known else 1)


def _check_ours(directory: Path, names: list[str]) -> None:
    """Make sure that all there is in a directory was left by a save."""
    other = next((name for name in names if not is_ours(name)), "")
    if not other and names and not any("rank_" in name or name.startswith(f".{MANIFEST}") for name in names):
        other = "" if names == [MANIFEST] else names[0]
    if other:
        raise ExistsError(f"{directory}: it holds something else ({other})", hint="a directory for each checkpoint")


def _shared(whole: OutputFile, live: Live, ranks: Ranks) -> frozenset[str]:
    """Return the names of tensors whose bytes are the same on all ranks."""
    if ranks.size == 1:
        return frozenset()
    tied: dict[str, list[str]] = {}
    for name, kept in whole.ties.items():
        tied.setdefault(kept, []).append(name)

    def digests() -> dict[str, tuple[object, ...]]:
        mine = {name: item for name, item in whole.items.items() if name in live.tensors and name not in live.blocks}
        with ThreadPoolExecutor(min(_HASHERS, os.cpu_count() or 1)) as pool:
            made = pool.map(_digest, [item.source for item in mine.values()])
            return {
                name: (item.stored.dtype.name, item.stored.shape, tuple(tied.get(name, ())), digest)
                for (name, item), digest in zip(mine.items(), made, strict=True)
            }

    mine = ranks.agree(digests)
    first = ranks.first(lambda: mine)
    others = {name for name, digest in first.items() if mine.get(name) != digest}
    return frozenset(first).difference(*ranks.gather(others))


def _digest(tensor: TensorInfo) -> str:
    digest = hashlib.sha256()
    for block in blocks(tensor, most=_CHUNK):
        digest.update(block)
    return digest.hexdigest()


def _files(whole: OutputFile, live: Live, ranks: Ranks, shared: frozenset[str], generation: int) -> Outputs:
    """Return the files that this rank writes: its own, and for the first one that of what all share."""
    own_name, shared_name = file_names(generation, ranks.rank)
    ties = whole.ties
    plain = {key: text for key, text in whole.metadata.items() if key not in ties and key != VALUES_KEY}

    def file(name: str, items: Mapping[str, object], more: Mapping[str, str]) -> OutputFile:
        here = {tie: kept for tie, kept in ties.items() if kept in items}
        chosen = {key: item for key, item in whole.items.items() if key in items}
        return OutputFile(path=live.path / name, items=chosen, metadata={**plain, **more, **here})

    own = {name: item for name, item in whole.items.items() if name not in shared}
    texts = {RANK_KEY: f"{ranks.rank} of {ranks.size}", RANK_VALUES_KEY: whole.metadata[VALUES_KEY]}
    cut = {name: live.blocks[name] for name in own if name in live.blocks}
    if cut:
        texts[BLOCKS_KEY] = json.dumps(cut, separators=(",", ":"))
    files = [file(own_name, own, texts)]
    if ranks.rank == 0 and shared:
        files.append(file(shared_name, dict.fromkeys(shared), {}))
    return Outputs(files=tuple(files))


def _commit(directory: Path, place: _Place, written: Mapping[str, Written], size: int) -> str:
    """Write the manifest: from then on it is this state that is there; and clear the last one away."""
    files = {}
    for rank in range(size):
        for name in file_names(place.generation, rank):
            if name in written:
                whose = rank if name.startswith("rank") else None
                files[name] = Listed(nbytes=written[name].nbytes, sha256=written[name].sha256, rank=whose)
    for name, one in files.items():
        path = directory / name
        if not path.is_file() or path.stat().st_size != one.nbytes:
            raise UnreadableError(
                f"{path}: rank 0 does not see what rank {one.rank} wrote", hint="save to a file system that all share"
            )
    text = Manifest(world_size=size, generation=place.generation, files=files).text.encode()
    remove(directory / SUMS)  # a list of digests is of the state before
    write_small(directory / MANIFEST, text)
    flush_directory(directory)
    for entry in directory.iterdir():
        if is_ours(entry.name) and entry.name not in (*files, MANIFEST):
            with contextlib.suppress(OSError):  # what is left over is cleared away by the next save
                remove(entry)
    return hashlib.sha256(text).hexdigest()


def _clear(directory: Path, written: list[Written], *, made: bool) -> None:
    """Take back what a save wrote that came to nothing; what a manifest lists stays."""
    with contextlib.suppress(OSError, CkptctlError):
        known = manifest_of(directory, [entry.name for entry in directory.iterdir()])
        for one in written:
            if known is None or one.path.name not in known.files:
                remove(one.path)
        if made and known is None:
            directory.rmdir()
