"""Formats: how tensors lie in bytes. One module each; `FORMATS` is the list of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckptctl.errors import CorruptError, UnknownFormatError
from ckptctl.formats import keras_h5, keras_zip, npz, plain_pickle, safetensors, torch_legacy, torch_script, torch_zip
from ckptctl.formats._dcp_metadata import Chunk, DcpMetadata, Item, read_metadata
from ckptctl.formats._deflated import Deflated
from ckptctl.formats._foreign import explain
from ckptctl.formats._format import Checksum, Format, Stored
from ckptctl.formats._json import Pairs as JsonPairs
from ckptctl.formats._json import parse as parse_json
from ckptctl.formats.torch_zip import saved_as
from ckptctl.model import Contents
from ckptctl.values import RANK_VALUES_KEY, VALUES_KEY

if TYPE_CHECKING:
    from ckptctl.storage import ByteRange

__all__ = [
    "FORMATS",
    "Checksum",
    "Chunk",
    "DcpMetadata",
    "Deflated",
    "Format",
    "Item",
    "JsonPairs",
    "Stored",
    "checksums_in",
    "checksums_of",
    "detect",
    "format_named",
    "glance", "is_safetensors",
    "parse_json",
    "read",
    "read_metadata",
    "restore_rank",
    "restore_state",
    "saved_as",
    "title_of",
]  # fmt: skip

FORMATS: tuple[Format, ...] = (
    safetensors.FORMAT,
    torch_zip.FORMAT,
    torch_script.FORMAT,
    torch_legacy.FORMAT,
    plain_pickle.FORMAT,
    keras_h5.FORMAT,
    keras_zip.FORMAT,
    npz.FORMAT,
)


def detect(source: ByteRange) -> Format:
    """Return the format of some bytes, decided by what they are, not by how the file is called.

    Raises
    ------
    UnknownFormatError, UnsupportedError
        No format accepts them; the message says what they are instead, as far as can be told.
    """
    for candidate in FORMATS:
        if candidate.accepts(source):
            return candidate
    explain(source)
    for candidate in FORMATS:
        # Broken beyond recognition: the reader that the name points to knows best what is wrong.
        if source.file.path.name.endswith(candidate.claims):
            return candidate
    raise UnknownFormatError(
        f"{source.file.path}: not a checkpoint in any format that ckptctl knows ({source.length} bytes)",
        hint="the formats are listed in docs/reference/formats.md",
    )


def is_safetensors(source: ByteRange) -> bool:
    """Whether some bytes, whatever they are called, are a safetensors file."""
    return safetensors.FORMAT.accepts(source)


def read(source: ByteRange) -> Contents:
    """Describe what some bytes hold."""
    return detect(source).read(source)


def glance(source: ByteRange) -> Contents:
    """Check that some bytes are whole, as `read` does, but leave out tensors and values where they cost time."""
    found = detect(source)
    return (found.check or found.read)(source)


def checksums_of(contents: Contents) -> tuple[Checksum, ...]:
    """Return the checksums that a file records of its own bytes; empty if it has none."""
    found = format_named(contents.format)
    return found.checksums(contents) if found and found.checksums else ()


def checksums_in(source: ByteRange) -> tuple[Checksum, ...]:
    """Return the checksums that some bytes, which have been read before, record of themselves."""
    found = detect(source)
    return found.checksums(Contents(format=found.name, range=source, tensors={})) if found.checksums else ()


def restore_state(contents: Contents) -> Contents:
    """Return shards that make one whole with the plain values that their index holds, if there are any."""
    if VALUES_KEY not in contents.metadata:
        return contents
    from ckptctl.formats._state import restore  # noqa: PLC0415  # only files that convert wrote need it

    whole = restore(contents.tensors, contents.metadata)
    return replace(contents, tensors=whole.tensors, values=whole.values, metadata=whole.metadata)


def restore_rank(contents: Contents, shared: Contents | None) -> Contents:
    """Return the file of one rank with its plain values, and with what all ranks `shared`, which they name too.

    Raises
    ------
    CorruptError
        The values are not of these tensors.
    """
    from ckptctl.formats._state import restore  # noqa: PLC0415  # only files that `ckptctl.training` wrote need it

    texts = {**(shared.metadata if shared else {}), **contents.metadata}
    texts[VALUES_KEY] = texts.pop(RANK_VALUES_KEY, "")
    whole = restore({**(shared.tensors if shared else {}), **contents.tensors}, texts)
    if whole.problem:
        raise CorruptError(f"{contents.range.file.path}: the plain values in its metadata: {whole.problem}")
    return replace(contents, tensors=whole.tensors, values=whole.values, metadata=whole.metadata)


def format_named(name: str) -> Format | None:
    """Return the format that contents say they were read from; None for files that only a layout understands."""
    return next((candidate for candidate in FORMATS if candidate.name == name), None)


def title_of(contents: Contents) -> str:
    """Return what to call the format of some contents."""
    found = format_named(contents.format)
    return found.title if found else contents.format
