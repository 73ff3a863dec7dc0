"""Casts held against torch where it rounds once, and against exact fractions where it does not."""

from __future__ import annotations

import struct
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckptctl.model import DTYPES
from ckptctl.tensors.cast import FLOATS, TARGETS, cast

NARROW = sorted(name for name in FLOATS if DTYPES[name].bits <= 16)
CODES = {"BF16": "<u2", "F16": "<u2", "F32": "<u4", "F64": "<u8"}
SPECIAL = [0.0, 1.0, 65504.0, 65519.999, 65520.0, 65536.0, 3.38953139e38, 3.3961775e38, 3.4028234e38, 3.4028236e38,
           1e39, 1e308, 5.96e-8, 2.98e-8, 2.9802322387695312e-08, 2.98023224e-08, 1e-45, 7e-46, 1e-40, 1e-320, 9.2e-41,
           float("inf"), float("nan")]  # fmt: skip


def bits(block, name):
    return np.frombuffer(block, CODES[name]).astype(np.uint64)


def of_torch(tensor, name):
    return bits(tensor.to(getattr(torch, DTYPES[name].torch)).contiguous().view(torch.uint8).numpy().tobytes(), name)


def assert_same(got, expected, name):
    """Equal bit for bit, but for the payloads of NaN, which have to be quiet."""
    top, quiet = {"BF16": (0x7F80, 0x40), "F16": (0x7C00, 0x200), "F32": (0x7F800000, 0x400000)}[name]
    sign = np.uint64(1 << (8 * np.dtype(CODES[name]).itemsize - 1))
    lost = (expected & ~sign) > top
    assert np.array_equal((got & ~sign) >= top + quiet, lost)
    assert np.array_equal(got[~lost], expected[~lost])


@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize("source", NARROW)
def test_every_narrow_value_is_cast_as_torch_does(source, target):
    dtype = DTYPES[source]
    every = np.arange(1 << dtype.bits, dtype=f"<u{dtype.bits // 8}")
    tensor = torch.from_numpy(every.view(f"<i{dtype.bits // 8}").copy()).view(getattr(torch, dtype.torch))
    got, overflowed = cast(every.tobytes(), dtype, DTYPES[target])
    wide = tensor.to(torch.float32)
    assert overflowed == int(torch.isinf(wide.to(getattr(torch, DTYPES[target].torch))).sum() - torch.isinf(wide).sum())
    if source == target:
        assert bytes(got) == every.tobytes()
    else:
        assert_same(bits(got, target), of_torch(wide, target), target)


@pytest.mark.parametrize("target", ["BF16", "F16"])
def test_float32_is_rounded_as_torch_does(target):
    rng = np.random.default_rng(0)
    values = np.concatenate([
        rng.integers(0, 1 << 32, 300_000, dtype=np.uint32).view(np.float32),
        (rng.integers(0, 1 << 16, 100_000, dtype=np.uint32) << 16 | 0x8000).view(np.float32),
        np.array([*SPECIAL, *(-x for x in SPECIAL)], np.float64).clip(-3.4e38, 3.4e38).astype(np.float32),
    ])  # fmt: skip
    got, overflowed = cast(memoryview(values.tobytes()), DTYPES["F32"], DTYPES[target])
    expected = torch.from_numpy(values).to(getattr(torch, DTYPES[target].torch))
    assert_same(bits(got, target), of_torch(expected, target), target)
    assert overflowed == int(torch.isinf(expected).sum()) - np.isinf(values).sum() > 0


def test_nan_keeps_its_sign():
    values = np.array([0x7F800001, 0xFF800001, 0x7FC00000, 0xFFFFFFFF], np.uint32)
    for target, sign in (("BF16", 0x8000), ("F16", 0x8000)):
        got = bits(cast(values.tobytes(), DTYPES["F32"], DTYPES[target])[0], target)
        assert [bool(x & sign) for x in got.tolist()] == [False, True, False, True]
    wide = bits(cast(b"\x81\x7f\x81\xff", DTYPES["BF16"], DTYPES["F32"])[0], "F32")
    assert wide.tolist() == [0x7FC10000, 0xFFC10000]


def nearest(value, name):
    """Round a fraction to the nearest value of a type, ties to even, by its definition; None for infinity."""
    mantissa, least, top = {"BF16": (7, -126, 127), "F16": (10, -14, 15), "F32": (23, -126, 127)}[name]
    size = abs(value)
    exponent = least
    while Fraction(2) ** (exponent + 1) <= size:
        exponent += 1
    unit = Fraction(2) ** (exponent - mantissa)
    rounded = round(size / unit) * unit  # Fraction rounds ties to even
    return None if rounded >= Fraction(2) ** (top + 1) else rounded


def check_float64(values, target):
    got, overflowed = cast(struct.pack(f"<{len(values)}d", *values), DTYPES["F64"], DTYPES[target])
    wide = np.frombuffer(cast(got, DTYPES[target], DTYPES["F32"])[0], "<f4")
    lost = 0
    for value, seen in zip(values, wide.tolist(), strict=True):
        expected = nearest(Fraction(value), target)
        lost += expected is None
        assert abs(seen) == (float("inf") if expected is None else expected), value
        assert np.signbit(seen) == np.signbit(value)
    assert overflowed == lost


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_float64_is_rounded_once(target):
    shift = {"BF16": 45, "F16": 42, "F32": 29}[target]
    tricky = []
    for base in (
        1.0,
        1.5,
        2.0**-14,
        2.0**-15,
        2.0**-24,
        2.0**-126,
        2.0**-130,
        2.0**-149,
        65504.0,
        3.38e38,
        3.4028234e38,
    ):
        (code,) = struct.unpack("<Q", struct.pack("<d", base))
        for odd in (0, 1 << shift):
            for off in (-1, 0, 1, -(1 << 28), 1 << 28, (1 << 28) + 1):
                half = code + odd + (1 << (shift - 1)) + off
                tricky += struct.unpack("<d", struct.pack("<Q", half))
                tricky += struct.unpack("<d", struct.pack("<Q", half | 1 << 63))
    finite = [x for x in SPECIAL if np.isfinite(x)]
    check_float64([*tricky, *finite, *(-x for x in finite), 2.0**-25, np.nextafter(2.0**-25, 1)], target)
    assert np.isinf(
        np.frombuffer(cast(struct.pack("<2d", np.inf, -np.inf), DTYPES["F64"], DTYPES["F32"])[0], "<f4")
    ).all()


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20),
    st.sampled_from(sorted(TARGETS)),
)
def test_any_float64_is_rounded_once(values, target):
    check_float64(values, target)


def test_float64_nan_and_infinity_are_no_overflow():
    block = struct.pack("<4d", np.inf, -np.inf, np.nan, -np.nan)
    for target in TARGETS:
        got, overflowed = cast(block, DTYPES["F64"], DTYPES[target])
        wide = np.frombuffer(cast(got, DTYPES[target], DTYPES["F32"])[0], "<f4")
        assert overflowed == 0
        assert wide[:2].tolist() == [np.inf, -np.inf]
        assert np.isnan(wide[2:]).all()
        assert np.signbit(wide).tolist() == [False, True, False, True]


def test_blocks_longer_than_what_is_worked_on_at_once():
    values = np.linspace(-70000, 70000, 300_001, dtype=np.float32)
    got, overflowed = cast(values.tobytes(), DTYPES["F32"], DTYPES["F16"])
    assert np.array_equal(bits(got, "F16"), of_torch(torch.from_numpy(values), "F16"))
    assert overflowed == np.count_nonzero(np.abs(values) >= 65520)
    assert cast(b"", DTYPES["F32"], DTYPES["F16"]) == (b"", 0)


def test_what_cannot_be_cast():
    with pytest.raises(ValueError):
        cast(b"", DTYPES["I32"], DTYPES["F32"])
    with pytest.raises(ValueError):
        cast(b"", DTYPES["F32"], DTYPES["F64"])
    with pytest.raises(ValueError):
        cast(b"abc", DTYPES["F32"], DTYPES["F16"])


@pytest.mark.parametrize("target", ["F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"])
@pytest.mark.parametrize(("code", "source"), [("<f4", "F32"), ("<f8", "F64")])
def test_only_finite_numbers_overflow_types_of_8_bits(code, source, target):
    values = np.array([np.inf, -np.inf, np.nan, 1e30, -1e6, 1.0, 0.0], code)
    assert cast(memoryview(values.tobytes()), DTYPES[source], DTYPES[target])[1] == 2
