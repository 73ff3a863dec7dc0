"""What a layout is: how to know it from one look at a path, and how to open it."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptctl import formats
from ckptctl.storage import open_file, unreadable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ckptctl.model import Checkpoint, Contents


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """One look at a path: whether it is a directory, and the names in it.

    At a `glance` only names, sizes, headers and small metadata count; what lies in optimizers is passed over. `tag`
    chooses one of several states in a directory, `narrow` the weights that were used in place of those in fp32.
    """

    path: Path
    directory: bool
    names: tuple[str, ...]
    glance: bool = False
    tag: str = ""
    narrow: bool = False

    def read(self, name: str, *, values: bool = False) -> Contents:
        """Describe a file beside the others, whole where its `values` are needed.

        Raises
        ------
        CkptctlError
            It cannot be read; the class says why.
        """
        file = open_file(self.path / name)
        contents = (formats.glance if self.glance and not values else formats.read)(file.range())
        file.release()
        return contents


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


def scan(path: Path, *, glance: bool = False) -> Scan:
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
    return Scan(path=path, directory=directory, names=names, glance=glance)
