"""Files that differ only in the number of a rank, ``NAME-rank0.pt`` and so on: one checkpoint.

Each holds its rank's shards of tensors that it describes whole, or whole tensors: the same ones as every other rank,
or parts of larger ones of which nothing says how they were cut. Those of the other ranks are kept as copies.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from ckptctl import formats
from ckptctl.errors import CorruptError, counted
from ckptctl.layouts._components import split
from ckptctl.layouts._facts import facts
from ckptctl.layouts._layout import Layout, Scan
from ckptctl.layouts._members import missing
from ckptctl.layouts._ranks import exchanged
from ckptctl.layouts.joined_ranks import with_different
from ckptctl.model import Checkpoint, Contents, Finding, Severity, TensorInfo
from ckptctl.storage import open_ahead

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_RANKED = (
    re.compile(r"((?:.*[-_.])?rank[-_]?)([0-9]{1,6})(\.(?:pt|pth|bin|ckpt))"),
    re.compile(r"(consolidated\.)([0-9]{2,6})(\.pth)"),
)
_WORLD = ("world_size",)


def accepts(seen: Scan) -> bool:
    """A directory in which all files with a rank's number differ in nothing else, or those of one model do."""
    return seen.directory and _group(seen) is not None


def open_(seen: Scan) -> Checkpoint:
    """Describe all ranks as one checkpoint."""
    stem, suffix = _group(seen) or ("", "")
    ranks = _groups(seen)[stem, suffix]
    open_ahead(seen.path / name for name in ranks.values())
    contents = {rank: seen.read(name, values=True) for rank, name in sorted(ranks.items())}
    first = contents[min(contents)]
    tensors = _joined(seen, contents)
    found = facts(seen.path / f"{stem}{suffix}", first)
    lost = tuple(_incomplete(seen, stem, suffix, contents))
    return Checkpoint(
        path=seen.path,
        layout=LAYOUT.name,
        title=f"{formats.title_of(first)}, {counted(len(contents), 'rank')}",
        files=tuple(_without_rank_note(one) for one in contents.values()),
        parts=split(replace(first, tensors=tensors, values=with_different(first.values, contents))),
        step=found.step,
        epoch=found.epoch,
        metrics=found.metrics,
        findings=(
            *_twice(seen), *(lost or _uncovered(seen, tensors.values())), *_exchanged(contents.values()),
            *_passed_over(seen, stem),
        ),
    )  # fmt: skip


def _group(seen: Scan) -> tuple[str, str] | None:
    """Return the files to read: all that there are, or else those of the only group that is called a model."""
    groups = _groups(seen)
    models = [key for key in groups if key[0].startswith("model")]
    return next(iter(groups)) if len(groups) == 1 else models[0] if len(models) == 1 else None


def _twice(seen: Scan) -> Iterator[Finding]:
    """Yield a finding for each rank that has two files, its number written in two ways."""
    known: dict[tuple[str, str, int], str] = {}
    for name in seen.names:
        found = next((match for pattern in _RANKED if (match := pattern.fullmatch(name))), None)
        other = known.setdefault((found[1], found[3], int(found[2])), name) if found else name
        if other != name:
            message = f"{other} and {name} are both of one rank"
            yield replace(missing(seen, name), slug="duplicate-rank", message=message)


def _uncovered(seen: Scan, tensors: Iterable[TensorInfo]) -> Iterator[Finding]:
    """Yield a finding if blocks are missing: their rank may be the last, which no name tells."""
    torn = [tensor for tensor in tensors if not tensor.whole]
    if torn:
        here = sum(math.prod(piece.shape) for piece in torn[0].pieces)
        more = f" (and of {len(torn) - 1} more)" if len(torn) > 1 else ""
        message = f"the blocks of {torn[0].name}{more} are {here} of {torn[0].numel} elements: a rank is missing"
        yield replace(missing(seen, ""), slug="missing-block", message=message)


def _passed_over(seen: Scan, stem: str) -> Iterator[Finding]:
    """Yield a note for each other group of files, which is no part of what was read."""
    for (other, suffix), ranks in _groups(seen).items():
        if other != stem:
            message = f"{other}N{suffix}: {counted(len(ranks), 'file')} of ranks that are not read, beside the model"
            yield replace(missing(seen, other), slug="not-read", severity=Severity.NOTE, message=message)


def _exchanged(files: Iterable[Contents]) -> Iterator[Finding]:
    for pattern in _RANKED:
        yield from exchanged(files, pattern, 2)


def _groups(seen: Scan) -> dict[tuple[str, str], dict[int, str]]:
    """Return name and suffix of each group, with the file of each rank, ranks compared as numbers."""
    groups: dict[tuple[str, str], dict[int, str]] = {}
    for name in seen.names:
        found = next((match for pattern in _RANKED if (match := pattern.fullmatch(name))), None)
        if found:
            groups.setdefault((found[1], found[3]), {})[int(found[2])] = name
    return groups


def _joined(seen: Scan, contents: dict[int, Contents]) -> dict[str, TensorInfo]:
    """Bring the blocks of all ranks together; what another rank has of the same place is a copy."""
    joined: dict[str, TensorInfo] = {}
    for rank, one in contents.items():
        for name, tensor in one.tensors.items():
            known = joined.get(name)
            if known is None or known.layout != "strided":
                joined.setdefault(name, tensor)
                continue
            if tensor.layout != "strided" or known.dtype is not tensor.dtype:
                raise CorruptError(f"{seen.path}: rank {rank} describes {name} otherwise than another rank")
            if known.shape != tensor.shape and not (_is_plain(known) and _is_plain(tensor)):
                raise CorruptError(f"{seen.path}: rank {rank} describes {name} otherwise than another rank")
            places = {piece.offsets for piece in known.pieces}
            fresh = [] if _is_plain(known) else [one for one in tensor.pieces if one.offsets not in places]
            again = [one for one in tensor.pieces if one not in fresh and 0 not in one.shape]
            joined[name] = replace(known, pieces=(*known.pieces, *fresh), copies=(*known.copies, *again))
    return joined


def _is_plain(tensor: TensorInfo) -> bool:
    """Whether a rank has all of a tensor as one piece: nothing says that there is more of it."""
    return len(tensor.pieces) == 1 and tensor.pieces[0].shape == tensor.shape


def _without_rank_note(contents: Contents) -> Contents:
    return replace(contents, findings=tuple(found for found in contents.findings if found.slug != "one-rank"))


def _incomplete(seen: Scan, stem: str, suffix: str, contents: dict[int, Contents]) -> Iterator[Finding]:
    """Yield ranks that are missing: below the highest one, or of a world whose size a file states."""
    named = re.search(r"world_size_([0-9]{1,6})", stem)
    sizes = {*(_world_size(one) for one in contents.values()), int(named[1]) if named else 0} - {0}
    world = max(sizes, default=0)
    for rank in range(max(world, max(contents) + 1)):
        if rank not in contents:
            yield missing(seen, _name(seen, stem, suffix, rank))
    if len(sizes) > 1:
        lost = missing(seen, "a rank")
        message = f"the ranks state different world sizes: {sorted(sizes)}"
        yield replace(lost, slug="mixed-ranks", message=message)
    steps = {step.value for one in contents.values() if (step := facts(seen.path, one).step)}
    if len(steps) > 1:
        message = f"the ranks are of different steps: {sorted(steps)}"
        yield replace(missing(seen, "a rank"), slug="mixed-ranks", message=message, severity=Severity.ERROR)


def _name(seen: Scan, stem: str, suffix: str, rank: int) -> str:
    """Return the name of the file of a rank, its number written as in those that are there."""
    width = min(len(name) - len(stem) - len(suffix) for name in seen.names if name.startswith(stem))
    return f"{stem}{rank:0{max(width, 1)}d}{suffix}"


def _world_size(contents: Contents) -> int:
    values = contents.values if isinstance(contents.values, dict) else {}
    found = next((values[key] for key in _WORLD if key in values), 0)
    return found if type(found) is int and 0 < found < 1 << 20 else 0


LAYOUT = Layout(
    name="rank-files",
    title="a file for each rank",
    about="files that differ only in a rank's number, `NAME-rank0.pt` and so on, with shards or whole tensors",
    accepts=accepts,
    open=open_,
)
