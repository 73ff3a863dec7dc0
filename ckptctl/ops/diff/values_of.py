"""How the values of one tensor of A are to those of one of B."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from ckptctl.errors import CkptctlError, UnsupportedError
from ckptctl.ops.diff.report import Kind, TensorDiff
from ckptctl.tensors.compare import same_bytes, same_place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ckptctl.model import DType, Piece, TensorInfo
    from ckptctl.ops.diff.options import Options
    from ckptctl.ops.diff.pairing import Pair
    from ckptctl.tensors.measure import Measures

    Progress = Callable[[int], None]


def compared(pair: Pair, options: Options, progress: Progress) -> TensorDiff | None:
    """Compare two tensors; None if they are equal and nobody asked for those.

    What goes wrong with the reading of one is said, and does not end the comparison.
    """
    measures, why = None, ""
    if pair.a.shape != pair.b.shape:
        kind = Kind.SHAPE
    else:
        try:
            kind, measures = _values(pair.a, pair.b, options, progress)
        except CkptctlError as error:
            kind, why = Kind.UNREAD, error.message
    if kind is Kind.EQUAL and not options.all:
        return None
    if measures and measures.beyond == 0 and (kind is Kind.VALUES or (kind is Kind.DTYPE and options.dtype_tolerant)):
        kind = Kind.CLOSE
    equal = kind in (Kind.EQUAL, Kind.CLOSE, Kind.UNREAD) or (kind is Kind.ROUNDED and options.dtype_tolerant)
    return TensorDiff(
        name=pair.key_b[1],
        component=pair.key_b[0],
        kind=kind,
        different=not equal,
        dtype_a=pair.a.dtype.name,
        dtype_b=pair.b.dtype.name,
        shape_a=pair.a.shape,
        shape_b=pair.b.shape,
        nbytes=max(pair.a.nbytes, pair.b.nbytes),
        was=pair.key_a[1] if pair.renamed else "",
        measures=measures,
        why=why,
    )


def _values(a: TensorInfo, b: TensorInfo, options: Options, progress: Progress) -> tuple[Kind, Measures | None]:
    if same_place(a, b):
        return Kind.EQUAL, None
    if a.layout != b.layout or (a.layout != "strided" and a.dtype is not b.dtype):
        return _dense(a, b, options, progress)
    if a.layout != "strided":
        return _parts(a, b, options, progress)
    if not (a.whole and b.whole):
        return _shards(a, b, options, progress)
    if a.dtype is b.dtype and same_bytes(a, b, progress):
        return Kind.EQUAL, None
    if options.first and not _asks(a, b, options):
        return _kind(a, b), None
    found = _measured(a, b, options, progress)
    rounded = a.dtype is not b.dtype and (found.changed == 0 if found else not a.numel)
    return Kind.ROUNDED if rounded else _kind(a, b), found


def _asks(a: TensorInfo, b: TensorInfo, options: Options) -> bool:
    """Whether it takes measures to tell if two tensors count as equal."""
    return bool(options.tolerance) or (options.dtype_tolerant and a.dtype is not b.dtype)


def _kind(a: TensorInfo, b: TensorInfo) -> Kind:
    return Kind.VALUES if a.dtype is b.dtype else Kind.DTYPE


def _measured(a: TensorInfo, b: TensorInfo, options: Options, progress: Progress) -> Measures | None:
    measure, is_number = _numeric()
    if not (is_number(a.dtype) and is_number(b.dtype) and a.numel):
        return None
    return measure(a, b, tolerance=options.tolerance, progress=progress)


@lru_cache(maxsize=1)
def _numeric() -> tuple[Callable[..., Measures], Callable[[DType], bool]]:
    """Return what needs NumPy, which is not loaded before something differs."""
    from ckptctl.tensors.measure import measure  # noqa: PLC0415
    from ckptctl.tensors.numbers import is_number  # noqa: PLC0415

    return measure, is_number


def _dense(a: TensorInfo, b: TensorInfo, options: Options, progress: Progress) -> tuple[Kind, Measures | None]:
    """Compare what is sparse on one side with what it is once written out in full."""
    from ckptctl.tensors.sparse import LAYOUTS, densified  # noqa: PLC0415

    if any(one.layout not in (*LAYOUTS, "strided") for one in (a, b)):
        return _kind(a, b), None

    def values(one: TensorInfo) -> Iterator[memoryview] | None:
        return densified(one, most=1 << 20) if one.layout in LAYOUTS else None

    measure, _ = _numeric()
    found = measure(a, b, tolerance=options.tolerance, dense=(values(a), values(b)), progress=progress)
    if found.changed:
        return _kind(a, b), found
    return (Kind.EQUAL, None) if a.dtype is b.dtype else (Kind.ROUNDED, found)


def _parts(a: TensorInfo, b: TensorInfo, options: Options, progress: Progress) -> tuple[Kind, Measures | None]:
    """Compare the tensors that one of another layout is stored as; if they differ, sparse ones in full."""
    alike = [(p.dtype, p.shape) for p in a.parts] == [(q.dtype, q.shape) for q in b.parts]
    if alike and all(_values(p, q, options, progress)[0] is Kind.EQUAL for p, q in zip(a.parts, b.parts, strict=True)):
        return Kind.EQUAL, None
    return _dense(a, b, options, progress) if a.layout.startswith("sparse_") else (Kind.VALUES, None)


def _shards(a: TensorInfo, b: TensorInfo, options: Options, progress: Progress) -> tuple[Kind, Measures | None]:
    """Compare what two files of one rank have of a larger tensor, block by block."""
    blocks = [sorted(one.pieces, key=lambda piece: piece.offsets) for one in (a, b)]
    if [(p.offsets, p.shape) for p in blocks[0]] != [(q.offsets, q.shape) for q in blocks[1]]:
        raise UnsupportedError(f"{a.name} is not whole, and not the same part of it on both sides")
    worst: tuple[Kind, Measures | None] = (Kind.EQUAL, None)
    for p, q in zip(*blocks, strict=True):
        kind, measures = _values(_alone(a, p), _alone(b, q), options, progress)
        if kind is not Kind.EQUAL and (not worst[1] or (measures and measures.max_abs > worst[1].max_abs)):
            moved = tuple(map(sum, zip(measures.worst, p.offsets, strict=False))) if measures else ()
            worst = kind, replace(measures, worst=moved) if measures else None
    return worst


def _alone(tensor: TensorInfo, piece: Piece) -> TensorInfo:
    return replace(tensor, shape=piece.shape, pieces=(replace(piece, offsets=(0,) * len(piece.shape)),), copies=())
