"""DeepSpeed directories: ``latest`` and ``global_stepN/`` with model and optimizer states of each rank.

The flat partitions of ZeRO are described as the parameters that lie in them, in fp32 as they were trained.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from ckptctl.errors import CkptctlError, CorruptError, UsageError, counted
from ckptctl.layouts._components import split
from ckptctl.layouts._facts import Facts, facts
from ckptctl.layouts._layout import Layout, Scan, scan
from ckptctl.layouts._members import finding_of, missing
from ckptctl.layouts._ranks import exchanged
from ckptctl.layouts._trainer import with_trainer
from ckptctl.layouts._zero import FROZEN, read_zero, settings, shared, stage_of
from ckptctl.layouts._zero_ranks import MODEL, OPTIMIZER, apart, incomplete, mixed, twice
from ckptctl.model import Checkpoint, Component, Contents, Finding, Part, TensorInfo
from ckptctl.storage import open_file
from ckptctl.values import as_mapping

if TYPE_CHECKING:
    from collections.abc import Mapping

_LATEST = "latest"
_MODULE, _MOMENTS = "module", "optimizer.state"
_MAX_TAG, _SHOWN = 256, 4


def accepts(seen: Scan) -> bool:
    """A directory with model states, or one whose ``latest`` names such a directory, or that has some."""
    if not seen.directory:
        return False
    return _has_states(seen) or bool(_tags(seen)) or _has_states(_named(seen))


def open_(seen: Scan) -> Checkpoint:
    """Describe the newest state, the one that ``latest`` names."""
    findings: list[Finding] = []
    outer = seen
    if seen.tag and _has_states(seen) and seen.path.name != seen.tag:
        raise UsageError(f"{seen.path}: it is one state itself, not {seen.tag}", hint="leave --tag out")
    if not _has_states(seen):
        inner = scan(seen.path / (seen.tag or _tag(seen, findings)), glance=seen.glance)
        seen = replace(inner, narrow=seen.narrow)
    models = {name: found for name in seen.names if (found := MODEL.fullmatch(name))}
    optimizers = {name: found for name in seen.names if (found := OPTIMIZER.fullmatch(name))}
    read: dict[str, Contents] = {}
    for name in (*models, *optimizers):
        one = _read(seen, name, findings, values=not read)
        read |= {name: one} if one else {}
    first = next((read[name] for name in models if name in read), None)
    if first is None:
        why = "; ".join(finding.message for finding in findings) or "mp_rank_00_model_states.pt is missing"
        raise CorruptError(f"{seen.path}: no model states can be read: {why}")
    world = max(_number(first, "dp_world_size"), *(_partitions(read[name]) for name in optimizers if name in read), 0)
    findings += [*incomplete(seen, models, optimizers, world), *mixed(read), *twice(models, optimizers)]
    for pattern in (MODEL, OPTIMIZER):
        findings += exchanged(read.values(), pattern, 1)
    if not optimizers and _stage(first):
        findings.append(missing(seen, "the optimizer states of every rank (*_optim_states.pt)"))
    parts = _parts(read)
    findings += [] if findings else apart(seen, [*models.values(), *optimizers.values()])
    if optimizers and not seen.glance and not findings:
        parts = _with_zero(seen, parts, _by_rank(read, MODEL), _by_rank(read, OPTIMIZER))
    return with_trainer(outer, _checkpoint(seen, read, parts, facts(seen.path, first), findings, world))


def _checkpoint(  # noqa: PLR0913, PLR0917
    seen: Scan,
    read: Mapping[str, Contents],
    parts: Mapping[Component, Part],
    found: Facts,
    findings: list[Finding],
    world: int,
) -> Checkpoint:
    return Checkpoint(
        path=seen.path,
        layout=LAYOUT.name,
        title=_title(seen, read, world),
        files=tuple(read.values()),
        parts=parts,
        step=found.step,
        epoch=found.epoch,
        metrics=found.metrics,
        findings=tuple(findings),
    )


def _by_rank(read: Mapping[str, Contents], pattern: re.Pattern[str]) -> dict[int, Contents]:
    """Return contents by rank; empty if tensors are cut among ranks as well, which nothing here says how."""
    found = {name: match for name in read if (match := pattern.fullmatch(name))}
    if len({match[2] for match in found.values()}) != 1:
        return {}
    return {int(match[1] or 0): read[name] for name, match in found.items()}


def _with_zero(
    seen: Scan, parts: Mapping[Component, Part], model: Mapping[int, Contents], optimizer: Mapping[int, Contents]
) -> Mapping[Component, Part]:
    """Put the parameters that lie in the partitions of all ranks in the place of those partitions."""
    if not model or not optimizer or not stage_of(next(iter(optimizer.values()))) or Component.MODEL not in parts:
        return parts
    zero = read_zero(model, optimizer)
    first = model[min(model)]
    aliases = shared(first.values)
    moments = {**zero.moments}
    for alias, source in aliases.items():
        moments |= {
            alias + name.removeprefix(source): one
            for name, one in zero.moments.items()
            if name.startswith(f"{source}.")
        }
    found = dict(parts)
    if not seen.narrow:
        found[Component.MODEL] = _trained(parts[Component.MODEL], zero.weights, aliases)
    found = {component: _without_fragments(part) for component, part in found.items()}
    found[Component.OPTIMIZER] = Part(
        component=Component.OPTIMIZER,
        prefix=_MOMENTS,
        tensors={f"{_MOMENTS}.{name}": replace(one, name=f"{_MOMENTS}.{name}") for name, one in moments.items()},
        values=settings(optimizer[min(optimizer)]),
    )
    return {
        component: found[component]
        for component in Component
        if component in found and found[component].prefix != FROZEN
    }


def _without_fragments(part: Part) -> Part:
    """Leave out what is described under the names of parameters that are not trained."""
    if part.component is Component.MODEL:
        return part
    return replace(part, tensors={name: one for name, one in part.tensors.items() if f"{FROZEN}." not in name})


def _trained(part: Part, weights: Mapping[str, TensorInfo], aliases: Mapping[str, str]) -> Part:
    """The weights in fp32, and what only the model's state has: buffers, and in stage 1 what is not trained."""
    tensors: dict[str, TensorInfo] = {}
    for name, tensor in part.tensors.items():
        bare = name.removeprefix(f"{_MODULE}.")
        if name == bare:
            continue  # fragments, and the like: they are described by the names of their parameters
        better = weights.get(bare) or weights.get(aliases.get(bare, ""))
        tensors[name] = replace(better, name=name) if better else tensor
    for bare, source in ({name: name for name in weights} | dict(aliases)).items():
        name = f"{_MODULE}.{bare}"
        if source in weights:
            tensors.setdefault(name, replace(weights[source], name=name))
    return replace(part, tensors=tensors, prefix=_MODULE)


def _title(seen: Scan, read: Mapping[str, Contents], world: int) -> str:
    stage = next((found for name, one in read.items() if OPTIMIZER.fullmatch(name) and (found := stage_of(one))), 0)
    weights = "16-bit weights" if seen.narrow else "fp32 weights"
    said = [f"DeepSpeed ZeRO-{stage}" if stage else "DeepSpeed", counted(world, "rank") if world else "",
            weights if stage and not seen.glance else ""]  # fmt: skip
    return ", ".join(text for text in said if text)


def _has_states(seen: Scan) -> bool:
    return any(MODEL.fullmatch(name) for name in seen.names)


def _tags(seen: Scan) -> list[str]:
    """Return the directories that DeepSpeed names by itself, by step."""
    return sorted((n for n in seen.names if re.fullmatch(r"global_step[0-9]{1,18}", n)), key=lambda n: int(n[11:]))


def _named(seen: Scan) -> Scan:
    """Look into the directory that is asked for, or that ``latest`` names; an empty look if there is none."""
    name = seen.tag or (_text_of(seen)[0] if (seen.path / _LATEST).is_file() else "")
    plain = name in seen.names and (seen.path / name).is_dir()
    return scan(seen.path / name) if plain else replace(seen, names=())


def _text_of(seen: Scan) -> tuple[str, int]:
    file = open_file(seen.path / _LATEST)
    text = file.range().head(_MAX_TAG + 1).decode("utf-8", "replace").removesuffix("\n")
    file.release()
    return text, file.size


def _tag(seen: Scan, findings: list[Finding]) -> str:
    """Return the directory that ``latest`` names, or else the one of the highest step."""
    tags = _tags(seen)
    if _LATEST not in seen.names:
        lost = missing(seen, _LATEST)
        findings.append(replace(lost, message=f"{lost.message}; --tag chooses among {', '.join(tags[-_SHOWN:])}"))
        return tags[-1]
    text, size = _text_of(seen)
    plain = text.isprintable() and text not in ("", ".", "..") and "/" not in text and "\\" not in text
    if not plain or size > _MAX_TAG:
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


def _parts(read: Mapping[str, Contents]) -> Mapping[Component, Part]:
    """The first model file as it is; of the others, tensors under the name of their rank."""
    parts: dict[Component, Part] = {}
    for name, contents in read.items():
        rank = next((found[1] for pattern in (MODEL, OPTIMIZER) if (found := pattern.fullmatch(name))), None)
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


def _partitions(contents: Contents) -> int:
    """Return the number of ranks that an optimizer file states."""
    count = (as_mapping((as_mapping(contents.values) or {}).get("optimizer_state_dict")) or {}).get("partition_count")
    first = count[0] if isinstance(count, (list, tuple)) and count else count
    return first if type(first) is int and 0 < first < 1 << 20 else 0


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
