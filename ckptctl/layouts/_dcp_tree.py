"""The tree of values whose names a distributed save has joined by dots."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_DEPTH = 32


def tree_of(flat: Mapping[str, object], paths: Mapping[str, tuple[str | int, ...]]) -> object:
    """Nest flattened names again, by the keys that were kept; else at each dot, and numbers alone were a list."""
    root: dict[object, object] = {}
    for name, value in flat.items():
        node, (*path, last) = root, paths.get(name) or name.split(".", _MAX_DEPTH)
        for step in path:
            inner = node.setdefault(step, {})
            if not isinstance(inner, dict):
                break  # something else lies there
            node = inner
        else:
            if last not in node:
                node[last] = value
                continue
        root[name] = value
    return _lists(root, _MAX_DEPTH, known=bool(paths))


def _lists(node: object, depth: int, *, known: bool) -> object:
    """Make lists of dicts by place; where it is `known` what was one, only of those."""
    if not isinstance(node, dict) or not depth:
        return node
    inner = {key: _lists(value, depth - 1, known=known) for key, value in node.items()}
    if known:
        places = [key for key in inner if isinstance(key, int)]
        whole = len(places) == len(inner) and sorted(places) == list(range(len(inner)))
        return [inner[place] for place in range(len(inner))] if inner and whole else inner
    numbers = all(isinstance(key, str) and key.isdigit() for key in inner)
    return list(inner.values()) if inner and numbers else inner
