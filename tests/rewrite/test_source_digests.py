"""Digests of a source are worked out from what is copied: no byte is transferred twice, and none escapes them."""

from __future__ import annotations

import hashlib
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save_file

from ckptctl.errors import CkptctlError, CorruptError
from ckptctl.layouts import open_checkpoint
from ckptctl.model import dtype_of_torch
from ckptctl.ops.consolidate import consolidate
from ckptctl.ops.convert import Options, convert
from ckptctl.ops.diff import diff
from ckptctl.ops.verify import Level, verify
from ckptctl.rewrite.source_digests import SourceDigests
from ckptctl.storage import address
from ckptctl.storage.share import Share
from ckptctl.storage.stores import transferred
from tests.samples import CORPUS
from tests.storage.stores import bucket, start

KB, MB = 1 << 10, 1 << 20


def shards(path, count=12, size=3 * MB, *, each=2):
    """Tensors in shards with digests beside them."""
    rng = np.random.default_rng(1)
    save_file({f"w{i:02}": rng.random(size // 4, np.float32) for i in range(count)}, path / "x.safetensors")
    convert(path / "x.safetensors", path / "s" / "m.safetensors", options=Options(max_shard_size=each * size))
    return path / "s"


def flip(path, at):
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def test_merging_shards_with_digests_transfers_them_once(tmp_path):
    source = shards(tmp_path)
    bucket("once").fill(source, "m/")
    start()
    report = consolidate(address("s3://once/m"), tmp_path / "whole.safetensors")
    assert report.output.digests_verified == 6
    assert transferred.nbytes < 1.25 * 36 * MB  # the megabyte that each begins with may come twice
    assert diff(tmp_path / "whole.safetensors", tmp_path / "x.safetensors").equal


@pytest.mark.parametrize("at", [9, -1, -4 * MB, -2 * MB])
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_a_flipped_bit_is_found_wherever_it_lies(at, dtype, tmp_path):
    source = shards(tmp_path)
    flip(sorted(source.glob("*.safetensors"))[3], at)
    options = Options(dtype=dtype and dtype_of_torch(dtype))
    with pytest.raises(CkptctlError) as error:
        convert(source / "m.safetensors.index.json", tmp_path / "whole.safetensors", options=options)
    if at != 9:  # there the header is none any more
        assert isinstance(error.value, CorruptError)
        assert "00004-of-00006" in error.value.message
    assert not [one.name for one in tmp_path.iterdir() if "whole" in one.name]


def test_a_shard_that_is_damaged_ends_it_before_the_next_is_read(tmp_path):
    source = shards(tmp_path)
    flip(source / "m-00001-of-00006.safetensors", -1)
    bucket("early").fill(source, "m/")
    start()
    with pytest.raises(CorruptError, match="00001-of-00006"):
        consolidate(address("s3://early/m"), tmp_path / "whole.safetensors")
    assert transferred.nbytes < 36 * MB


def test_what_is_not_copied_is_compared_too(tmp_path):
    source = shards(tmp_path, each=6)
    flip(sorted(source.glob("*.safetensors"))[1], -1)
    with pytest.raises(CorruptError, match="00002-of-00002"):
        convert(
            source / "m.safetensors.index.json", tmp_path / "some.safetensors", options=Options(include=("w0[0-5]",))
        )
    assert not (tmp_path / "some.safetensors").exists()


def test_each_of_several_workers_compares_what_it_reads(tmp_path):
    source = shards(tmp_path)
    flip(sorted(source.glob("*.safetensors"))[5], -1)
    out, errors = tmp_path / "out" / "m.safetensors", {}

    def part(index):
        try:
            consolidate(source, out, options=Options(max_shard_size=9 * MB, share=Share(index, 2)))
        except CkptctlError as error:
            errors[index] = error.message

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(part, range(2)))
    assert any("00006-of-00006" in message for message in errors.values())
    assert 0 in errors
    assert not out.with_name("m.safetensors.index.json").exists()


@pytest.mark.parametrize("order", ["in order", "backwards", "by threads", "with gaps", "again and again"])
def test_a_digest_is_that_of_the_file_whatever_was_read_of_it(order, tmp_path):
    source = shards(tmp_path, count=4, each=4)
    (contents,) = [
        one for one in open_checkpoint(source / "m.safetensors").files if one.range.file.path.suffix == ".safetensors"
    ]
    digests = SourceDigests([contents])
    (found,) = digests._found
    places = sorted((tensor.pieces[0].range for tensor in contents.tensors.values()), key=lambda one: one.offset)
    if order == "backwards":
        places.reverse()
    if order == "with gaps":
        places = places[1::2]
    if order == "again and again":
        places = [places[0], places[0], *places, *places]

    def read(place):
        watch = digests.watch(place)
        for at in range(0, place.length, 100_000):
            watch.update(memoryview(place.read(at, min(100_000, place.length - at))))

    if order == "by threads":
        threads = [threading.Thread(target=read, args=(place,)) for place in places]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:
        for place in places:
            read(place)
    assert digests.compare() == 1
    assert found.digest == hashlib.sha256(contents.range.file.path.read_bytes()).hexdigest()
    assert digests.watch(replace(contents.range, file=(tmp_path / "x.safetensors"))) is None


@pytest.mark.parametrize(
    "options", [{}, {"dtype": "bfloat16"}, {"max_shard_size": 9 * MB, "dtype": "bfloat16"}], ids=str
)
@pytest.mark.parametrize("bad", [0, 5])
def test_no_worker_publishes_what_is_made_of_damage(options, bad, tmp_path):
    source = shards(tmp_path)
    flip(sorted(source.glob("*.safetensors"))[bad], -1)
    given = {**options, **({"dtype": dtype_of_torch(options["dtype"])} if "dtype" in options else {})}
    errors = []
    for attempt in range(2):  # the second finds what the first has left
        for index in (1, 0):
            try:
                consolidate(
                    source,
                    tmp_path / "out" / "m.safetensors",
                    options=Options(**given, share=Share(index, 2), resume=bool(attempt)),
                )
            except CkptctlError as error:  # noqa: PERF203  # each says its own
                errors.append(error)
    assert any(isinstance(error, CorruptError) for error in errors)
    out = tmp_path / "out"
    assert not (out / "m.safetensors.index.json").exists()
    for path in out.glob("*.safetensors"):  # those that are made of whole shards
        assert verify(path).judgement.value == "good"
    assert "max_shard_size" in options or not list(out.glob("*.safetensors"))


def test_a_file_that_only_the_plan_is_made_of_is_compared_before(tmp_path):
    source = tmp_path / "d"
    shutil.copytree(CORPUS / "dcp" / "dcp_fsdp2_2ranks", source)
    verify(source, level=Level(write=True))
    raw = (source / ".metadata").read_bytes()
    (source / ".metadata").write_bytes(raw.replace(b"exp_avg_sq", b"exp_avg_sp"))
    with pytest.raises(CorruptError, match=r"\.metadata: sha256 is"):
        consolidate(source, tmp_path / "out" / "m.safetensors", options=Options(share=Share(0, 2)))
    assert not list((tmp_path / "out").glob("m*"))


def test_a_cast_of_a_source_with_digests_transfers_it_once(tmp_path):
    source = shards(tmp_path)
    bucket("cast").fill(source, "m/")
    start()
    options = Options(dtype=dtype_of_torch("bfloat16"))
    consolidate(address("s3://cast/m"), tmp_path / "whole.safetensors", options=options)
    assert transferred.nbytes < 1.3 * 36 * MB


def test_an_index_that_is_not_what_its_digest_says_is_refused(tmp_path):
    source = shards(tmp_path)
    index = source / "m.safetensors.index.json"
    digest = hashlib.sha256(index.read_bytes()).hexdigest()
    index.with_name(f"{index.name}.sha256").write_text(f"{digest}  {index.name}\n")
    convert(index, tmp_path / "good.safetensors")
    assert verify(source).judgement.value == "good"
    index.write_bytes(index.read_bytes().replace(b'"weight_map"', b' "weight_map"'))
    with pytest.raises(CorruptError, match="index.json: sha256 is"):
        convert(index, tmp_path / "bad.safetensors")
    assert not (tmp_path / "bad.safetensors").exists()
    found = verify(source)
    assert found.judgement.value == "wrong"
    assert [one.slug for one in found.findings] == ["digest-mismatch"]
