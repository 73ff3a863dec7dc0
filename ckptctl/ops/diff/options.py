"""What to compare of two checkpoints, and what counts as equal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptctl.model.selection import taken

if TYPE_CHECKING:
    import re

    from ckptctl.model import Component
    from ckptctl.tensors.tolerance import Tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to compare, and what counts as equal.

    Parameters
    ----------
    only
        One component; None for all.
    include, exclude
        Globs over names as they are compared: without the path that leads to the component.
    strip_prefix
        Prefixes that are cut off the names of both sides, however nested.
    rename
        Substitutions in the names of A, in order, that make them those of B.
    tolerance
        Numbers that are close by it count as equal; None compares bits.
    dtype_tolerant
        A tensor whose type changed counts as equal if the wider one, rounded to the narrower type, is the other.
    all
        Describe what is equal as well.
    first
        Stop at the first difference.
    """

    only: Component | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    strip_prefix: tuple[str, ...] = ()
    rename: tuple[tuple[re.Pattern[str], str], ...] = ()
    tolerance: Tolerance | None = None
    dtype_tolerant: bool = False
    all: bool = False
    first: bool = False

    @property
    def selects(self) -> bool:
        """Whether globs choose among the tensors; plain values are left out then."""
        return bool(self.include or self.exclude)

    def takes(self, name: str) -> bool:
        """Whether the globs take a name."""
        return taken((name,), self.include, self.exclude)
