"""Which tensors and values of a file belong to which component, by the names that trainers give."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice

from ckptctl.errors import CorruptError
from ckptctl.model import Component, Contents, Part, TensorInfo
from ckptctl.values import TensorRef, as_mapping, attributes, children, is_module, key_text, nested, text_items

_SUFFIX = r"(_?state)?(_?dicts?)?"
_LOADERS = r"(data_?)?loaders?|samplers?|dataset|data_iter(ator)?"
_SEEN = r"consumed_.*(samples|tokens)|(.*_)?(samples|tokens)_(seen|consumed)"
_NAMED = (
    (Component.RNG, rf"(.*_)?(rng|random)(_?states?)?{_SUFFIX}|(torch|numpy|python|cuda)_(rng_)?(state|seed)|seeds?"),
    (Component.SCHEDULER, rf"(.*_)?(lr_?)?sched(uler)?s?{_SUFFIX}|opt_param_scheduler"),
    (Component.OPTIMIZER, rf"(.*_)?optim(izer)?s?(_?states?|_by_name|_weights|_\d+)?{_SUFFIX}|opt|optim_state"),
    (Component.MODEL, rf"(models?|module|net|network)(_weights)?{_SUFFIX}|layers|state_dict|weights|params|parameters"),
    (Component.DATA, rf"loops|(.*_)?({_LOADERS})(_state(_dict)?)?|data(_state|_position)?|{_SEEN}|batch_idx"),
    (Component.OTHER, r"(.*_)?ema(_.*)?|averaged_model|swa_.*|rank_\d{1,6}"),
)
_BY_NAME = tuple((component, re.compile(pattern)) for component, pattern in _NAMED)
_RNG_KEYS = frozenset({"python", "numpy", "cpu", "cuda", "xla", "npu", "random_state", "numpy_random_seed",
                       "torch_manual_seed", "torch_cuda_manual_seed", "step"})  # fmt: skip
_DATA_KEYS = frozenset({"_num_yielded", "dataset_state", "_sampler_iter_yielded"})
_MOMENTS = frozenset({"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer"})
_MAIN = (Component.MODEL, Component.OPTIMIZER)
_MAX_KEY, _FEW = 64, 100


def split(contents: Contents) -> Mapping[Component, Part]:
    """Sort what a file holds into components, in the order of `Component`."""
    tensors, root = contents.tensors, attributes(contents.values)
    if is_module(contents.values):
        return _one(Component.MODEL, tensors, {"": contents.values})
    if contents.values is None:
        if not tensors:
            return {}
        owner = _of_prefixes(tensors)
        return _parts(owner, tensors, {}) if owner else _one(_of_tensor_names(tensors), tensors, {})
    if as_mapping(contents.values) is None:
        # An object, a list or a lone tensor: a module, or nothing that has components.
        keys = dict(children(contents.values))
        return _one(_of_shape(keys) or (Component.OTHER if tensors else Component.TRAINER), tensors, keys)
    keys = dict(text_items(root or {}))
    if not keys:
        return {}
    keys = _unwrapped(keys)
    found = _of_root(keys, tensors)
    if found:
        return _one(found, tensors, keys)
    return _parts(_of_keys(keys, tensors), tensors, keys)


def merged(parts: Mapping[Component, Part], more: Mapping[Component, Part]) -> dict[Component, Part]:
    """Add parts to parts: what both have of a component is brought together; in the order of `Component`."""
    found: dict[Component, Part] = {}
    for component in Component:
        one, other = parts.get(component), more.get(component)
        if one and other:
            again = next((name for name in other.tensors if name in one.tensors), None)
            if again is not None:
                pieces = (*one.tensors[again].pieces, *other.tensors[again].pieces)
                raise CorruptError(f"{pieces[0].range.file.path if pieces else again}: {again} is in another file too")
            prefix = one.prefix if all(name.startswith(f"{one.prefix}.") for name in other.tensors) else ""
            tensors, values = {**one.tensors, **other.tensors}, {**one.values, **other.values}
            one = replace(one, prefix=prefix, tensors=tensors, values=values)
        part = one or other
        if part:
            found[component] = part
    return found


def _unwrapped(keys: dict[str, object]) -> dict[str, object]:
    """Look one level down where a key that is no component holds some, such as ``app``."""
    found: dict[str, object] = {}
    for key, value in keys.items():
        inner = None if _of_name(key) else as_mapping(value)
        if inner and any(_of_name(key_text(k)) in _MAIN and _has_tensors(v) for k, v in islice(inner.items(), _FEW)):
            found |= {f"{key}.{name}": part for name, part in text_items(inner)}
        else:
            found[key] = value
    return found


def _has_tensors(value: object) -> bool:
    """Whether there is a tensor among what is nested next in a value."""
    return any(isinstance(inner, TensorRef) for inner in nested(value, most=_FEW))


def _one(component: Component, tensors: Mapping[str, TensorInfo], keys: Mapping[str, object]) -> dict[Component, Part]:
    values = {key: value for key, value in keys.items() if not isinstance(value, TensorRef)}
    return {component: Part(component=component, prefix="", tensors=tensors, values=values)}


def _of_root(keys: Mapping[str, object], tensors: Mapping[str, TensorInfo]) -> Component | None:
    """Return the one component that all of a file belongs to, if there is one."""
    shape = _of_shape(keys)
    if shape:
        return shape
    if any(_of_name(key) for key, value in keys.items() if not isinstance(value, TensorRef)):
        return None
    count = sum(isinstance(value, TensorRef) for value in keys.values())
    if 2 * count > len(keys):
        return Component.MODEL
    return Component.OPTIMIZER if _of_tensor_names(tensors) is Component.OPTIMIZER else None


def _of_shape(value: object) -> Component | None:
    """Recognise a state by the keys that its class always writes."""
    items = attributes(value) if not isinstance(value, Mapping) else value
    keys = {key for key in items or () if isinstance(key, str)}
    if is_module(value):
        return Component.MODEL
    if {"state", "param_groups"} <= keys:
        return Component.OPTIMIZER
    if "last_epoch" in keys or "_step_count" in keys:
        return Component.SCHEDULER
    if len(keys) >= 2 and keys <= _RNG_KEYS:
        return Component.RNG
    return Component.DATA if keys & _DATA_KEYS else None


def _of_tensor_names(tensors: Mapping[str, TensorInfo]) -> Component:
    names = list(tensors)
    moments = sum(_is_moment(name) for name in names)
    return Component.OPTIMIZER if names and 2 * moments > len(names) else Component.MODEL


def _is_moment(name: str) -> bool:
    outer, _, last = name.rpartition(".")
    return last in _MOMENTS or (last == "step" and (outer.startswith("state.") or ".state." in outer))


def _of_prefixes(tensors: Mapping[str, TensorInfo]) -> dict[str, Component]:
    """Return the components that the first parts of flat names stand for, unless all are one model's."""
    parts = [name.split(".", 2) for name in tensors]
    outer = parts[0][0] if parts and len({part[0] for part in parts}) == 1 else ""
    level = 1 if outer and not _of_name(outer) else 0
    firsts = dict.fromkeys(".".join(part[: level + 1]) for part in parts if len(part) > level + 1)
    found = {first: _of_name(first) or Component.OTHER for first in firsts}
    several = set(found.values()) & {Component.OPTIMIZER, Component.RNG, Component.SCHEDULER}
    return found if several else {}


def _of_name(key: str) -> Component | None:
    last = key.rpartition(".")[2].lower()
    if len(last) > _MAX_KEY:
        return None
    return next((component for component, pattern in _BY_NAME if pattern.fullmatch(last)), None)


def _of_keys(keys: Mapping[str, object], tensors: Mapping[str, TensorInfo]) -> dict[str, Component]:
    found: dict[str, Component | None] = {
        key: Component.TRAINER if value is None else _of_name(key) or _of_shape(value) for key, value in keys.items()
    }
    has_model = Component.MODEL in found.values()
    return {key: component or _of_unknown(keys[key], tensors, has_model=has_model) for key, component in found.items()}


def _of_unknown(value: object, tensors: Mapping[str, TensorInfo], *, has_model: bool) -> Component:
    """A key that says nothing: weights if it is a dict of tensors, else what the trainer wrote down."""
    items = as_mapping(value)
    count = sum(isinstance(inner, TensorRef) for inner in (items or {}).values())
    if items and 2 * count > len(items):
        return Component.OTHER if has_model else Component.MODEL
    # A tensor of one element is a number that the trainer wrote down: a metric, a step.
    large = isinstance(value, TensorRef) and tensors[value.name].numel != 1
    return Component.OTHER if large else Component.TRAINER


def _parts(
    owner: Mapping[str, Component], tensors: Mapping[str, TensorInfo], keys: Mapping[str, object]
) -> Mapping[Component, Part]:
    sorted_tensors: dict[Component, dict[str, TensorInfo]] = {}
    by_key = _Owners(owner)
    for name, tensor in tensors.items():
        sorted_tensors.setdefault(by_key.of(name), {})[name] = tensor
    parts = {}
    for component in Component:
        own = [key for key, its in owner.items() if its is component]
        values = {key: keys[key] for key in own if key in keys}
        inside = sorted_tensors.get(component, {})
        if inside or values:
            lone = inside.keys() <= {*own}  # a tensor that is called as all others begin has no name below that
            prefix = own[0] if len(own) == 1 and (lone or own[0] not in inside) else ""
            parts[component] = Part(component=component, prefix=prefix, tensors=inside, values=values)
    return parts


class _Owners:
    """Which top-level key a dotted name begins with; keys may have dots of their own."""

    def __init__(self, owner: Mapping[str, Component]) -> None:
        self._owner = owner
        self._dots = sorted({key.count(".") for key in owner}, reverse=True)

    def of(self, name: str) -> Component:
        """Return the component of a tensor."""
        parts = name.partition("#")[0].split(".", self._dots[0] + 1 if self._dots else 1)
        for dots in self._dots:
            found = self._owner.get(".".join(parts[: dots + 1]))
            if found and len(parts) > dots:
                return found
        return Component.OTHER
