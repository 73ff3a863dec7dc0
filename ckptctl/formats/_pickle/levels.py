"""Which globals are trusted how far: exact names only, never prefixes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ckptctl.formats._pickle.records import Global
from ckptctl.formats._pickle.torch_modules import TORCH_MODULES
from ckptctl.model import Level

if TYPE_CHECKING:
    from ckptctl.formats._pickle.records import Call

# Names that pickles of protocol 2 and below use for what has moved since Python 2.
_PYTHON2 = {"__builtin__": "builtins", "copy_reg": "copyreg", "commands": "subprocess", "exceptions": "builtins"}
_PYTHON2_NAMES = {("builtins", "xrange"): "range", ("builtins", "unicode"): "str", ("builtins", "long"): "int"}

_BUILTINS = """set frozenset complex slice bytearray range list dict tuple int float str bool bytes object Ellipsis"""
_TORCH_TYPES = """Size device Tensor dtype Generator per_tensor_affine per_channel_affine per_tensor_symmetric
    per_channel_symmetric per_channel_affine_float_qparams strided sparse_coo sparse_csr sparse_csc
    sparse_bsr sparse_bsc jagged contiguous_format channels_last channels_last_3d preserve_format
    bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float32 float64 bfloat16 half
    float double complex32 complex64 complex128 cfloat float8_e4m3fn float8_e5m2 float8_e4m3fnuz
    float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2 qint8 quint8 qint32 quint4x2 quint2x4"""
STORAGES = {
    "FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16", "LongStorage": "int64", "IntStorage": "int32",
    "ShortStorage": "int16", "CharStorage": "int8", "ByteStorage": "uint8", "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64", "ComplexDoubleStorage": "complex128", "QInt8Storage": "qint8",
    "QUInt8Storage": "quint8", "QInt32Storage": "qint32", "QUInt4x2Storage": "quint4x2",
    "QUInt2x4Storage": "quint2x4",
}  # fmt: skip
"""Storage classes of ``torch``, and the element type of each."""
STORAGES_READ = STORAGES | {
    "UInt16Storage": "uint16", "UInt32Storage": "uint32", "UInt64Storage": "uint64",
    "ComplexHalfStorage": "complex32", "Float8_e4m3fnStorage": "float8_e4m3fn", "Float8_e5m2Storage": "float8_e5m2",
    "Float8_e4m3fnuzStorage": "float8_e4m3fnuz", "Float8_e5m2fnuzStorage": "float8_e5m2fnuz",
    "Float8_e8m0fnuStorage": "float8_e8m0fnu",
}  # fmt: skip
"""And those that only C++ knows, which TorchScript writes."""

_REBUILD = """_rebuild_tensor _rebuild_tensor_v2 _rebuild_tensor_v3 _rebuild_parameter
    _rebuild_parameter_with_state _rebuild_sparse_tensor _rebuild_qtensor _rebuild_nested_tensor
    _rebuild_meta_tensor_no_storage _rebuild_wrapper_subclass _rebuild_device_tensor_from_numpy
    _rebuild_device_tensor_from_cpu_tensor _rebuild_xla_tensor"""
_DCP = "torch.distributed.checkpoint"
_KNOWN = {
    "builtins": _BUILTINS,
    "collections": "OrderedDict defaultdict Counter deque",
    "_codecs": "encode",
    "torch": f"{_TORCH_TYPES} {' '.join(STORAGES_READ)}",
    "torch._utils": _REBUILD,
    "torch._tensor": "_rebuild_from_type_v2",
    "torch.storage": "UntypedStorage TypedStorage _load_from_bytes",
    "torch.jit._pickle": """build_boollist build_doublelist build_intlist build_tensorlist build_tensor_from_id
        restore_type_tag""",
    "torch.serialization": "_get_layout",
    "torch.nn.parameter": "Parameter Buffer UninitializedParameter",
    "torch.nested._internal.nested_tensor": "_rebuild_njt NestedTensor",
    "torch._dynamo.decorators": "_DimRange",
    "torch.distributed.tensor": "DTensor",
    "torch.distributed._tensor": "DTensor",
    "torch.distributed._tensor.api": "DTensor",
    "torch.distributed._tensor.placement_types": "DTensorSpec TensorMeta Shard Replicate _Partial Partial",
    "torch.distributed.tensor._dtensor_spec": "DTensorSpec TensorMeta ShardOrderEntry",
    "torch.distributed.tensor.placement_types": "Shard Replicate Partial _StridedShard",
    "torch.distributed.device_mesh": "DeviceMesh",
    "torch.distributed._mesh_layout": "_MeshLayout _FlatLayout",
    "torch.distributed._shard.sharded_tensor.api": "ShardedTensor",
    "torch.distributed._shard.sharded_tensor.metadata": "ShardedTensorMetadata TensorProperties MEM_FORMAT_ENCODING",
    "torch.distributed._shard.sharded_tensor.shard": "Shard",
    "torch.distributed._shard.metadata": "ShardMetadata",
    "torch.distributed._shard.sharding_spec.chunk_sharding_spec": "ChunkShardingSpec",
    "torch.distributed._shard.sharding_spec.api": "EnumerableShardingSpec",
    "torch.distributed.remote_device": "_remote_device",
    f"{_DCP}.metadata": """Metadata TensorStorageMetadata BytesStorageMetadata ChunkStorageMetadata
        TensorProperties MetadataIndex StorageMeta _MEM_FORMAT_ENCODING""",
    f"{_DCP}.filesystem": "_StorageInfo",
    f"{_DCP}.planner": "SavePlan WriteItem WriteItemType TensorWriteData",
    "numpy": "dtype ndarray",
    "numpy._core.multiarray": "_reconstruct scalar",
    "numpy.core.multiarray": "_reconstruct scalar",
    "numpy._core.numeric": "_frombuffer",
    "numpy.core.numeric": "_frombuffer",
    "numpy.random._pickle": "__generator_ctor __bit_generator_ctor __randomstate_ctor",
    "numpy.random._pcg64": "PCG64 PCG64DXSM",
    "numpy.random._mt19937": "MT19937",
    "numpy.random._philox": "Philox",
    "numpy.random._sfc64": "SFC64",
    "numpy.random.bit_generator": "SeedSequence __pyx_unpickle_SeedSequence",
}
_INERT = {
    "argparse": "Namespace",
    "pathlib": "PosixPath PurePosixPath WindowsPath PureWindowsPath Path PurePath",
    "pathlib._local": "PosixPath PurePosixPath WindowsPath PureWindowsPath Path PurePath",
    "datetime": "datetime date time timedelta timezone",
    "types": "SimpleNamespace",
    "torch.torch_version": "TorchVersion",
    "uuid": "UUID",
    "decimal": "Decimal",
    "fractions": "Fraction",
    "transformers.training_args": "TrainingArguments OptimizerNames",
    "transformers.trainer_utils": "IntervalStrategy SaveStrategy SchedulerType HubStrategy",
    "transformers.trainer_pt_utils": "AcceleratorConfig",
    "accelerate.state": "PartialState",
    "accelerate.utils.dataclasses": "DistributedType",
    "deepspeed.runtime.fp16.loss_scaler": "LossScaler DynamicLossScaler",
    "deepspeed.runtime.zero.config": "ZeroStageEnum",
    "deepspeed.utils.tensor_fragment": "fragment_address",
}


def _pairs(table: dict[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset((module, name) for module, names in table.items() for name in names.split())


_GETATTR = ("builtins", "getattr")
_ATTRIBUTES = frozenset({(("torch.distributed._shard.sharded_tensor.api", "ShardedTensor"), "ProcessGroupState")})
_NUMPY_SCALARS = frozenset(
    {"numpy.bool", "numpy.str_", "numpy.complex64", "numpy.complex128"}
    | {f"numpy.{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)}
)
_KNOWN_PAIRS = _pairs(_KNOWN)
_INERT_PAIRS = _pairs(_INERT | TORCH_MODULES)


def python3_name(module: str, name: str) -> tuple[str, str]:
    """Return the name under which Python 3 would import a global."""
    module = _PYTHON2.get(module, module)
    return module, _PYTHON2_NAMES.get((module, name), name)


def level_of(item: Global, *, own: str = "") -> Level:
    """Judge one global by its exact name, and by whether the pickle calls it.

    `own` is the module under which an archive defines its own classes: TorchScript's ``__torch__``.
    """
    if item.pair in _KNOWN_PAIRS:
        return Level.KNOWN
    if item.pair in _INERT_PAIRS or (own and item.module.partition(".")[0] == own):
        return Level.INERT
    odd = not all(part.isascii() and part.isidentifier() for part in (*item.module.split("."), item.name))
    runs = bool(item.called) and _ships_with_python(item)
    return Level.DANGEROUS if odd or runs or item.module == "builtins" else Level.FOREIGN


def level_named(name: str) -> Level:
    """Judge the class of a described object by its dotted name, as if it were called."""
    if name == "type" or name in _NUMPY_SCALARS:
        return Level.KNOWN
    module, _, last = name.rpartition(".")
    item = Global(module, last)
    item.called = 1
    return level_of(item)


def levels_of(items: list[Global], calls: list[Call], *, own: str = "") -> list[Level]:
    """Judge all globals of a pickle; beside something dangerous, whatever else Python ships is its tool."""
    levels = [
        Level.KNOWN if item.pair == _GETATTR and _harmless(item, calls) else level_of(item, own=own) for item in items
    ]
    if Level.DANGEROUS not in levels:
        return levels
    return [
        Level.DANGEROUS if level is Level.FOREIGN and _ships_with_python(item) else level
        for item, level in zip(items, levels, strict=True)
    ]


def _harmless(getattr_: Global, calls: list[Call]) -> bool:
    """Whether ``getattr`` is only ever called to get what a ShardedTensor is pickled by."""
    made = [call for call in calls if call.fn is getattr_]
    return getattr_.called == len(made) > 0 and all(_is_torch_attribute(call.args) for call in made)


def _is_torch_attribute(args: tuple[object, ...]) -> bool:
    owner, name = args if len(args) == 2 else (None, None)
    return isinstance(owner, Global) and isinstance(name, str) and (owner.pair, name) in _ATTRIBUTES


def _ships_with_python(item: Global) -> bool:
    return item.module.partition(".")[0] in sys.stdlib_module_names
