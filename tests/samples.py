"""Small checkpoint files made from bytes, for tests that need one with exactly this content."""

from __future__ import annotations

import importlib.util
import json
import struct
from pathlib import Path
from types import ModuleType

from ckptctl import formats
from ckptctl.model import Contents, TensorInfo
from ckptctl.storage import LocalFile

HERE = Path(__file__).parent
CORPUS = HERE / "corpus" / "data"


def read(path: Path) -> Contents:
    """Describe a file by the format that accepts it."""
    return formats.read(LocalFile(path).range())


def safetensors_bytes(header: object, body: bytes = b"", *, length: int | None = None) -> bytes:
    """A safetensors file from a header (an object, or its raw bytes) and the data."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + body


def entry(dtype: str = "F32", shape: tuple[int, ...] = (2,), begin: int = 0, end: int = 8) -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def values_of(tensor: TensorInfo):
    """Bring a tensor's pieces together with NumPy, as raw bytes in its logical order.

    A second implementation on purpose: it checks that pieces say what they should.
    """
    import numpy as np

    from ckptctl.model import Encoding

    bits = tensor.dtype.bits
    if bits < 8:
        (piece,) = tensor.pieces
        assert piece.strides is None
        return piece.range.read()
    width = bits // 8
    whole = np.zeros((*tensor.shape, width), dtype=np.uint8)
    for piece in tensor.pieces:
        raw = piece.unpack() if piece.unpack else piece.range.read()
        if piece.encoding & Encoding.LATIN1:
            raw = raw.decode().encode("latin1")
        elements = np.frombuffer(raw, dtype=np.uint8).reshape(-1, width)
        if piece.strides is None:
            block = elements.reshape(*piece.shape, width)
        else:
            strides = (*(stride * width for stride in piece.strides), 1)
            block = np.lib.stride_tricks.as_strided(elements, (*piece.shape, width), strides)
        half = width // 2 if tensor.dtype.name.startswith("C") else width
        if piece.encoding & Encoding.SWAPPED:
            block = block.reshape(*piece.shape, -1, half)[..., ::-1].reshape(*piece.shape, width)
        block = np.array(block)
        if piece.encoding & Encoding.CONJ:
            block[..., -1] ^= 0x80
        if piece.encoding & Encoding.NEG:
            block[..., half - 1] ^= 0x80
            block[..., -1] ^= 0x80 if half != width else 0
        place = tuple(slice(o, o + n) for o, n in zip(piece.offsets, piece.shape, strict=True))
        whole[place] = block
    return whole.tobytes()


def load(path: Path) -> ModuleType:
    """Import a module that lies beside the tests and is no part of a package."""
    spec = importlib.util.spec_from_file_location(f"_loaded_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
