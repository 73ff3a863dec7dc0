"""Archives of NumPy arrays, ``np.savez`` and ``np.savez_compressed``: a zip with a record ``NAME.npy`` for each.

https://numpy.org/doc/stable/reference/generated/numpy.savez.html. NumPy itself is needed only for the values of
compressed arrays that lie column by column.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from ckptctl.errors import LimitError, UnsupportedError
from ckptctl.formats import _npy, _zip
from ckptctl.formats._deflated import Deflated, check_ratio
from ckptctl.formats._format import Checksum, Format
from ckptctl.formats._pieces import region, spans_of
from ckptctl.formats._zip_regions import account_for
from ckptctl.model import Contents, Encoding, Piece, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ckptctl.model import Region
    from ckptctl.storage import ByteRange

_SUFFIX, _METHODS = ".npy", (0, 8)
_RUN = 4 << 20
"""Compressed values are unpacked by so many bytes."""
_BAND = 16 << 20
"""Of an array that lies column by column, so many bytes of rows are put together in one pass."""
_MAX_PASSES = 16
_USUAL = 256
"""Most headers are no longer, packed or not."""


def accepts(source: ByteRange) -> bool:
    """Whether it is a zip archive that begins with an array."""
    return source.head(4) == _zip.LOCAL_MAGIC and _zip.first_name(source).endswith(_SUFFIX.encode())


def read(source: ByteRange) -> Contents:
    """Describe the arrays by their headers."""
    members = _directory(source).members
    ends = (member.data + min(member.packed, _USUAL) for member in members)
    source.expect([(member.before, end - member.before) for member, end in zip(members, ends, strict=True)])
    tensors = (_tensor(source, member) for member in members)
    return Contents(format=FORMAT.name, range=source, tensors={tensor.name: tensor for tensor in tensors})


def account(contents: Contents) -> tuple[Region, ...]:
    """Say what each byte is for."""
    spans = spans_of(contents)

    def inside(member: _zip.Member) -> Iterator[Region]:
        found = bisect_left(spans, (member.data, 0))
        start = min(spans[found][0], member.end) if found < len(spans) else member.end
        yield from region(member.data, start, "header", f"dtype and shape of {member.name}")
        yield from region(start, member.end, "data", member.name.removesuffix(_SUFFIX))

    return account_for(contents, _directory(contents.range), inside)


def checksums(contents: Contents) -> tuple[Checksum, ...]:
    """Return the CRC of every record."""
    return tuple(
        Checksum(
            contents.range.sub(member.data, member.packed),
            member.crc,
            member.name,
            None if member.stored else member.size,
        )
        for member in _directory(contents.range).members
    )


def _directory(source: ByteRange) -> _zip.Directory:
    return _zip.read_directory(source, paths=False)  # to NumPy, A and a, and /a, are three arrays


def _tensor(source: ByteRange, member: _zip.Member) -> TensorInfo:
    what = f"{source.file.path}: record {member.name}"
    if not member.name.endswith(_SUFFIX):
        raise UnsupportedError(f"{what} is no array (its name does not end in {_SUFFIX})")
    if member.method not in _METHODS:
        raise UnsupportedError(f"{what} is compressed by method {member.method}; NumPy only deflates")
    record = source.sub(member.data, member.packed)
    packed = None if member.stored else Deflated(record, member.size, member.crc, what)
    if packed:
        check_ratio(member.packed, member.size, what)
    header = _header(packed.head if packed else record.head, what)
    if header.length + header.nbytes != member.size:
        raise _zip.corrupt(
            source,
            f"record {member.name} has {member.size} bytes, its header and its values "
            f"{list(header.shape)} of {header.dtype} are {header.length + header.nbytes}",
        )
    pieces = _packed(record, header, packed, what) if packed else _stored(record, header)
    name = member.name.removesuffix(_SUFFIX)
    return TensorInfo(name=name, dtype=header.dtype, shape=header.shape, pieces=tuple(pieces))


def _header(head: Callable[[int], bytes], what: str) -> _npy.Header:
    raw = head(_npy.length_of(head(_npy.PREAMBLE), what))
    return _npy.parse(raw, what)


def _stored(record: ByteRange, header: _npy.Header) -> Iterator[Piece]:
    values = record.sub(header.length, header.nbytes)
    yield Piece(range=values, offsets=(0,) * len(header.shape), shape=header.shape, strides=header.strides)


def _packed(record: ByteRange, header: _npy.Header, packed: Deflated, what: str) -> Iterator[Piece]:
    """Yield runs of the values of a compressed array, or bands of rows if it lies column by column."""
    if header.strides:
        yield from _by_columns(record, header, packed, what)
        return
    width = header.dtype.bits // 8
    for at in range(0, header.nbytes, _RUN):
        length = min(_RUN, header.nbytes - at)
        yield Piece(
            range=record,
            offsets=(at // width,),
            shape=(length // width,),
            encoding=Encoding.CHUNK,
            unpack=_run(packed, header.length + at, length),
        )


def _run(packed: Deflated, at: int, length: int) -> Callable[[], bytes]:
    return lambda: packed.read(at, length)


def _by_columns(record: ByteRange, header: _npy.Header, packed: Deflated, what: str) -> Iterator[Piece]:
    """Yield bands of rows, each of which takes a pass through the whole array."""
    rows = header.shape[0]
    band = max(_BAND * rows // header.nbytes, 1)
    for first in range(0, rows, band):
        count = min(band, rows - first)
        yield Piece(
            range=record,
            offsets=(first, *(0 for _ in header.shape[1:])),
            shape=(count, *header.shape[1:]),
            encoding=Encoding.CHUNK,
            unpack=_rows(packed, header, first, count, what),
        )


def _rows(packed: Deflated, header: _npy.Header, first: int, count: int, what: str) -> Callable[[], bytes]:
    """Return what unpacks `count` rows of an array that lies column by column, and turns them."""

    def unpack() -> bytes:
        if header.nbytes > _MAX_PASSES * _BAND:
            raise LimitError(
                f"{what} is compressed and lies column by column: its {header.nbytes} bytes would have to be unpacked "
                f"more than {_MAX_PASSES} times",
                hint="save it again with np.savez, or as np.ascontiguousarray(array)",
            )
        import numpy as np

        rows, width = header.shape[0], header.dtype.bits // 8
        columns = header.nbytes // (rows * width)
        found = np.empty((columns, count), f"V{width}")
        step = max(_RUN // (rows * width), 1)
        for at in range(0, columns, step):
            place = header.length + at * rows * width
            if step == 1:
                raw = packed.read(place + first * width, count * width)
                found[at] = np.frombuffer(raw, found.dtype)
            else:
                raw = packed.read(place, min(step, columns - at) * rows * width)
                found[at : at + step] = np.frombuffer(raw, found.dtype).reshape(-1, rows)[:, first : first + count]
        turned: bytes = found.reshape(*header.shape[:0:-1], count).transpose().tobytes()
        return turned

    return unpack


FORMAT = Format(
    name="npz",
    title="NumPy archive",
    about="`np.savez` and `np.savez_compressed`: a zip archive of arrays of numbers, packed or not",
    accepts=accepts,
    read=read,
    account=account,
    checksums=checksums,
    claims=(".npz",),
)
