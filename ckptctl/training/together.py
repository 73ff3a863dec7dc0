"""A training state from its tree and its tensors: what `load` returns. Nothing that a file names is called."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

from ckptctl.training.live import ARRAY, PARAMETER
from ckptctl.training.sharded import put_back, was_sharded
from ckptctl.values import Described, Numbers, Span, TensorRef, as_mapping
from ckptctl.values.compare import bytes_in, numbers_in

if TYPE_CHECKING:
    from collections.abc import Mapping


def put_together(values: object, tensors: Mapping[str, Any], arrays: Mapping[str, Any] | None = None) -> Any:
    """Return a live state from a tree and the tensors that it refers to.

    `arrays` are the same on the CPU, for what is a NumPy array. Objects of other classes stay what describes them.
    """
    kept = tensors if arrays is None else arrays
    match values:
        case TensorRef():
            return _live_tensor(values, (kept if values.type == ARRAY else tensors)[values.name])
        case dict():
            return {key: put_together(inner, tensors, arrays) for key, inner in values.items()}
        case list():
            return [put_together(inner, tensors, arrays) for inner in values]
        case tuple():
            return tuple(put_together(inner, tensors, arrays) for inner in values)
        case Described():
            return _live_object(values, tensors, arrays)
        case Numbers():
            made = list(numbers_in(values))
            return tuple(made) if values.type == "tuple" else made
        case Span():
            raw = b"".join(bytes_in(values))
            return raw.decode("utf-8", "surrogatepass") if values.text else raw
    return values


def _live_tensor(ref: TensorRef, tensor: Any) -> Any:
    import torch

    if was_sharded(ref.state):
        return put_back(tensor, as_mapping(ref.state) or {}).requires_grad_(ref.requires_grad)
    if ref.type == ARRAY:
        return tensor.detach().cpu().numpy()
    if ref.type in (PARAMETER, "torch.nn.parameter.Parameter"):
        return torch.nn.Parameter(tensor.detach(), requires_grad=ref.requires_grad)
    return tensor.detach().requires_grad_() if ref.requires_grad else tensor


def _live_object(value: Described, tensors: Mapping[str, Any], arrays: Mapping[str, Any] | None) -> Any:
    args = [put_together(one, tensors, arrays) for one in value.args]
    items = put_together(value.items, tensors, arrays) if value.items is not None else None
    match value.type:
        case "collections.OrderedDict":
            made = collections.OrderedDict(items or {})
            versions = value.state.get("_metadata") if isinstance(value.state, dict) else None
            if versions is not None:
                made._metadata = put_together(versions, tensors, arrays)  # type: ignore[attr-defined]  # noqa: SLF001  # as torch keeps it
            return made
        case "collections.Counter":
            return collections.Counter(items or {})
        case "builtins.set":
            return set(items or ())
        case "builtins.frozenset":
            return frozenset(items or (args[0] if args else ()))
        case "builtins.complex":
            return complex(*args)
    return _of_torch(value, args)


def _of_torch(value: Described, args: list[Any]) -> Any:
    import torch

    match value.type:
        case "torch.Size":
            return torch.Size(*args)
        case "torch.device":
            return torch.device(*args)
        case "type" if args:
            found = getattr(torch, str(args[0]).removeprefix("torch."), None)
            return found if isinstance(found, torch.dtype) else value  # no file is to name anything else
    return args[0] if value.type.startswith("numpy.") and len(args) == 1 else value
