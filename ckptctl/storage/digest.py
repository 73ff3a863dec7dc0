"""Sidecars that hold the SHA-256 of a file, as the checksum tools of coreutils write and check them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from ckptctl.storage.byterange import StoredFile

_BLOCK = 4 << 20
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r"})


def sha256_of(file: StoredFile) -> str:
    """Return the SHA-256 of a whole file as it is, in hex, and release the file.

    Raises
    ------
    CkptctlError
        It cannot be read, or was changed meanwhile.
    """
    digest, buffer, at = hashlib.sha256(), memoryview(bytearray(_BLOCK)), 0
    while count := file.pread_into(buffer, at):
        digest.update(buffer[:count])
        at += count
    file.release()
    return digest.hexdigest()


def sidecar_of(path: Path) -> Path:
    """Return where the digest of a file stands: beside it, ``.sha256`` after its full name."""
    return path.with_name(f"{path.name}.sha256")


def sidecar_line(digest: str, name: str) -> bytes:
    """Return the line for a digest in hex and the name of the file, which ``sha256sum -c`` accepts."""
    escaped = name.translate(_ESCAPES)
    mark = "\\" if escaped != name else ""
    return f"{mark}{digest}  {escaped}\n".encode("utf-8", "surrogateescape")
