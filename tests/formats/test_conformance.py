"""What every format owes, tried on a real sample of each; a format without a sample fails here."""

from __future__ import annotations

import pickle
import subprocess
import sys

import obstore
import pytest
import torch

from ckptctl import formats
from ckptctl.errors import CkptctlError, MissingExtraError
from ckptctl.formats import FORMATS
from ckptctl.formats._pickle import limits
from ckptctl.storage import LocalFile, address, open_file
from tests.samples import CORPUS
from tests.storage.stores import bucket, start

# A real file of each format, and what is in it: name → (dtype, shape).
SAMPLES = {
    "safetensors": ("safetensors/edge/with_metadata.safetensors", {"embed.weight": ("F32", (7, 6)), "calls": ("I64", ())}, 10),
    "torch-zip": ("torch_save/train_dict.pt", {"model_state_dict.embed.weight": ("F32", (7, 6)), "rng.torch": ("U8", (5056,))}, 39),
    "torch-script": ("torch_save/scripted.pt", {"embed.weight": ("F32", (7, 6)), "block.2.weight": ("F32", (7, 10))}, 10),
    "torch-legacy": ("torch_save/legacy.pt", {"model_state_dict.embed.weight": ("F32", (7, 6)), "rng.torch": ("U8", (5056,))}, 39),
    "pickle": ("torch_save/plain_pickle_protocol_4.pkl", {"model_state_dict.head.bias": ("F32", (3,)), "rng.numpy.1": ("U32", (624,))}, 39),
    "keras-h5": ("keras/files/model.weights.h5", {"layers.dense.vars.0": ("F32", (6, 7)), "optimizer.vars.0": ("I32", ())}, 22),
    "keras-zip": ("keras/files/model.keras", {"layers.dense.vars.0": ("F32", (6, 7)), "optimizer.vars.0": ("I32", ())}, 22),
    "npz": ("numpy/arrays.npz", {"embed/weight": ("F32", (7, 6)), "by_columns": ("F32", (2, 3, 4)), "step": ("I64", ())}, 19),
}  # fmt: skip
EVERY = pytest.mark.parametrize("name", [candidate.name for candidate in FORMATS])
BY_NAME = {candidate.name: candidate for candidate in FORMATS}


def sample(name):
    path, expected, count = SAMPLES[name]
    return CORPUS / path, expected, count


class Disk:
    """Where files lie: here, on disk."""

    def at(self, path):
        return path

    def put(self, path, data):
        path.write_bytes(data)
        return path


class Bucket:
    """The same in a bucket."""

    def __init__(self):
        self.store = bucket("conformance")

    def at(self, path):
        return self.put(path, path.read_bytes())

    def put(self, path, data):
        obstore.put(self.store.store, path.name, data)
        start()
        return address(f"s3://conformance/{path.name}")


@pytest.fixture(params=[Disk, Bucket], ids=["disk", "bucket"])
def place(request):
    return request.param()


def read(path):
    return formats.read(open_file(path).range())


@EVERY
def test_reads_its_sample(name, place):
    path, expected, count = sample(name)
    contents = read(place.at(path))
    assert contents.format == name
    assert len(contents.tensors) == count
    for tensor, (dtype, shape) in expected.items():
        found = contents.tensors[tensor]
        assert (found.dtype.name, found.shape) == (dtype, shape)


@EVERY
def test_accepts_its_own_and_no_other(name, place):
    for other in FORMATS:
        path, _, _ = sample(other.name)
        assert BY_NAME[name].accepts(open_file(place.at(path)).range()) is (other.name == name)


@EVERY
def test_every_truncation_is_refused_in_one_line(name, place, tmp_path):
    path, _, _ = sample(name)
    data = path.read_bytes()
    for length in [*range(min(4096, len(data))), *range(4096, len(data), 61), len(data) - 1]:
        if isinstance(place, Bucket) and length % 61 and length < len(data) - 100:
            continue
        cut = place.put(tmp_path / path.name, data[:length])
        with pytest.raises(CkptctlError) as caught:
            read(cut)
        assert caught.value.message.startswith(f"{cut}: ")
        assert "\n" not in caught.value.message


@EVERY
@pytest.mark.parametrize("extra", [b"\0", b"x" * 1000, b"PK\x05\x06" + bytes(18)])
def test_anything_added_at_the_end_is_refused(name, extra, place, tmp_path):
    path, _, _ = sample(name)
    longer = place.put(tmp_path / path.name, path.read_bytes() + extra)
    with pytest.raises(CkptctlError):
        read(longer)


@EVERY
def test_accounts_for_every_byte(name, place):
    path, _, _ = sample(name)
    regions = BY_NAME[name].account(read(place.at(path)))
    reached = 0
    for region in regions:
        assert region.offset == reached
        assert region.length > 0
        assert region.kind in {"header", "padding", "data", "unused", "index"}
        reached += region.length
    assert reached == path.stat().st_size


@EVERY
def test_reads_inside_a_larger_file(name, place, tmp_path):
    """Readers take byte ranges: an archive in an archive is found where it lies."""
    path, _, count = sample(name)
    data = path.read_bytes()
    outer = place.put(tmp_path / "outer", b"before" + data + b"after")
    contents = BY_NAME[name].read(open_file(outer).range().sub(6, len(data)))
    assert len(contents.tensors) == count
    plain = {n: [p.range.read() for p in t.pieces] for n, t in read(path).tensors.items()}
    assert {n: [p.range.read() for p in t.pieces] for n, t in contents.tensors.items()} == plain


# Formats that need an extra, which itself needs NumPy.
EXTRA = {"keras-h5": "h5py", "keras-zip": "h5py"}


@pytest.mark.parametrize("name", sorted(EXTRA))
def test_without_its_extra_says_what_to_install(name, monkeypatch):
    monkeypatch.setitem(sys.modules, EXTRA[name], None)
    path, _, _ = sample(name)
    with pytest.raises(MissingExtraError, match="needs h5py") as caught:
        read(path)
    assert caught.value.hint == "pip install 'ckptctl[keras]'"


@pytest.mark.parametrize("name", [candidate.name for candidate in FORMATS if candidate.name not in EXTRA])
def test_needs_neither_torch_nor_numpy(name):
    path, _, count = sample(name)
    code = (
        "import sys; sys.modules['torch'] = sys.modules['numpy'] = None\n"
        "from pathlib import Path; from ckptctl import formats; from ckptctl.storage import LocalFile\n"
        f"print(len(formats.read(LocalFile(Path({str(path)!r})).range()).tensors))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == count


# Where a pickle ends is known only once it is read, so the window may run into what follows.
READ_AHEAD = {"torch-legacy", "pickle"}
# The library reads its structure in blocks, which overlap small datasets beside it.
IN_BLOCKS = {"keras-h5", "keras-zip"}


@pytest.mark.parametrize(
    "name", [candidate.name for candidate in FORMATS if candidate.name not in READ_AHEAD | IN_BLOCKS]
)
def test_reads_no_tensor_bytes(name, monkeypatch):
    """What is read of a file lies outside the data, but for the first bytes that tell the format."""
    path, _, _ = sample(name)
    data = [(r.offset, r.offset + r.length) for r in BY_NAME[name].account(read(path)) if r.kind == "data"]
    spans = spans_read(monkeypatch, name, path)
    assert [(a, b) for a, b in spans for c, d in data if a < d and b > c] == []


@pytest.mark.parametrize("name", sorted(READ_AHEAD))
def test_reads_no_more_than_a_few_windows(name, monkeypatch, tmp_path):
    path = tmp_path / "x"
    weight = torch.zeros(30_000_000, dtype=torch.uint8)
    if name == "pickle":
        path.write_bytes(pickle.dumps({"w": weight}, protocol=4))
    else:
        torch.save({"w": weight}, path, _use_new_zipfile_serialization=False)
    assert sum(b - a for a, b in spans_read(monkeypatch, name, path)) < 14 * limits.WINDOW


def spans_read(monkeypatch, name, path):
    spans = []
    pread = LocalFile.pread
    monkeypatch.setattr(LocalFile, "pread", lambda self, n, at: spans.append((at, at + n)) or pread(self, n, at))
    BY_NAME[name].read(LocalFile(path).range())
    return spans
