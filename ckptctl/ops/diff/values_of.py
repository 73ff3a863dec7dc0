"""How the values of one tensor of A are to those of one of B."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from ckptctl.errors import CkptctlError, UnsupportedError
from ckptctl.ops.diff.report import Kind, TensorDiff
from ckptctl.tensors.compare import alone, replicas, same_bytes, same_place, unravelled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ckptctl.model import DType, TensorInfo
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
    if a.copies or b.copies:
        return _with_copies(a, b, options, progress)
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


def merged_measures(several: Sequence[Measures]) -> Measures:
    """Return the measures of blocks as those of all of them."""
    from ckptctl.tensors.measure import merged  # noqa: PLC0415

    return merged(several)


@lru_cache(maxsize=1)
def _numeric() -> tuple[Callable[..., Measures], Callable[[DType], bool]]:
    """Return what needs NumPy, which is not loaded before something differs."""
    from ckptctl.tensors.measure import measure  # noqa: PLC0415
    from ckptctl.tensors.numbers import is_number  # noqa: PLC0415

    return measure, is_number


def _with_copies(a: TensorInfo, b: TensorInfo, options: Options, progress: Progress) -> tuple[Kind, Measures | None]:
    """Compare what several ranks hold under one name: rank by rank, or else once each side agrees with itself."""
    found = [_values(replace(a, copies=()), replace(b, copies=()), options, progress)]
    if [one.shape for one in a.copies] == [one.shape for one in b.copies]:
        pairs = zip(a.copies, b.copies, strict=True)
        found += [_values(alone(a, p), alone(b, q), options, progress) for p, q in pairs]
        return _worst(found)
    for one in (a, b):
        if not all(same for _, _, same in replicas(one)):
            raise UnsupportedError(f"{one.name} is not the same on all ranks, and may be a part of a larger one")
    return found[0]


def _worst(found: Sequence[tuple[Kind, Measures | None]]) -> tuple[Kind, Measures | None]:
    """Return what several blocks of a tensor come to together."""
    order = (Kind.EQUAL, Kind.ROUNDED, Kind.VALUES, Kind.DTYPE)
    kind = max((kind for kind, _ in found), key=order.index)
    measures = [one for _, one in found]
    known = [one for one in measures if one is not None]
    if kind is Kind.EQUAL or any(m is None and k is not Kind.EQUAL for k, m in found):
        return kind, None
    return kind, merged_measures(known)


def _dense(a: TensorInfo, b: TensorInfo, options: Options, progress: Progress) -> tuple[Kind, Measures | None]:
    """Compare what is sparse on one side with what it is once written out in full."""
    from ckptctl.tensors.sparse import LAYOUTS, densified  # noqa: PLC0415

    if any(one.layout not in (*LAYOUTS, "strided") for one in (a, b)):
        return _kind(a, b), None
    if not a.numel:
        return (Kind.EQUAL if a.dtype is b.dtype else Kind.ROUNDED), None

    def values(one: TensorInfo) -> Iterator[memoryview] | None:
        return densified(one, most=1 << 20) if one.layout in LAYOUTS else None

    measure, _ = _numeric()
    found = _where_stored(a, b, options) or measure(
        a, b, tolerance=options.tolerance, dense=(values(a), values(b)), progress=progress
    )
    if found.changed:
        return _kind(a, b), found
    return (Kind.EQUAL, None) if a.dtype is b.dtype else (Kind.ROUNDED, found)


def _where_stored(a: TensorInfo, b: TensorInfo, options: Options) -> Measures | None:
    """Measure two sparse tensors where either stores a value; all else is zero in both."""
    from ckptctl.tensors.sparse import stored_of_both  # noqa: PLC0415

    both = stored_of_both(a, b)
    if both is None or not len(both[2]):
        return None
    shape = (len(both[2]),)
    measure, _ = _numeric()
    one, other = (replace(tensor, layout="strided", shape=shape, parts=(), pieces=()) for tensor in (a, b))
    found = measure(
        one, other, tolerance=options.tolerance, dense=(iter([memoryview(both[0])]), iter([memoryview(both[1])]))
    )
    worst = unravelled(int(both[2][found.worst[0]]), a.shape) if found.worst else None
    share, mean = found.changed / a.numel, found.mean_abs * shape[0] / a.numel
    return replace(found, numel=a.numel, share=share, mean_abs=mean, worst=worst)


def _parts(a: TensorInfo, b: TensorInfo, options: Options, progress: Progress) -> tuple[Kind, Measures | None]:
    """Compare the tensors that one of another layout is stored as; if they differ, sparse ones in full."""
    if not (a.parts or b.parts or a.pieces or b.pieces):
        return Kind.EQUAL, None  # a shape without data
    if not (a.parts and b.parts):
        raise UnsupportedError(f"{a.name} is {a.layout}, of which nobody has said how to compare it")
    if [(p.dtype, p.shape) for p in a.parts] == [(q.dtype, q.shape) for q in b.parts]:
        found = [_values(p, q, options, progress) for p, q in zip(a.parts, b.parts, strict=True)]
        if all(kind is Kind.EQUAL for kind, _ in found):
            return Kind.EQUAL, None
    return _dense(a, b, options, progress) if a.layout.startswith("sparse_") else (Kind.VALUES, None)


def _shards(a: TensorInfo, b: TensorInfo, options: Options, progress: Progress) -> tuple[Kind, Measures | None]:
    """Compare what two files of one rank have of a larger tensor, block by block."""
    blocks = [sorted(one.pieces, key=lambda piece: piece.offsets) for one in (a, b)]
    if [(p.offsets, p.shape) for p in blocks[0]] != [(q.offsets, q.shape) for q in blocks[1]]:
        raise UnsupportedError(f"{a.name} is not whole, and not the same part of it on both sides")
    found = []
    for p, q in zip(*blocks, strict=True):
        kind, measures = _values(alone(a, p), alone(b, q), options, progress)
        if measures and measures.worst is not None:
            measures = replace(measures, worst=tuple(map(sum, zip(measures.worst, p.offsets, strict=False))))
        found.append((kind, measures))
    return _worst(found) if found else (Kind.EQUAL, None)
