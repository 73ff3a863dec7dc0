"""Values brought together, held against torch, h5py, and arrays from which the pieces were made."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckptctl.errors import CorruptError, LimitError, UnsupportedError
from ckptctl.model import DTYPES, Encoding, Piece, TensorInfo
from ckptctl.storage import ByteRange, MemoryFile
from ckptctl.tensors import _pieces
from ckptctl.tensors.gather import blocks, raw_range
from tests.samples import CORPUS, HERE, read, values_of


def memory(data):
    return MemoryFile(bytes(data), path=HERE / "x.pt").range()


def piece(data, shape, **changes):
    return Piece(**{"range": memory(data), "offsets": (0,) * len(shape), "shape": shape, **changes})


def tensor(shape, *pieces, dtype="F32"):
    return TensorInfo(name="x", dtype=DTYPES[dtype], shape=shape, pieces=pieces)


def gathered(info, most=16 << 20):
    width = max(info.dtype.bits // 8, 1)
    seen = []
    for block in blocks(info, most=most):
        assert len(block) <= max(most, width)
        assert len(block) % width == 0
        seen.append(bytes(block))
    return b"".join(seen)


def of_torch(value):
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value.astype(value.dtype.newbyteorder("<"))).tobytes()
    value = value.resolve_conj().resolve_neg().contiguous()
    return value.reshape(-1).view(torch.uint8).numpy().tobytes()


def flat(node, path=()):
    """Yield tensors and arrays of nested dicts, lists and tuples under the names that a reader gives them."""
    if isinstance(node, torch.Tensor) or (isinstance(node, np.ndarray) and node.dtype.kind not in "OUV"):
        yield ".".join(path), node
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, (list, tuple)) else ()
    for key, value in items:
        yield from flat(value, (*path, str(key)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["views", "dtypes", "big_endian", "legacy_views_tied", "numpy_objects", "tied"])
def test_values_are_those_of_torch(name):
    path = CORPUS / "torch_save" / f"{name}.pt"
    # The arrays inside a generator are no leaves to whoever has built it.
    found = {key: info for key, info in read(path).tensors.items() if not key.startswith("generator.")}
    truth = dict(flat(torch.load(path, weights_only=False)))
    assert set(truth) == set(found)
    for key, info in found.items():
        for most in (16 << 20, 24, 1):
            assert gathered(info, most) == of_torch(truth[key]), (key, most)
        raw = raw_range(info)
        assert raw is None or raw.read() == of_torch(truth[key])


def test_which_tensors_are_ranges():
    data = np.arange(6, dtype="<f4").tobytes()
    whole = piece(data, (2, 3))
    assert raw_range(tensor((2, 3), whole)) == whole.range
    for other in (
        replace(whole, strides=(1, 2)),
        replace(whole, encoding=Encoding.SWAPPED),
        replace(whole, unpack=lambda: data),
        replace(whole, range=memory(data + b"\0")),
    ):
        assert raw_range(tensor((2, 3), other)) is None
    assert raw_range(tensor((4, 3), whole)) is None
    assert raw_range(tensor((0,), piece(b"", (0,)))) is None
    assert list(blocks(tensor((0, 3), piece(b"", (0, 3))))) == []


@given(st.data())
def test_any_view_of_any_type(data):
    base = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    dtype, code = data.draw(
        st.sampled_from([("U8", "u1"), ("BF16", "<u2"), ("F32", "<u4"), ("F64", "<u8"), ("C128", "<c16")])
    )
    array = np.arange(math.prod(base)).astype(code).reshape(base)
    view = array.transpose(data.draw(st.permutations(range(len(base)))))
    view = view[tuple(slice(data.draw(st.integers(0, n - 1)), None, data.draw(st.integers(1, 3))) for n in view.shape)]
    if data.draw(st.booleans()):
        view = np.broadcast_to(view, (3, *view.shape))
    start = (view.__array_interface__["data"][0] - array.__array_interface__["data"][0]) // array.itemsize
    strides = tuple(step // array.itemsize for step in view.strides)
    whole = memory(array.tobytes())
    block = replace(
        piece(b"", view.shape, strides=strides),
        range=whole.sub(start * array.itemsize, whole.length - start * array.itemsize),
    )
    most = data.draw(st.sampled_from([1, 16, 40, 100, 1 << 20]))
    assert gathered(tensor(view.shape, block, dtype=dtype), most) == view.tobytes()


def test_a_large_transpose_reads_little_more_than_it_needs(monkeypatch):
    array = np.arange(1 << 20, dtype="<u4").reshape(1024, 1024)
    info = tensor((1024, 1024), piece(array.tobytes(), (1024, 1024), strides=(1, 1024)))
    sizes = []
    plain = ByteRange.read
    monkeypatch.setattr(ByteRange, "read", lambda self, at, length: sizes.append(length) or plain(self, at, length))
    assert gathered(info, 64 << 10) == array.T.tobytes()
    assert max(sizes) <= 1 << 20
    sizes.clear()
    rows = tensor((1024, 16), piece(array.tobytes(), (1024, 16), strides=(1024, 1)))
    assert gathered(rows) == array[:, :16].tobytes()
    assert max(sizes) <= 1 << 20


def test_an_expansion_is_never_made_whole():
    info = tensor((1 << 50, 3), piece(np.arange(3, dtype="<f4").tobytes(), (1 << 50, 3), strides=(0, 1)))
    few = blocks(info, most=48)
    assert bytes(next(few)) == bytes(next(few)) == np.tile(np.arange(3, dtype="<f4"), 4).tobytes()


def test_more_dimensions_than_numpy_counts():
    shape = (1,) * 40 + (2,) * 3 + (1,) * 30
    strides = (7,) * 40 + (1, 2, 4) + (1 << 70,) * 30
    array = np.arange(8, dtype="<f4")
    assert (
        gathered(tensor(shape, piece(array.tobytes(), shape, strides=strides)), 8) == array.reshape(2, 2, 2).T.tobytes()
    )


def conjugate(pairs):
    return torch.stack([pairs[:, 0], -pairs[:, 1]], 1)


@pytest.mark.parametrize("most", [1 << 20, 16])
@pytest.mark.parametrize(("name", "half"), [("C32", torch.float16), ("C64", torch.float32), ("C128", torch.float64)])
def test_conjugates_and_negatives_of_complex_numbers(name, half, most):
    # Torch negates complex numbers by 0 - x, which keeps the signs of 0 and NaN; all else is held against it bit for bit.
    zeros = [] if name == "C32" else [0.0, -0.0]
    for special in ([*zeros, 1.5, float("nan"), -float("inf")], [1.0, -2.5, float("inf")]):
        values = torch.tensor(special, dtype=torch.float64)
        pairs = torch.cartesian_prod(values, values).to(half).contiguous()
        plain, count, width = torch.view_as_complex(pairs), len(pairs), DTYPES[name].bits // 16
        truths = {Encoding.CONJ: conjugate(pairs)}
        if 0.0 not in special:
            truths |= {Encoding.NEG: -pairs, Encoding.CONJ | Encoding.NEG: conjugate(-pairs)}
        if name != "C32":  # which torch does not conjugate on CPU
            assert of_torch(plain.conj()) == of_torch(truths[Encoding.CONJ])
        if name != "C32" and 0.0 not in special:
            assert of_torch(torch._neg_view(plain)) == of_torch(truths[Encoding.NEG])
            assert of_torch(torch._neg_view(plain.conj())) == of_torch(truths[Encoding.CONJ | Encoding.NEG])
        raw = of_torch(plain)
        swapped = np.frombuffer(raw, np.uint8).reshape(-1, width)[:, ::-1].tobytes()
        for encoding, truth in truths.items():
            info = tensor((count,), piece(raw, (count,), encoding=encoding), dtype=name)
            assert gathered(info, most) == of_torch(truth)
            info = tensor((count,), piece(swapped, (count,), encoding=encoding | Encoding.SWAPPED), dtype=name)
            assert gathered(info, most) == of_torch(truth)


@pytest.mark.parametrize("name", ["F32", "F64", "F16", "BF16", "I8", "U8", "I16", "I32", "I64"])
def test_negatives(name):
    values = torch.tensor([0, 1, 100, -1, -128, 7]).to(getattr(torch, DTYPES[name].torch))
    info = tensor((6,), piece(of_torch(values), (6,), encoding=Encoding.NEG), dtype=name)
    assert gathered(info) == of_torch(torch._neg_view(values))


def test_negatives_of_eight_bit_floats():
    assert (
        gathered(tensor((3,), piece(b"\x00\x80\x01", (3,), encoding=Encoding.NEG), dtype="F8_E4M3")) == b"\x80\x00\x81"
    )
    assert (
        gathered(tensor((3,), piece(b"\x00\x80\x01", (3,), encoding=Encoding.NEG), dtype="F8_E4M3FNUZ"))
        == b"\x00\x80\x81"
    )
    with pytest.raises(UnsupportedError, match="no sign"):
        gathered(tensor((1,), piece(b"\x01", (1,), encoding=Encoding.NEG), dtype="BOOL"))


def tiles(array, *cuts):
    """Cut an array along its dimensions into pieces, and return them."""
    found = [((0,) * array.ndim, array)]
    for axis, places in enumerate(cuts):
        edges = [0, *places, array.shape[axis]]
        found = [
            (tuple(a if d == axis else x for d, x in enumerate(at)), np.take(block, range(a, b), axis))
            for at, block in found for a, b in pairwise(edges)
        ]  # fmt: skip
    return [piece(block.tobytes(), block.shape, offsets=at) for at, block in found]


@pytest.mark.parametrize("most", [1 << 20, 200, 20, 4])
def test_tiles_are_put_together_whatever_their_encoding_and_order(most):
    array = np.arange(7 * 10, dtype="<u4").reshape(7, 10)
    parts = tiles(array, [3, 4], [5])
    first = parts[0].range.read()
    parts[0] = replace(
        parts[0], range=memory(np.frombuffer(first, ">u4").astype("<u4").tobytes()), encoding=Encoding.SWAPPED
    )
    turned = np.frombuffer(parts[1].range.read(), "<u4").reshape(parts[1].shape)
    parts[1] = replace(parts[1], range=memory(turned.T.tobytes()), strides=(1, 3))
    assert gathered(tensor((7, 10), *reversed(parts)), most) == array.tobytes()
    assert gathered(tensor((7, 10), *parts, *parts[:2]), most) == array.tobytes()
    with pytest.raises(CorruptError, match="x is not whole"):
        gathered(tensor((7, 10), *parts[:-1]), most)
    with pytest.raises(CorruptError, match="x is not whole"):
        gathered(tensor((7, 10), *parts[:-1], *parts[:2]), most)


def test_packed_pieces_are_unpacked_once(monkeypatch):
    array = np.arange(64 * 64, dtype=">u4").reshape(64, 64)
    calls = []
    packed = [
        replace(part, encoding=Encoding.CHUNK | Encoding.SWAPPED, range=memory(b"?"), unpack=lambda part=part: calls.append(part) or part.range.read())
        for part in tiles(array, [16, 32, 48], [32])
    ]  # fmt: skip
    info = tensor((64, 64), *packed, dtype="U32")
    assert gathered(info, 512) == array.astype("<u4").tobytes()
    assert len(calls) == 8
    monkeypatch.setattr(_pieces, "_HELD", 0)
    assert gathered(info, 512) == array.astype("<u4").tobytes()
    assert len(calls) > 16
    with pytest.raises(CorruptError, match="unpacks to 3 bytes"):
        gathered(tensor((64, 64), *packed[:-1], replace(packed[-1], unpack=lambda: b"abc"), dtype="U32"))
    with pytest.raises(UnsupportedError, match="x is packed"):
        gathered(tensor((64, 64), *packed[:-1], replace(packed[-1], unpack=None), dtype="U32"))


@pytest.mark.parametrize("most", [1 << 20, 64, 7, 1])
def test_bytes_written_as_text(most):
    array = np.random.default_rng(0).integers(0, 1 << 32, 60, dtype=np.uint32).reshape(6, 10)
    text = array.tobytes().decode("latin1").encode()
    latin = piece(text, (6, 10), encoding=Encoding.LATIN1)
    assert gathered(tensor((6, 10), latin), most) == array.tobytes()
    swapped = replace(latin, encoding=Encoding.LATIN1 | Encoding.SWAPPED)
    assert gathered(tensor((6, 10), swapped), most) == array.byteswap().tobytes()
    turned = replace(latin, shape=(10, 6), strides=(1, 10))
    assert gathered(tensor((10, 6), turned), most) == array.T.tobytes()
    for bad in (text[:-2] + b"aa", text + b"aaaa", text[:-4], "\u0394".encode() + text, b"\xff" + text[1:]):
        with pytest.raises(CorruptError, match="x is"):
            gathered(tensor((6, 10), replace(latin, range=memory(bad))), most)


def test_long_text_in_another_order_is_refused(monkeypatch):
    monkeypatch.setattr(_pieces, "_HELD", 10)
    info = tensor((2, 3), piece(bytes(24), (2, 3), strides=(1, 2), encoding=Encoding.LATIN1))
    with pytest.raises(LimitError, match="x is a view of 24 bytes of text"):
        gathered(info)


def test_elements_narrower_than_a_byte():
    data = bytes(range(9))
    assert gathered(tensor((3, 6), piece(data, (3, 6)), dtype="F4"), 4) == data
    assert gathered(tensor((12,), piece(data, (12,)), dtype="F6_E2M3"), 4) == data
    with pytest.raises(UnsupportedError, match="x: elements of 4 bits"):
        gathered(tensor((3, 6), piece(data, (3, 6), strides=(1, 3)), dtype="F4"))


def test_pieces_that_reach_out_of_their_bytes():
    for bad in (piece(bytes(20), (2, 3)), piece(bytes(24), (2, 3), strides=(1, 5)), piece(bytes(24), (2, 3), strides=(-1, 1)),
                replace(piece(bytes(24), (1, 6)), offsets=(0, 0, 0))):  # fmt: skip
        with pytest.raises(CorruptError, match="x "):
            gathered(tensor((2, 3), bad))
    with pytest.raises(CorruptError, match="x is not whole"):
        gathered(tensor((2, 3)))
    with pytest.raises(ValueError, match="not strided"):
        blocks(replace(tensor((2,)), layout="sparse_coo"))


OPTIONS = {
    "plain": {}, "gzip": {"compression": "gzip"}, "shuffle": {"compression": "gzip", "shuffle": True},
    "lzf": {"compression": "lzf"},
}  # fmt: skip


@pytest.mark.parametrize("most", [16 << 20, 100])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_chunks_of_hdf5(tmp_path, options, most):
    rng = np.random.default_rng(0)
    arrays = {
        f"g.{i}": rng.integers(0, 200, (13, 10)).astype(code)
        for i, code in enumerate(["<f4", ">f4", ">i2", "u1", "<c8", ">f8", "?"])
    } | {"h": rng.random((3, 5, 7))}
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for name, array in arrays.items():
            file.create_dataset(
                name.replace(".", "/"), data=array, chunks=(5, 4) if array.ndim == 2 else (2, 2, 3), **options
            )
    found = read(tmp_path / "x.h5").tensors
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        assert gathered(found[name], most) == of_torch(array)


def test_damaged_and_oversized_chunks(tmp_path, monkeypatch):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("a", data=np.arange(100.0), chunks=(50,), compression="gzip")
    info = read(path).tensors["a"]
    at = info.pieces[0].range.offset
    monkeypatch.setattr("ckptctl.formats._hdf5_chunks._MAX_CHUNK", 399)
    with pytest.raises(LimitError, match="a has chunks of 400 bytes"):
        gathered(info)
    monkeypatch.undo()
    data = bytearray(path.read_bytes())
    data[at + 10] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(CorruptError, match="a: a chunk cannot be unpacked"):
        gathered(read(path).tensors["a"])


def test_keras_files_give_what_keras_wrote():
    for name in ("model.h5", "model.keras"):
        for info in read(CORPUS / "keras" / "files" / name).tensors.values():
            assert gathered(info, 64) == bytes(values_of(info))
