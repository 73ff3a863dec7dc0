"""Where two trees of plain values differ. Tensors in them are passed over: they are compared by their names."""

from __future__ import annotations

import codecs
import math
import struct
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from ckptctl.values import (
    Described,
    Elided,
    Numbers,
    Span,
    TensorRef,
    as_mapping,
    children,
    is_module,
    nested,
    text_items,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_CODES = {"BOOL": "?", "I64": "q", "U64": "Q", "F64": "d"}
_CHUNK, _MOST = 1 << 16, 1 << 60
VERSIONS = "_metadata"
"""The versions of modules that torch keeps beside a state dict; they say nothing about the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueDiff:
    """A place in the tree, and what stands there; `only` is ``a`` or ``b`` where one side has nothing."""

    path: str
    a: object = None
    b: object = None
    only: str = ""


def value_differences(one: Mapping[str, object], other: Mapping[str, object]) -> Iterator[ValueDiff]:
    """Yield each place at which two trees differ, in the order of the first.

    Lists and tuples, and the kinds of dicts, are not told apart; 1, 1.0 and True are, and 0.0 from -0.0. NaN is equal
    to NaN. What a whole module has besides tensors is passed over if the other side has no module.
    """
    seen: set[tuple[int, int]] = set()
    todo: list[tuple[str, object, object]] = [("", dict(one), dict(other))]
    while todo:
        path, a, b = todo.pop()
        if is_module(a) != is_module(b):
            continue  # it is a program, of which the other side has the tensors
        if a is _NOTHING or b is _NOTHING:
            value, side = (b, "b") if a is _NOTHING else (a, "a")
            if _has_plain(value):
                yield ValueDiff(path=path, only=side, **{side: value})
            continue
        below = _inside(a, b)
        if below is None:
            if not _same(a, b):
                yield ValueDiff(path=path, a=a, b=b)
            continue
        if (id(a), id(b)) in seen:
            continue
        seen.add((id(a), id(b)))
        todo += reversed([(f"{path}.{key}" if path else key, x, y) for key, x, y in below if key != VERSIONS])


class _Nothing:
    """Stands where one side has nothing."""


_NOTHING = _Nothing()


def _inside(a: object, b: object) -> list[tuple[str, object, object]] | None:
    """Return what is inside two containers of one kind, by key; None if they are not."""
    items_a, items_b = as_mapping(a), as_mapping(b)
    if items_a is not None and items_b is not None:
        return _matched(dict(text_items(items_a)), dict(text_items(items_b)))
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        pairs = zip_longest(a, b, fillvalue=_NOTHING)
        return [(str(index), x, y) for index, (x, y) in enumerate(pairs)]
    if isinstance(a, Described) and isinstance(b, Described) and a.type == b.type:
        return _matched(dict(children(a)), dict(children(b)))
    return None


def _matched(a: Mapping[str, object], b: Mapping[str, object]) -> list[tuple[str, object, object]]:
    return [(key, a.get(key, _NOTHING), b.get(key, _NOTHING)) for key in {**a, **b}]


def _is_leaf(value: object) -> bool:
    return not isinstance(value, (dict, list, tuple, Described))


def _is_plain(value: object) -> bool:
    return _is_leaf(value) and not isinstance(value, TensorRef)


def _has_plain(value: object) -> bool:
    """Whether there is more in a value than tensors."""
    if not _is_leaf(value) and not any(True for _ in children(value)):
        return not isinstance(value, Described)
    return any(
        _is_leaf(inner) and not isinstance(inner, TensorRef) for inner in nested(value, skip=VERSIONS, most=_MOST)
    )


def _same(a: object, b: object) -> bool:
    if isinstance(a, TensorRef) or isinstance(b, TensorRef):
        other = b if isinstance(a, TensorRef) else a
        return isinstance(other, TensorRef) or not _has_plain(other)
    if isinstance(a, Numbers) or isinstance(b, Numbers):
        return _is_run(a) and _is_run(b) and all(_same(x, y) for x, y in zip_longest(_run(a), _run(b)))
    if isinstance(a, Span) or isinstance(b, Span):
        return _is_text(a) == _is_text(b) and _same_bytes(_bytes(a), _bytes(b))
    if isinstance(a, float) and isinstance(b, float):
        return struct.pack("<d", a) == struct.pack("<d", b) or (math.isnan(a) and math.isnan(b))
    if isinstance(a, Elided) or isinstance(b, Elided):
        return False  # nobody has looked
    return type(a) is type(b) and a == b


def _is_run(value: object) -> bool:
    return isinstance(value, (Numbers, list, tuple))


def _run(value: object) -> Iterator[object]:
    """Yield the numbers of a long list, which may still lie in its file."""
    if isinstance(value, (list, tuple)):
        yield from value
    elif isinstance(value, Numbers):
        code = _CODES[value.dtype.name]
        for at in range(0, value.range.length, _CHUNK):
            raw = value.range.read(at, min(_CHUNK, value.range.length - at))
            yield from (one for (one,) in struct.iter_unpack(f"<{code}", raw))


def _is_text(value: object) -> bool | None:
    """Whether it is text (True) or bytes (False); None if neither."""
    if isinstance(value, Span):
        return value.text
    return True if isinstance(value, str) else False if isinstance(value, bytes) else None


def _bytes(value: object) -> Iterator[bytes]:
    if isinstance(value, str):
        yield value.encode("utf-8", "surrogatepass")
    elif isinstance(value, bytes):
        yield value
    elif isinstance(value, Span):
        decoder = codecs.getincrementaldecoder("utf-8")() if value.latin1 else None
        for at in range(0, value.range.length, _CHUNK):
            raw = value.range.read(at, min(_CHUNK, value.range.length - at))
            yield decoder.decode(raw).encode("latin1") if decoder else raw


def _same_bytes(one: Iterator[bytes], other: Iterator[bytes]) -> bool:
    a = b = b""
    while True:
        a, b = a or next(one, b""), b or next(other, b"")
        count = min(len(a), len(b))
        if not count:
            return len(a) == len(b)
        if a[:count] != b[:count]:
            return False
        a, b = a[count:], b[count:]
