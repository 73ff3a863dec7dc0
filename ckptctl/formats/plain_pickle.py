"""Plain pickles of tensors and arrays: what ``pickle.dump`` writes, with or without torch inside.

Each storage of a torch tensor is a whole file of its own inside the pickle, in the legacy form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptctl.errors import CorruptError, counted
from ckptctl.formats._format import Format
from ckptctl.formats._pickle import Rebuild, Storage, unpickle
from ckptctl.formats._pickle.interpret import value_of
from ckptctl.formats._pieces import account_for_pieces
from ckptctl.formats._stacked import is_stacked, read_storage
from ckptctl.formats._torch_findings import notes_on_tensors
from ckptctl.model import Contents, Region
from ckptctl.storage import MemoryFile
from ckptctl.values import Span

if TYPE_CHECKING:
    from ckptctl.formats._pickle import Context
    from ckptctl.formats._pickle.records import Call
    from ckptctl.storage import ByteRange

_PROTOCOLS = range(2, 6)
_MAX_LATIN1 = 64 << 20
"""Storages that pickles of protocol 2 hold as text are decoded in memory."""


class _Nested:
    """Reads the storages that lie in the pickle as files of their own."""

    def __init__(self, source: ByteRange) -> None:
        self.path = source.file.path
        self.found: list[Storage] = []

    def find(self, value: object) -> Storage:  # noqa: ARG002  # as every keeper of storages has it
        """Refuse: nothing lies outside a plain pickle."""
        raise CorruptError(f"{self.path}: damaged pickle: it refers to something outside itself")

    def load(self, context: Context, args: tuple[object, ...], call: Call) -> Storage:  # noqa: ARG002  # an entry of the table
        """``torch.storage._load_from_bytes``, called with the bytes of a legacy file."""
        data = value_of(args[0]) if len(args) == 1 else None
        if isinstance(data, Span) and data.latin1 and data.range.length <= _MAX_LATIN1:
            try:
                data = data.range.read().decode().encode("latin1")
            except UnicodeError:
                raise context.bad("a storage is loaded from text that stands for no bytes") from None
        if isinstance(data, bytes):
            inner = MemoryFile(data, path=self.path).range()
        elif isinstance(data, Span) and not data.text and not data.latin1:
            inner = data.range
        else:
            raise context.bad("a storage is loaded from something that is not bytes")
        storage, uses = read_storage(inner)
        context.globals += uses
        self.found.append(storage)
        return storage


def accepts(source: ByteRange) -> bool:
    """Whether it begins as a pickle of protocol 2 to 5 and is not one of torch's stacked ones."""
    head = source.head(2)
    return len(head) > 1 and head[0] == 0x80 and head[1] in _PROTOCOLS and not is_stacked(source)


def read(source: ByteRange) -> Contents:
    """Describe a plain pickle; nothing in it is run."""
    nested = _Nested(source)
    table: dict[tuple[str, str], Rebuild] = {("torch.storage", "_load_from_bytes"): nested.load}
    found = unpickle(source, nested, extra=table, most=source.length)
    if found.length != source.length:
        extra = counted(source.length - found.length, "byte")
        raise CorruptError(f"{source.file.path}: {extra} after the end of the pickle")
    return Contents(
        format=FORMAT.name,
        range=source,
        tensors=found.tensors,
        values=found.values,
        globals=found.globals,
        findings=notes_on_tensors(source, found, nested.found),
    )


def account(contents: Contents) -> tuple[Region, ...]:
    """Return what each byte is for."""
    return account_for_pieces(contents, other="pickle")


FORMAT = Format(
    name="pickle",
    title="pickle",
    about="a plain pickle of tensors, NumPy arrays and values, protocol 2 to 5",
    accepts=accepts,
    read=read,
    account=account,
)
