"""One file that is the whole checkpoint."""

from __future__ import annotations

from ckptctl import formats
from ckptctl.layouts._components import split
from ckptctl.layouts._facts import facts
from ckptctl.layouts._layout import Layout, Scan
from ckptctl.layouts.deltas import with_bases
from ckptctl.model import Base, Checkpoint, Contents
from ckptctl.storage import open_file
from ckptctl.values import BASE_KEY


def accepts(scan: Scan) -> bool:
    """Whatever is not a directory."""
    return not scan.directory


def open_(scan: Scan) -> Checkpoint:
    """Describe the file."""
    file = open_file(scan.path)
    contents = formats.read(file.range())
    whole = contents
    files: tuple[Contents, ...] = (contents,)
    bases: tuple[Base, ...] = ()
    if BASE_KEY in contents.metadata:
        whole, files, bases = with_bases(scan.path, contents)
    found = facts(scan.path, whole)
    parts = split(whole)
    file.release()
    return Checkpoint(
        path=scan.path,
        layout=LAYOUT.name,
        title=formats.title_of(contents) + (f", a delta on {bases[0].name}" if bases else ""),
        files=files,
        parts=parts,
        values=whole.values if bases else None,
        bases=bases,
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
