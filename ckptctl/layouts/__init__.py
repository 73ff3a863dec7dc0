"""Layouts: how files make a checkpoint. One module each; `LAYOUTS` is the list of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckptctl.errors import UnknownFormatError
from ckptctl.layouts import (
    accelerate,
    dcp_safetensors,
    deepspeed,
    hf_trainer,
    keras,
    orbax,
    rank_files,
    saved_ranks,
    sharded_index,
    single_file,
    torch_dcp,
)
from ckptctl.layouts._components import split
from ckptctl.layouts._facts import number_of
from ckptctl.layouts._layout import Layout, Scan, scan
from ckptctl.layouts._trainer_state import read_trainer_state
from ckptctl.storage import address

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from pathlib import Path

    from ckptctl.model import Checkpoint

__all__ = ["LAYOUTS", "Layout", "Scan", "layout_of", "number_of", "open_checkpoint", "scan", "split", "trainer_state"]

LAYOUTS: tuple[Layout, ...] = (
    torch_dcp.LAYOUT,
    dcp_safetensors.LAYOUT,
    saved_ranks.LAYOUT,
    deepspeed.LAYOUT,
    orbax.LAYOUT,
    keras.LAYOUT,
    accelerate.LAYOUT,
    hf_trainer.LAYOUT,
    sharded_index.LAYOUT,
    rank_files.LAYOUT,
    single_file.LAYOUT,
)


def open_checkpoint(
    path: str | os.PathLike[str],
    *,
    glance: bool = False,
    names: tuple[str, ...] | None = None,
    tag: str = "",
    narrow: bool = False,
) -> Checkpoint:
    """Describe the checkpoint at `path`: its tensors, values, step and metrics, nothing loaded.

    At a `glance` whatever is costly and not needed to tell whether it is whole is left out: of a directory,
    the contents of optimizers and the like. `names`, where given, are the only ones in the directory that count.
    `tag` is the directory of one of several states of DeepSpeed; with `narrow` the weights are those that it computed
    with, in 16 bits, and not the ones in fp32 that it trained.

    Raises
    ------
    UnreadableError
        There is nothing there, or it may not be read.
    UnknownFormatError, UnsupportedError
        It is something else, or a kind that is not read.
    CorruptError, LimitError, UnsafePickleError
        It breaks the rules of its own format.
    """
    seen = scan(address(path), glance=glance)
    seen = replace(seen, names=seen.names if names is None else names, tag=tag, narrow=narrow)
    for layout in LAYOUTS:
        if layout.accepts(seen):
            return layout.open(seen)
    what = (
        "an empty directory" if not seen.names else "a directory that is no checkpoint in a layout that ckptctl knows"
    )
    raise UnknownFormatError(f"{seen.path}: {what}", hint="give a file, or a directory with an index of shards")


def layout_of(path: Path) -> Layout | None:
    """Return the layout that accepts a path by its names; None if none does."""
    seen = scan(path)
    return next((layout for layout in LAYOUTS if layout.accepts(seen)), None)


def trainer_state(path: Path) -> Mapping[str, object]:
    """Return the whole state of the Hugging Face Trainer in a directory; empty if there is none."""
    return read_trainer_state(scan(path))
