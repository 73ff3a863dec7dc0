"""What `inspect` is asked, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptctl.model.selection import taken

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ckptctl.checks import Slot
    from ckptctl.model import Component, Finding, Found, GlobalUse, Module, Region
    from ckptctl.values import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which tensors to show: names that match an `include` glob and no `exclude` glob, of `only` one component."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    only: Component | None = None

    @property
    def all(self) -> bool:
        """Whether nothing is left out."""
        return not (self.include or self.exclude or self.only)

    def takes(self, name: str) -> bool:
        """Whether the globs take a name."""
        return taken((name,), self.include, self.exclude)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentRow:
    """One component: how many tensors and elements, how many bytes, which dtypes, and what kind it is.

    Tied tensors count once. `slots` are what an optimizer keeps; `about` is the kind in a few words.
    """

    component: Component
    prefix: str
    tensors: int
    parameters: int
    nbytes: int
    dtypes: tuple[str, ...]
    values: int
    about: str = ""
    slots: tuple[Slot, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRow:
    """One tensor: its type and shape, its bytes, and where they lie (offset in bytes, None if in several places)."""

    name: str
    component: Component
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: str
    offset: int | None
    layout: str
    shard: tuple[int, ...] | None = None
    tied: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectReport:
    """All that `inspect` found. `nbytes` is the size on disk; `parameters` counts the model's elements."""

    path: Path
    layout: str
    title: str
    formats: tuple[str, ...]
    nbytes: int
    files: int
    tensors: int
    parameters: int
    step: Found | None
    epoch: Found | None
    metrics: tuple[Found, ...]
    components: tuple[ComponentRow, ...]
    missing: tuple[Finding, ...]
    findings: tuple[Finding, ...]
    globals: tuple[GlobalUse, ...]
    tied: tuple[tuple[str, ...], ...]
    metadata: Mapping[str, str]
    modules: tuple[Module, ...]
    module_component: Component | None
    selected: int | None = None
    tensor_list: tuple[TensorRow, ...] | None = None
    values: State | None = None
    regions: tuple[Region, ...] | None = None
