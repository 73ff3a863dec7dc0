"""What `diff` answers."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ckptctl.model import Component, Found
    from ckptctl.tensors.measure import Measures
    from ckptctl.values.compare import ValueDiff


class Kind(enum.Enum):
    """How a tensor of A and the one of B are to each other."""

    EQUAL = "equal"
    CLOSE = "close"
    """Within the tolerance that was asked for."""
    ROUNDED = "rounded"
    """Of another type, and equal once rounded to the narrower one; whether that is a difference is for the options."""
    VALUES = "values"
    DTYPE = "dtype"
    """Of another type, and not equal once rounded."""
    SHAPE = "shape"
    UNREAD = "unread"
    """It could not be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two checkpoints: `tensors`, those by component, and `nbytes` count what was chosen of it."""

    path: Path
    title: str
    layout: str
    step: Found | None
    tensors: int
    components: Mapping[Component, int]
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLine:
    """A tensor that only one side has; `tied` is another name of the same bytes there."""

    name: str
    component: Component
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    tied: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDiff:
    """A tensor of both sides. `name` is that of B where it was renamed, `was` then that of A.

    `different` tells whether it counts as a difference; `measures` say how far apart the values are, None where they
    are equal, no numbers, or were not looked at; `why` is the reason if it could not be compared.
    """

    name: str
    component: Component
    kind: Kind
    different: bool
    dtype_a: str
    dtype_b: str
    shape_a: tuple[int, ...]
    shape_b: tuple[int, ...]
    nbytes: int
    was: str = ""
    measures: Measures | None = None
    why: str = ""

    @property
    def values_changed(self) -> bool:
        """Whether values differ, beyond what a type makes of them."""
        return self.different and self.kind in (Kind.VALUES, Kind.DTYPE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Renaming:
    """`old` stands in so many names of A where `new` stands in those of B; in front of the rest if `front`.

    `example` is one name of A and what it is called in B.
    """

    old: str
    new: str
    front: bool
    count: int
    example: tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TieDiff:
    """Names that are the same bytes on one side only: in B if the tie was `made`, else in A.

    `known` tells whether the other side is of a format that could hold the tie; if not, it is no difference.
    """

    names: tuple[str, ...]
    made: bool
    known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleDiff:
    """A module: how many of its tensors changed, and how far.

    `relative_l2` is the norm of the difference over that of A, both of the tensors that changed; None where they are no
    numbers. `max_abs` is the largest absolute difference; `not_finite` counts elements that became NaN or infinite, or
    ceased to be.
    """

    name: str
    component: Component
    changed: int
    tensors: int
    relative_l2: float | None
    max_abs: float
    not_finite: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffReport:
    """What differs between A and B.

    `equal` counts in what the options let pass; `complete` is False if it was stopped at the first difference.
    `compared` tensors are on both sides, `unchanged` of them are equal bit for bit; `tensors` are those that are not
    (with all of them if that was asked). `byte_identical` tells of two files whether their bytes are the same, None if
    that was not found out; `read` is how many bytes were read.
    """

    a: Side
    b: Side
    equal: bool
    complete: bool
    same_file: bool
    byte_identical: bool | None
    compared: int
    unchanged: int
    values_compared: int
    tensors: tuple[TensorDiff, ...]
    only_a: tuple[TensorLine, ...]
    only_b: tuple[TensorLine, ...]
    renamed: tuple[Renaming, ...]
    ties: tuple[TieDiff, ...]
    values: tuple[ValueDiff, ...]
    metadata: tuple[ValueDiff, ...]
    modules: tuple[ModuleDiff, ...]
    notes: tuple[str, ...]
    read: int

    @property
    def unread(self) -> bool:
        """Whether something could not be compared."""
        return any(one.kind is Kind.UNREAD for one in self.tensors) or any(one.unread for one in self.values)
