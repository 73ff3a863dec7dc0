"""The strict zip reader: bits of every header flipped, and archives that two readers see differently."""

from __future__ import annotations

import io
import struct
import zipfile

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckptctl.errors import CkptctlError, CorruptError
from ckptctl.formats import torch_zip
from tests.samples import read


def saved() -> bytes:
    buffer = io.BytesIO()
    torch.save({"w": torch.arange(4.0), "b": torch.ones(2, dtype=torch.int16)}, buffer)
    return buffer.getvalue()


GOOD = saved()


def listing(path):
    return {name: (t.dtype.name, t.shape, t.pieces[0].range.read()) for name, t in read(path).tensors.items()}


def header_bytes():
    """The positions of all bytes that are neither tensor data nor padding."""
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "x.pt"
        path.write_bytes(GOOD)
        contents = read(path)
        return [
            at
            for region in torch_zip.account(contents)
            if region.kind in ("header", "index")
            for at in range(region.offset, region.offset + region.length)
        ]


@pytest.mark.parametrize("bit", range(8))
def test_every_flipped_bit_of_a_header_or_pickle_is_refused_or_harmless(tmp_path, bit):
    """A listing is given only if it is the same, or if torch gives the changed one too."""
    path = tmp_path / "x.pt"
    path.write_bytes(GOOD)
    good = listing(path)
    for at in header_bytes():
        path.write_bytes(GOOD[:at] + bytes([GOOD[at] ^ 1 << bit]) + GOOD[at + 1 :])
        try:
            found = listing(path)
        except CkptctlError:
            continue
        if found != good:
            loaded = torch.load(path, weights_only=True)
            assert {n: (tuple(t.shape), t.numpy().tobytes()) for n, t in loaded.items()} == {
                n: (shape, raw) for n, (_, shape, raw) in found.items()
            }, at


def rezipped(edit, *, root: str = "archive") -> bytes:
    """The good archive written anew by Python, each record passed through `edit(name, bytes)`."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(GOOD)) as old, zipfile.ZipFile(buffer, "w") as new:
        for info in old.infolist():
            name = info.filename.partition("/")[2]
            for out_name, data in edit(name, old.read(info)):
                new.writestr(zipfile.ZipInfo(f"{root}/{out_name}"), data)
    return buffer.getvalue()


def test_reads_an_archive_that_python_wrote_again(tmp_path):
    path = tmp_path / "x.pt"
    path.write_bytes(GOOD)
    expected = listing(path)
    path.write_bytes(rezipped(lambda name, data: [(name, data)]))
    assert listing(path) == expected


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("edit", "what"),
    [
        (lambda n, d: [(n, d), (n, d)] if n == "data.pkl" else [(n, d)], "two records are called"),
        (lambda n, d: [(n, d), (n.upper(), d)] if n == "data.pkl" else [(n, d)], "two records are called"),
        (lambda n, d: [(n, d[:-1] if n == "data/0" else d)], "has 15 bytes, its tensors need 16"),
        (lambda n, d: [(n, d)] if n != "data/1" else [], "record data/1 is missing"),
        (lambda n, d: [(f"../{n}" if n == "version" else n, d)], "no name of a record"),
        (lambda n, d: [(n.replace("version", "ver\\sion"), d)], "no name of a record"),
    ],
)
def test_refuses_ambiguous_or_incomplete_archives(edit, what, tmp_path):
    path = tmp_path / "x.pt"
    path.write_bytes(rezipped(edit))
    with pytest.raises(CorruptError, match=what):
        read(path)


def test_refuses_two_roots(tmp_path):
    path = tmp_path / "x.pt"
    path.write_bytes(
        rezipped(lambda n, d: [(n, d), (f"../other/{n}", d)][:1] + ([("x", b"")] if n == "version" else []))
    )
    assert read(path).tensors
    buffer = io.BytesIO(path.read_bytes())
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr("other/version", b"3")
    path.write_bytes(buffer.getvalue())
    with pytest.raises(CorruptError, match="2 different roots"):
        read(path)


def test_reads_sizes_beyond_32_bits_from_the_zip64_fields(tmp_path):
    """A sparse file of 5 GB whose middle record has its size and offset only in 64 bits."""
    path = tmp_path / "big.pt"
    with torch.serialization.skip_data():
        torch.save({"a": torch.empty(5 << 30, dtype=torch.uint8), "b": torch.ones(3)}, path)
    tensors = read(path).tensors
    assert tensors["a"].nbytes == 5 << 30
    assert tensors["b"].pieces[0].range.offset > 5 << 30


@given(st.data())
def test_changed_archives_raise_nothing_but_our_errors(tmp_path_factory, data):
    raw = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 9))
        value = data.draw(
            st.sampled_from([0, 1, 0xFF, 0xFFFF, 0xFFFFFFFF, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)
        )
        width = data.draw(st.sampled_from([1, 2, 4, 8]))
        raw[at : at + width] = struct.pack("<Q", value)[:width]
    path = tmp_path_factory.mktemp("x") / "x.pt"
    path.write_bytes(bytes(raw))
    try:
        read(path)
    except CkptctlError as error:
        assert error.message
