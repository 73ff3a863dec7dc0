"""What `verify` says of good files, and of damage that was passed over: each once reported by a reader of the house."""

from __future__ import annotations

import hashlib
import shutil
import struct
import zlib

import h5py
import numpy as np
import pytest
import torch

from ckptctl.checks import records
from ckptctl.checks.digests import sums_of
from ckptctl.formats import checksums_of
from ckptctl.layouts import open_checkpoint
from ckptctl.tensors import scalar
from ckptctl.values import text_items
from ckptctl.values.compare import value_differences
from tests.samples import CORPUS


@pytest.mark.parametrize("shape", [(2048, 2048), (1024, 1024), (4096,), (0,), (1 << 20,), ((1 << 18) - 32,)])
def test_compressed_arrays_of_one_number_are_whole(ckptctl, tmp_path, shape):
    np.savez_compressed(tmp_path / "m.npz", w=np.zeros(shape, "f4"), v=np.ones(3))
    found = ckptctl("verify", tmp_path / "m.npz")
    assert (found.status, "bad-crc" in found.out) == (0, False)


def packed(path, raw, deflated):
    name = b"w.npy"
    fields = (zlib.crc32(raw), len(deflated), len(raw), len(name))
    local = struct.pack("<4s5HIIIHH", b"PK\3\4", 20, 0, 8, 0, 0, *fields, 0) + name + deflated
    entry = struct.pack("<4s6HIII5HII", b"PK\1\2", 20, 20, 0, 8, 0, 0, *fields, 0, 0, 0, 0, 0, 0) + name
    path.write_bytes(local + entry + struct.pack("<4s4HIIH", b"PK\5\6", 0, 0, 1, 1, len(entry), len(local), 0))
    return path


def test_a_packed_record_ends_where_its_stream_does(ckptctl, tmp_path):
    np.save(tmp_path / "w.npy", np.arange(1000, dtype="f4"))
    raw = (tmp_path / "w.npy").read_bytes()
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    good = deflate.compress(raw) + deflate.flush()
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    unended = deflate.compress(raw) + deflate.flush(zlib.Z_SYNC_FLUSH)
    for data, status, words in (
        (good, 0, "verified"),
        (good + b"more", 1, "goes on for 4 bytes after its end"),
        (unended, 1, "breaks off"),
        (good[:-4], 1, "bad-crc"),
    ):
        found = ckptctl("verify", packed(tmp_path / "m.npz", raw, data))
        assert (found.status, words in found.out) == (status, True), found.out


def nan_in_shard(directory):
    """Write NaN into the block of a rank, and the CRC of the record anew."""
    path = directory / "checkpoint-100-rank0.pt"
    part = next(iter(open_checkpoint(path).parts.values()))
    tensor = next(one for one in part.tensors.values() if not one.whole and one.dtype.name == "F32")
    place, raw = tensor.pieces[0].range, bytearray(path.read_bytes())
    before = struct.pack("<I", zlib.crc32(raw[place.offset : place.offset + place.length]))
    raw[place.offset + place.length - 4 : place.offset + place.length] = struct.pack("<f", float("nan"))
    after = struct.pack("<I", zlib.crc32(raw[place.offset : place.offset + place.length]))
    assert raw.count(before) >= 1
    path.write_bytes(raw.replace(before, after))
    return tensor


def test_nan_in_the_shard_of_one_rank_is_found(ckptctl, tmp_path):
    shutil.copytree(CORPUS / "fsdp" / "fsdp2_1d_2ranks", tmp_path / "run")
    shard = tmp_path / "run" / "checkpoint-100-rank0.pt"
    assert ckptctl("verify", "--values", shard).status == 0
    tensor = nan_in_shard(tmp_path / "run")
    found = ckptctl("verify", "--values", shard)
    last = [start + size - 1 for start, size in zip(tensor.pieces[0].offsets, tensor.pieces[0].shape, strict=True)]
    assert found.status == 1
    assert f"the first at {last}" in " ".join(found.out.split())


def test_nan_in_a_replica_is_found(ckptctl, tmp_path):
    """Two of four ranks hold the same blocks: what only the second of them holds is looked at, too."""
    shutil.copytree(CORPUS / "fsdp" / "fsdp2_hsdp_4ranks", tmp_path / "run")
    copies = [tensor for part in open_checkpoint(tmp_path / "run").parts.values() for tensor in part.tensors.values()
              if tensor.copies and tensor.dtype.name == "F32"]  # fmt: skip
    place = copies[0].copies[0].range
    path = place.file.path
    raw = bytearray(path.read_bytes())
    before = struct.pack("<I", zlib.crc32(raw[place.offset : place.offset + place.length]))
    raw[place.offset : place.offset + 4] = struct.pack("<f", float("inf"))
    after = struct.pack("<I", zlib.crc32(raw[place.offset : place.offset + place.length]))
    path.write_bytes(raw.replace(before, after))
    found = ckptctl("verify", "--values", tmp_path / "run")
    assert (found.status, "not-finite" in found.out, path.name in found.out) == (1, True, True)


@pytest.mark.parametrize(
    ("name", "state", "wrong"),
    [
        ("checkpoint-5.pth", {"epoch": 5, "global_step": 5000}, False),
        ("checkpoint-4.pth", {"epoch": 5, "global_step": 5000}, True),
        ("checkpoint-6.pth", {"epoch": 5, "global_step": 5000}, False),
        ("step5.pt", {"epoch": 5, "global_step": 5000}, False),
        ("best-max_step=10000.ckpt", {"global_step": 5000}, False),
        ("model-train_step=7.ckpt", {"global_step": 5000}, False),
        ("epoch=1-step=7.ckpt", {"epoch": 1, "global_step": 5000}, True),
        ("step_100.pt", {"epoch": 1, "global_step": 5000}, True),
    ],
)
def test_numbers_in_names_that_are_no_steps(ckptctl, tmp_path, name, state, wrong):
    torch.save({**state, "model": {"w": torch.ones(3)}}, tmp_path / name)
    found = ckptctl("verify", tmp_path / name)
    assert ("step-mismatch" in found.out) == wrong


def test_a_list_of_whole_paths(ckptctl, tmp_path):
    run = tmp_path / "run"
    (run / "sub").mkdir(parents=True)
    files = [run / "model.safetensors", run / "sub" / "model.safetensors"]
    sums = []
    for number, path in enumerate(files):
        shutil.copy(CORPUS / "safetensors" / "edge" / "with_metadata.safetensors", path)
        with path.open("r+b") as file:  # each is another one
            file.seek(-1, 2)
            file.write(bytes([number]))
        sums.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path}\n")
    (run / "SHA256SUMS").write_text("".join(sums))
    expected = {path.relative_to(run).as_posix(): line[:64] for path, line in zip(files, sums, strict=True)}
    assert sums_of(run, ["SHA256SUMS", "model.safetensors", "sub"]) == expected
    found = ckptctl("verify", files[0])
    assert (found.status, "unverified" in found.out) == (0, False)
    moved = run.rename(tmp_path / "elsewhere")
    assert sums_of(moved, ["SHA256SUMS", "model.safetensors", "sub"]) == expected
    (moved / "sub" / "model.safetensors").unlink()
    assert list(sums_of(moved, ["SHA256SUMS", "model.safetensors"])) == ["model.safetensors"]


def test_a_moved_list_of_several_directories_still_counts(ckptctl, tmp_path):
    path = shutil.copy(CORPUS / "safetensors" / "edge" / "with_metadata.safetensors", tmp_path / "m.safetensors")
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  /x/run/m.safetensors\n{'1' * 64}  /x/other/y.bin\n")
    found = ckptctl("verify", path)
    assert (found.status, "digest-mismatch" in found.out) == (1, True)
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  /x/a/m.safetensors\n{'1' * 64}  /x/b/m.safetensors\n")
    assert ckptctl("verify", path).status == 0, "which of the two it is nobody can tell"


def test_an_unknown_byte_order_is_refused(ckptctl, tmp_path):
    torch.save({"w": torch.ones(3)}, tmp_path / "m.pt")
    raw = (tmp_path / "m.pt").read_bytes()
    before, after = b"little", b"middle"
    crcs = [struct.pack("<I", zlib.crc32(text)) for text in (before, after)]
    (tmp_path / "m.pt").write_bytes(raw.replace(before, after).replace(*crcs))
    found = ckptctl("verify", tmp_path / "m.pt")
    assert (found.status, "byte order" in found.out) == (1, True), found.out


def test_keys_of_equal_text_are_told_apart_from_real_ones():
    keys = {"1": "a", 1: "b", "1#2": "c"}
    assert [text for text, _ in text_items(keys)] == ["1", "1#2", "1#2#2"]
    assert list(value_differences({"a": keys}, {"a": {**keys, 1: "X"}}))


def test_a_large_chunk_of_one_number_is_not_read_for_the_step(tmp_path):
    with h5py.File(tmp_path / "m.weights.h5", "w") as file:
        file.create_dataset("optimizer/vars/0", (1,), "i8", chunks=(1 << 20,), maxshape=(None,), compression="gzip")[
            :
        ] = 7
    (part,) = open_checkpoint(tmp_path / "m.weights.h5").parts.values()
    (tensor,) = part.tensors.values()
    assert (tensor.numel, bool(tensor.pieces[0].unpack), scalar(tensor)) == (1, True, None)


def test_the_records_of_a_large_file_are_compared_by_several_threads(ckptctl, tmp_path, monkeypatch):
    monkeypatch.setattr(records, "_WORTH", 1000)
    torch.save({f"w{number}": torch.zeros(number * 7 % 400) for number in range(60)}, tmp_path / "m.pt")
    (contents,) = open_checkpoint(tmp_path / "m.pt").files
    every = checksums_of(contents)
    for most in (1, 2, 3, 8, 64):
        parts = records.parted(every, most)
        assert [one for part in parts for one in part] == list(every)
        assert 1 <= len(parts) <= most
    said = {ckptctl("verify", tmp_path / "m.pt", "--workers", workers).out for workers in (1, 2, 16)}
    assert len(said) == 1
    raw = bytearray((tmp_path / "m.pt").read_bytes())
    tensor = next(one for one in contents.tensors.values() if one.nbytes > 1000)
    raw[tensor.pieces[0].range.offset] ^= 1
    (tmp_path / "m.pt").write_bytes(raw)
    for workers in (1, 3):
        found = ckptctl("verify", tmp_path / "m.pt", "--workers", workers)
        assert (found.status, found.out.count("bad-crc"), tensor.name in found.out) == (1, 1, True)


def test_several_threads_convert_one_file_to_the_same(ckptctl, tmp_path):
    torch.save({f"w{number}": torch.rand(20_000) for number in range(40)}, tmp_path / "m.pt")
    for workers in (1, 4):
        words = ("convert", tmp_path / "m.pt", "-o", tmp_path / f"{workers}.safetensors", "--workers", workers)
        assert ckptctl(*words).status == 0
    assert (tmp_path / "1.safetensors").read_bytes() == (tmp_path / "4.safetensors").read_bytes()
