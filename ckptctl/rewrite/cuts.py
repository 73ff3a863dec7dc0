"""How tensors were cut, where their files do not say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ckptctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """How tensors were cut, where their files do not say: the shapes of the whole by name, and rules by glob.

    `ordered` says that the shapes are in the order of the model's parameters.
    """

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    rules: tuple[tuple[str, int], ...] = ()
    ordered: bool = True


def parse_split(text: str) -> tuple[str, int]:
    """Read ``GLOB=DIM``, divided at the last ``=``.

    Raises
    ------
    UsageError
        It has another form.
    """
    glob, mark, dim = text.rpartition("=")
    if not mark or not glob or not (dim.isascii() and dim.isdigit() and len(dim) < 3):
        raise UsageError(f"--split {text[:60]!r} is not of the form GLOB=DIM", hint="such as '*.wo.weight=1'")
    return glob, int(dim)
