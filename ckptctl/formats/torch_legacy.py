"""Files of ``torch.save`` from before the zip format: five stacked pickles, then the raw storages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptctl.formats._format import Format
from ckptctl.formats._pieces import account_for_pieces
from ckptctl.formats._stacked import is_stacked, read_stacked
from ckptctl.formats._torch_findings import notes_on_tensors
from ckptctl.model import Contents, Region

if TYPE_CHECKING:
    from ckptctl.storage import ByteRange


def accepts(source: ByteRange) -> bool:
    """Whether it begins with the pickled magic number."""
    return is_stacked(source)


def read(source: ByteRange) -> Contents:
    """Describe a legacy file without loading a tensor."""
    found, storages = read_stacked(source)
    return Contents(
        format=FORMAT.name,
        range=source,
        tensors=found.tensors,
        values=found.values,
        globals=found.globals,
        findings=notes_on_tensors(source, found, storages),
    )


def account(contents: Contents) -> tuple[Region, ...]:
    """Return what each byte is for."""
    return account_for_pieces(contents, other="pickles, counts, or storage that no tensor uses")


FORMAT = Format(
    name="torch-legacy",
    title="torch legacy",
    about="`torch.save` of torch 1.5 and earlier, or with the zip switched off: stacked pickles and raw storages",
    accepts=accepts,
    read=read,
    account=account,
)
