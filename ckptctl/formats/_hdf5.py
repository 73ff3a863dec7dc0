"""Read the structure of an HDF5 file by h5py: groups, datasets and where their bytes lie. No dataset is loaded.

What could make the library read another file or run a plug-in is refused: external links, external storage,
virtual datasets, filters other than gzip, shuffle and lzf. https://support.hdfgroup.org/documentation/hdf5/latest/
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ckptctl.errors import CkptctlError, CorruptError, LimitError, MissingExtraError, UnsupportedError, counted
from ckptctl.formats._hdf5_chunks import GZIP, LZF, SHUFFLE, Chunks, Packing
from ckptctl.formats._hdf5_file import Opened
from ckptctl.formats._npy import KINDS
from ckptctl.model import DTYPES, DType, Encoding, Piece, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptctl.storage import ByteRange

_MAGIC = b"\x89HDF\r\n\x1a\n"
_MAX_DEPTH, _MAX_OBJECTS, _MAX_CHUNKS = 64, 1_000_000, 1_000_000
_MAX_TEXT, _MAX_JSON = 1 << 20, 64 << 20
"""Bytes of an attribute, and of one that is asked for."""
_FILTERS = (GZIP, SHUFFLE, LZF)
_MOST_PACKED = 1100
"""No filter packs more bytes than this into one."""


@dataclass(slots=True, kw_only=True)
class Hdf5:
    """What a file holds: tensors by their paths with dots, and the attributes of its root."""

    tensors: dict[str, TensorInfo] = field(default_factory=dict)
    attributes: dict[str, object] = field(default_factory=dict)


def read_hdf5(source: ByteRange, *, texts: tuple[str, ...] = ()) -> Hdf5:
    """Walk through all groups; `texts` are attributes of the root that must be read if they are there.

    Raises
    ------
    MissingExtraError
        h5py is not installed.
    CorruptError, UnsupportedError, LimitError
        It is damaged, leads out of itself, or is too deep or too large.
    """
    _check_end(source)
    h5py = _h5py(source)
    try:
        with h5py.File(Opened(source), "r") as file:
            return _Walk(h5py, source).walk(file, texts)
    except (CkptctlError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001  # whatever its C part reports: OSError, RuntimeError, KeyError, …
        reason = " ".join(str(error).split())[:200]
        raise CorruptError(f"{source.file.path}: damaged HDF5 file: {reason}") from None


def _h5py(source: ByteRange) -> Any:
    try:
        import h5py
    except ImportError:
        raise MissingExtraError(
            f"{source.file.path}: an HDF5 file, such as Keras writes; reading it needs h5py",
            hint="pip install 'ckptctl[keras]'",
        ) from None
    return h5py


def _check_end(source: ByteRange) -> None:
    """Hold the end that the superblock records against the length."""
    head = source.head(52)
    if not head.startswith(_MAGIC):
        raise UnsupportedError(f"{source.file.path}: an HDF5 file that begins with something else, which is not read")
    if len(head) < 52 or head[8] > 3:
        raise CorruptError(f"{source.file.path}: damaged HDF5 file: it breaks off in its superblock")
    version = head[8]
    width = head[13] if version < 2 else head[9]
    if width != 8:
        raise UnsupportedError(f"{source.file.path}: an HDF5 file with addresses of {width} bytes, which is not read")
    end = struct.unpack_from("<Q", head, {0: 40, 1: 44}.get(version, 28))[0]
    if end > source.length:
        raise CorruptError(
            f"{source.file.path}: cut at {source.length} of {end} bytes",
            hint="copy it again from where it was written, or resume from an older checkpoint",
        )
    if end < source.length:
        raise CorruptError(
            f"{source.file.path}: {counted(source.length - end, 'byte')} after the end that it records ({end})"
        )


class _Walk:
    """One walk: every object once, links inside the file only."""

    def __init__(self, h5py: Any, source: ByteRange) -> None:
        self.h5py, self.source, self.where = h5py, source, source.file.path
        self.found, self.chunks = Hdf5(), Chunks(h5py, source)
        self.groups: set[object] = set()
        self.count = 0

    def walk(self, file: Any, texts: tuple[str, ...]) -> Hdf5:
        self.found.attributes.update(self._attributes(file, texts))
        self._group(file, ())
        return self.found

    def _group(self, group: Any, path: tuple[str, ...]) -> None:
        address = self.h5py.h5o.get_info(group.id).addr
        if address in self.groups:
            raise UnsupportedError(f"{self.where}: group {'/'.join(path)} is reached by two paths; only trees are read")
        if len(path) > _MAX_DEPTH:
            raise LimitError(f"{self.where}: groups are nested deeper than {_MAX_DEPTH}")
        self.groups.add(address)
        for name in group:
            self.count += 1
            if self.count > _MAX_OBJECTS:
                raise LimitError(f"{self.where}: more than {_MAX_OBJECTS} objects")
            inner = (*path, name)
            self._check_link(group, name, inner)
            item = group[name]
            if isinstance(item, self.h5py.Group):
                self._group(item, inner)
            elif isinstance(item, self.h5py.Dataset):
                self._dataset(item, ".".join(inner))

    def _check_link(self, group: Any, name: str, path: tuple[str, ...]) -> None:
        link = group.get(name, getlink=True)
        if not isinstance(link, self.h5py.HardLink):
            kind = "a link to another file" if isinstance(link, self.h5py.ExternalLink) else "a soft link"
            raise UnsupportedError(f"{self.where}: {'/'.join(path)} is {kind}, which is never followed")

    def _dataset(self, dataset: Any, name: str) -> None:
        plist = dataset.id.get_create_plist()
        if plist.get_external_count() or dataset.is_virtual:
            raise UnsupportedError(f"{self.where}: the values of {name} lie in other files, which are never read")
        for index in range(plist.get_nfilters()):
            code = plist.get_filter(index)[0]
            if code not in _FILTERS:
                raise UnsupportedError(
                    f"{self.where}: {name} is packed by filter {code}; only gzip, shuffle and lzf are read"
                )
        dtype = _dtype(dataset)
        if dataset.shape is None or (dtype is None and _is_text(self.h5py, dataset.dtype)):
            return  # no tensor
        if dtype is None:
            raise UnsupportedError(f"{self.where}: {name} is of the type {dataset.dtype}, which is not read")
        if dataset.id.get_type().get_size() != 1 if dtype.name == "BOOL" else not _is_stored_as(dataset):
            raise UnsupportedError(f"{self.where}: {name} is stored in a type of its own, which is not read")
        if name in self.found.tensors:
            raise UnsupportedError(f"{self.where}: two datasets are called {name}, as / is written as a dot")
        shape = tuple(int(size) for size in dataset.shape)
        pieces = tuple(self._pieces(dataset, name, shape, math.prod(shape) * dtype.bits // 8))
        self.found.tensors[name] = TensorInfo(name=name, dtype=dtype, shape=shape, pieces=pieces)

    def _pieces(self, dataset: Any, name: str, shape: tuple[int, ...], nbytes: int) -> Iterator[Piece]:
        swapped = Encoding.SWAPPED if dataset.dtype.byteorder == ">" else Encoding.RAW
        start = dataset.id.get_offset()
        if nbytes and dataset.chunks is not None:
            yield from self._chunks(dataset, name, shape, nbytes)
        elif nbytes and start is None and dataset.id.get_storage_size() == nbytes:
            raise UnsupportedError(f"{self.where}: {name} lies inside its own header (compact), which is not read")
        elif nbytes and start is None and not dataset.id.get_storage_size():
            raise UnsupportedError(f"{self.where}: {name} was never written: it has a shape, and no values")
        elif nbytes:
            if start is None or start + nbytes > self.source.length:
                raise self._bad(f"{name} needs {nbytes} bytes, which are not in the file")
            yield Piece(range=self.source.sub(start, nbytes), offsets=(0,) * len(shape), shape=shape, encoding=swapped)

    def _chunks(self, dataset: Any, name: str, shape: tuple[int, ...], nbytes: int) -> Iterator[Piece]:
        count, stored = dataset.id.get_num_chunks(), dataset.id.get_storage_size()
        if count > _MAX_CHUNKS:
            raise LimitError(f"{self.where}: {name} has {count} chunks (limit {_MAX_CHUNKS})")
        whole = math.prod(-(-size // step) for size, step in zip(shape, dataset.chunks, strict=True))
        if count < whole:
            raise UnsupportedError(
                f"{self.where}: of {name}, {whole - count} of {counted(whole, 'chunk')} never written"
            )
        if nbytes > _MOST_PACKED * stored:
            raise self._bad(f"{name} needs {nbytes} bytes, its chunks hold {stored}")
        swapped = Encoding.SWAPPED if dataset.dtype.byteorder == ">" else Encoding.RAW
        plist = dataset.id.get_create_plist()
        packing = Packing(
            path=dataset.name,
            shape=tuple(dataset.chunks),
            width=dataset.dtype.itemsize,
            filters=tuple(plist.get_filter(index)[0] for index in range(plist.get_nfilters())),
        )
        for chunk in _infos(dataset.id, count):
            at = tuple(chunk.chunk_offset)
            if chunk.byte_offset is None or chunk.byte_offset + chunk.size > self.source.length:
                raise self._bad(f"a chunk of {name} ends beyond the file")
            sizes = tuple(min(c, size - a) for c, size, a in zip(dataset.chunks, shape, at, strict=True))
            block = self.source.sub(chunk.byte_offset, chunk.size)
            unpack = self.chunks.unpacker(packing, block, chunk.filter_mask, at, sizes)
            yield Piece(range=block, offsets=at, shape=sizes, encoding=Encoding.CHUNK | swapped, unpack=unpack)

    def _attributes(self, group: Any, texts: tuple[str, ...]) -> Iterator[tuple[str, object]]:
        """Yield attributes that are a text or a number, and not large, and `texts` whatever they are."""
        for name in group.attrs:
            kind, most = group.attrs.get_id(name), _MAX_JSON if name in texts else _MAX_TEXT
            empty = kind.shape is None or 0 in kind.shape  # the library has no size for such a one
            long = not empty and kind.get_storage_size() > most
            value: Any = None if kind.shape != () or long else group.attrs[name]
            value = value.item() if hasattr(value, "item") else value
            long = long or (isinstance(value, (str, bytes)) and len(value) > most)
            value = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
            if isinstance(value, (str, int, float)) and not long:
                yield name, value
            elif name in texts and long:
                raise LimitError(f"{self.where}: its attribute {name} is longer than {most} bytes")
            elif name in texts:
                raise UnsupportedError(f"{self.where}: its attribute {name} is no text, and is not read")

    def _bad(self, what: str) -> CorruptError:
        return CorruptError(f"{self.where}: damaged HDF5 file: {what}")


def _infos(dataset: Any, count: int) -> list[Any]:
    """Return where the chunks lie, by one walk through them where the library has it: one by one costs a walk each."""
    if not hasattr(dataset, "chunk_iter"):
        return [dataset.get_chunk_info(index) for index in range(count)]
    found: list[Any] = []
    dataset.chunk_iter(found.append)
    return found


def _dtype(dataset: Any) -> DType | None:
    kind = dataset.dtype
    if kind.itemsize == 2 and _is_bfloat16(dataset):
        return DTYPES["BF16"]
    known = KINDS.get(f"{kind.kind}{kind.itemsize}")
    return DTYPES.get(known) if known else None


def _is_bfloat16(dataset: Any) -> bool:
    said = dataset.attrs.get("dtype")
    return isinstance(said, (str, bytes)) and said in ("bfloat16", b"bfloat16")


def _is_text(h5py: Any, kind: Any) -> bool:
    """Whether a type is one of text, or refers to other objects."""
    return h5py.check_string_dtype(kind) is not None or h5py.check_ref_dtype(kind) is not None


def _is_stored_as(dataset: Any) -> bool:
    """Whether the bytes in the file are those of the type in which a dataset is shown."""
    from h5py import h5t  # an extra

    stored: bool = dataset.id.get_type().equal(h5t.py_create(dataset.dtype, logical=True))
    return stored
