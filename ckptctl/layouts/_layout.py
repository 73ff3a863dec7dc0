"""What a layout is: how to know it from one look at a path, and how to open it."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptctl.storage import unreadable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ckptctl.model import Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """One look at a path: whether it is a directory, and the names in it."""

    path: Path
    directory: bool
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One way in which files make a checkpoint.

    `accepts` decides from names alone; `open` reads headers and small metadata and raises a
    `CkptctlError` where they cannot be read or contradict each other.
    """

    name: str
    title: str
    about: str
    accepts: Callable[[Scan], bool]
    open: Callable[[Scan], Checkpoint]


def scan(path: Path) -> Scan:
    """Look at a path once.

    Raises
    ------
    UnreadableError
        There is nothing there, or it may not be looked at.
    """
    try:
        directory = stat.S_ISDIR(path.stat().st_mode)
        names = tuple(sorted(entry.name for entry in path.iterdir())) if directory else ()
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None
    return Scan(path=path, directory=directory, names=names)
