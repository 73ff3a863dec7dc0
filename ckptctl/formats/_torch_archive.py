"""The records and storages of an archive that torch wrote, be it of ``torch.save`` or of TorchScript."""

from __future__ import annotations

import copy
import re
import zlib
from typing import TYPE_CHECKING

from ckptctl.errors import CorruptError
from ckptctl.formats import _zip
from ckptctl.formats._pickle import Storage
from ckptctl.formats._pickle.records import Global
from ckptctl.formats._torch_storages import dtype_of_storage, width

if TYPE_CHECKING:
    from ckptctl.storage import ByteRange

_KEY = re.compile(r"[0-9A-Za-z_.-]{1,64}")
_MAX_NUMEL = 1 << 48
_CHUNK = 1 << 20


class Archive:
    """The records of one archive, by their names below its only root; its storages are those in `folder`."""

    folder = "data"

    def __init__(self, source: ByteRange) -> None:
        self.source = source
        self.directory = _zip.read_directory(source, aligned=_zip.TORCH_ALIGNMENT)
        roots = {member.name.partition("/")[0] for member in self.directory.members}
        if len(roots) > 1:
            raise _zip.corrupt(source, f"its records have {len(roots)} different roots")
        self.members = {m.name.partition("/")[2]: m for m in self.directory.members}
        self.storages: dict[str, tuple[tuple[object, ...], Storage]] = {}
        order = self._text("byteorder") if "byteorder" in self.members else "little"
        if order not in ("little", "big"):
            raise _zip.corrupt(source, f"its byte order is {order[:20]!r}, which is none")
        self.swapped = order == "big"

    def within(self, folder: str) -> Archive:
        """Return the same archive, of which other records are the storages."""
        other = copy.copy(self)
        other.folder, other.storages = folder, {}
        return other

    def record(self, name: str) -> ByteRange:
        """Return the bytes of a record, which must be stored as they are."""
        member = self.members.get(name)
        if member is None:
            raise _zip.corrupt(self.source, f"record {name} is missing")
        if not member.stored:
            raise _zip.corrupt(self.source, f"record {name} is compressed; torch never compresses it")
        return self.source.sub(member.data, member.size)

    def find(self, value: object) -> Storage:
        """Return the storage that a persistent id names: kind, class, key, location, element count."""
        match value:
            case ("storage", Global() as kind, str(key), str(), int(numel)) if type(numel) is int:
                found = self.storages.get(key)
                if found is None:
                    found = self.storages[key] = ((kind, numel), self._storage(kind, key, numel))
                if found[0] != (kind, numel):
                    raise self._bad(f"storage {key} is described in two ways")
                return found[1]
        raise self._bad("a persistent id is not one that torch writes")

    def check_crc(self, name: str) -> None:
        """Compare the bytes of a record with its CRC-32; one saved without checksums has zero."""
        record, crc = self.record(name), 0
        for start in range(0, record.length, _CHUNK):
            crc = zlib.crc32(record.read(start, min(_CHUNK, record.length - start)), crc)
        recorded = self.members[name].crc
        if recorded and crc != recorded:
            raise _zip.corrupt(self.source, f"record {name} reads CRC {crc:08x}, recorded {recorded:08x}")

    def _storage(self, kind: Global, key: str, numel: int) -> Storage:
        dtype = dtype_of_storage(self.source.file.path, kind)
        if not _KEY.fullmatch(key) or not 0 <= numel < _MAX_NUMEL:
            raise self._bad(f"a storage has the key {key[:80]!r} and {numel} elements")
        record = self.record(f"{self.folder}/{key}")
        needed = numel * width(dtype)
        if record.length != needed:
            raise _zip.corrupt(
                self.source, f"record {self.folder}/{key} has {record.length} bytes, its tensors need {needed}"
            )
        name = key if self.folder == Archive.folder else f"{self.folder}/{key}"
        return Storage(name, dtype, numel, record, swapped=self.swapped)

    def _text(self, name: str) -> str:
        return self.record(name).head(16).decode("ascii", "replace").strip()

    def _bad(self, what: str) -> CorruptError:
        return CorruptError(f"{self.source.file.path}: damaged pickle: {what}")
