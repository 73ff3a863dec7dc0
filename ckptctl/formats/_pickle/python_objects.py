"""NumPy arrays and scalars, and bytes written as text: what pickles of protocol 2 make of them."""

from __future__ import annotations

import re
import struct
from dataclasses import replace

from ckptctl.formats._pickle.interpret import Context, Rebuild, value_of
from ckptctl.formats._pickle.records import Call, Global, Span
from ckptctl.formats._pickle.storages import Draft, Storage
from ckptctl.model import DTYPES, DType, Encoding, contiguous_strides
from ckptctl.storage import MemoryFile
from ckptctl.values import Described

_DTYPES = {
    "b1": "BOOL", "i1": "I8", "u1": "U8", "i2": "I16", "u2": "U16", "i4": "I32", "u4": "U32",
    "i8": "I64", "u8": "U64", "f2": "F16", "f4": "F32", "f8": "F64", "c8": "C64", "c16": "C128",
}  # fmt: skip
_NUMPY = {"BOOL": "bool", "C64": "complex64", "C128": "complex128"} | {
    f"{letter}{bits}": f"{kind}{bits}"
    for letter, kind in (("I", "int"), ("U", "uint"), ("F", "float"))
    for bits in (8, 16, 32, 64)
}
_CODES = {"BOOL": "?", "I8": "b", "U8": "B", "I16": "h", "U16": "H", "I32": "i", "U32": "I", "I64": "q",
          "U64": "Q", "F16": "e", "F32": "f", "F64": "d"}  # fmt: skip


def _encode(context: Context, args: tuple[object, ...], call: Call) -> bytes | Span | None:
    """``_codecs.encode(text, "latin1")``: bytes, in pickles older than those that have bytes."""
    if len(args) != 2 or args[1] not in ("latin1", "latin-1"):
        return None
    text = args[0]
    if isinstance(text, str):
        try:
            return text.encode("latin1")
        except UnicodeEncodeError:
            raise context.bad("bytes written as text hold a character above 255") from None
    return replace(text, text=False, latin1=True) if isinstance(text, Span) else None


def _bytes(context: Context, args: tuple[object, ...], call: Call) -> bytes | None:
    """Empty bytes, in pickles older than those that have bytes."""
    return None if args else b""


def _bytearray(context: Context, args: tuple[object, ...], call: Call) -> None:
    """Only from bytes: ``bytearray(n)`` would allocate n bytes."""
    if args and not isinstance(value_of(args[0]), (bytes, str, Span)):
        raise context.bad("a bytearray is to be made from something that is not bytes")


def _dtype(node: object) -> tuple[str, bool]:
    """Return the letter and width of a NumPy dtype (``f4``), and whether it is big-endian."""
    if not isinstance(node, Call) or node.pair != ("numpy", "dtype") or not node.args:
        return "", False
    spec = node.args[0]
    state = node.state[0] if node.state else ()
    order = state[1] if isinstance(state, tuple) and len(state) > 1 else "<"
    return (spec if isinstance(spec, str) and re.fullmatch(r"[a-zA-Z]\d*", spec) else ""), order == ">"


def _scalar(context: Context, args: tuple[object, ...], call: Call) -> Described | None:
    """dtype, bytes."""
    spec, swapped = _dtype(args[0]) if len(args) == 2 else ("", False)
    raw = value_of(args[1]) if len(args) == 2 else None
    name = _DTYPES.get(spec, "")
    if not isinstance(raw, bytes):
        return None
    if spec.startswith("U"):
        return Described(type="numpy.str_", args=(_utf32(raw, swapped=swapped),))
    code = _CODES.get(name, "")
    if not code or struct.calcsize(code) != len(raw):
        return None
    value = struct.unpack((">" if swapped else "<") + code, raw)[0]
    return Described(type=f"numpy.{_NUMPY[name]}", args=(value,))


def _utf32(raw: bytes, *, swapped: bool) -> str:
    """Text of four bytes a character, as NumPy pads it."""
    codes = struct.unpack(f"{'>' if swapped else '<'}{len(raw) // 4}I", raw[: len(raw) // 4 * 4])
    return "".join(chr(code) if code < 0x110000 else "\ufffd" for code in codes).rstrip("\0")


def _array(context: Context, args: tuple[object, ...], call: Call) -> Draft | None:
    """``_reconstruct(ndarray, (0,), b"b")``, then a state: version, shape, dtype, Fortran order, data."""
    state = call.state[0] if call.state else None
    kind = args[0] if args else None
    if not isinstance(state, tuple) or len(state) != 5 or not isinstance(kind, Global):
        return None
    if kind.pair != ("numpy", "ndarray"):
        return None  # a subclass, which is described like any other object
    return _of_data(context, state[4], state[2], context.size(state[1]), fortran=state[3] is True)


def _frombuffer(context: Context, args: tuple[object, ...], call: Call) -> Draft | None:
    """buffer, dtype, shape, order ("C", "F" or "K")[, which axis comes first in the buffer, …]: of protocol 5."""
    if not 4 <= len(args) <= 5:
        return None
    found = _of_data(context, args[0], args[1], context.size(args[2]), fortran=args[3] == "F")
    axes = args[4] if len(args) == 5 else None
    if found is None or axes is None or args[3] != "K":
        return found
    order = context.ints(axes)
    if sorted(order) != list(range(len(found.shape))):
        raise context.bad(f"an array of {len(found.shape)} dimensions has the axes {list(order)}")
    return found.like(
        shape=tuple(found.shape[axis] for axis in order), strides=tuple(found.strides[axis] for axis in order)
    )


def _of_data(context: Context, data: object, dtype: object, shape: tuple[int, ...], *, fortran: bool) -> Draft | None:
    spec, swapped = _dtype(dtype)
    kind = DTYPES.get(_DTYPES.get(spec, ""))
    data = value_of(data)
    if isinstance(data, Call) and data.pair == ("_codecs", "encode"):
        return None  # not interpreted yet: this comes again when the array's state is set
    if isinstance(data, Call) and data.args:
        data = value_of(data.args[0])  # a bytearray
    if kind is None or not isinstance(data, (bytes, Span)):
        return None  # an array of text or objects: described like any other call
    return _draft(context, data, kind, shape, swapped=swapped, fortran=fortran)


def _draft(  # noqa: PLR0913  # all that an array is
    context: Context, data: bytes | Span, kind: DType, shape: tuple[int, ...], *, swapped: bool, fortran: bool
) -> Draft:
    source = MemoryFile(data, path=context.source.file.path).range() if isinstance(data, bytes) else data.range
    strides = tuple(reversed(contiguous_strides(shape[::-1]))) if fortran else contiguous_strides(shape)
    draft = Draft(kind, shape, None, 0, strides, type="numpy.ndarray")
    latin = isinstance(data, Span) and data.latin1
    needed = draft.named("").numel * kind.bits // 8
    # A character of text that stands for a byte is one or two bytes long.
    fits = needed <= source.length <= 2 * needed if latin else source.length == needed
    if not fits:
        raise context.bad(f"an array of shape {shape} has {source.length} bytes of data")
    encoding = Encoding.LATIN1 if latin else Encoding.RAW
    storage = Storage("array", kind, needed * 8 // kind.bits, source, swapped=swapped)
    return draft.like(storage=storage, encoding=encoding)


PYTHON: dict[tuple[str, str], Rebuild] = {
    ("_codecs", "encode"): _encode,
    ("builtins", "bytes"): _bytes,
    ("builtins", "bytearray"): _bytearray,
} | {
    (f"numpy.{core}.{module}", name): rebuild
    for core in ("core", "_core")
    for module, name, rebuild in (
        ("multiarray", "_reconstruct", _array),
        ("multiarray", "scalar", _scalar),
        ("numeric", "_frombuffer", _frombuffer),
    )
}  # fmt: skip
