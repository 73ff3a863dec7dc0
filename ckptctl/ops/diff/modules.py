"""Differences rolled up the module tree: which parts of a model changed, and how far."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptctl.model import Component
from ckptctl.ops.diff.report import ModuleDiff

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ckptctl.ops.diff.report import TensorDiff
    from ckptctl.ops.diff.sides import Key

_MOST_ROWS = 24
_DEEP = 16


@dataclass(slots=True)
class _Sum:
    component: Component
    changed: int = 0
    numbers: bool = False
    a: float = 0.0
    delta: float = 0.0
    lost: int = 0
    max_abs: float = 0.0


def roll_up(changed: Sequence[TensorDiff], keys: Iterable[Key], depth: int | None = None) -> tuple[ModuleDiff, ...]:
    """Return the modules with tensors whose values changed, those of the model first, and those that changed most.

    `keys` are the tensors that were compared; modules are told apart down to `depth` names, by default as deep as they
    are few enough to read, or else down to the layers.
    """
    if not changed:
        return ()
    paths = [_path(one.component, one.name) for one in changed]
    depth = _fitting(paths) if depth is None else depth
    totals = _totals({path[:depth] for path in paths}, keys, depth)
    sums: dict[tuple[str, ...], _Sum] = {}
    for path, one in zip(paths, changed, strict=True):
        _add(sums.setdefault(path[:depth], _Sum(one.component)), one)
    rows = [
        ModuleDiff(
            name=".".join(path),
            component=one.component,
            changed=one.changed,
            tensors=totals[path],
            relative_l2=_ratio(one) if one.numbers else None,
            max_abs=one.max_abs,
            not_finite=one.lost,
        )
        for path, one in sums.items()
    ]
    return tuple(sorted(rows, key=_rank))


def _rank(row: ModuleDiff) -> tuple[bool, bool, float]:
    return (
        row.component is not Component.MODEL,
        not row.not_finite,
        -(math.inf if row.relative_l2 is None else row.relative_l2),
    )


def _path(component: Component, name: str) -> tuple[str, ...]:
    """Return the modules that lead to a tensor; of one that is in none, its own name."""
    parts = name.split(".", _DEEP)
    first = () if component is Component.MODEL else (component.value,)
    return (*first, *(parts[:-1] or parts))


def _fitting(paths: Sequence[tuple[str, ...]]) -> int:
    deepest = max(map(len, paths))
    layers = max((1 + next((at for at, part in enumerate(path) if part.isdecimal()), 0) for path in paths), default=1)
    for depth in range(deepest - 1, layers, -1):  # the deepest hold one tensor each, or a weight and a bias
        if len({path[:depth] for path in paths}) <= _MOST_ROWS:
            return depth
    return layers


def _totals(modules: set[tuple[str, ...]], keys: Iterable[Key], depth: int) -> Mapping[tuple[str, ...], int]:
    found = dict.fromkeys(modules, 0)
    for component, name in keys:
        path = _path(component, name)[:depth]
        if path in found:
            found[path] += 1
    return found


def _add(into: _Sum, one: TensorDiff) -> None:
    into.changed += 1
    if one.measures:
        into.numbers = True
        into.a = math.hypot(into.a, one.measures.norm_a)
        into.delta = math.hypot(into.delta, one.measures.norm_delta)
        into.lost += one.measures.nan + one.measures.infinite
        into.max_abs = max(into.max_abs, one.measures.max_abs)


def _ratio(one: _Sum) -> float:
    return one.delta / one.a if one.a else math.inf if one.delta else 0.0
