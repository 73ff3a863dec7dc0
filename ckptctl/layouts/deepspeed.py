"""DeepSpeed directories: ``latest`` and ``global_stepN/`` with model and optimizer states of each rank.

The flat partitions of ZeRO are listed as they are; which parameters lie in them is told by consolidation.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from ckptctl.errors import CkptctlError, CorruptError, counted
from ckptctl.layouts._components import split
from ckptctl.layouts._facts import Facts, facts
from ckptctl.layouts._layout import Layout, Scan, scan
from ckptctl.layouts._members import finding_of, missing
from ckptctl.layouts._trainer import with_trainer
from ckptctl.model import Checkpoint, Component, Contents, Finding, Part, TensorInfo
from ckptctl.storage import LocalFile
from ckptctl.values import as_mapping

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MODEL = re.compile(r"(?:zero_pp_rank_([0-9]{1,6})_)?mp_rank_([0-9]{1,4})_model_states\.pt")
_OPTIMIZER = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_([0-9]{1,6})_mp_rank_([0-9]{1,4})_optim_states\.pt")
_LATEST = "latest"
_MAX_TAG = 256


def accepts(seen: Scan) -> bool:
    """A directory with model states, or one whose ``latest`` names such a directory, or that has some."""
    if not seen.directory:
        return False
    tags = [name for name in seen.names if re.fullmatch(r"global_step[0-9]{1,18}", name)]
    return _has_states(seen) or bool(tags)


def open_(seen: Scan) -> Checkpoint:
    """Describe the newest state, the one that ``latest`` names."""
    findings: list[Finding] = []
    outer = seen
    if not _has_states(seen):
        seen = scan(seen.path / _tag(seen, findings), glance=seen.glance)
    models = {name: found for name in seen.names if (found := _MODEL.fullmatch(name))}
    optimizers = {name: found for name in seen.names if (found := _OPTIMIZER.fullmatch(name))}
    read: dict[str, Contents] = {}
    for name in (*models, *optimizers):
        one = _read(seen, name, findings, values=not read)
        read |= {name: one} if one else {}
    first = next((read[name] for name in models if name in read), None)
    if first is None:
        raise CorruptError(f"{seen.path}: no model states can be read")
    world = _number(first, "dp_world_size")
    findings += _incomplete(seen, models, optimizers, world)
    if not optimizers and _stage(first):
        findings.append(missing(seen, "the optimizer states of every rank (*_optim_states.pt)"))
    return with_trainer(outer, _checkpoint(seen, read, facts(seen.path, first), findings, world))


def _checkpoint(
    seen: Scan, read: Mapping[str, Contents], found: Facts, findings: list[Finding], world: int
) -> Checkpoint:
    return Checkpoint(
        path=seen.path,
        layout=LAYOUT.name,
        title=f"DeepSpeed, {counted(world, 'rank')}" if world else "DeepSpeed",
        files=tuple(read.values()),
        parts=_parts(read),
        step=found.step,
        epoch=found.epoch,
        metrics=found.metrics,
        findings=tuple(findings),
    )


def _has_states(seen: Scan) -> bool:
    return any(_MODEL.fullmatch(name) for name in seen.names)


def _tag(seen: Scan, findings: list[Finding]) -> str:
    """Return the directory that ``latest`` names, or else the one of the highest step."""
    tags = sorted((n for n in seen.names if re.fullmatch(r"global_step[0-9]{1,18}", n)), key=lambda n: int(n[11:]))
    if _LATEST not in seen.names:
        findings.append(missing(seen, _LATEST))
        return tags[-1]
    file = LocalFile(seen.path / _LATEST)
    text = file.range().head(_MAX_TAG + 1).decode("utf-8", "replace").removesuffix("\n")
    file.release()
    plain = text.isprintable() and text not in ("", ".", "..") and "/" not in text and "\\" not in text
    if not plain or file.size > _MAX_TAG:
        raise CorruptError(
            f"{seen.path / _LATEST}: it names {text[:80]!r}, which is no directory beside it",
            hint="names that lead out of the directory are never followed",
        )
    if text in seen.names:
        return text
    findings.append(replace(missing(seen, text), message=f"{text} is missing, though {_LATEST} names it"))
    return tags[-1]


def _read(seen: Scan, name: str, findings: list[Finding], *, values: bool) -> Contents | None:
    try:
        return seen.read(name, values=values)
    except CkptctlError as error:
        findings.append(finding_of(error, name))
        return None


def _incomplete(seen: Scan, models: Mapping[str, re.Match[str]], optimizers: Mapping[str, re.Match[str]],
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


def _parts(read: Mapping[str, Contents]) -> Mapping[Component, Part]:
    """The first model file as it is; of the others, tensors under the name of their rank."""
    parts: dict[Component, Part] = {}
    for name, contents in read.items():
        rank = next((found[1] for pattern in (_MODEL, _OPTIMIZER) if (found := pattern.fullmatch(name))), None)
        for component, part in split(contents).items():
            known = parts.get(component)
            if known is None and not name.endswith("_optim_states.pt"):
                parts[component] = part
                continue
            tensors = {
                f"rank{rank or 0}.{key}": _renamed(tensor, f"rank{rank or 0}.{key}")
                for key, tensor in part.tensors.items()
            }
            parts[component] = Part(
                component=component,
                prefix="",
                tensors={**(known.tensors if known else {}), **tensors},
                values={**part.values, **(known.values if known else {})},
            )
    return {component: parts[component] for component in Component if component in parts}


def _renamed(tensor: TensorInfo, name: str) -> TensorInfo:
    return replace(tensor, name=name)


def _stage(contents: Contents) -> int:
    """Return the ZeRO stage that the configuration states; zero keeps the optimizer in the model states."""
    config = as_mapping((as_mapping(contents.values) or {}).get("ds_config")) or {}
    value = (as_mapping(config.get("zero_optimization")) or {}).get("stage")
    return value if type(value) is int else 0


def _number(contents: Contents, key: str) -> int:
    value = (as_mapping(contents.values) or {}).get(key)
    return value if type(value) is int and 0 < value < 1 << 20 else 0


LAYOUT = Layout(
    name="deepspeed",
    title="DeepSpeed",
    about="a directory of DeepSpeed, ZeRO stages 0 to 3: `latest` and `global_stepN/`",
    accepts=accepts,
    open=open_,
)
