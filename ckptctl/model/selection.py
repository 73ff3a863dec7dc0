"""Which tensors are meant: globs over their names."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


def taken(names: Collection[str], include: Collection[str], exclude: Collection[str]) -> bool:
    """Whether one of the names of a tensor matches an `include` glob, if there are any, and none an `exclude` glob."""
    wanted = not include or any(fnmatchcase(name, glob) for name in names for glob in include)
    return wanted and not any(fnmatchcase(name, glob) for name in names for glob in exclude)
