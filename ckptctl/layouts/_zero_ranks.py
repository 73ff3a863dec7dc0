"""Whether the files of all ranks of DeepSpeed are there, once each, and of one save."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckptctl.errors import counted
from ckptctl.layouts._members import NOT_JOINED, missing
from ckptctl.model import Aspect, Finding, Severity
from ckptctl.tensors import scalar
from ckptctl.values import as_mapping

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ckptctl.layouts._layout import Scan
    from ckptctl.model import Contents

MODEL = re.compile(r"(?:zero_pp_rank_([0-9]{1,6})_)?mp_rank_([0-9]{1,4})_model_states\.pt")
OPTIMIZER = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_([0-9]{1,6})_mp_rank_([0-9]{1,4})_optim_states\.pt")
_EXPERTS = re.compile(r"(?:layer_[0-9]+_)?expert_[0-9]+_mp_rank_.*|expp_rank_.*")


def incomplete(seen: Scan, models: Mapping[str, re.Match[str]], optimizers: Mapping[str, re.Match[str]],
                world: int) -> Iterator[Finding]:  # fmt: skip
    """Yield the files of ranks that should be there, by the world size that the model states record."""
    ranks = {int(found[1]) for found in optimizers.values()}
    example = next(iter(optimizers), "")
    for rank in range(max(world, max(ranks, default=-1) + 1)) if optimizers else ():
        if rank not in ranks:
            yield missing(seen, re.sub(r"rank_[0-9]+_mp", f"rank_{rank}_mp", example, count=1))
    stage3 = {int(found[1]): name for name, found in models.items() if found[1] is not None}
    for rank in range(max(world, max(stage3, default=-1) + 1)) if stage3 else ():
        if rank not in stage3:
            yield missing(seen, f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")


def mixed(read: Mapping[str, Contents]) -> Iterator[Finding]:
    """Yield a finding if files say that they are of different steps: of the model's training, or of the optimizer's."""
    said: dict[str, dict[float, str]] = {"global_steps": {}, "steps of the optimizer": {}}
    for name, contents in read.items():
        step, what = _step_of(contents), "steps of the optimizer" if OPTIMIZER.fullmatch(name) else "global_steps"
        if step is not None:
            said[what].setdefault(step, name)
    for what, found in said.items():
        if len(found) > 1:
            (one, name), (other, again) = list(found.items())[:2]
            message = f"{name} is of {one:g} {what}, {again} of {other:g}: files of different saves"
            yield Finding(
                aspect=Aspect.STRUCTURE, severity=Severity.ERROR, slug="mixed-ranks", where=again, message=message
            )


def _step_of(contents: Contents) -> float | None:
    """Return the number of steps that a file states, of the optimizer the largest."""
    steps = [found for name, one in contents.tensors.items() if name.endswith(".step") and (found := scalar(one))]
    value = (as_mapping(contents.values) or {}).get("global_steps")
    return max(steps, default=None) if not isinstance(value, int) else value


def twice(models: Mapping[str, re.Match[str]], optimizers: Mapping[str, re.Match[str]]) -> Iterator[Finding]:
    """Yield a finding for each rank that has two files."""
    for files in (models, optimizers):
        ranks: dict[tuple[int, int], str] = {}
        for name, match in files.items():
            other = ranks.setdefault((int(match[1] or -1), int(match[2])), name)
            if other != name:
                yield Finding(
                    aspect=Aspect.STRUCTURE, severity=Severity.ERROR, slug="duplicate-rank", where=name,
                    message=f"{other} and {name} are both of one rank",
                )  # fmt: skip


def apart(seen: Scan, files: list[re.Match[str]]) -> Iterator[Finding]:
    """Yield a warning for what is described, but not brought together."""
    cut = len({match[2] for match in files})
    experts = [name for name in seen.names if _EXPERTS.fullmatch(name)]
    for found, what in (
        (cut > 1, f"tensors are cut among {cut} ranks of tensor parallelism (mp_rank), and nothing says how"),
        (experts, f"experts lie in {counted(len(experts), 'file')} of their own, not read"),
    ):
        if found:
            yield Finding(
                aspect=Aspect.STRUCTURE, severity=Severity.WARNING, slug=NOT_JOINED, where=seen.path.name, message=what
            )
