"""Torch's own rebuild functions: what ``torch._utils`` and ``torch._tensor`` of torch 2.13 would do."""

from __future__ import annotations

from ckptctl.formats._pickle import limits
from ckptctl.formats._pickle.interpret import Context, Rebuild, value_of
from ckptctl.formats._pickle.records import Call, Global
from ckptctl.formats._pickle.sharded import rebuild_sharded, sharded_kind
from ckptctl.formats._pickle.storages import Draft, Storage, extent
from ckptctl.model import DTYPES, DType, Encoding, contiguous_strides, dtype_of_torch

_SCHEMES = frozenset(
    {
        "per_tensor_affine",
        "per_tensor_symmetric",
        "per_channel_affine",
        "per_channel_symmetric",
        "per_channel_affine_float_qparams",
    }
)


def _tensor_v2(context: Context, args: tuple[object, ...], call: Call) -> Draft:
    """storage, offset, size, stride[, requires_grad, hooks[, metadata]]."""
    if not 4 <= len(args) <= 7:
        raise context.bad(f"a tensor is rebuilt from {len(args)} arguments")
    storage = context.storage(args[0])
    draft = _view(context, storage, storage.dtype or DTYPES["U8"], args)
    return draft.like(encoding=_bits(context, args[6])) if len(args) == 7 and args[6] else draft


def _tensor_v3(context: Context, args: tuple[object, ...], call: Call) -> Draft:
    """storage, offset, size, stride, requires_grad, hooks, dtype[, metadata]."""
    if not 7 <= len(args) <= 8:
        raise context.bad(f"a tensor is rebuilt from {len(args)} arguments")
    draft = _view(context, context.storage(args[0]), _dtype(context, args[6]), args)
    if len(args) == 8 and args[7]:
        draft = draft.like(encoding=_bits(context, args[7]))
    return _unpacked(draft) if draft.dtype.name == "F4X2" else draft


def _view(context: Context, storage: Storage, dtype: DType, args: tuple[object, ...]) -> Draft:
    """Check a view against its storage, in integers that cannot wrap."""
    offset, size, strides = args[1], context.size(args[2]), context.ints(args[3])
    if type(offset) is not int or offset < 0 or len(size) != len(strides) or (strides and min(strides) < 0):
        raise context.bad(f"a view of storage {storage.key} has an impossible offset or stride")
    numel = storage.range.length * 8 // dtype.bits
    span = extent(size, strides)
    if span and offset + span > numel:
        raise context.bad(f"a view of storage {storage.key} needs {offset + span} elements, it has {numel}")
    offset = offset if span else 0
    grad = len(args) > 4 and args[4] is True
    return Draft(dtype, size, storage, offset, strides, requires_grad=grad)


def _bits(context: Context, metadata: object) -> Encoding:
    """The lazy conjugation and negation of a tensor whose stored bytes are not its values."""
    if isinstance(metadata, Call) and metadata.pair == ("torch.jit._pickle", "restore_type_tag") and metadata.args:
        metadata = value_of(metadata.args[0])  # TorchScript writes the type of a dict beside it
    if not isinstance(metadata, dict):
        raise context.bad("a tensor has metadata that torch does not write")
    encoding = Encoding.CONJ if metadata.get("conj") else Encoding.RAW
    return encoding | (Encoding.NEG if metadata.get("neg") else Encoding.RAW)


def _unpacked(draft: Draft) -> Draft:
    """Two 4-bit values a byte: count values, as safetensors does, not bytes, as torch does."""
    if not draft.shape or draft.strides[-1] != 1:
        return draft
    return draft.like(
        dtype=DTYPES["F4"],
        shape=(*draft.shape[:-1], draft.shape[-1] * 2),
        offset=draft.offset * 2,
        strides=(*(stride * 2 for stride in draft.strides[:-1]), 1),
    )


def _dtype(context: Context, node: object) -> DType:
    dtype = dtype_of_torch(node.name) if isinstance(node, Global) and node.module == "torch" else None
    if dtype is None:
        raise context.bad("a tensor has an unknown dtype")
    return dtype


def _parameter(context: Context, args: tuple[object, ...], call: Call) -> Draft:
    """data, requires_grad, hooks[, state]."""
    if not 3 <= len(args) <= 4:
        raise context.bad(f"a parameter is rebuilt from {len(args)} arguments")
    state = args[3] if len(args) == 4 else None
    return context.draft(args[0]).like(type="torch.nn.Parameter", requires_grad=args[1] is True, state=state)


def _from_type(context: Context, args: tuple[object, ...], call: Call) -> Draft:
    """function, type, arguments, state: a tensor with attributes, or of a subclass."""
    if len(args) != 4 or not isinstance(args[2], tuple):
        raise context.bad("a tensor of another type is rebuilt from arguments that torch does not write")
    function, kind, _, state = args
    # A function that again rebuilds by type could nest without end, and none of torch does.
    plain = isinstance(function, Global) and function.module in _REBUILDERS
    rebuild = context.table.get(function.pair) if plain and isinstance(function, Global) else None
    made = rebuild(context, args[2], call) if rebuild else None
    if not isinstance(made, Draft):
        raise context.unknown(function)
    if not isinstance(kind, Global):
        raise context.bad("a tensor is rebuilt as something that is no class")
    if sharded_kind(kind):
        return rebuild_sharded(context, kind, made.dtype, state)
    if made.layout == "jagged":
        # What it is made of stands in its parts already, and in its state once more, beside what it has worked out.
        context.dismiss(state)
        state = None
    return made.like(type=str(kind), state=state)


def _wrapper(context: Context, args: tuple[object, ...], call: Call) -> Draft:
    """class, dtype, size, ...: a subclass that keeps its data in its state."""
    if len(args) < 3:
        raise context.bad("a wrapper subclass lacks its dtype or size")
    return Draft(_dtype(context, args[1]), context.size(args[2]), layout="subclass")


def _sparse(context: Context, args: tuple[object, ...], call: Call) -> Draft:
    """layout, (indices..., values, size[, coalesced])."""
    named = value_of(args[0]) if args else None
    layout = named.removeprefix("torch.") if isinstance(named, str) else ""
    names = {"sparse_coo": ("indices",), "sparse_csr": ("crow_indices", "col_indices"),
             "sparse_csc": ("ccol_indices", "row_indices"), "sparse_bsr": ("crow_indices", "col_indices"),
             "sparse_bsc": ("ccol_indices", "row_indices")}.get(layout)  # fmt: skip
    data = args[1] if len(args) == 2 else None
    if not names or not isinstance(data, tuple) or len(data) < len(names) + 2:
        raise context.bad("a sparse tensor is rebuilt from arguments that torch does not write")
    parts = {name: context.strided(node) for name, node in zip((*names, "values"), data, strict=False)}
    return Draft(parts["values"].dtype, context.size(data[len(names) + 1]), layout=layout, parts=parts)


def _quantized(context: Context, args: tuple[object, ...], call: Call) -> Draft:
    """storage, offset, size, stride, (scheme, scale, zero point...), requires_grad, hooks."""
    if len(args) < 5 or not isinstance(args[4], tuple):
        raise context.bad("a quantized tensor lacks its scheme")
    storage = context.storage(args[0])
    draft = _view(context, storage, storage.dtype or DTYPES["QU8"], args[:4])
    scheme = args[4][0].name if args[4] and isinstance(args[4][0], Global) else ""
    if scheme not in _SCHEMES:
        raise context.bad("a quantized tensor has an unknown scheme")
    names = ("scale", "zero_point", "axis")
    given = dict(
        zip(names if scheme.startswith("per_tensor") else ("scales", "zero_points", "axis"), args[4][1:], strict=False)
    )
    parts = {key: context.strided(value) for key, value in given.items() if key in {"scales", "zero_points"}}
    state = {key: value for key, value in given.items() if key not in parts and type(value) in (int, float)}
    return draft.like(layout=f"quantized {scheme}", storage=None, parts={"int_repr": draft, **parts}, state=state)


def _nested(context: Context, args: tuple[object, ...], call: Call) -> Draft:
    """buffer, sizes, strides, offsets: rows of different lengths, one after another."""
    names = ("values", "sizes", "strides", "offsets")  # the last are a list of integers in torch 1.13
    given = [(name, node) for name, node in zip(names, args, strict=False) if not isinstance(node, list)]
    parts = {name: context.strided(node) for name, node in given}
    if "values" not in parts:
        raise context.bad("a nested tensor has no values")
    return Draft(parts["values"].dtype, parts["values"].shape, layout="nested", parts=parts)


def _jagged(context: Context, args: tuple[object, ...], call: Call) -> Draft:
    """One dict of values, offsets and more."""
    given = args[0] if args else None
    if not isinstance(given, dict) or given.get("values") is None:
        raise context.bad("a jagged tensor has no values")
    context.dismiss(given.get("_metadata_cache"))
    names = [key for key in ("values", "offsets", "lengths") if given.get(key) is not None]
    parts = {key: context.strided(given[key]) for key in names}
    return Draft(parts["values"].dtype, parts["values"].shape, layout="jagged", parts=parts)


def _meta(context: Context, args: tuple[object, ...], call: Call) -> Draft:
    """dtype, size, stride, requires_grad: a shape without data."""
    return _wrapper(context, (None, *args), call).like(layout="meta")


def _from_data(context: Context, args: tuple[object, ...], call: Call) -> Draft:
    """data, dtype, device, requires_grad: a tensor of a device that had to be copied to be saved."""
    return context.draft(args[0] if args else None)


def _size(context: Context, args: tuple[object, ...], call: Call) -> tuple[int, ...] | None:
    """A `torch.Size` is only needed as a tuple; as a value of its own it stays a call."""
    value = args[0] if len(args) == 1 else None
    few = isinstance(value, tuple) and len(value) <= limits.MAX_DIMS
    return value if few and isinstance(value, tuple) and all(type(item) is int for item in value) else None


def _layout(context: Context, args: tuple[object, ...], call: Call) -> str | None:
    return args[0] if args and isinstance(args[0], str) else None


def of_storage(storage: Storage) -> Draft:
    """A bare storage as the vector that it is."""
    dtype = storage.dtype or DTYPES["U8"]
    shape = (storage.numel,)
    kind = "torch.storage.TypedStorage" if storage.dtype else "torch.storage.UntypedStorage"
    return Draft(dtype, shape, storage, 0, contiguous_strides(shape), type=kind)


_REBUILDERS = frozenset({"torch._utils", "torch.nested._internal.nested_tensor"})
_UTILS: dict[str, Rebuild] = {
    "_rebuild_tensor": _tensor_v2,
    "_rebuild_tensor_v2": _tensor_v2,
    "_rebuild_tensor_v3": _tensor_v3,
    "_rebuild_parameter": _parameter,
    "_rebuild_parameter_with_state": _parameter,
    "_rebuild_sparse_tensor": _sparse,
    "_rebuild_qtensor": _quantized,
    "_rebuild_nested_tensor": _nested,
    "_rebuild_meta_tensor_no_storage": _meta,
    "_rebuild_wrapper_subclass": _wrapper,
    "_rebuild_device_tensor_from_numpy": _from_data,
    "_rebuild_device_tensor_from_cpu_tensor": _from_data,
    "_rebuild_xla_tensor": _from_data,
}
TORCH: dict[tuple[str, str], Rebuild] = {("torch._utils", name): rebuild for name, rebuild in _UTILS.items()} | {
    ("torch._tensor", "_rebuild_from_type_v2"): _from_type,
    ("torch.nested._internal.nested_tensor", "_rebuild_njt"): _jagged,
    ("torch.serialization", "_get_layout"): _layout,
    ("torch", "Size"): _size,
}
