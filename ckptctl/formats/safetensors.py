"""safetensors files: a JSON header, then the bytes of each tensor without a gap.

https://github.com/huggingface/safetensors#format, with the rules of the reference implementation
0.8: what it refuses is refused, what it takes though the text forbids it is read with a warning.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from ckptctl.errors import CorruptError, LimitError, counted
from ckptctl.formats import _json
from ckptctl.formats._format import Format
from ckptctl.formats._safetensors_entries import Entry, entry_hook, fields_of, normal_entry, span_of
from ckptctl.model import Aspect, Contents, Finding, Piece, Region, Severity, TensorInfo
from ckptctl.storage import ByteRange
from ckptctl.values import RANK_KEY, VALUES_KEY

if TYPE_CHECKING:
    from collections.abc import Iterator

_LENGTH = 8
_MAX_HEADER = 100_000_000
_METADATA = "__metadata__"
_SUFFIX = ".safetensors"
_SPACE = b" \t\n\r"
_CHUNK = 1 << 16
_MANY_BRACKETS, _LONG_TEXT = 100_000, 1000
_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_HINT = "copy or download it again; a checksum from its source would show the damage"


def accepts(source: ByteRange) -> bool:
    """Whether it begins with a length and what could be a JSON object of that length."""
    head = source.head(_LENGTH + 1)
    length = int.from_bytes(head[:_LENGTH], "little")
    if len(head) <= _LENGTH or not 0 < length <= _MAX_HEADER:
        return False
    if head[_LENGTH:] == b"{":
        return True
    inside = _LENGTH + length <= source.length
    # The name decides only whose message is given for a header that no reader would take.
    return inside and (source.file.path.name.endswith(_SUFFIX) or _begins_with_brace(source.sub(_LENGTH, length)))


def _begins_with_brace(header: ByteRange) -> bool:
    """Whether nothing but white space comes before the first brace; the reference allows any amount."""
    for start in range(0, header.length, _CHUNK):
        part = header.read(start, min(_CHUNK, header.length - start)).lstrip(_SPACE)
        if part:
            return part.startswith(b"{")
    return False


def read(source: ByteRange) -> Contents:
    """Describe a safetensors file from its header."""
    header = _header(source)
    where = f"{source.file.path}: the header"
    warnings: list[tuple[str, str]] = []
    if header[:1] != b"{":
        warnings.append(("leading-space", "white space before the header's first brace"))
    most = 64 * header.count(b"data_offsets") + _MANY_BRACKETS
    if header.count(b"[") > most and header.count(b"[") - _inside_texts(header) > most:
        raise LimitError(f"{where} holds more lists than its tensors can need")
    members = _json.parse(header, where=where, hook=entry_hook)
    if type(members) is Entry:  # three tensors that are called like the fields of an entry
        members = _json.Pairs(zip(("dtype", "shape", "data_offsets"), members, strict=True))
    if not isinstance(members, _json.Pairs):
        raise CorruptError(f"{where} is not a JSON object of tensors")
    metadata = _metadata(where, members, warnings)
    entries: dict[str, Entry] = {}
    for name, value in members:
        if name == _METADATA:
            continue
        entry = value if type(value) is Entry else normal_entry(where, name, value, warnings)
        if name in entries:
            warnings.append(("duplicate-name", f"the name {name} occurs twice; the last one counts"))
            fields_of(source.file.path, name, entries[name])  # must hold all the same
        entries[name] = entry
    tensors = dict(_tensors(source, _LENGTH + len(header), entries))
    found = Contents(format=FORMAT.name, range=source, tensors=tensors, metadata=metadata)
    if RANK_KEY in metadata:
        from ckptctl.formats._rank import as_part  # noqa: PLC0415  # only files that `ckptctl.training` wrote need it

        found, note = as_part(found)
        warnings.append(("one-rank", note))
    if VALUES_KEY in metadata:
        from ckptctl.formats._state import restore  # noqa: PLC0415  # only files that convert wrote need it

        whole = restore(found.tensors, metadata)
        found = replace(found, tensors=whole.tensors, values=whole.values, metadata=whole.metadata)
        if whole.problem:
            warnings.append(("values-ignored", f"the plain values in its metadata are left aside: {whole.problem}"))
    return replace(found, findings=tuple(_finding(source, slug, message) for slug, message in dict.fromkeys(warnings)))


def _inside_texts(header: bytes) -> int:
    """Return how many brackets are part of a text, as in values that are kept as one."""
    return sum(found[0].count(b"[") for found in _TEXT.finditer(header) if len(found[0]) > _LONG_TEXT)


def account(contents: Contents) -> tuple[Region, ...]:
    """Return what each byte of the file is for."""
    source = contents.range
    header = _header(source)
    text = header.rstrip(_SPACE)
    regions = [
        Region(offset=0, length=_LENGTH, kind="header", what="length of the header"),
        Region(offset=_LENGTH, length=len(text), kind="header", what="names, dtypes, shapes, metadata"),
        Region(offset=_LENGTH + len(text), length=len(header) - len(text), kind="padding", what="white space"),
    ]
    # A tied name is no region of its own.
    places = {t.pieces[0].range.offset: (t.pieces[0].range, n) for n, t in contents.tensors.items() if t.nbytes}
    pieces = [piece for _, piece in sorted(places.items())]
    regions += [Region(offset=r.offset - source.offset, length=r.length, kind="data", what=name) for r, name in pieces]
    return tuple(region for region in regions if region.length)


def _header(source: ByteRange) -> bytes:
    if source.length < _LENGTH:
        raise CorruptError(f"{source.file.path}: {source.length} bytes are too few for a safetensors file", hint=_HINT)
    length = int.from_bytes(source.read(0, _LENGTH), "little")
    if length > _MAX_HEADER:
        raise LimitError(
            f"{source.file.path}: not a safetensors file: its header would be {length} bytes long (limit {_MAX_HEADER})"
        )
    if _LENGTH + length > source.length:
        raise CorruptError(
            f"{source.file.path}: cut at {source.length} bytes, inside the header of {length} bytes: "
            "which tensors it held cannot be told",
            hint=_HINT,
            kind="truncated",
        )
    return source.read(_LENGTH, length)


def _metadata(where: str, members: _json.Pairs, warnings: list[tuple[str, str]]) -> dict[str, str]:
    found = [value for name, value in members if name == _METADATA]
    if len(found) > 1:
        raise CorruptError(f"{where} has {_METADATA} twice")
    if not found:
        return {}
    if found[0] is None:
        warnings.append(("null-metadata", f"{_METADATA} is null"))
        return {}
    pairs = found[0]
    if not isinstance(pairs, _json.Pairs) or not all(type(value) is str for _, value in pairs):
        raise CorruptError(f"{where} has a {_METADATA} that is not an object of strings")
    metadata = {key: value for key, value in pairs if isinstance(value, str)}
    if len(metadata) != len(pairs):
        warnings.append(("duplicate-metadata", f"a key occurs twice in {_METADATA}; the last one counts"))
    return metadata


def _tensors(source: ByteRange, start: int, entries: dict[str, Entry]) -> Iterator[tuple[str, TensorInfo]]:
    """Check that the tensors cover the data exactly, in some order, and describe them."""
    path, spans = source.file.path, {}
    for name, entry in entries.items():
        spans[name] = span_of(path, name, entry)
    reached, before = 0, ""
    for begin, end, name in sorted((s.begin, s.end, name) for name, s in spans.items()):
        if begin != reached:
            what = "overlaps" if begin < reached else f"leaves {begin - reached} bytes unused after"
            place = before or "the header"
            kind = "overlap" if begin < reached else "hole"
            raise CorruptError(f"{path}: tensor {name} at byte {begin} of the data {what} {place}", kind=kind)
        reached, before = end, name
    _check_end(source, start, reached, [(s.end, name) for name, s in spans.items()])
    zeros: dict[int, tuple[int, ...]] = {}
    for name, span in spans.items():
        ndim = len(span.shape)
        here = ByteRange(file=source.file, offset=source.offset + start + span.begin, length=span.end - span.begin)
        piece = Piece(range=here, offsets=zeros.setdefault(ndim, (0,) * ndim), shape=span.shape)
        yield name, TensorInfo(name=name, dtype=span.dtype, shape=span.shape, pieces=(piece,))


def _check_end(source: ByteRange, start: int, end: int, ends: list[tuple[int, str]]) -> None:
    extra = source.length - start - end
    if extra > 0:
        raise CorruptError(
            f"{source.file.path}: {counted(extra, 'byte')} after the last tensor belong to none "
            f"({source.length} bytes, the header accounts for {start + end})",
            kind="trailing-bytes",
        )
    if extra < 0:
        lost = sorted(pair for pair in ends if pair[0] > source.length - start)
        raise CorruptError(
            f"{source.file.path}: cut at {source.length} of {start + end} bytes: {len(lost)} of "
            f"{counted(len(ends), 'tensor')} lost (the first is {lost[0][1]})",
            hint=_HINT,
            kind="truncated",
        )


def _finding(source: ByteRange, slug: str, message: str) -> Finding:
    return Finding(
        aspect=Aspect.STRUCTURE, severity=Severity.WARNING, slug=slug, where=source.file.path.name, message=message
    )


FORMAT = Format(
    name="safetensors",
    title="safetensors",
    about="a JSON header with names, types, shapes and offsets, then the raw tensors",
    accepts=accepts,
    read=read,
    account=account,
    claims=(_SUFFIX,),
)
