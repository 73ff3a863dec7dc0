"""The stacked pickles that ``torch.save`` wrote before the zip format, or with the zip switched off.

Five pickles in a row (a magic number, a protocol, the writer's system, the object, the keys of its
storages), then for each key a count of elements, 64 bits little-endian, and the raw bytes.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from ckptctl.errors import CorruptError, counted
from ckptctl.formats._pickle import Storage, Unpickled, interpret, limits, record
from ckptctl.formats._pickle.records import Global, PersistentId, Pickle
from ckptctl.formats._torch_storages import dtype_of_storage, width
from ckptctl.storage import MemoryFile

if TYPE_CHECKING:
    from ckptctl.model import DType, GlobalUse
    from ckptctl.storage import ByteRange

_MAGIC = b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
_FRAME = 9
"""Bytes that a frame adds in pickles of protocol 4 and 5."""
_PROTOCOL = 1001
_COUNT = 8
_MAX_NUMEL = 1 << 48
_HINT = "copy it again from where it was written, or resume from an older checkpoint"


class _Storages:
    """The storages behind the pickles, each where the order of the keys says."""

    def __init__(self, source: ByteRange, *, swapped: bool) -> None:
        self.source = source
        self.swapped = swapped
        self.found: dict[str, Storage] = {}
        self._kinds: dict[str, tuple[Global, int]] = {}

    def expect(self, pickle: Pickle) -> None:
        """Note class and element count of every storage that the object refers to."""
        for persistent in pickle.storages:
            kind, key, numel, _ = self._fields(persistent.value)
            if self._kinds.setdefault(key, (kind, numel)) != (kind, numel):
                raise self.bad(f"storage {key} is described in two ways")

    def place(self, keys: object, at: int) -> int:
        """Give each storage its bytes, in the order of `keys`, from byte `at`; return where they end."""
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise self.bad("the list of storages is not one of names")
        if set(keys) != set(self._kinds) or len(keys) != len(self._kinds):
            raise self.bad("the list of storages is not that of the object")
        sizes = [self._size(key) for key in keys]
        starts = list(accumulate((length + _COUNT for _, _, length in sizes), initial=at))
        there = sum(end <= self.source.length for end in starts[1:])  # a file that was cut has the first of them

        def check(index: int) -> None:
            written, numel = int.from_bytes(self.source.read(starts[index], _COUNT), "little"), sizes[index][1]
            if written != numel:
                raise self.bad(f"storage {keys[index]} has {written} elements, its tensors need {numel}")

        spans = [(start + _COUNT, length) for start, (_, _, length) in zip(starts[:there], sizes, strict=False)]
        self.source.before_reading(spans, [(start, _COUNT) for start in starts[:there]], check)
        if there < len(keys):
            self.source.confirm()  # either it was cut, or a number is wrong
        for index, (key, (dtype, numel, length)) in enumerate(zip(keys, sizes, strict=True)):
            start = starts[index] + _COUNT
            if index < there:
                place = self.source.sub(start, length)
                self.found[key] = Storage(key, dtype, numel, place, swapped=self.swapped)
            else:
                nothing = MemoryFile(b"", path=self.source.file.path).range()
                self.found[key] = Storage(key, dtype, numel, nothing)
        return starts[-1]

    def _size(self, key: str) -> tuple[DType | None, int, int]:
        kind, numel = self._kinds[key]
        dtype = dtype_of_storage(self.source.file.path, kind)
        return dtype, numel, numel * width(dtype)

    def find(self, value: object) -> Storage:
        """Return the storage that a persistent id names, or the part of it that is a view of its own."""
        _, key, _, view = self._fields(value)
        storage = self.found.get(key)
        if storage is None:
            raise self.bad(f"storage {key} is missing")
        if view is None:
            return storage
        each = width(storage.dtype)
        offset, numel = view
        if offset < 0 or numel < 0 or (offset + numel) * each > storage.range.length:
            raise self.bad(f"a view of storage {key} leaves it")
        part = storage.range.sub(offset * each, numel * each)
        return Storage(key, storage.dtype, numel, part, swapped=self.swapped)

    def _fields(self, value: object) -> tuple[Global, str, int, tuple[int, int] | None]:
        match value:
            case ("storage", Global() as kind, str(key), str(), int(numel), None) if 0 <= numel < _MAX_NUMEL:
                return kind, key, numel, None
            case ("storage", Global() as kind, str(key), str(), int(numel), (str(), int(offset), int(size))) if (
                0 <= numel < _MAX_NUMEL
            ):
                return kind, key, numel, (offset, size)
        raise self.bad("a persistent id is not one that torch writes")

    def bad(self, what: str) -> CorruptError:
        """Return the error for a file that contradicts itself."""
        return CorruptError(f"{self.source.file.path}: damaged torch file: {what}")


def is_stacked(source: ByteRange) -> bool:
    """Whether some bytes begin with the pickled magic number, whatever the protocol."""
    head = source.head(2 + _FRAME + len(_MAGIC))
    return head[:1] == b"\x80" and (head[2:].startswith(_MAGIC) or head[2 + _FRAME :].startswith(_MAGIC))


def read_stacked(source: ByteRange) -> tuple[Unpickled, list[Storage]]:
    """Describe stacked pickles and the storages behind them, to the end of `source`."""
    pickles, storages = _opened(source)
    found = interpret(pickles[3], source, storages)
    joined = Unpickled(
        tensors=found.tensors,
        values=found.values,
        globals=(*found.globals, *(use for pickle in (*pickles[:3], pickles[4]) for use in pickle.globals)),
        elided=found.elided,
        length=found.length,
    )
    return joined, list(storages.found.values())


def read_storage(source: ByteRange) -> tuple[Storage, tuple[GlobalUse, ...]]:
    """Return the one storage that is the object of stacked pickles, and the globals that they name."""
    pickles, storages = _opened(source)
    root = pickles[3].root
    if not isinstance(root, PersistentId):
        raise storages.bad("a nested file is not a storage")
    return storages.find(root.value), tuple(use for pickle in pickles for use in pickle.globals)


def _opened(source: ByteRange) -> tuple[list[Pickle], _Storages]:
    pickles, at = _five(source)
    system = pickles[2].root
    little = system.get("little_endian") if isinstance(system, dict) else None
    storages = _Storages(source, swapped=little is False)
    if pickles[1].root != _PROTOCOL or not isinstance(little, bool):
        raise storages.bad("its second and third pickle are not those that torch writes")
    storages.expect(pickles[3])
    end = storages.place(pickles[4].root, at)
    if end > source.length:
        raise _cut(source, storages, end)
    if end != source.length:
        raise storages.bad(f"{counted(source.length - end, 'byte')} follow its last storage")
    return pickles, storages


def _five(source: ByteRange) -> tuple[list[Pickle], int]:
    pickles: list[Pickle] = []
    at = 0
    for _ in range(5):
        # The storages behind the pickles may be long; a pickle may not.
        length = min(source.length - at, limits.MAX_BYTES)
        pickles.append(record(source.sub(at, length)))
        at += pickles[-1].end
    return pickles, at


def _cut(source: ByteRange, storages: _Storages, end: int) -> CorruptError:
    """Say what is lost: the storages whose bytes are not all there."""
    lost = sum(storage.numel > 0 and not storage.range.length for storage in storages.found.values())
    what = f"cut at {source.length} of {end} bytes: {lost} of {counted(len(storages.found), 'storage')} lost"
    return CorruptError(f"{source.file.path}: {what}", hint=_HINT, kind="truncated")
