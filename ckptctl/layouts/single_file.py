"""One file that is the whole checkpoint."""

from __future__ import annotations

from ckptctl import formats
from ckptctl.layouts._components import split
from ckptctl.layouts._facts import facts
from ckptctl.layouts._layout import Layout, Scan
from ckptctl.model import Checkpoint
from ckptctl.storage import open_file


def accepts(scan: Scan) -> bool:
    """Whatever is not a directory."""
    return not scan.directory


def open_(scan: Scan) -> Checkpoint:
    """Describe the file."""
    file = open_file(scan.path)
    contents = formats.read(file.range())
    found = facts(scan.path, contents)
    parts = split(contents)
    file.release()
    return Checkpoint(
        path=scan.path,
        layout=LAYOUT.name,
        title=formats.title_of(contents),
        files=(contents,),
        parts=parts,
        step=found.step,
        epoch=found.epoch,
        metrics=found.metrics,
    )


LAYOUT = Layout(
    name="single-file",
    title="one file",
    about="a file in any of the formats",
    accepts=accepts,
    open=open_,
)
