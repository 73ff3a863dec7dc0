"""Whether there is something to consolidate, and what one has to know of it before trusting the result."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckptctl.errors import UnsupportedError, UsageError, counted, listed
from ckptctl.model import Severity
from ckptctl.rewrite.joining import taken_as_replicas
from ckptctl.rewrite.outputs import SAFETENSORS, TORCH_SUFFIXES
from ckptctl.tensors.coverage import uncovered

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from ckptctl.model import Checkpoint, Component, Part
    from ckptctl.rewrite.cuts import Cuts

_MISSING = frozenset({"missing-file", "missing-item", "missing-block", "truncated", "unfinished"})
_DATA = re.compile(r"__([0-9]{1,6})_[0-9]+\.distcp|shard-([0-9]{1,6})-.*")
_SHOWN = 4


def check(path: Path, checkpoint: Checkpoint, *, tagged: bool, narrow: bool) -> None:
    """Refuse what is not sharded, and what is not whole, naming files and tensors.

    Raises
    ------
    UsageError, UnsupportedError
        It is one or the other; the message says what.
    """
    if checkpoint.layout == "orbax":
        raise UnsupportedError(f"{path}: a checkpoint of Orbax, whose arrays are not read")
    if checkpoint.layout == "single-file" and not checkpoint.bases:
        raise UsageError(f"{path}: one file, not shards", hint=_instead(path))
    if (tagged or narrow) and checkpoint.layout != "deepspeed":
        option = "--tag chooses among states" if tagged else "--weights chooses among weights"
        raise UsageError(f"{path}: {option} of DeepSpeed, of which this is none")
    tensors = {name: tensor for part in checkpoint.parts.values() for name, tensor in part.tensors.items()}
    plain = all(len(one.pieces) == 1 and one.pieces[0].shape == one.shape for one in tensors.values())
    if checkpoint.layout == "rank-files" and len(checkpoint.files) == 1 and plain:
        only = checkpoint.files[0].range.file.path
        raise UsageError(
            f"{path}: {only.name} is the file of one rank, and nothing says whether there were others",
            hint=f"if it is all there is: ckptctl convert {only}",
        )
    if narrow and sum(one.shape == (0,) for one in tensors.values()) > 1:
        raise UnsupportedError(
            f"{path}: ZeRO-3 keeps no whole weights in 16 bits, unless they are gathered for a save",
            hint="--weights fp32 takes those that were trained",
        )
    apart = [one.message for one in checkpoint.findings if one.slug == "not-joined"]
    if apart:
        raise UnsupportedError(f"{path}: {'; '.join(apart)}", hint="merge them with the framework that wrote them")
    wrong = [one for one in checkpoint.findings if one.severity is Severity.ERROR]
    if not wrong or wrong[0].slug not in _MISSING:
        return
    lost = [name for name, tensor in tensors.items() if uncovered(tensor)]
    what = f"; {counted(len(lost), 'tensor')} of {len(tensors)} are not whole, the first is {lost[0]}" if lost else ""
    missing = ", ".join(dict.fromkeys(one.message for one in wrong[:_SHOWN]))
    more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    raise UnsupportedError(f"{path}: {missing}{more}{what}", hint="nothing was written; ckptctl verify shows all of it")


def _instead(path: Path) -> str:
    ranked = re.search(r"rank_?[0-9]+|^consolidated\.[0-9]{2}", path.name)
    return f"give the directory of all ranks: {path.parent}" if ranked else f"ckptctl convert {path}"


def absent_names(checkpoint: Checkpoint) -> frozenset[str]:
    """Return names that the file of some rank lacks, of files that each hold what their rank has."""
    if checkpoint.layout != "rank-files":
        return frozenset()
    every = [frozenset(one.tensors) for one in checkpoint.files]
    return frozenset().union(*every) - frozenset(every[0]).intersection(*every)


def doubts(
    checkpoint: Checkpoint, before: Mapping[Component, Part], after: Mapping[Component, Part], cuts: Cuts
) -> Iterator[str]:
    """Yield what nothing in the files says, and was taken to be so."""
    if checkpoint.layout == "dcp-safetensors":
        yield (
            f"nothing in these files says how many ranks there were: if there were more than {ranks_of(checkpoint)}, "
            "tensors are cut short"
        )
    if cuts.rules or cuts.shapes:
        alike = [name for component, part in before.items() for name in taken_as_replicas(part, after[component], cuts)]
        if alike:
            yield f"nothing says whether they were cut; all ranks agree, so they were taken as whole: {listed(alike)}"
    names = {name for part in after.values() for name in part.tensors}
    bare = {name.removeprefix(f"{part.prefix}.") for part in after.values() for name in part.tensors}
    lacking = [name for name in cuts.shapes if name not in names and name not in bare]
    if lacking:
        yield f"the reference has them, the shards do not: {listed(lacking)}"


def ranks_of(checkpoint: Checkpoint) -> int:
    """Return of how many ranks there is something: of a distributed save by the names of its data files."""
    names = [one.range.file.path.name for one in checkpoint.files]
    if checkpoint.layout == "deepspeed":
        found = {match[1] for name in names if (match := re.match(r"(?:bf16_|fp16_)?zero_pp_rank_([0-9]+)_", name))}
        return max(len(found), 1)
    numbers = {match[1] or match[2] for name in names if (match := _DATA.fullmatch(name))}
    return len(numbers) or len(names)


def ignored(checkpoint: Checkpoint, made: Iterable[Path]) -> tuple[str, ...]:
    """Return files of weights in the directory that are neither part of the checkpoint nor what was `made` of it."""
    if not checkpoint.path.is_dir():
        return ()
    used = {one.range.file.path.name for one in checkpoint.files}
    used |= {path.name for path in made if path.parent.resolve() == checkpoint.path.resolve()}
    weights = (SAFETENSORS, *TORCH_SUFFIXES)
    return tuple(
        sorted(one.name for one in checkpoint.path.iterdir() if one.suffix in weights and one.name not in used)
    )
