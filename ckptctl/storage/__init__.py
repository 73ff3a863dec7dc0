"""Bytes on disk or in a store: ranges of files, read at an offset and never mapped."""

from __future__ import annotations

from ckptctl.storage.byterange import ByteRange, File, MemoryFile, StoredFile
from ckptctl.storage.local_file import LocalFile, unreadable
from ckptctl.storage.places import (
    Listed,
    address,
    entries_of,
    has_file,
    is_remote,
    is_there,
    is_writable,
    list_ahead,
    meanwhile,
    names_anew,
    names_beside,
    open_ahead,
    open_file,
    side_by_side,
    stated_digest,
)

__all__ = [
    "ByteRange",
    "File",
    "Listed",
    "LocalFile",
    "MemoryFile",
    "StoredFile",
    "address",
    "entries_of",
    "has_file",
    "is_remote",
    "is_there",
    "is_writable",
    "list_ahead",
    "meanwhile",
    "names_anew",
    "names_beside",
    "open_ahead",
    "open_file",
    "side_by_side",
    "stated_digest",
    "unreadable",
]  # fmt: skip
