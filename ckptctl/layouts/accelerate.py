"""What accelerate's ``save_state`` writes: a model, ``optimizer.bin``, ``scheduler.bin`` and more, a file each.

The number in the directory's name counts saves, not steps; the step stands in the random states.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from ckptctl.layouts._components import merged
from ckptctl.layouts._dcp import holds_dcp, read_dcp
from ckptctl.layouts._index import indexes_of
from ckptctl.layouts._layout import Layout, Scan, scan
from ckptctl.layouts._members import find_members, missing, rank_gaps, read_members, table
from ckptctl.layouts._trainer import with_trainer
from ckptctl.model import Checkpoint, Component, Found
from ckptctl.values import as_mapping

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ckptctl.model import Finding, Part

_NUMBER = r"(_[0-9]{1,6})?"
_TABLE = table(
    (Component.MODEL, rf"(model{_NUMBER}\.safetensors|pytorch_model{_NUMBER}\.bin)"),
    (Component.OPTIMIZER, rf"optimizer{_NUMBER}\.bin"),
    (Component.SCHEDULER, rf"scheduler{_NUMBER}\.bin"),
    (Component.RNG, r"random_states_[0-9]{1,6}\.pkl"),
    (Component.DATA, rf"(sampler|dl_state_dict){_NUMBER}\.bin"),
    (Component.TRAINER, r"scaler\.pt"),
    (Component.OTHER, r"custom_checkpoint_[0-9]{1,6}\.pkl"),
)
_FSDP = re.compile(r"(?:pytorch_model_fsdp|optimizer)_[0-9]{1,6}")
_RANK = re.compile(r"random_states_([0-9]{1,6})\.pkl")


def accepts(seen: Scan) -> bool:
    """A directory with the random states of a rank, or with an optimizer beside a model."""
    names = set(seen.names)
    with_model = any(component is Component.MODEL for component, _ in find_members(seen, _TABLE)) or indexes_of(seen)
    if any(_FSDP.fullmatch(name) and name.startswith("pytorch_model") for name in names):
        return seen.directory
    return seen.directory and (any(map(_RANK.fullmatch, names)) or ("optimizer.bin" in names and bool(with_model)))


def open_(seen: Scan) -> Checkpoint:
    """Describe the directory as one checkpoint."""
    members = _chosen(find_members(seen, _TABLE))
    indexes = [(Component.MODEL, path.name) for path in indexes_of(seen)[:1]]
    files, found, findings = read_members(seen, [*indexes, *members], needed="random_states_0.pkl")
    parts = dict(found)
    for name in filter(_FSDP.fullmatch, seen.names):
        inner = scan(seen.path / name)
        if holds_dcp(inner):
            read = read_dcp(inner)
            files, findings = (*files, *read.files), (*findings, *read.findings)
            parts = merged(parts, _numbered(read.parts(), name))
    described = Checkpoint(
        path=seen.path,
        layout=LAYOUT.name,
        title="accelerate state",
        files=files,
        parts=parts,
        step=_step(parts),
        findings=(*findings, *_incomplete(seen, {component for component, _ in [*indexes, *members]})),
    )
    return with_trainer(seen, described)


def _chosen(members: list[tuple[Component, str]]) -> list[tuple[Component, str]]:
    """Leave out a pickle of a model beside a safetensors file of it, as accelerate does."""
    names = {name for _, name in members}
    pickles = {f"pytorch_{name.removesuffix('.safetensors')}.bin" for name in names if name.endswith(".safetensors")}
    return [member for member in members if member[1] not in pickles]


def _numbered(parts: Mapping[Component, Part], name: str) -> Mapping[Component, Part]:
    """Put the tensors of a second model, and of those that follow, under the name of its directory."""
    if name.endswith("_0"):
        return parts
    return {
        component: replace(
            part,
            prefix="",
            tensors={f"{name}.{key}": replace(one, name=f"{name}.{key}") for key, one in part.tensors.items()},
            values={f"{name}.{key}": value for key, value in part.values.items()},
        )
        for component, part in parts.items()
    }


def _step(parts: Mapping[Component, Part]) -> Found | None:
    for stem, values in (parts[Component.RNG].values if Component.RNG in parts else {}).items():
        step = (as_mapping(values) or {}).get("step")
        # It counts only batches under accumulate(): zero says that nobody counted.
        if isinstance(step, int) and step > 0 and not isinstance(step, bool):
            return Found(name="step", value=step, where=f"{stem}: step")
    return None


def _incomplete(seen: Scan, there: set[Component]) -> Iterator[Finding]:
    if Component.MODEL not in there and not any(name.startswith("pytorch_model_fsdp") for name in seen.names):
        yield missing(seen, "the model")
    if Component.OPTIMIZER not in there and not any(name.startswith("optimizer") for name in seen.names):
        yield missing(seen, "optimizer.bin")
    yield from rank_gaps(seen, _RANK, "random_states_{}.pkl")


LAYOUT = Layout(
    name="accelerate",
    title="accelerate state",
    about="a directory of accelerate's `save_state`",
    accepts=accepts,
    open=open_,
)
