"""A sharded checkpoint as something to be rewritten: tensors under whole names, and the plain values beside them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckptctl.model import Component
from ckptctl.model.ties import recorded_ties
from ckptctl.rewrite.source import Source
from ckptctl.values import Described, TensorRef, as_mapping, nested

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptctl.model import Checkpoint, Part


def source_of(checkpoint: Checkpoint, parts: Mapping[Component, Part], *, everything: bool) -> Source:
    """Return what to rewrite: tensors and plain values as one tree, nested as deep as the paths to components."""
    metadata = {key: text for one in checkpoint.files for key, text in one.metadata.items() if key != "format"}
    tensors = {name: tensor for part in parts.values() for name, tensor in part.tensors.items()}
    plain = any(part.values for part in parts.values())
    trees = {component: _tree(part) for component, part in parts.items()} if plain else {}
    root: dict[object, object] = {}
    for component, tree in trees.items():
        _merge(root, _nested(parts[component].prefix, tree))
    return Source(
        path=checkpoint.path,
        files=checkpoint.files,
        parts={
            component: replace(part, values=_below(part, trees[component]) if part.values else {})
            for component, part in parts.items()
        },
        values=_whole_tree(checkpoint, root if plain else None) if everything else None,
        metadata=recorded_ties(metadata, tensors),
        findings=checkpoint.findings,
    )


def _whole_tree(checkpoint: Checkpoint, joined: object) -> object:
    """Return the tree that the checkpoint itself has, or else the one that was made of its parts."""
    return joined if checkpoint.values is None else checkpoint.values


def _tree(part: Part) -> object:
    """Return what stands below the prefix of a component: its tensors by what is left of their names, and values."""
    placed = {one.name for one in nested(dict(part.values)) if isinstance(one, TensorRef)}
    own = part.values.get(part.prefix)
    if own is not None and not isinstance(own, dict) and placed >= part.tensors.keys():
        return own
    tree: dict[object, object] = {}
    for name in part.tensors:
        if name in placed:
            continue
        cut = name.removeprefix(f"{part.prefix}.") if part.prefix else name
        head, dot, rest = cut.partition(".")
        flat = part.prefix or part.component is Component.MODEL or not dot
        _merge(tree, {cut: TensorRef(name=name)} if flat else {head: {rest: TensorRef(name=name)}})
    for key, value in part.values.items():
        if key == part.prefix and isinstance(value, dict):
            _merge(tree, value)
        elif key not in part.tensors:
            _merge(tree, {key: value})
    return tree


def _below(part: Part, tree: object) -> dict[str, object]:
    """Return the values of a component under the keys at which they are looked for."""
    if part.prefix or not isinstance(tree, dict):
        return {part.prefix: tree}
    return {str(key): value for key, value in tree.items()}


def _nested(prefix: str, tree: object) -> dict[object, object]:
    for step in reversed(prefix.split(".") if prefix else ()):
        tree = {step: tree}
    return tree if isinstance(tree, dict) else {"": tree}


def _merge(into: dict[object, object], more: Mapping[object, object]) -> None:
    """Add values to a tree; where both have a dict, what is in them."""
    for key, value in more.items():
        known = into.get(key)
        if isinstance(known, dict) and isinstance(value, dict):
            _merge(known, value)
        else:
            into.setdefault(key, dict(value) if isinstance(value, dict) else value)


def keeps_its_form(part: Part) -> bool:
    """Whether what lies below a component is an optimizer's state as torch nests it, every tensor at its place."""
    refs = {one.name for one in nested(dict(part.values)) if isinstance(one, TensorRef)}
    plain = not any(isinstance(one, Described) and _holds(one) for one in nested(dict(part.values)))
    return part.component is Component.OPTIMIZER and plain and refs == part.tensors.keys()


def _holds(value: object) -> bool:
    return any(isinstance(inner, TensorRef) for inner in nested(value))


def without_tensors(values: Mapping[str, object]) -> dict[str, object]:
    """Return plain values without what stands for tensors: those are known by their names."""
    return {key: kept for key, value in values.items() if (kept := _plain(value)) is not None}


def _plain(value: object) -> object:
    if isinstance(value, TensorRef):
        return None
    if not any(isinstance(inner, TensorRef) for inner in nested(value)):
        return value
    items = None if isinstance(value, Described) else as_mapping(value)
    if items is not None:
        return {key: kept for key, inner in items.items() if (kept := _plain(inner)) is not None} or None
    if isinstance(value, (list, tuple)):
        return [kept for inner in value if (kept := _plain(inner)) is not None] or None
    return None
