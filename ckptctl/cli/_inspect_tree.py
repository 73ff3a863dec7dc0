"""The module tree and the tree of plain values, as rows of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from ckptctl.cli._text import count, escape, plural, size
from ckptctl.model import Module
from ckptctl.ops.inspect import InspectReport
from ckptctl.values import Described, Elided, Span, TensorRef, children

_MOST_SIBLINGS = 40
_MOST_ROWS = 10_000
_MOST_INLINE = 8

Row = tuple[str, str, str, str]


def module_rows(report: InspectReport, depth: int) -> list[Row]:
    """Return label, parameters, bytes and remark for each line of the module tree."""
    name = report.module_component.value if report.module_component else ""
    total = next(row for row in report.components if row.component is report.module_component)
    head = (name, count(total.parameters), size(total.nbytes), "")
    return list(islice(_rows(head, report.modules, "", depth), _MOST_ROWS))


def _rows(head: Row, modules: tuple[Module, ...], indent: str, depth: int) -> Iterator[Row]:
    yield head
    if not depth:
        return
    shown = modules[:_MOST_SIBLINGS] if len(modules) > _MOST_SIBLINGS + 1 else modules
    left = len(modules) - len(shown)
    for index, outer in enumerate(shown):
        last = index == len(shown) - 1 and not left
        label, module = _merged(outer)
        guide, below = ("└── ", "    ") if last else ("├── ", "│   ")
        row = (f"{indent}{guide}{label}", count(module.numel), size(module.nbytes), _remark(module))
        inner = () if all(not child.children for child in module.children) else module.children
        yield from _rows(row, inner, indent + below, depth - 1)
    if left:
        yield (f"{indent}└── … {left:,} more", "", "", "--tensors lists all")


def _merged(module: Module) -> tuple[str, Module]:
    """Write a chain of modules with nothing but one child each as one line."""
    label = _label(module)
    while len(module.children) == 1 and module.children[0].children and module.count == 1:
        module = module.children[0]
        label += f".{_label(module)}"
    return label, module


def _label(module: Module) -> str:
    if module.count == 1:
        return escape(module.name, limit=80)
    return f"[{module.name}–{module.last}]  × {module.count}"


def _remark(module: Module) -> str:
    if module.count > 1:
        return f"{count(module.numel // module.count)} each"
    if len(module.tied) == 1 and module.tensors == 1:
        return f"tied with {escape(next(iter(module.tied.values())), limit=60)}"
    return " ".join(module.dtypes) if len(module.dtypes) > 1 else ""


def value_rows(values: Mapping[str, object]) -> Iterator[str]:
    """Yield the lines of a tree of values; long runs of numbers are shortened, tensors only counted."""
    todo: list[tuple[str, bool, str, object]] = []
    _push(todo, "", list(values.items()))
    for _ in range(_MOST_ROWS):
        if not todo:
            return
        indent, last, key, value = todo.pop()
        guide, below = ("└── ", "    ") if last else ("├── ", "│   ")
        text = _inline(value)
        if text is not None:
            yield f"{indent}{guide}{escape(key, limit=80)}: {text}"
            continue
        plain, tensors = _told_apart(value)
        kind = f"  {escape(value.type, limit=80)}" if isinstance(value, Described) else ""
        yield f"{indent}{guide}{escape(key, limit=80)}{kind}" + (f"  ({plural(tensors, 'tensor')})" if tensors else "")
        _push(todo, indent + below, plain)
    if todo:
        yield f"… more than {_MOST_ROWS:,} lines (--json has them all)"


def _push(todo: list[tuple[str, bool, str, object]], indent: str, items: list[tuple[str, object]]) -> None:
    for index, (key, value) in enumerate(reversed(items)):
        todo.append((indent, index == 0, key, value))


def _told_apart(value: object) -> tuple[list[tuple[str, object]], int]:
    """Return what of a container is to be listed, and how many tensors are in it and in what is not."""
    plain: list[tuple[str, object]] = []
    tensors = 0
    for key, inner in children(value):
        if isinstance(inner, TensorRef):
            tensors += 1
        elif only := _only_tensors(inner):
            tensors += only
        elif key != "_metadata":  # the versions of modules, which say nothing to a person
            plain.append((key, inner))
        if len(plain) > _MOST_ROWS:
            break
    return plain, tensors


def _only_tensors(value: object) -> int:
    """Return how many tensors a container holds if it holds nothing else, else 0."""
    count = 0
    for _, inner in children(value):
        if not isinstance(inner, TensorRef):
            return 0
        count += 1
    return count


def inline_value(value: object) -> str:
    """Return the text of a value on one line; of a container that does not fit, how much is in it."""
    return _inline(value) or f"{{{plural(sum(1 for _ in children(value)), 'value')}}}"


def _inline(value: object) -> str | None:
    """Return the text of a value that fits on one line."""
    match value:
        case bool() | None:
            return str(value)
        case int() | float():
            return escape(str(value), limit=60)
        case str():
            return f'"{escape(value, limit=120)}"'
        case bytes():
            return f"{len(value)} bytes"
        case Span(range=place, text=text):
            return f"{'text' if text else 'bytes'} of {size(place.length)}"
        case Elided(why=why):
            return f"left out: {why}"
        case TensorRef(name=name):
            return f"tensor {escape(name)}"
        case list() | tuple():
            return _inline_items(value)
        case Described() if value.state is None and value.items is None and len(value.args) <= _MOST_INLINE:
            texts = [None if isinstance(arg, Described) else _inline(arg) for arg in value.args]
            return None if None in texts else f"{escape(value.type, limit=80)}({', '.join(filter(None, texts))})"
        case dict() if not value:
            return "{}"
    return None


def _inline_items(items: list[object] | tuple[object, ...]) -> str | None:
    texts = [_inline(item) if not isinstance(item, (list, tuple, dict, Described)) else None
             for item in items[:_MOST_INLINE]]  # fmt: skip
    if None in texts:
        return None if len(items) <= _MOST_ROWS else f"{len(items):,} items"
    more = f", … {len(items):,} in all" if len(items) > _MOST_INLINE else ""
    return f"[{', '.join(filter(None, texts))}{more}]"
