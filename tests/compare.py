"""Whether two loaded checkpoints are the same in every leaf: types, bits, attributes, order."""

from __future__ import annotations

import collections
import dataclasses
import math
import pickle
import struct
import types
import warnings
from pathlib import Path

import numpy as np
import torch


def same(a: object, b: object) -> list[str]:
    """What differs between two values, each difference with the path to it; nothing if they are the same."""
    comparison = _Comparison()
    comparison.of(a, b, "")
    return comparison.found


class _Comparison:
    """Differences found so far; pairs that were looked at."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._seen: dict[tuple[int, int], object] = {}  # keeps what it names alive

    def differ(self, path, what):
        self.found.append(f"{path or '.'}: {what}")

    def of(self, a, b, path):
        if type(a) is not type(b):
            return self.differ(path, f"{type(a).__name__} and {type(b).__name__}")
        if a is b or (id(a), id(b)) in self._seen:
            return None
        self._seen[id(a), id(b)] = (a, b)
        for known, compare in _KINDS:
            if isinstance(a, known):
                compare(self, a, b, path)
                break
        else:
            _objects(self, a, b, path)
        if not isinstance(a, (type, types.ModuleType, types.FunctionType)):
            mine, theirs = getattr(a, "__dict__", {}), getattr(b, "__dict__", {})
            if mine or theirs:
                self.of(dict(mine), dict(theirs), f"{path}@")
        return None


def _exact(of, a, b, path):
    if a != b:
        of.differ(path, f"{a!r:.80} and {b!r:.80}")


def _floats(of, a, b, path):
    if struct.pack("d", a) != struct.pack("d", b) and not (math.isnan(a) and math.isnan(b)):
        of.differ(path, f"{a!r} and {b!r}")


def _identity(of, a, b, path):
    if a is not b:
        of.differ(path, f"{a!r:.80} and {b!r:.80}")


def _tensors(of, a, b, path):
    for name in ("dtype", "shape", "layout", "requires_grad", "is_quantized", "is_nested", "device"):
        if getattr(a, name) != getattr(b, name):
            return of.differ(path, f"{name} {getattr(a, name)} and {getattr(b, name)}")
    if isinstance(a, torch.nn.Parameter) is not isinstance(b, torch.nn.Parameter):
        return of.differ(path, "a parameter and none")
    if not a.is_meta and tensor_bytes(a) != tensor_bytes(b):
        return of.differ(path, "other values")
    return None


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """The values of a tensor as bytes, row by row."""
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    if tensor.is_nested:
        tensor = tensor.values()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    plain = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def _typed_storages(of, a, b, path):
    if a.dtype != b.dtype:
        return of.differ(path, f"dtype {a.dtype} and {b.dtype}")
    return _untyped_storages(of, a._untyped_storage, b._untyped_storage, path)


def _untyped_storages(of, a, b, path):
    if bytes(a.tolist()) != bytes(b.tolist()):
        of.differ(path, "other bytes")


def _arrays(of, a, b, path):
    for name in ("dtype", "shape"):
        if getattr(a, name) != getattr(b, name):
            return of.differ(path, f"{name} {getattr(a, name)} and {getattr(b, name)}")
    if a.dtype.hasobject:
        return of.of(a.tolist(), b.tolist(), path)
    return of.differ(path, "other values") if a.tobytes() != b.tobytes() else None


def _generators(of, a, b, path):
    return of.of(a.bit_generator.state, b.bit_generator.state, path)


def _random_states(of, a, b, path):
    return of.of(a.get_state(), b.get_state(), path)


def _mappings(of, a, b, path):
    if len(a) != len(b):
        only = [key for key in a if key not in b] + [key for key in b if key not in a]
        return of.differ(path, f"{len(a)} and {len(b)} items, {only!r:.200}")
    for (key, mine), (other, theirs) in zip(a.items(), b.items(), strict=True):
        of.of(key, other, f"{path}[key {key!r:.80}]")
        of.of(mine, theirs, f"{path}[{key!r:.80}]")
    return of.of(getattr(a, "default_factory", None), getattr(b, "default_factory", None), f"{path}()")


def _sequences(of, a, b, path):
    if len(a) != len(b):
        return of.differ(path, f"{len(a)} and {len(b)} items")
    if isinstance(a, collections.deque) and a.maxlen != b.maxlen:
        of.differ(path, f"maxlen {a.maxlen} and {b.maxlen}")
    for index, (mine, theirs) in enumerate(zip(a, b, strict=True)):
        of.of(mine, theirs, f"{path}[{index}]")
    return None


def _sets(of, a, b, path):
    if a != b or sorted(map(_typed, a)) != sorted(map(_typed, b)):
        of.differ(path, f"{a!r:.80} and {b!r:.80}")


def _typed(item):
    return f"{type(item).__name__} {item!r}"


def _objects(of, a, b, path):
    """By equality where the class defines one, a dataclass by its fields; by slots; else ``__dict__`` must do."""
    if dataclasses.is_dataclass(a):
        for field in dataclasses.fields(a):
            of.of(getattr(a, field.name), getattr(b, field.name), f"{path}.{field.name}")
        return
    slots = [name for kind in type(a).__mro__ for name in getattr(kind, "__slots__", ()) if hasattr(a, name)]
    if type(a).__eq__ is not object.__eq__:
        _exact(of, a, b, path)
    elif slots:
        for name in slots:
            of.of(getattr(a, name), getattr(b, name, None), f"{path}.{name}")
    elif not hasattr(a, "__dict__") and a is not b:
        of.of(a.__reduce_ex__(2), b.__reduce_ex__(2), f"{path}()")


_KINDS = (
    ((bool, int, str, bytes, bytearray, complex, type(None)), _exact),
    (np.generic, lambda of, a, b, path: _arrays(of, np.asarray(a), np.asarray(b), path)),
    (float, _floats),
    ((type, types.FunctionType, types.BuiltinFunctionType, torch.dtype, torch.layout), _identity),
    (torch.Tensor, _tensors),
    (torch.storage.TypedStorage, _typed_storages),
    (torch.UntypedStorage, _untyped_storages),
    (np.ndarray, _arrays),
    (np.random.Generator, _generators),
    (np.random.RandomState, _random_states),
    (dict, _mappings),
    ((list, tuple, collections.deque), _sequences),
    ((set, frozenset), _sets),
)  # fmt: skip


class _Stub:
    """Stands for a class that is not installed."""

    def __new__(cls, *args, **kwargs):
        made = super().__new__(cls)
        made.made_from = args
        return made

    def __init__(self, *args, **kwargs):
        pass


_STUBS = {}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        try:
            return super().find_class(module, name)
        except (ImportError, AttributeError):
            return _STUBS.setdefault((module, name), type(name, (_Stub,), {"__module__": module}))


def load(path: Path, *, weights_only: bool):
    module = types.ModuleType("stub_pickle")
    module.Unpickler, module.load = _Unpickler, pickle.load
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Only the legacy reader of torch cannot do without the pickle module.
        return torch.load(
            path, map_location="cpu", weights_only=weights_only, pickle_module=None if weights_only else module
        )
