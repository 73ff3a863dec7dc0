"""What both file formats of Keras share: names of tensors as a tree, code named in a configuration, regions."""

from __future__ import annotations

import builtins
import re
from collections import Counter
from typing import TYPE_CHECKING

from ckptctl.errors import LimitError
from ckptctl.formats._pickle.levels import level_named
from ckptctl.model import Contents, GlobalUse, Level, Region
from ckptctl.values import TensorRef

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptctl.model import TensorInfo

_ITERATION = re.compile(r"optimizer\.vars\.0|optimizer_weights\.\w+\.(iteration|iter)")
_OWN = ("keras", "tf_keras", "keras_nlp", "keras_hub", "keras_cv")
_CODE = ("Lambda", "__lambda__")
_FUNCTIONS = frozenset(
    {"activations", "backend", "constraints", "initializers", "layers", "losses", "metrics", "ops", "random",
     "regularizers"}
)  # fmt: skip
"""Modules whose functions only compute; others of Keras fetch files, load models, switch safety off."""
_MAX_NODES = 1_000_000


def state_of(tensors: Mapping[str, TensorInfo]) -> dict[str, object]:
    """Return the tree that dotted names make, and the optimizer's count of steps as ``iteration``."""
    root: dict[str, object] = {}
    for name in tensors:
        *path, last = name.split(".")
        node = root
        while path and isinstance(inner := node.setdefault(path[0], {}), dict):
            node, path = inner, path[1:]
        node[".".join([*path, last])] = TensorRef(name=name)  # a dataset may be called as a group is, and a dot follows
    count = next((n for n, tensor in tensors.items() if _ITERATION.fullmatch(n) and tensor.shape == ()), None)
    return {**root, "iteration": TensorRef(name=count)} if count else root


def configured_code(config: object) -> tuple[GlobalUse, ...]:
    """Return the classes that a loader would import for a configuration, and the layers that hold code."""
    found: Counter[tuple[str, str]] = Counter()
    todo, count = [config], 0
    while todo and count < _MAX_NODES:
        node, count = todo.pop(), count + 1
        if isinstance(node, dict):
            module, name = node.get("module"), node.get("class_name")
            if isinstance(name, str) and (isinstance(module, str) or name in _CODE):
                inner = node.get("config")
                # A function is found by the name that its configuration is.
                named = inner if name == "function" and isinstance(inner, str) else name
                found[module if isinstance(module, str) else "keras.layers", named] += 1
            todo += node.values()
        elif isinstance(node, list):
            todo += node
    if todo:
        raise LimitError(f"its configuration has more than {_MAX_NODES} nodes")
    return tuple(
        GlobalUse(module=module, name=name, level=level, calls=0, opcodes=(), count=times)
        for (module, name), times in sorted(found.items())
        if (level := _level(module, name)) is not Level.KNOWN
    )


def _level(module: str, name: str) -> Level:
    """Judge a class or function that a loader would look for: Keras's own are known if they are classes, or compute."""
    if name in _CODE:
        return Level.DANGEROUS
    if module == "builtins":
        # What is not Python's is looked for among the functions of Keras.
        return level_named(f"builtins.{name}") if hasattr(builtins, name) else Level.KNOWN
    if module.partition(".")[0] in _OWN:
        computes = not _FUNCTIONS.isdisjoint(module.split("."))
        return Level.KNOWN if computes or name[:1].isupper() or name == "function" else Level.FOREIGN
    return level_named(f"{module}.{name}")


def account(contents: Contents) -> tuple[Region, ...]:
    """Say what each byte is for: the values of a dataset, or the structure around them."""
    whole, regions, reached = contents.range, [], 0
    spans = sorted(
        (piece.range.offset - whole.offset, piece.range.length, tensor.name)
        for tensor in contents.tensors.values()
        for piece in tensor.pieces
    )
    for offset, length, name in [*spans, (whole.length, 0, "")]:
        if offset > reached:
            regions.append(Region(offset=reached, length=offset - reached, kind="header", what="structure of HDF5"))
        if offset >= reached and length:
            regions.append(Region(offset=offset, length=length, kind="data", what=name))
        reached = max(reached, offset + length)
    return tuple(regions)
