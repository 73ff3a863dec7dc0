"""What can still be said of a torch zip file that was cut: where, and which tensors are lost.

``torch.save`` writes the pickle first and the directory last, so the pickle of a cut file still
tells which storages should follow, and the headers of the records tell how many did.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckptctl.errors import CkptctlError, CorruptError, UnsafePickleError, UnsupportedError, counted
from ckptctl.formats import _zip
from ckptctl.formats._pickle import Storage, Unpickled, limits, unpickle
from ckptctl.formats._pickle.records import Global
from ckptctl.formats._torch_storages import dtype_of_storage, width
from ckptctl.storage import ByteRange

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptctl.model import TensorInfo

_TAIL = 1 << 16
_END_RECORD = 22
_DESCRIPTOR = re.compile(rb"PK\x07\x08.{12}(?:.{8})?(?=PK)", re.DOTALL)
_HINT = "copy it again from where it was written, or resume from an older checkpoint"


class _Expected:
    """Storages as a pickle describes them; nobody knows yet whether their bytes are there."""

    def __init__(self, source: ByteRange) -> None:
        self.source = source
        self.sizes: dict[str, int] = {}

    def find(self, value: object) -> Storage:
        """Return a storage of the right size that lies nowhere."""
        match value:
            case ("storage", Global() as kind, str(key), str(), int(numel)) if 0 <= numel < 1 << 48:
                dtype = dtype_of_storage(self.source.file.path, kind)
                self.sizes[key] = length = numel * width(dtype)
                # The key stands in for the offset, so that pieces can be told apart afterwards.
                nowhere = ByteRange(file=_Nowhere(key, self.source), offset=0, length=length)
                return Storage(key, dtype, numel, nowhere)
        raise CorruptError(f"{self.source.file.path}: a persistent id is not one that torch writes")


class _Nowhere:
    """A file that has a size and no bytes."""

    def __init__(self, key: str, source: ByteRange) -> None:
        self.key = key
        self.path = source.file.path
        self.size = 1 << 62

    def pread(self, length: int, offset: int) -> bytes:  # noqa: ARG002  # as every file has it
        """Return nothing."""
        return b""

    def pread_into(self, buffer: memoryview, offset: int) -> int:  # noqa: ARG002  # the same
        """Fill nothing."""
        return 0


def explain_cut(source: ByteRange, error: CkptctlError) -> CkptctlError:
    """Return an error that says where a file was cut and what is lost, or `error` if it was not."""
    if _zip.has_directory(source):
        return error
    start = max(0, source.length - _TAIL)
    end = source.read(start, source.length - start).rfind(b"PK\x05\x06")
    if end >= 0 and start + end + _END_RECORD == source.length:
        return _several(source, error)
    if end >= 0 and start + end + _END_RECORD < source.length:
        extra = source.length - start - end - _END_RECORD
        return _zip.corrupt(source, f"{counted(extra, 'byte')} after its end")
    first = _record_at(source, 0)
    if not first or not first[0].endswith("/data.pkl"):
        return error
    expected = _Expected(source)
    try:
        # The pickle is the first record and far shorter than the data behind it.
        rest = min(source.length - first[1], limits.MAX_BYTES)
        found = unpickle(source.sub(first[1], rest), expected)
    except UnsafePickleError as unsafe:
        return unsafe
    except CkptctlError:
        what = f"cut at {source.length} bytes, inside data.pkl: which tensors it held cannot be told"
        return CorruptError(f"{source.file.path}: {what}", hint=_HINT, kind="truncated")
    return _explained(source, found, expected, first[1])


def _several(source: ByteRange, error: CkptctlError) -> CkptctlError:
    """A whole archive stands at the end; if others stand before it, say what such a file is."""
    if source.file.path.suffix != ".distcp":
        return error
    return UnsupportedError(
        f"{source.file.path}: one of the data files of a distributed checkpoint, which makes no sense alone",
        hint=f"give its directory: ckptctl inspect {source.file.path.parent}",
    )


def _explained(source: ByteRange, found: Unpickled, expected: _Expected, data: int) -> CkptctlError:
    present = dict(_present(source, data + found.length, expected))
    lost = [t for t in found.tensors.values() if not _keys(t) <= present.keys()]
    written = source.length + sum(size for key, size in expected.sizes.items() if key not in present)
    written -= source.length - max(list(present.values()), default=data + found.length)
    what = f"cut at {source.length} bytes of at least {max(written, source.length + _END_RECORD)}: "
    if lost:
        what += f"{len(lost)} of {counted(len(found.tensors), 'tensor')} lost (the first is {lost[0].name})"
    else:
        what += f"{counted(len(found.tensors), 'tensor')} all there, but not the directory at its end"
    return CorruptError(f"{source.file.path}: {what}", hint=_HINT, kind="truncated")


def _keys(tensor: TensorInfo) -> set[str]:
    own = {p.range.file.key for p in tensor.pieces if isinstance(p.range.file, _Nowhere)}
    return own.union(*(_keys(part) for part in tensor.parts))


def _present(source: ByteRange, at: int, expected: _Expected) -> Iterator[tuple[str, int]]:
    """Yield the key of each storage that is wholly there, and where it ends."""
    while record := _next_record(source, at):
        name, at = record
        key = name.partition("/data/")[2]
        at += expected.sizes.get(key, 0)
        if key in expected.sizes and at <= source.length:
            yield key, at


def _next_record(source: ByteRange, at: int) -> tuple[str, int] | None:
    """Return the name of the record whose header follows byte `at`, and where its data begins."""
    if at >= source.length:
        return None
    near = source.read(at, min(128, source.length - at))
    if near.startswith(_zip.LOCAL_MAGIC):
        return _record_at(source, at)
    found = _DESCRIPTOR.search(near)
    return _record_at(source, at + found.end()) if found else None


def _record_at(source: ByteRange, at: int) -> tuple[str, int] | None:
    name = _zip.first_name(source.sub(at, source.length - at))
    if not name:
        return None
    extra = int.from_bytes(source.read(at + 28, 2), "little")
    return name.decode("utf-8", "replace"), min(at + 30 + len(name) + extra, source.length)
