"""Files that lie where a checkpoint should and are something else, named for what they are."""

from __future__ import annotations

import codecs
import json
import re
from typing import TYPE_CHECKING

from ckptctl.errors import CkptctlError, CorruptError, UnknownFormatError, UnsupportedError
from ckptctl.formats import _zip

if TYPE_CHECKING:
    from ckptctl.storage import ByteRange

_HEAD = 4096
_CHUNK = 1 << 20
_LINE_ENDS = str.maketrans("\t\n\r", "   ")
_AGAIN = "download it again and look at what the server answers"

# What first bytes say, and what to do about it.
_PACKED = (
    (b"\x1f\x8b", "gzip", "gunzip"),
    (b"7z\xbc\xaf\x27\x1c", "7z", "7z x"),
    (b"BZh", "bzip2", "bunzip2"),
    (b"\xfd7zXZ\x00", "xz", "unxz"),
    (b"\x28\xb5\x2f\xfd", "zstd", "unzstd"),
)
_NAMED = (
    (b"GGUF", "a GGUF file of llama.cpp"),
    (b"PYTORCH1", "a torch file of Caffe2 times"),
    (b"\x93NUMPY", "a NumPy array file"),
    (b"PK", "a zip archive without a data.pkl, so not from torch.save"),
)
# Names of records that tell other zip archives apart.
_ZIPPED = (
    (b"/models/model.json", "a program of torch.export (.pt2)"),
    (b".npy", "a zip archive of NumPy arrays and other files"),
)


def explain(source: ByteRange) -> None:
    """Raise the error that says what a file is which no format accepts, if that can be told."""
    path, head = source.file.path, source.head(_HEAD)
    error: CkptctlError | None = None
    if not head:
        stopped = "the writer was stopped before it wrote anything"
        error = CorruptError(f"{path}: empty file (0 bytes)", hint=stopped, kind="empty")
    elif head.startswith(b"version https://git-lfs"):
        error = _lfs_pointer(source, head)
    elif not head.strip(b"\0") and _all_zero(source):
        error = CorruptError(
            f"{path}: all {source.length} bytes are zero: the file was given its size and never written",
            hint="copy it again from where it was written",
            kind="zeros",
        )
    elif head.lstrip()[:15].lower().startswith((b"<!doctype html", b"<html", b"<?xml")):
        error = UnknownFormatError(f"{path}: a web page, not a checkpoint{_title(head)}", hint=_AGAIN, kind="web-page")
    elif head.lstrip().startswith(b"{"):
        error = _json_text(source)
    else:
        error = _packed(source, head) or _named(source, head)
    if error:
        raise error


def _lfs_pointer(source: ByteRange, head: bytes) -> UnknownFormatError:
    size = re.search(rb"^size (\d{1,20})$", head, re.MULTILINE)
    oid = re.search(rb"^oid sha256:([0-9a-f]{64})$", head, re.MULTILINE)
    points = f", points at {int(size[1])} bytes" if size else ""
    points += f", sha256 {oid[1].decode()}" if oid else ""
    path = source.file.path
    return UnknownFormatError(
        f"{path}: a Git LFS pointer, not the file ({source.length} bytes{points})",
        hint=f"git lfs pull --include {path.name}",
        kind="git-lfs-pointer",
    )


def _all_zero(source: ByteRange) -> bool:
    for start in range(0, min(source.length, 64 * _CHUNK), _CHUNK):
        if source.read(start, min(_CHUNK, source.length - start)).strip(b"\0"):
            return False
    return True


def _title(head: bytes) -> str:
    found = re.search(rb"<title>(.{1,80}?)</title>", head, re.IGNORECASE | re.DOTALL)
    return f" (its title: {' '.join(found[1].decode('utf-8', 'replace').split())})" if found else ""


def _json_text(source: ByteRange) -> UnknownFormatError:
    """A JSON document: most often the error that a server sent instead of the file."""
    try:
        document = json.loads(source.head(1 << 16)) if source.length <= 1 << 16 else {}
    except (ValueError, RecursionError):
        document = {}
    said = next((document[k] for k in ("error", "message", "detail") if isinstance(document.get(k), str)), "")
    what = f"a JSON error message, not a checkpoint ({said[:100]})" if said else "JSON text, not a checkpoint"
    return UnknownFormatError(f"{source.file.path}: {what}", hint=_AGAIN if said else None)


def _packed(source: ByteRange, head: bytes) -> UnsupportedError | None:
    for magic, name, command in _PACKED:
        if head.startswith(magic):
            return UnsupportedError(
                f"{source.file.path}: compressed with {name}; ckptctl reads what is inside",
                hint=f"unpack it first: {command} {source.file.path.name}",
            )
    return None


def _named(source: ByteRange, head: bytes) -> CkptctlError | None:
    if head[257:262] == b"ustar":
        return UnsupportedError(
            f"{source.file.path}: a tar archive, the torch format of before 2017 or a pack of files",
            hint="unpack it with tar, or load and save it again with the torch that wrote it",
        )
    inside = _zip.mentions(source, *(part for part, _ in _ZIPPED)) if head.startswith(b"PK") else b""
    for part, name in _ZIPPED:
        if part == inside:
            return UnsupportedError(f"{source.file.path}: {name}; this version does not read it")
    for magic, name in _NAMED:
        if head.startswith(magic):
            return UnsupportedError(f"{source.file.path}: {name}; this version does not read it")
    if _is_text(head):
        return UnknownFormatError(f"{source.file.path}: text, not a checkpoint")
    return None


def _is_text(head: bytes) -> bool:
    try:
        # A character may be cut at the end of what was read.
        text = codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return text.translate(_LINE_ENDS).isprintable()
