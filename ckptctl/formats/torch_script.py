"""TorchScript archives of ``torch.jit.save``: a program, of which only the weights are read.

The weights lie as in files of ``torch.save``; the classes are those that the archive defines itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckptctl.formats import _zip
from ckptctl.formats._format import Format
from ckptctl.formats._pickle import Unpickled, unpickle
from ckptctl.formats._torch_archive import Archive
from ckptctl.formats._torch_findings import findings
from ckptctl.formats._zip_regions import account, checksums
from ckptctl.model import Aspect, Contents, Finding, Severity, TensorInfo

if TYPE_CHECKING:
    from ckptctl.storage import ByteRange

_OWN = "__torch__"


def accepts(source: ByteRange) -> bool:
    """Whether it is a zip archive with a pickle of constants and a ``data.pkl``."""
    if source.head(4) != _zip.LOCAL_MAGIC or not _zip.mentions(source, b"/constants.pkl"):
        return False
    return bool(_zip.mentions(source, b"/data.pkl"))


def read(source: ByteRange) -> Contents:
    """Describe the weights of a program, and say that it is one."""
    archive = Archive(source)
    constants = archive.within("constants")
    found, frozen = _unpickled(archive, "data.pkl"), _unpickled(constants, "constants.pkl")
    storages = [storage for one in (archive, constants) for _, storage in one.storages.values()]
    code = sum(name.startswith("code/") and name.endswith(".py") for name in archive.members)
    program = Finding(
        aspect=Aspect.STRUCTURE,
        severity=Severity.NOTE,
        slug="program",
        where=source.file.path.name,
        message=f"a TorchScript program ({code} files of code); only its weights are read",
    )
    return Contents(
        format=FORMAT.name,
        range=source,
        tensors={**_constants(frozen), **found.tensors},
        values=found.values if found.tensors or not frozen.tensors else None,
        globals=(*found.globals, *frozen.globals),
        findings=(program, *findings(source, found, storages, archive.directory.members)),
    )


def _unpickled(archive: Archive, name: str) -> Unpickled:
    archive.check_crc(name)
    return unpickle(archive.record(name), archive, own=_OWN)


def _constants(frozen: Unpickled) -> dict[str, TensorInfo]:
    """Return the weights of a module that was frozen: they have numbers, and names no more."""
    named = {f"constants.{name}": tensor for name, tensor in frozen.tensors.items()}
    return {name: replace(tensor, name=name) for name, tensor in named.items()}


FORMAT = Format(
    name="torch-script",
    title="TorchScript",
    about="`torch.jit.save`: a program and its weights; the weights are read, the program is not",
    accepts=accepts,
    read=read,
    account=account,
    checksums=checksums,
)
