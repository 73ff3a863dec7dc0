"""Tensors, arrays and storages in a pickle, in the form that torch 2.13 and NumPy 2 give them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptctl.errors import UnsupportedError
from ckptctl.formats._pickle.levels import STORAGES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ckptctl.formats._format import Stored
    from ckptctl.formats._pickle.writer import Writer
    from ckptctl.values import TensorRef

ARRAY = "numpy.ndarray"
STORAGE_TYPES = frozenset({"torch.storage.TypedStorage", "torch.storage.UntypedStorage"})
_PARAMETERS = frozenset({"torch.nn.Parameter", "torch.nn.parameter.Parameter"})
_UNTYPED = ("torch.storage", "UntypedStorage")
_CLASSES = {dtype: ("torch", name) for name, dtype in STORAGES.items() if not dtype.startswith("q")}
_REAL = ("float", "bfloat", "complex")
_SPECS = {
    "BOOL": "b1", "I8": "i1", "U8": "u1", "I16": "i2", "U16": "u2", "I32": "i4", "U32": "u4",
    "I64": "i8", "U64": "u8", "F16": "f2", "F32": "f4", "F64": "f8", "C64": "c8", "C128": "c16",
}  # fmt: skip


class Tensors:
    """Writes references to tensors, and gives each storage its key in the order in which it is first named.

    Parameters
    ----------
    tensors, ties
        What the references name: how each tensor will be stored, and names that share the storage of another.
    read
        Returns the bytes of an array, row by row, little-endian.
    """

    def __init__(self, tensors: Mapping[str, Stored], ties: Mapping[str, str], read: Callable[[str], bytes]) -> None:
        self.records: list[str] = []
        self.named: set[str] = set()
        self._tensors = tensors
        self._ties = ties
        self._read = read
        self._keys: dict[tuple[str, tuple[str, str]], str] = {}

    def open(self, writer: Writer, ref: TensorRef) -> Iterable[object] | None:
        """Push what a reference stands for."""
        name = self._ties.get(ref.name, ref.name)
        stored = self._tensors[name]
        self.named.add(name)
        if ref.state is not None:
            if ref.type == ARRAY or ref.type in STORAGE_TYPES:
                raise UnsupportedError(f"{ref.name}: a {ref.type} with attributes cannot be written")
            return self._with_state(writer, ref, name, stored)
        if ref.type == ARRAY:
            self._array(writer, ref.name, name, stored)
        elif ref.type in STORAGE_TYPES:
            self._bare_storage(writer, ref, name, stored)
        elif ref.type in _PARAMETERS:
            writer.name("torch._utils", "_rebuild_parameter")
            self._tensor(writer, ref.name, name, grad=False)
            writer.flag(_grad(ref, stored))
            _no_hooks(writer)
            writer.out += b"\x87R"
        else:
            self._tensor(writer, ref.name, name, grad=_grad(ref, stored))
        return None

    def _with_state(self, writer: Writer, ref: TensorRef, name: str, stored: Stored) -> Iterator[object]:
        grad = _grad(ref, stored)
        if ref.type in _PARAMETERS:
            writer.name("torch._utils", "_rebuild_parameter_with_state")
            writer.out += b"("
            self._tensor(writer, ref.name, name, grad=False)
            writer.flag(grad)
            _no_hooks(writer)
        else:
            writer.name("torch._tensor", "_rebuild_from_type_v2")
            writer.out += b"("
            self._function(writer, ref.name, stored)
            writer.name("torch", "Tensor")
            self._arguments(writer, ref.name, name, grad=grad)
        yield ref.state
        writer.out += b"tR"

    def _tensor(self, writer: Writer, label: str, name: str, *, grad: bool) -> None:
        self._function(writer, label, self._tensors[name])
        self._arguments(writer, label, name, grad=grad)
        writer.out += b"R"

    def _function(self, writer: Writer, label: str, stored: Stored) -> None:
        typed = _torch_dtype(label, stored) in _CLASSES
        writer.name("torch._utils", "_rebuild_tensor_v2" if typed else "_rebuild_tensor_v3")

    def _arguments(self, writer: Writer, label: str, name: str, *, grad: bool) -> None:
        """Storage, offset, size, stride, requires_grad, hooks, and the dtype if the storage has none."""
        stored = self._tensors[name]
        dtype, shape = _torch_dtype(label, stored), _torch_shape(label, stored)
        kind = _CLASSES.get(dtype, _UNTYPED)
        writer.out += b"("
        self._storage(writer, name, kind, stored)
        writer.out += b"K\0"
        writer.wholes(shape)
        writer.wholes(_strides(shape))
        writer.flag(grad)
        _no_hooks(writer)
        if kind == _UNTYPED:
            writer.name("torch", dtype)
        writer.out += b"t"

    def _bare_storage(self, writer: Writer, ref: TensorRef, name: str, stored: Stored) -> None:
        dtype = _torch_dtype(ref.name, stored)
        if ref.type == "torch.storage.UntypedStorage":
            self._storage(writer, name, _UNTYPED, stored)
        elif dtype in _CLASSES:
            self._storage(writer, name, _CLASSES[dtype], stored)
        else:
            raise UnsupportedError(f"{ref.name}: torch has no class of storages for {dtype}")

    def _storage(self, writer: Writer, name: str, kind: tuple[str, str], stored: Stored) -> None:
        key = self._keys.get((name, kind))
        if key is None:
            key = self._keys[name, kind] = str(len(self.records))
            self.records.append(name)
        writer.out += b"("
        writer.text("storage")
        writer.name(*kind)
        writer.text(key)
        writer.text("cpu")
        writer.whole(stored.nbytes if kind == _UNTYPED else stored.nbytes * 8 // stored.dtype.bits)
        writer.out += b"tQ"

    def _array(self, writer: Writer, label: str, name: str, stored: Stored) -> None:
        spec = _SPECS.get(stored.dtype.name)
        if spec is None:
            hint = "--plain turns arrays into tensors"
            raise UnsupportedError(f"{label}: NumPy has no type for {stored.dtype}", hint=hint)
        writer.need(stored.nbytes)
        writer.name("numpy._core.multiarray", "_reconstruct")
        writer.name("numpy", "ndarray")
        writer.wholes((0,))
        writer.raw((b"b",), 1)
        writer.out += b"\x87R(K\x01"
        writer.wholes(stored.shape)
        push_dtype(writer, spec)
        writer.flag(False)
        writer.raw((self._read(name),), stored.nbytes)
        writer.out += b"tb"


def push_dtype(writer: Writer, spec: str) -> None:
    """Push the NumPy dtype of a letter and a width (``f4``), little-endian; ``U3`` is text of 3 characters."""
    key = ("", spec)
    if writer.get(key):
        return
    writer.name("numpy", "dtype")
    writer.text(spec)
    writer.out += b"\x89\x88\x87R"
    writer.put(key)
    writer.out += b"(K\x03"
    writer.text("|" if spec in ("b1", "i1", "u1") else "<")
    writer.out += b"NNN"
    for number in (int(spec[1:]) * 4, 4, 8) if spec[0] == "U" else (-1, -1, 0):
        writer.whole(number)
    writer.out += b"tb"


def _no_hooks(writer: Writer) -> None:
    writer.name("collections", "OrderedDict")
    writer.out += b")R"


def _grad(ref: TensorRef, stored: Stored) -> bool:
    """Torch refuses to load integers that require a gradient."""
    return ref.requires_grad and stored.dtype.torch.startswith(_REAL)


def _torch_dtype(label: str, stored: Stored) -> str:
    dtype = stored.dtype.torch
    if not dtype or dtype.startswith("q"):
        raise UnsupportedError(f"{label}: a tensor of {stored.dtype} cannot be written: torch has no such type")
    return dtype


def _torch_shape(label: str, stored: Stored) -> tuple[int, ...]:
    """Return the shape as torch counts it: bytes, where two elements share one."""
    shape = stored.shape
    if stored.dtype.bits >= 8:
        return shape
    if not shape or shape[-1] % 2:
        what = f"a tensor of {stored.dtype} and shape {shape} cannot be written"
        raise UnsupportedError(f"{label}: {what}: torch packs two elements of the last dimension in a byte")
    return (*shape[:-1], shape[-1] // 2)


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides that torch gives a tensor without gaps; an empty dimension counts as one."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
