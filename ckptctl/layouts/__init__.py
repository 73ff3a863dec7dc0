"""Layouts: how files make a checkpoint. One module each; `LAYOUTS` is the list of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ckptctl.errors import UnknownFormatError
from ckptctl.layouts import accelerate, deepspeed, hf_trainer, orbax, rank_files, sharded_index, single_file, torch_dcp
from ckptctl.layouts._layout import Layout, Scan, scan

if TYPE_CHECKING:
    import os

    from ckptctl.model import Checkpoint

__all__ = ["LAYOUTS", "Layout", "Scan", "open_checkpoint"]

LAYOUTS: tuple[Layout, ...] = (
    torch_dcp.LAYOUT,
    deepspeed.LAYOUT,
    orbax.LAYOUT,
    accelerate.LAYOUT,
    hf_trainer.LAYOUT,
    sharded_index.LAYOUT,
    rank_files.LAYOUT,
    single_file.LAYOUT,
)


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Describe the checkpoint at `path`: its tensors, values, step and metrics, nothing loaded.

    Raises
    ------
    UnreadableError
        There is nothing there, or it may not be read.
    UnknownFormatError, UnsupportedError
        It is something else, or a kind that is not read.
    CorruptError, LimitError, UnsafePickleError
        It breaks the rules of its own format.
    """
    seen = scan(Path(path))
    for layout in LAYOUTS:
        if layout.accepts(seen):
            return layout.open(seen)
    what = (
        "an empty directory" if not seen.names else "a directory that is no checkpoint in a layout that ckptctl knows"
    )
    raise UnknownFormatError(f"{seen.path}: {what}", hint="give a file, or a directory with an index of shards")
