"""Files of ``torch.save``: a zip archive with a pickle and one stored record for each storage.

https://docs.pytorch.org/docs/stable/notes/serialization.html; read off files of torch 1.6 to 2.13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptctl.errors import CorruptError
from ckptctl.formats import _zip
from ckptctl.formats._format import Format
from ckptctl.formats._pickle import unpickle
from ckptctl.formats._torch_archive import Archive
from ckptctl.formats._torch_findings import findings
from ckptctl.formats._zip_regions import account, checksums
from ckptctl.formats._zip_salvage import explain_cut
from ckptctl.model import Contents

if TYPE_CHECKING:
    from ckptctl.storage import ByteRange

_NAME_AT, _MAX_NAME, _NAMELESS = 30, 256, "archive"


def accepts(source: ByteRange) -> bool:
    """Whether it is a zip archive with a ``data.pkl``, whole or cut."""
    if source.head(4) != _zip.LOCAL_MAGIC:
        return False
    if _zip.mentions(source, b"/constants.pkl"):
        return False  # a program of TorchScript
    first = _zip.first_name(source)
    own = (b"/data.pkl", b"/.storage_alignment")  # the second tells a file that has lost its pickle
    return first.endswith((*own, b"/data/0")) or bool(_zip.mentions(source, *own))


def read(source: ByteRange) -> Contents:
    """Describe a file of ``torch.save`` without loading a tensor."""
    archive = _archive(source)
    archive.check_crc("data.pkl")
    pickle = archive.record("data.pkl")
    found = unpickle(pickle, archive, most=pickle.length)  # NumPy's arrays lie in it
    storages = [storage for _, storage in archive.storages.values()]
    return Contents(
        format=FORMAT.name,
        range=source,
        tensors=found.tensors,
        values=found.values,
        globals=found.globals,
        findings=findings(source, found, storages, archive.directory.members),
    )


def check(source: ByteRange) -> Contents:
    """Make sure that the archive is whole, without looking into its pickle."""
    _archive(source).record("data.pkl")
    return Contents(format=FORMAT.name, range=source, tensors={})


def _archive(source: ByteRange) -> Archive:
    try:
        return Archive(source)
    except CorruptError as error:
        raise explain_cut(source, error) from None


def saved_as(source: ByteRange) -> str:
    """Return the name, without its suffix, that a file had when torch wrote it; empty if it was written nameless.

    ``torch.save`` puts it before the names of all records.
    """
    head = source.head(_NAME_AT + _MAX_NAME)
    if not head.startswith(b"PK\3\4"):
        return ""
    length = int.from_bytes(head[26:28], "little")
    stem = head[_NAME_AT : _NAME_AT + length].decode("utf-8", "replace").partition("/")[0]
    return "" if stem == _NAMELESS else stem


FORMAT = Format(
    name="torch-zip",
    title="torch zip",
    about="`torch.save` of torch 1.6 and later: a zip archive with a pickle and the raw storages",
    accepts=accepts,
    read=read,
    account=account,
    checksums=checksums,
    check=check,
)
