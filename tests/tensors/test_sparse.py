"""Sparse tensors in full, held against torch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from ckptctl.errors import CorruptError, LimitError, UnsupportedError
from ckptctl.model import DTYPES, Piece, TensorInfo
from ckptctl.storage import MemoryFile
from ckptctl.tensors.sparse import LAYOUTS, densified
from tests.samples import CORPUS, HERE, read

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")
LAYOUTS_OF_TORCH = ["sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc"]


def part(name, array, dtype):
    array = np.ascontiguousarray(array)
    piece = Piece(range=MemoryFile(array.tobytes(), path=HERE).range(), offsets=(0,) * array.ndim, shape=array.shape)
    return TensorInfo(name=f"x.{name}", dtype=dtype, shape=array.shape, pieces=(piece,))


def described(tensor):
    """Describe a sparse tensor of torch as a reader would."""
    layout = str(tensor.layout).removeprefix("torch.")
    dtype = DTYPES[next(d.name for d in DTYPES.values() if d.torch == str(tensor.dtype).removeprefix("torch."))]
    if layout == "sparse_coo":
        found = {"indices": tensor._indices(), "values": tensor._values()}
    else:
        names = ("crow", "col") if layout in ("sparse_csr", "sparse_bsr") else ("ccol", "row")
        found = {f"{name}_indices": getattr(tensor, f"{name}_indices")() for name in names}
        found["values"] = tensor.values()
    raw = {name: value.contiguous().view(torch.uint8).numpy() if value.dtype == torch.bfloat16 else value.numpy()
           for name, value in found.items()}  # fmt: skip
    if tensor.dtype == torch.bfloat16:
        raw["values"] = raw["values"].view("<u2")
    kinds = {"int64": "I64", "int32": "I32"}
    parts = tuple(
        part(name, array, dtype if name == "values" else DTYPES[kinds[str(array.dtype)]]) for name, array in raw.items()
    )
    return TensorInfo(name="x", dtype=dtype, shape=tuple(tensor.shape), pieces=(), layout=layout, parts=parts)


def dense(tensor, most=16 << 20):
    seen = [bytes(block) for block in densified(tensor, most=most)]
    assert all(len(block) <= most for block in seen)
    return b"".join(seen)


def truth(tensor):
    return tensor.to_dense().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.filterwarnings("ignore")
def test_what_torch_saved():
    path = CORPUS / "torch_save" / "special_layouts.pt"
    given = torch.load(path, weights_only=False)
    found = {name: tensor for name, tensor in read(path).tensors.items() if tensor.layout in LAYOUTS}
    assert len(found) == 5
    for name, tensor in found.items():
        assert dense(tensor) == truth(given[name]), name
        assert dense(tensor, 4) == truth(given[name]), name


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8", "int64", "bool", "complex64"])
@pytest.mark.parametrize("layout", LAYOUTS_OF_TORCH)
def test_layouts_and_types(layout, dtype):
    torch.manual_seed(0)
    whole = torch.where(torch.rand(6, 8) < 0.3, torch.randn(6, 8), 0.0).to(getattr(torch, dtype))
    block = (2, 4) if layout in ("sparse_bsr", "sparse_bsc") else None
    tensor = whole.to_sparse(layout=getattr(torch, layout), blocksize=block)
    for most in (16 << 20, 40):
        assert np.array_equal(
            np.frombuffer(dense(described(tensor), most), np.uint8), np.frombuffer(truth(tensor), np.uint8)
        )


def test_batches_dense_dimensions_and_narrow_indices():
    torch.manual_seed(1)
    whole = torch.where(torch.rand(2, 4, 6, 1) < 0.5, torch.randn(2, 4, 6, 3), 0.0)
    coo = whole.to_sparse(2)
    assert dense(described(coo), 64) == truth(coo)
    even = torch.ones(2, 3, 4, 6) * torch.tensor([0.0, 2, 3, 0, 0, 5])
    for layout, block in (
        (torch.sparse_csr, None),
        (torch.sparse_csc, None),
        (torch.sparse_bsr, (2, 3)),
        (torch.sparse_bsc, (2, 3)),
    ):
        tensor = even.to_sparse(layout=layout, blocksize=block)
        assert dense(described(tensor), 128) == truth(tensor)
    hybrid = torch.sparse_csr_tensor(
        torch.tensor([0, 1, 3], dtype=torch.int32),
        torch.tensor([1, 0, 1], dtype=torch.int32),
        torch.randn(3, 5),
        (2, 2, 5),
    )
    assert dense(described(hybrid), 28) == truth(hybrid)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "uint8", "int32", "bool", "complex128"])
def test_values_for_one_place_are_added(dtype):
    index = torch.tensor([[0, 1, 0, 0], [2, 2, 2, 1]])
    values = torch.tensor([200.0, 1, 100.25, 3]).to(getattr(torch, dtype))
    tensor = torch.sparse_coo_tensor(index, values, (2, 3), check_invariants=False)
    assert dense(described(tensor)) == truth(tensor)


def test_narrow_floats_are_rounded_once():
    index = torch.zeros(1, 3, dtype=torch.int64)
    tensor = torch.sparse_coo_tensor(
        index, torch.tensor([2048.0, 1, 1]).to(torch.float16), (1,), check_invariants=False
    )
    assert np.frombuffer(dense(described(tensor)), "<f2").tolist() == [2050.0]


def test_nothing_stored_and_nothing_at_all():
    none = torch.sparse_coo_tensor(torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0), (2, 3), check_invariants=False)
    assert dense(described(none)) == bytes(24)
    empty = torch.sparse_coo_tensor(
        torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0), (0, 3), check_invariants=False
    )
    assert dense(described(empty)) == b""


def changed(layout, name, array):
    """A sparse tensor of 2x3 of which one part is replaced."""
    tensor = described(torch.eye(2, 3).to_sparse(layout=getattr(torch, layout)))
    parts = tuple(part(name, np.array(array), p.dtype) if p.name == f"x.{name}" else p for p in tensor.parts)
    return replace(tensor, parts=parts)


@pytest.mark.parametrize(("layout", "name", "array"), [
    ("sparse_coo", "indices", [[0, 2], [0, 1]]),
    ("sparse_coo", "indices", [[0, -1], [0, 1]]),
    ("sparse_coo", "indices", [[0, 1]]),
    ("sparse_coo", "indices", [0, 1]),
    ("sparse_coo", "indices", [[0, 1]] * 5),
    ("sparse_coo", "indices", [[0], [1]]),
    ("sparse_csr", "crow_indices", [0, 2, 1]),
    ("sparse_csr", "crow_indices", [0, 1, 3]),
    ("sparse_csr", "crow_indices", [1, 1, 2]),
    ("sparse_csr", "crow_indices", [0, (1 << 63) - 1, 2]),
    ("sparse_csr", "crow_indices", [0, 2]),
    ("sparse_csr", "col_indices", [0, 3]),
    ("sparse_csr", "col_indices", [0]),
    ("sparse_csc", "row_indices", [0, 2]),
    ("sparse_csc", "ccol_indices", [0, 1, 2]),
])  # fmt: skip
def test_parts_that_do_not_fit_are_corrupt(layout, name, array):
    with pytest.raises(CorruptError, match="x is sparse"):
        dense(changed(layout, name, array))


def test_limits_and_what_is_not_sparse():
    tensor = changed("sparse_coo", "indices", [[0, 1], [0, 1]])
    with pytest.raises(CorruptError, match="lacks"):
        dense(replace(tensor, parts=tensor.parts[:1]))
    with pytest.raises(LimitError, match="67108864"):
        dense(replace(tensor, parts=(*tensor.parts, replace(tensor.parts[0], shape=(2, 5 << 20)))))
    with pytest.raises(LimitError):
        dense(replace(tensor, shape=(1 << 40, 1 << 40)))
    with pytest.raises(ValueError, match="not sparse"):
        dense(replace(tensor, layout="strided"))
    with pytest.raises(UnsupportedError, match="narrower"):
        dense(replace(tensor, dtype=DTYPES["F4"]))
