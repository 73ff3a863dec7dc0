"""Read a directory of torch.distributed.checkpoint: what its metadata says, held against its data files."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from ckptctl import formats
from ckptctl.errors import CkptctlError, CorruptError
from ckptctl.layouts._components import merged, split
from ckptctl.layouts._dcp_tree import tree_of
from ckptctl.layouts._members import unfinished
from ckptctl.model import Aspect, Component, Contents, Encoding, Finding, Part, Piece, Severity, TensorInfo
from ckptctl.storage import ByteRange, open_ahead, open_file
from ckptctl.tensors.coverage import uncovered
from ckptctl.values import Elided, TensorRef, nested, with_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptctl.layouts._layout import Scan
    from ckptctl.model import DType

DATA = re.compile(r".*\.distcp")
METADATA = re.compile(r"(__[0-9]{1,6})?\.metadata")
_ZEROS = 64
_MOST_FINDINGS, _MOST_VALUES, _LONG_VALUE = 20, 200_000, 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Distributed:
    """What a directory holds: its files, tensors by name, other items by name, and what is wrong.

    `paths` are the keys that led to the items, where they were kept.
    """

    files: tuple[Contents, ...]
    tensors: Mapping[str, TensorInfo]
    values: Mapping[str, object]
    findings: tuple[Finding, ...]
    paths: Mapping[str, tuple[str | int, ...]]

    def parts(self) -> dict[Component, Part]:
        """Sort tensors and values by the names that lead to them."""
        whole = replace(self.files[0], tensors=self.tensors)
        inside = {one.name for one in nested(list(self.values.values())) if isinstance(one, TensorRef)}
        flat = {**{name: TensorRef(name=name) for name in self.tensors if name not in inside}, **self.values}
        named = split(replace(whole, values=tree_of(flat, self.paths)))
        if Component.MODEL in named or Component.OPTIMIZER in named:
            return dict(named)
        if not self.values:
            return dict(split(whole))
        within = {name: tensor for name, tensor in self.tensors.items() if name in inside}
        beside = split(replace(whole, tensors=within, values=tree_of(self.values, self.paths)))
        others = {name: tensor for name, tensor in self.tensors.items() if name not in inside}
        return merged(split(replace(whole, tensors=others)), beside)  # no key tells, but names of tensors may


def holds_dcp(seen: Scan) -> bool:
    """Whether there is metadata, or data files that lack it."""
    return seen.directory and any(METADATA.fullmatch(name) or DATA.fullmatch(name) for name in seen.names)


def read_dcp(seen: Scan) -> Distributed:
    """Read all metadata of a directory.

    Raises
    ------
    CkptctlError
        The metadata cannot be read, or leads out of the directory.
    """
    names = [name for name in seen.names if METADATA.fullmatch(name)]
    data = _Data(seen)
    if not names:
        data.findings.append(unfinished(seen, ".metadata, which is written last, is missing"))
    metadatas = [_read(seen, name) for name in names]
    tensors = _joined([metadata for _, metadata in metadatas], data)
    uses = tuple(use for _, metadata in metadatas for use in metadata.globals)
    files = tuple(
        Contents(format="torch-dcp", range=source, tensors={}, globals=uses if index == 0 else ())
        for index, source in enumerate([source for source, _ in metadatas] + data.ranges())
    )
    items = {name: one for _, metadata in metadatas for name, one in data.values(metadata).items()}
    tensors |= {key: tensor for name, one in items.items() for key, tensor in _tensors_of(name, one).items()}
    values = {name: with_names(one.values, name) if isinstance(one, Contents) else one for name, one in items.items()}
    paths = {name: path for _, metadata in metadatas for name, path in metadata.paths.items()}
    return Distributed(files=files, tensors=tensors, values=values, findings=tuple(data.findings), paths=paths)


def _tensors_of(name: str, item: Contents | Elided) -> dict[str, TensorInfo]:
    """Return tensors inside an item that is none itself, such as a tuple of some, under names below its own."""
    found = item.tensors if isinstance(item, Contents) else {}
    alone = isinstance(item, Contents) and isinstance(item.values, TensorRef)
    named = {name if alone else f"{name}.{key}": tensor for key, tensor in found.items()}
    return {key: replace(tensor, name=key) for key, tensor in named.items()}


class _Data:
    """The data files, and what is wrong with what the metadata says of them."""

    def __init__(self, seen: Scan) -> None:
        self.seen = seen
        self.files: dict[str, ByteRange] = {}
        self.findings: list[Finding] = []
        self._missing: dict[str, int] = {}
        self._safetensors: dict[str, Mapping[str, TensorInfo] | None] = {}
        open_ahead((seen.path / name for name in seen.names if DATA.fullmatch(name)), window=_ZEROS)
        for name in seen.names:
            if DATA.fullmatch(name):
                file = open_file(seen.path / name, window=_ZEROS)
                self.files[name] = file.range()
                if file.size and not file.range().head(_ZEROS).strip(b"\0"):
                    self._note("corrupt", f"{name} begins with zeros: it was given its size and never written")
                file.release()

    def ranges(self) -> list[ByteRange]:
        """Return all data files."""
        return list(self.files.values())

    def piece(self, name: str, dtype: DType, chunk: formats.Chunk) -> Piece | None:
        """Return the block if its bytes are there; otherwise note what is wrong."""
        item = chunk.item
        if item is None:
            self._note("missing-item", f"the metadata does not say where a block of {name} lies")
            return None
        if not _is_plain(item.path):
            raise CorruptError(
                f"{self.seen.path}: the metadata places {name} in {item.path[:200]!r}, no name of a file beside it",
                hint="names that lead out of the directory are never followed",
            )
        file = self.files.get(item.path)
        if file is None:
            if item.path not in self._missing:
                self._note("missing-file", f"{item.path} is missing: blocks of {name} and more are lost")
            self._missing[item.path] = self._missing.get(item.path, 0) + 1
            return None
        named = self._by_name(item.path, file)
        if named is not None:
            return self._named_piece(name, dtype, chunk, item.path, named)
        if item.offset + item.length > file.length:
            if item.path not in self._missing:
                ends = f"a block of {name} ends at {item.offset + item.length}, and more may be lost"
                self._note("truncated", f"{item.path} is cut at {file.length} bytes; {ends}")
            self._missing[item.path] = self._missing.get(item.path, 0) + 1
            return None
        whole = file.sub(item.offset, item.length)
        return Piece(
            range=whole,
            offsets=chunk.offsets,
            shape=chunk.sizes,
            encoding=Encoding.ITEM,
            inner=partial(_inside, name, dtype, whole, chunk.sizes, chunk.offsets),
        )

    def _by_name(self, path: str, file: ByteRange) -> Mapping[str, TensorInfo] | None:
        """Return the tensors of a data file that is one safetensors file; the metadata's offsets are of no use then."""
        if path not in self._safetensors:
            self._safetensors[path] = None
            if formats.is_safetensors(file):
                try:
                    self._safetensors[path] = formats.read(file).tensors
                except CkptctlError as error:
                    self._note(error.slug, error.message.removeprefix(f"{self.seen.path}/"))
                    self._safetensors[path] = {}
        return self._safetensors[path]

    def _named_piece(
        self, name: str, dtype: DType, chunk: formats.Chunk, path: str, named: Mapping[str, TensorInfo]
    ) -> Piece | None:
        found = named.get(name)
        if found is None or found.shape != chunk.sizes or found.dtype is not dtype:
            what = f"of the shape {list(chunk.sizes)}" if not found or found.dtype is dtype else f"in {dtype}"
            self._note("missing-item", f"{path} does not hold a block of {name} {what}")
            return None
        return replace(found.pieces[0], offsets=chunk.offsets) if found.pieces else None

    def check_whole(self, tensors: Mapping[str, TensorInfo]) -> None:
        """Note tensors whose blocks do not cover them, unless it has been said which files they lack."""
        if self.findings:
            return
        for name, tensor in tensors.items():
            covered = sum(math.prod(piece.shape) for piece in tensor.pieces)
            if covered < tensor.numel:
                self._note("missing-block", f"the blocks of {name} are {covered} of {tensor.numel} elements")
            elif len(tensor.pieces) > 1 and (problem := uncovered(tensor)):
                self._note("missing-block", f"{name}: {problem}")

    def values(self, metadata: formats.DcpMetadata) -> dict[str, Contents | Elided]:
        """Read the items that are no tensors; what cannot be read is noted."""
        read: dict[str, Contents | Elided] = {}
        place = {name: (item.path, item.offset) for name, item in metadata.values.items() if item}
        for number, (name, item) in enumerate(
            sorted(metadata.values.items(), key=lambda one: place.get(one[0], ("", 0)))
        ):
            if number >= _MOST_VALUES:
                read[name] = Elided("not read: there are too many")
                continue
            file = self.files.get(item.path) if item else None
            if not item or not file or item.offset + item.length > file.length or item.length > _LONG_VALUE:
                read[name] = Elided("not read: its item is long, or not there")
                continue
            try:
                read[name] = formats.read(file.sub(item.offset, item.length))
            except CkptctlError as error:
                self._note(error.slug, f"the item {name} cannot be read: {error.message}")
        return {name: read[name] for name in metadata.values if name in read}

    def _note(self, slug: str, message: str) -> None:
        if len(self.findings) < _MOST_FINDINGS:
            self.findings.append(
                Finding(
                    aspect=Aspect.STRUCTURE,
                    severity=Severity.ERROR,
                    slug=slug,
                    where=self.seen.path.name,
                    message=message,
                )
            )


def _inside(name: str, dtype: DType, item: ByteRange, sizes: tuple[int, ...], offsets: tuple[int, ...]) -> Piece:
    """Return the block that a file of ``torch.save`` inside a data file holds.

    Raises
    ------
    CorruptError
        It holds something else.
    """
    tensors = list(formats.read(item).tensors.values())
    fits = len(tensors) == 1 and (tensors[0].shape, tensors[0].dtype) == (sizes, dtype)
    if not fits or len(tensors[0].pieces) != 1:
        raise CorruptError(f"{item.file.path}: the item at byte {item.offset} is not the block of {name} it should be")
    return replace(tensors[0].pieces[0], offsets=offsets)


def _read(seen: Scan, name: str) -> tuple[ByteRange, formats.DcpMetadata]:
    file = open_file(seen.path / name)
    metadata = formats.read_metadata(file.range())
    file.release()
    return file.range(), metadata


def _joined(metadatas: list[formats.DcpMetadata], data: _Data) -> dict[str, TensorInfo]:
    """Join what each rank's metadata says: sizes are those of the whole, chunks only its own."""
    joined: dict[str, TensorInfo] = {}
    for metadata in metadatas:
        for name, tensor in metadata.tensors.items():
            pieces = tuple(piece for chunk in tensor.chunks if (piece := data.piece(name, tensor.dtype, chunk)))
            known = joined.get(name)
            if known and (known.shape, known.dtype) != (tensor.shape, tensor.dtype):
                raise CorruptError(f"{data.seen.path}: two ranks describe {name} differently")
            # Ranks may each list the same replica.
            blocks = {piece.offsets: piece for piece in (known.pieces if known else ())}
            copies = [*known.copies] if known else []
            for piece in pieces:
                first = blocks.setdefault(piece.offsets, piece)
                if first is not piece and first.range != piece.range:
                    copies.append(piece)
            joined[name] = TensorInfo(
                name=name,
                dtype=tensor.dtype,
                shape=tensor.shape,
                pieces=tuple(blocks.values()),
                copies=tuple(copies),
            )
    data.check_whole(joined)
    return joined


def _is_plain(path: str) -> bool:
    parts = path.split("/")
    return (
        all(part not in ("", ".", "..") and part.isprintable() and "\\" not in part for part in parts)
        and len(parts) == 1
    )
