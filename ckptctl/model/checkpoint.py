"""What one file holds, and what several of them make together."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ckptctl.model.finding import Finding
    from ckptctl.model.tensors import TensorInfo
    from ckptctl.storage import ByteRange


class Component(enum.Enum):
    """What a group of tensors and values is for."""

    MODEL = "model"
    OPTIMIZER = "optimizer"
    SCHEDULER = "scheduler"
    RNG = "rng"
    TRAINER = "trainer"
    DATA = "data"
    OTHER = "other"


class Level(enum.Enum):
    """How far a global that a pickle names can be trusted, best first."""

    KNOWN = "known"
    """Part of torch, NumPy or Python data; interpreted by ckptctl itself."""
    INERT = "inert"
    """A data class; shown as data, never built."""
    FOREIGN = "foreign"
    """Anything else: a loader would import it."""
    DANGEROUS = "dangerous"
    """Foreign, and of a kind that a loader would run to do anything at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalUse:
    """A global that a pickle names: what an unpickler would import, and how often it would call it."""

    module: str
    name: str
    level: Level
    calls: int
    opcodes: tuple[str, ...]
    count: int

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Some bytes of a file, accounted for. `kind` is header, padding, data, unused or index."""

    offset: int
    length: int
    kind: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A number, and where it was found: ``inside: global_step``, ``in the name``."""

    name: str
    value: float
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What one file holds. `values` is its nested plain state, with `TensorRef`s in place of tensors.

    `sha256` is what a file that needs this one says of it.
    """

    format: str
    range: ByteRange
    tensors: Mapping[str, TensorInfo]
    values: object = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    globals: tuple[GlobalUse, ...] = ()
    findings: tuple[Finding, ...] = ()
    sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The tensors and values of one component; `prefix` is the dotted path that leads to them."""

    component: Component
    prefix: str
    tensors: Mapping[str, TensorInfo]
    values: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What a delta says of its base: the name beside it, bytes and SHA-256, and the names of the tensors it gives.

    `beyond` are the names of the files that this base needs itself, the nearest first.
    """

    name: str
    size: int
    sha256: str
    tensors: tuple[str, ...]
    beyond: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One saved state: the files it lies in, and what is in them, by component.

    `values` is the whole tree of plain values, where several files hold one; else each of them has its own. `bases`
    are what a delta says of the files that it needs, the nearest first; they are in `files` after it.
    """

    path: Path
    layout: str
    title: str
    files: tuple[Contents, ...]
    parts: Mapping[Component, Part]
    values: object = None
    step: Found | None = None
    epoch: Found | None = None
    metrics: tuple[Found, ...] = ()
    findings: tuple[Finding, ...] = ()
    bases: tuple[Base, ...] = ()
