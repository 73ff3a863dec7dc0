"""Measures of how far tensors are apart, against plain arithmetic in float64 by NumPy and torch."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptctl.model import DTYPES, Piece, TensorInfo
from ckptctl.storage.byterange import MemoryFile
from ckptctl.tensors.compare import same_bytes
from ckptctl.tensors.measure import measure
from ckptctl.tensors.tolerance import Tolerance

FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
INTEGERS = ("I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64", "BOOL")
COMPLEX = ("C64", "C128", "C32")


def stored(raw: bytes, dtype: str, shape: tuple[int, ...], tmp_path) -> TensorInfo:
    """A tensor in memory, as two pieces where it can be cut."""
    whole = MemoryFile(raw, path=tmp_path / "x").range()
    if len(shape) and shape[0] > 1 and DTYPES[dtype].bits >= 8:
        half = shape[0] // 2
        cut = len(raw) // shape[0] * half
        pieces = (
            Piece(range=whole.sub(0, cut), offsets=(0,) * len(shape), shape=(half, *shape[1:])),
            Piece(range=whole.sub(cut, len(raw) - cut), offsets=(half, *(0,) * (len(shape) - 1)), shape=(shape[0] - half, *shape[1:])),
        )  # fmt: skip
    else:
        pieces = (Piece(range=whole, offsets=(0,) * len(shape), shape=shape),)
    return TensorInfo(name="x", dtype=DTYPES[dtype], shape=shape, pieces=pieces)


def of_torch(values: torch.Tensor, tmp_path) -> TensorInfo:
    names = {f"torch.{one.torch}": name for name, one in DTYPES.items() if one.torch}
    raw = values.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if values.numel() else b""
    return stored(raw, names[str(values.dtype)], tuple(values.shape), tmp_path)


def wide(raw: bytes, name: str) -> np.ndarray:
    """What torch makes of some bytes, as float64 or complex128."""
    made = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(getattr(torch, DTYPES[name].torch))
    return made.to(torch.complex128 if name in COMPLEX else torch.float64).numpy()


def check(found, raw_a: bytes, raw_b: bytes, name: str) -> None:
    """Hold measures against what NumPy works out of the whole at once."""
    width = DTYPES[name].bits // 8
    bits = [np.frombuffer(raw, np.dtype((np.void, width))) for raw in (raw_a, raw_b)]
    with np.errstate(all="ignore"):
        a, b = wide(raw_a, name), wide(raw_b, name)
        ok = np.isfinite(a) & np.isfinite(b)
        delta = np.abs(b[ok] - a[ok])
        if name in {"I64", "U64"}:
            x, y = (np.frombuffer(raw, name.lower()[0] + "8").tolist() for raw in (raw_a, raw_b))
            delta = np.array([float(abs(i - j)) for i, j in zip(x, y, strict=True)])
        different = np.array([x.tobytes() != y.tobytes() for x, y in zip(*bits, strict=True)])
        assert found.changed == int(different.sum())
        assert found.numel == len(a)
        assert found.max_abs == pytest.approx(float(delta.max(initial=0)), rel=1e-12)
        if len(delta):
            assert found.mean_abs == pytest.approx(float(math.fsum(delta) / len(delta)), rel=1e-9)
        for norm, values in ((found.norm_a, a[ok]), (found.norm_b, b[ok]), (found.norm_delta, delta)):
            assert norm == pytest.approx(float(np.linalg.norm(values)), rel=1e-9, abs=1e-300)
        nan = np.isnan(a) != np.isnan(b)
        assert found.nan == int(nan.sum())
        assert found.infinite == int(((np.isinf(a) | np.isinf(b)) & (a != b) & ~np.isnan(a) & ~np.isnan(b)).sum())
        if name not in COMPLEX:
            signs = (np.signbit(a) != np.signbit(b)) & ~np.isnan(a) & ~np.isnan(b)
            assert found.signs == int(signs.sum())
        if found.changed:
            at = found.worst[0]
            assert different[at]
            if not (different & ~ok).any():
                assert (delta if ok.all() else np.abs(b - a))[at] == pytest.approx(delta.max(initial=0), rel=1e-12)
            else:
                assert not ok[at]


@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS, *COMPLEX])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_agrees_with_plain_arithmetic(name, data, tmp_path_factory):
    width = DTYPES[name].bits // 8
    count = data.draw(st.integers(1, 40))
    alphabet = st.sampled_from([0, 1]) if name == "BOOL" else st.integers(0, 255)
    raw_a = bytes(data.draw(st.lists(alphabet, min_size=count * width, max_size=count * width)))
    raw_b = bytearray(raw_a)
    for at in data.draw(st.lists(st.integers(0, len(raw_a) - 1), max_size=6)):
        raw_b[at] = data.draw(alphabet)
    path = tmp_path_factory.getbasetemp()
    one, other = (stored(bytes(raw), name, (count,), path) for raw in (raw_a, raw_b))
    assert same_bytes(one, other) == (raw_a == raw_b)
    if name not in {"F64", "C128"}:  # whose sums overflow in NumPy: those have a test of their own
        check(measure(one, other), raw_a, bytes(raw_b), name)


@pytest.mark.parametrize("name", ["BF16", "F32", "F64", "F16"])
def test_large_tensors_in_many_parts(name, tmp_path):
    torch.manual_seed(3)
    a = torch.randn(700, 331, dtype=torch.float64)
    b = a + 1e-2 * torch.randn(700, 331, dtype=torch.float64) * (torch.rand(700, 331) < 0.3)
    a[5, 7], b[5, 7] = 1, 9
    a, b = (one.to(getattr(torch, DTYPES[name].torch)) for one in (a, b))
    found = measure(of_torch(a, tmp_path), of_torch(b, tmp_path))
    x, y = a.double(), b.double()
    assert found.worst == (5, 7)
    assert (found.worst_a, found.worst_b) == (1, 9)
    assert found.changed == int((a != b).sum())
    assert found.share == found.changed / a.numel()
    assert found.relative_l2 == pytest.approx(float((y - x).norm() / x.norm()), rel=1e-9)
    assert found.cosine == pytest.approx(float((x * y).sum() / x.norm() / y.norm()), rel=1e-9)
    assert found.snr_db == pytest.approx(float(10 * torch.log10(x.norm() ** 2 / (y - x).norm() ** 2)), rel=1e-9)
    assert found.mean_abs == pytest.approx(float((y - x).abs().mean()), rel=1e-9)


@pytest.mark.parametrize(
    ("name", "a", "b", "ulps"),
    [
        ("BF16", 1.0, 1.0078125, 1),
        ("F32", -1e-45, 1e-45, 2),
        ("F64", 1.0, 1.0000000000000002, 1),
        ("F64", -1.7e308, 1.7e308, 2 * int.from_bytes(struct.pack(">d", 1.7e308), "big")),
        ("F8_E4M3", 1.0, 1.25, 2),
        ("F16", 65504.0, -65504.0, 63486),
    ],
)
def test_ulps(name, a, b, ulps, tmp_path):
    dtype = getattr(torch, DTYPES[name].torch)
    one, other = (of_torch(torch.tensor([0.5, value], dtype=torch.float64).to(dtype), tmp_path) for value in (a, b))
    found = measure(one, other)
    assert found.ulps == ulps
    assert found.changed == 1
    assert found.worst == (1,)


def test_integers_are_exact(tmp_path):
    one = torch.tensor([0, 2**62 + 1, -(2**63)], dtype=torch.int64)
    other = torch.tensor([0, 2**62, 2**63 - 1], dtype=torch.int64)
    found = measure(of_torch(one, tmp_path), of_torch(other, tmp_path))
    assert found.max_abs == 2**64 - 1
    assert found.worst == (2,)
    assert (found.worst_a, found.worst_b, found.ulps) == (-(2**63), 2**63 - 1, None)
    found = measure(of_torch(one[:2], tmp_path), of_torch(other[:2], tmp_path))
    assert (found.max_abs, found.changed, found.worst) == (1, 1, (1,))


@pytest.mark.parametrize(("size", "delta"), [(1e200, 1e190), (1e-200, 1e-210), (1e308, 1e300), (1e-300, 1e-305)])
def test_sums_of_squares_neither_overflow_nor_vanish(size, delta, tmp_path):
    a = torch.tensor([size, -size, size / 2], dtype=torch.float64)
    b = a + torch.tensor([delta, 0, 0], dtype=torch.float64)
    found = measure(of_torch(a, tmp_path), of_torch(b, tmp_path))
    assert found.norm_a == pytest.approx(size * 1.5, rel=1e-12)
    assert found.relative_l2 == pytest.approx(float(b[0] - a[0]) / (size * 1.5), rel=1e-9)
    assert found.cosine == pytest.approx(1.0)


def test_nothing_finite_changed(tmp_path):
    nan = float("nan")
    one = of_torch(torch.tensor([1.0, nan, math.inf, 0.0]), tmp_path)
    found = measure(one, of_torch(torch.tensor([1.0, 2.0, -math.inf, -0.0]), tmp_path))
    assert (found.changed, found.nan, found.infinite, found.signs) == (3, 1, 1, 2)
    assert found.worst == (1,)
    assert math.isnan(found.worst_a)
    assert found.worst_b == 2
    assert found.max_abs == 0
    assert found.snr_db == math.inf
    same = measure(one, one)
    assert (same.changed, same.relative_l2, same.cosine, same.worst) == (0, 0.0, pytest.approx(1.0), None)


NARROWING = [(a, b) for a in ("F64", "F32", "F16", "BF16") for b in ("F32", "F16", "BF16", *FLOATS[4:]) if a != b]


@pytest.mark.parametrize(("name", "narrow"), NARROWING, ids=str)
@pytest.mark.parametrize("swapped", [False, True])
def test_a_cast_copy_is_its_origin_rounded(name, narrow, swapped, tmp_path):
    torch.manual_seed(1)
    a = (torch.randn(300, dtype=torch.float64) * torch.exp2(torch.randint(-12, 12, (300,)))).clamp(-200, 200)
    a[:5] = torch.tensor([0.0, -0.0, float("nan"), math.inf, 1e-30])
    a = a.to(getattr(torch, DTYPES[name].torch))
    b = a.to(getattr(torch, DTYPES[narrow].torch))
    if DTYPES[name].bits <= DTYPES[narrow].bits and swapped:
        pytest.skip("neither is the narrower")
    one, other = of_torch(a, tmp_path), of_torch(b, tmp_path)
    found = measure(*((other, one) if swapped else (one, other)))
    assert (found.changed, found.ulps) == (0, 0)
    if narrow.endswith("FNUZ") or DTYPES[name].bits < DTYPES[narrow].bits:
        return
    planted = b.clone().view({8: torch.uint8, 16: torch.int16, 32: torch.int32}[DTYPES[narrow].bits])
    planted[77] ^= 1
    other = of_torch(planted.view(b.dtype), tmp_path)
    found = measure(*((other, one) if swapped else (one, other)))
    assert (found.changed, found.ulps) == (1, 1)


def test_saturated_casts_count_as_rounded(tmp_path):
    one = of_torch(torch.tensor([1000.0, -1e9, 3.0, float("nan")]), tmp_path)
    for a, b, c in ((448.0, -448.0, 0), (math.nan, math.nan, 0), (-448.0, -448.0, 1), (448.0, 440.0, 1)):
        other = torch.tensor([a, b, 3.0, float("nan")]).to(torch.float8_e4m3fn)
        assert measure(one, of_torch(other, tmp_path)).changed == c


def test_types_of_other_kinds(tmp_path):
    integers = torch.tensor([1, 2, 2**53 + 1])
    assert measure(of_torch(integers, tmp_path), of_torch(integers.double(), tmp_path)).changed == 0
    assert measure(of_torch(integers, tmp_path), of_torch(integers.float(), tmp_path)).changed == 0
    unsigned = torch.tensor([1, 2, -1]).view(torch.uint64)
    assert measure(of_torch(torch.tensor([1, 2, -1]), tmp_path), of_torch(unsigned, tmp_path)).changed == 1
    ones = of_torch(torch.tensor([1, 0]), tmp_path)
    assert measure(of_torch(torch.tensor([True, False]), tmp_path), ones).changed == 0
    assert measure(of_torch(torch.tensor([1.0, 0.5]), tmp_path), ones).changed == 1
    pairs = torch.tensor([1 + 2j, 3.0])
    assert measure(of_torch(pairs, tmp_path), of_torch(pairs.to(torch.complex128), tmp_path)).changed == 0
    found = measure(of_torch(pairs, tmp_path), of_torch(torch.tensor([1.0, 3.0]), tmp_path))
    assert (found.changed, found.max_abs, found.worst_a, found.worst_b) == (1, 2, "1+2j", "1+0j")


def test_fours(tmp_path):
    one, other = stored(bytes([0x21, 0x43]), "F4", (4,), tmp_path), stored(bytes([0x21, 0xC3]), "F4", (4,), tmp_path)
    found = measure(one, other)
    assert (found.changed, found.worst, found.worst_a, found.worst_b) == (1, (3,), 2.0, -2.0)


@pytest.mark.parametrize(
    ("name", "a", "b", "beyond"),
    [("F32", 1.0, 1.0 + 1e-6, 0), ("F32", 1.0, 1.001, 1), ("BF16", 1.0, 1.0078125, 0), ("F16", 1.0, 1.01, 1),
     ("I32", 5, 6, 1), ("F32", math.nan, math.nan, 0), ("F32", math.inf, 3e38, 1), ("F32", 0.0, -0.0, 0)],
)  # fmt: skip
def test_close(name, a, b, beyond, tmp_path):
    dtype = getattr(torch, DTYPES[name].torch)
    one, other = (of_torch(torch.tensor([2, value]).to(dtype), tmp_path) for value in (a, b))
    assert measure(one, other, tolerance=Tolerance()).beyond == beyond
    assert measure(one, other).beyond is None
    if name == "I32":
        assert measure(one, other, tolerance=Tolerance(atol=1)).beyond == 0
