"""What lies beside the data of a file in a store is looked at when the data are, and not before."""

from __future__ import annotations

import re

import obstore
import pytest
import torch

from ckptctl.errors import CkptctlError, CorruptError
from ckptctl.ops.convert import convert
from ckptctl.ops.diff import diff
from ckptctl.ops.inspect import inspect
from ckptctl.ops.verify import verify
from ckptctl.storage import address
from ckptctl.storage.guards import Guards
from ckptctl.storage.stores import transferred
from tests.samples import CORPUS
from tests.storage.stores import bucket, start

MB = 1 << 20
TAIL = 256 << 10


def saved(path, count, size, *, zipped=True):
    state = {f"layers.{i}.weight": torch.full((size,), float(i)) for i in range(count)}
    torch.save(state, path, _use_new_zipfile_serialization=zipped)
    return path.read_bytes()


def put(raw, name="x.pt"):
    store = bucket("postponed")
    obstore.put(store.store, name, raw)
    start()
    return address(f"s3://postponed/{name}")


def verdict(path):
    start()
    try:
        report = verify(path)
    except CkptctlError as error:
        return "error", error.slug
    return report.judgement.value, sorted((one.slug, one.severity.value) for one in report.findings)


@pytest.mark.parametrize(
    ("zipped", "count", "size", "requests"), [(True, 900, 20_000, 3), (True, 12, 1 << 20, 3), (False, 900, 20_000, 2)]
)
def test_a_torch_file_costs_its_head_and_its_tail_however_many_records_it_has(zipped, count, size, requests, tmp_path):
    path = put(saved(tmp_path / "x.pt", count, size, zipped=zipped))
    assert inspect(path).tensors == count
    assert transferred.requests <= requests
    assert transferred.nbytes <= MB + TAIL


def test_of_many_small_tensors_only_the_pickle_and_the_directory_are_transferred(tmp_path):
    raw = saved(tmp_path / "x.pt", 6000, 1000)
    directory = len(raw) - raw.index(b"PK\x01\x02")
    pickle = raw.index(b"PK\x07\x08")
    path = put(raw)
    assert inspect(path).tensors == 6000
    assert transferred.nbytes < MB + TAIL + 2 * (directory + pickle) < len(raw) / 3


@pytest.mark.parametrize("zipped", [True, False])
def test_a_damaged_byte_is_judged_as_on_disk_wherever_it_lies(zipped, tmp_path):
    raw, path = saved(tmp_path / "x.pt", 3, 40, zipped=zipped), tmp_path / "x.pt"
    for at in range(0, len(raw), 5):
        damaged = bytearray(raw)
        damaged[at] ^= 1 + at % 255
        path.write_bytes(damaged)
        assert verdict(put(bytes(damaged))) == verdict(path), at


def test_a_header_that_contradicts_the_directory_is_found_before_its_data_are_used(tmp_path):
    raw, path = saved(tmp_path / "x.pt", 30, 50_000), tmp_path / "x.pt"
    at = [found.start() for found in re.finditer(b"PK\x03\x04", raw)][20]
    damaged = raw[: at + 30] + b"X" + raw[at + 31 :]
    bad = put(damaged)
    path.write_bytes(damaged)
    good = tmp_path / "good.pt"
    good.write_bytes(raw)
    assert inspect(bad).tensors == 30  # none of its data were asked for
    with pytest.raises(CorruptError, match="not what, the directory says"):
        convert(bad, tmp_path / "y.safetensors")
    assert not (tmp_path / "y.safetensors").exists()
    report = diff(good, bad)
    assert not report.equal
    assert [one.kind.value for one in report.tensors] == ["unread"]
    assert verdict(bad) == verdict(path)
    assert verdict(bad)[0] == "wrong"


def test_a_length_that_the_directory_does_not_tell_is_found(tmp_path):
    raw = saved(tmp_path / "x.pt", 3, 4000)
    at = [found.start() for found in re.finditer(b"PK\x03\x04", raw)][-3]
    extra = int.from_bytes(raw[at + 28 : at + 30], "little")
    path = put(raw[: at + 28] + (extra + 64).to_bytes(2, "little") + raw[at + 30 :])
    assert inspect(path).tensors == 3
    assert verdict(path) == ("wrong", [("corrupt", "error")])


def test_items_of_a_distributed_save_are_confirmed_one_by_one(tmp_path):
    source = CORPUS / "dcp" / "dcp_fsdp2_2ranks"
    for path in source.iterdir():
        raw = bytearray(path.read_bytes())
        if path.suffix == ".distcp":  # the second header of each archive in it: a letter of its name
            for found in re.finditer(rb"PK\x03\x04.{26}archive/\.format", raw, re.DOTALL):
                raw[found.end() - 1] ^= 1
        (tmp_path / path.name).write_bytes(raw)
    bucket("items").fill(tmp_path, "d/")
    here, there = verdict(tmp_path), verdict(address("s3://items/d"))
    assert here[0] == there[0] == "wrong"
    assert set(here[1]) == set(there[1]) == {("corrupt", "error")}
    assert len(there[1]) > 60


def test_verifying_records_transfers_an_archive_once(tmp_path):
    raw = saved(tmp_path / "x.pt", 24, MB)
    path = put(raw)
    assert verify(path).judgement.value == "good"
    assert transferred.nbytes < 1.1 * len(raw)


def test_guards_check_once_what_is_read_and_nothing_else():
    seen, guards = [], Guards()
    guards.add([(10, 10), (30, 10), (40, 0)], [(0, 10), (20, 10), (40, 5)], seen.append)
    guards.add([(110, 10)], [(100, 10)], lambda index: seen.append(100 + index))
    guards.add([(110, 10)], [(100, 10)], lambda index: seen.append(200 + index))  # known
    for offset, length in ((0, 10), (20, 10), (40, 60), (120, 5), (15, 0)):
        guards.before(offset, length)
    assert seen == []
    guards.before(19, 1)
    guards.before(19, 1)
    assert seen == [0]
    guards.before(0, 500)
    assert seen == [0, 1, 2, 100]


def test_a_check_that_failed_fails_again():
    guards = Guards()

    def fail(index):
        raise CorruptError(f"x: {index}")

    guards.add([(10, 10)], [(0, 10)], fail)
    for _ in range(2):
        with pytest.raises(CorruptError):
            guards.before(10, 1)
