"""Objects as plain values: what ``torch.load(weights_only=True)`` reads without being told of a class."""

from __future__ import annotations

from dataclasses import replace

from ckptctl.model import dtype_of_torch
from ckptctl.rewrite.trees import mapped
from ckptctl.values import Described, TensorRef

_KEPT = frozenset(
    {"collections.OrderedDict", "collections.Counter", "builtins.set", "builtins.complex", "builtins.bytearray",
     "torch.Size", "torch.device"}
)  # fmt: skip
_LISTS = frozenset({"collections.deque", "builtins.frozenset", "builtins.list"})
_PATHS = frozenset(
    f"{module}.{kind}"
    for module in ("pathlib", "pathlib._local")
    for kind in ("PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath", "Path", "PurePath")
)


def plain(values: object) -> object:
    """Return a tree of tensors, plain values and the few classes that every loader of torch files knows."""
    return mapped(values, _plain)


def _plain(value: object) -> object:
    if isinstance(value, TensorRef):
        return _tensor(value)
    return _object(value) if isinstance(value, Described) else value


def _tensor(ref: TensorRef) -> TensorRef:
    """Arrays and storages become tensors; what hung on a tensor, which such loaders set as attributes, is kept."""
    kind = ref.type if ref.type.startswith("torch.") and "torage" not in ref.type else "torch.Tensor"
    return replace(ref, type=kind)


def _object(value: Described) -> object:  # one return for each kind
    kind, args = value.type, value.args
    if kind in _KEPT or (kind == "type" and args and dtype_of_torch(str(args[0]).removeprefix("torch."))):
        return value
    if kind == "type":
        return str(args[0]) if args else None
    if kind == "collections.defaultdict":
        return value.items if isinstance(value.items, dict) else {}
    if kind in _LISTS:
        return value.items if isinstance(value.items, list) else []
    if kind in ("builtins.range", "builtins.slice"):
        return list(args)
    if kind in _PATHS:
        return "/".join(map(str, args)).replace("//", "/")
    if kind.startswith("numpy.") and kind.count(".") == 1 and len(args) == 1:
        return args[0]
    if not args and value.items is None and isinstance(value.state, dict):
        return value.state  # a namespace or a dataclass: its attributes
    if len(args) == 1 and value.state is None and value.items is None and isinstance(args[0], (str, int, float)):
        return args[0]  # a member of an enumeration, a number of another kind
    found = {"class": kind, "args": list(args), "items": value.items, "state": value.state}
    return {key: part for key, part in found.items() if part not in (None, [])}
