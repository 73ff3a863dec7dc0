"""Files that are no checkpoint are named for what they are."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import tarfile
import zipfile

import pytest

from ckptctl.errors import CkptctlError
from tests.samples import CORPUS, read

LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "4d" * 32 + "\nsize 4976698672\n"
FILES = {
    "a Git LFS pointer": (LFS.encode(), "unknown-format", ("points at 4976698672 bytes", "sha256 4d4d")),
    "a web page": (b"\n<!DOCTYPE html><html><head><title>Quota\n exceeded</title>", "unknown-format", ("(its title: Quota exceeded)",)),
    "an XML answer": (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "unknown-format", ("a web page",)),
    "a JSON error": (json.dumps({"error": "Repository not found"}).encode(), "unknown-format", ("a JSON error message", "Repository not found")),
    "JSON": (b'{"a": [1, 2]}', "unknown-format", ("JSON text",)),
    "deep JSON": (b'{"a":' + b"[" * 60_000, "unknown-format", ("JSON text",)),
    "text": ("Grüße\n".encode(), "unknown-format", ("text, not a checkpoint",)),
    "noise": (bytes(range(255, 0, -1)) * 9, "unknown-format", ("not a checkpoint",)),
    "empty": (b"", "corrupt", ("empty file (0 bytes)",)),
    "zeros": (bytes(3_000_000), "corrupt", ("all 3000000 bytes are zero",)),
    "gzip": (gzip.compress(b"x"), "unsupported", ("compressed with gzip",)),
    "bzip2": (bz2.compress(b"x"), "unsupported", ("compressed with bzip2",)),
    "xz": (lzma.compress(b"x"), "unsupported", ("compressed with xz",)),
    "zstd": (b"\x28\xb5\x2f\xfd....", "unsupported", ("compressed with zstd",)),
    "7z": (b"7z\xbc\xaf\x27\x1c....", "unsupported", ("compressed with 7z",)),
    "GGUF": (b"GGUF\x03\0\0\0", "unsupported", ("GGUF",)),
    "NumPy": (b"\x93NUMPY\x01\0", "unsupported", ("NumPy array",)),
    "HDF5": (b"\x89HDF\r\n\x1a\n", "corrupt", ("HDF5",)),
}  # fmt: skip


@pytest.mark.parametrize("suffix", [".pt", ".safetensors", ".bin", ""])
@pytest.mark.parametrize("kind", FILES)
def test_names_what_it_is(kind, suffix, tmp_path):
    data, slug, words = FILES[kind]
    path = tmp_path / f"model{suffix}"
    path.write_bytes(data)
    with pytest.raises(CkptctlError) as caught:
        read(path)
    if (kind, suffix) != ("noise", ".safetensors"):
        assert caught.value.slug == slug
        assert all(word in caught.value.message for word in words), caught.value.message
    assert "\n" not in caught.value.message


def test_a_pointer_says_how_to_get_the_file(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_text(LFS)
    with pytest.raises(CkptctlError) as caught:
        read(path)
    assert caught.value.hint == "git lfs pull --include model.safetensors"


def test_names_a_tar_archive(tmp_path):
    with tarfile.open(tmp_path / "old.pt", "w") as tar:
        (tmp_path / "x").write_bytes(b"x")
        tar.add(tmp_path / "x", "pickle")
    with pytest.raises(CkptctlError, match="a tar archive"):
        read(tmp_path / "old.pt")


def test_names_a_zip_that_torch_did_not_write(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(CkptctlError, match="a zip archive without a data.pkl"):
        read(tmp_path / "x.zip")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("torch_save/gzipped.pt.gz", "compressed with gzip"),
        ("torch_save/exported.pt2", "torch.export"),
        ("dcp/dcp_fsdp2_2ranks/__1_0.distcp", "data files of a distributed checkpoint"),
        ("damaged/legacy_truncated.pt", "cut at 14814 of 21164 bytes: 27 of 38 storages lost"),
        ("damaged/lfs_pointer.safetensors", "a Git LFS pointer"),
        ("damaged/pt_all_zero_bytes.pt", "bytes are zero"),
        ("damaged/pt_zero_length.pt", "empty file"),
        ("damaged/text_named.pt", "text, not a checkpoint"),
        ("damaged/pt_pickle_missing.pt", "record data.pkl is missing"),
        ("damaged/pt_storage_record_missing.pt", "record data/3 is missing"),
        ("damaged/pt_truncated_half.pt", "cut at 13594 bytes"),
        ("damaged/pt_truncated_last_bytes.pt", "all there, but not the directory"),
    ],
)
def test_names_the_fault_of_corpus_files(name, words):
    with pytest.raises(CkptctlError) as caught:
        read(CORPUS / name)
    assert words in caught.value.message
