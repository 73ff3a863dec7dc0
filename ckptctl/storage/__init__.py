"""Bytes on disk: ranges of files, read at an offset and never mapped."""

from __future__ import annotations

from ckptctl.storage.byterange import ByteRange, File, LocalFile, MemoryFile, unreadable

__all__ = ["ByteRange", "File", "LocalFile", "MemoryFile", "unreadable"]
