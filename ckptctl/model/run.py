"""A checkpoint among its siblings, and the runs that they make."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from pathlib import Path

    from ckptctl.model.checkpoint import Found


class State(enum.Enum):
    """Whether everything of a checkpoint is there, as far as names, sizes and headers tell."""

    WHOLE = "whole"
    UNFINISHED = "unfinished"
    """The save did not reach its end."""
    DAMAGED = "damaged"
    """It was whole, or claims to be, and is not."""
    UNKNOWN = "unknown"
    """It could not be looked into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completeness:
    """The state of a checkpoint, and why it is not whole, in plain words."""

    state: State
    why: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether everything is there."""
        return self.state is State.WHOLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """Something in a run that points at a checkpoint: a link, a text file such as ``latest``, a record of the best.

    `target` is the name that it gives; `dangling` says that nothing of that name is there.
    """

    name: str
    target: str
    dangling: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """A checkpoint among its siblings in a run: all that retention needs.

    `paths` are all its names, `path` the first of them: a directory, a file, the files of all ranks, or files
    that hold one step in two formats. `saved_at` is when the newest of its files was written, in UTC; `nbytes` is
    the size on disk; `bases` are the names of the files that it needs, where it is a delta.
    """

    path: Path
    paths: tuple[Path, ...]
    family: str
    step: Found | None
    epoch: Found | None
    saved_at: datetime
    nbytes: int
    metrics: Mapping[str, float]
    completeness: Completeness
    pinned: bool = False
    pointers: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether everything of it is there."""
        return self.completeness.whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Checkpoints of one training run, oldest step first; `others` are names beside them that are none."""

    path: Path
    family: str
    title: str
    checkpoints: tuple[CheckpointInfo, ...]
    pointers: tuple[Pointer, ...] = ()
    others: tuple[str, ...] = ()
