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
_CHUNK, _MOST, _SHOWN = 1 << 16, 1 << 60, 3
VERSIONS = "_metadata"
"""The versions of modules that torch keeps beside a state dict; they say nothing about the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueDiff:
    """A place in the tree, and what stands there; `only` is ``a`` or ``b`` where one side has nothing.

    `unread` tells that nobody could look on either side.
    """

    path: str
    a: object = None
    b: object = None
    only: str = ""
    unread: bool = False


def value_differences(one: Mapping[str, object], other: Mapping[str, object]) -> Iterator[ValueDiff]:
    """Yield each place at which two trees differ, in the order of the first.

    Lists and tuples, the kinds of dicts, and keys of one text are not told apart; 1, 1.0 and True are, and 0.0 from
    -0.0. NaN is equal to NaN; sets have no order. Tensors are passed over, and what a whole module has besides them is
    if the other side has no module.
    """
    seen: dict[tuple[int, int], tuple[object, object]] = {}  # kept alive: the numbers of the dead are given out again
    todo: list[tuple[str, object, object]] = [("", dict(one), dict(other))]
    while todo:
        path, a, b = todo.pop()
        if is_module(a) != is_module(b):
            continue  # it is a program, of which the other side has the tensors
        if a is _NOTHING or b is _NOTHING:
            value, side = (b, "b") if a is _NOTHING else (a, "a")
            if _has_plain(value):
                yield _only(path, side, value)
            continue
        below = _inside(a, b)
        if below is None:
            yield from _leaves(path, a, b)
        elif (id(a), id(b)) not in seen:
            seen[id(a), id(b)] = (a, b)
            todo += reversed([(f"{path}.{key}" if path else key, x, y) for key, x, y in below if key != VERSIONS])


def _only(path: str, side: str, value: object) -> ValueDiff:
    return ValueDiff(path=path, a=value, only="a") if side == "a" else ValueDiff(path=path, b=value, only="b")


def attributes_of_tensors(root: object) -> dict[str, Mapping[str, object]]:
    """Return what hangs on the tensors in a tree, by their names."""
    refs = (one for one in nested(root, most=_MOST) if isinstance(one, TensorRef) and one.state is not None)
    return {ref.name: _as_dict(ref.state) for ref in refs}


class _Nothing:
    """Stands where one side has nothing."""


_NOTHING = _Nothing()


def _inside(a: object, b: object) -> list[tuple[str, object, object]] | None:
    """Return what is inside two containers of one kind, by key; None if they are not."""
    if isinstance(a, TensorRef) and isinstance(b, TensorRef):
        return []
    items_a, items_b = as_mapping(a), as_mapping(b)
    if items_a is not None and items_b is not None:
        with_args = isinstance(a, Described) and isinstance(b, Described)
        own = [_of_object(one, args=with_args, items=False) for one in (a, b)]
        return [*_matched(dict(text_items(items_a)), dict(text_items(items_b))), *_matched(*own)]
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        pairs = zip_longest(a, b, fillvalue=_NOTHING)
        return [(str(index), x, y) for index, (x, y) in enumerate(pairs)]
    if isinstance(a, Described) and isinstance(b, Described) and a.type == b.type:
        return _matched(_of_object(a), _of_object(b))
    return None


def _of_object(value: object, *, args: bool = True, items: bool = True) -> Mapping[str, object]:
    """Return what an object was made from, what was put into it, and its attributes."""
    if not isinstance(value, Described):
        return {}
    made = {f"({index})": _ordered(value, one) for index, one in enumerate(value.args)} if args else {}
    inside = {"(items)": _ordered(value, value.items)} if items and value.items is not None else {}
    return {**made, **inside, **_as_dict(value.state)}


def _as_dict(state: object) -> Mapping[str, object]:
    """Return a state by attribute; one that is no dict under a key of its own."""
    items = as_mapping(state)
    return dict(text_items(items)) if items is not None else {} if state is None else {"(state)": state}


def _ordered(owner: Described, inner: object) -> object:
    """Return what a set was made from in an order of its own, which does not depend on how it was hashed."""
    if not owner.type.endswith(("builtins.set", "builtins.frozenset")) or not isinstance(inner, (list, tuple)):
        return inner
    nested_once = [_ordered(owner, one) if isinstance(one, (list, tuple)) else one for one in inner]
    return sorted(nested_once, key=lambda one: (type(one).__name__, repr(one)))


def _matched(a: Mapping[str, object], b: Mapping[str, object]) -> list[tuple[str, object, object]]:
    return [(key, a.get(key, _NOTHING), b.get(key, _NOTHING)) for key in {**a, **b}]


def _is_leaf(value: object) -> bool:
    return not isinstance(value, (dict, list, tuple, Described, TensorRef))


def _has_plain(value: object) -> bool:
    """Whether there is more in a value than tensors: a leaf, something empty, or an object."""
    return any(map(_is_plain, nested(value, skip=VERSIONS, most=_MOST)))


def _is_plain(value: object) -> bool:
    if isinstance(value, Described):
        return as_mapping(value) is None and not is_module(value)
    return not isinstance(value, TensorRef) and (_is_leaf(value) or not any(True for _ in children(value)))


def _leaves(path: str, a: object, b: object) -> Iterator[ValueDiff]:
    """Yield the difference between two values of which at least one is no container; of long lists where it begins."""
    if (isinstance(a, Numbers) or isinstance(b, Numbers)) and _is_run(a) and _is_run(b):
        yield from _runs(path, a, b)
    elif not _same(a, b):
        yield ValueDiff(path=path, a=a, b=b, unread=isinstance(a, Elided) and isinstance(b, Elided))


def _runs(path: str, a: object, b: object) -> Iterator[ValueDiff]:
    left = _SHOWN
    for index, (x, y) in enumerate(zip_longest(_run(a), _run(b), fillvalue=_NOTHING)):
        if x is _NOTHING or y is _NOTHING:
            value, side = (y, "b") if x is _NOTHING else (x, "a")
            yield _only(f"{path}.{index}", side, value)
        elif not _same(x, y):
            yield ValueDiff(path=f"{path}.{index}", a=x, b=y)
        else:
            continue
        left -= 1
        if not left:
            return


def _same(a: object, b: object) -> bool:
    if isinstance(a, Span) or isinstance(b, Span):
        return _is_text(a) == _is_text(b) and _same_bytes(_bytes(a), _bytes(b))
    if isinstance(a, float) and isinstance(b, float):
        return struct.pack("<d", a) == struct.pack("<d", b) or (math.isnan(a) and math.isnan(b))
    if isinstance(a, Elided) and isinstance(b, Elided):
        return a.why == b.why and "itself" in a.why  # of what else was left out nobody knows
    if isinstance(a, TensorRef) or isinstance(b, TensorRef):
        return not _has_plain(b if isinstance(a, TensorRef) else a)
    return type(a) is type(b) and a == b


def _is_run(value: object) -> bool:
    return isinstance(value, (Numbers, list, tuple))


def _run(value: object) -> Iterator[object]:
    """Yield the numbers of a long list, which may still lie in its file."""
    if isinstance(value, Numbers):
        yield from numbers_in(value)
    elif isinstance(value, (list, tuple)):
        yield from value


def numbers_in(value: Numbers) -> Iterator[object]:
    """Yield the numbers of a list that lies in a file."""
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
        yield from bytes_in(value)


def bytes_in(value: Span) -> Iterator[bytes]:
    """Yield the bytes of a long text, in UTF-8, or of long bytes, that lie in a file."""
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
