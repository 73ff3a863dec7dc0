"""What is asked for when a file in a store is read in one way or another: all of it once, in few requests."""

from __future__ import annotations

import random
import sys
import threading

import h5py
import numpy as np
import obstore
import pytest
import torch
from obstore import exceptions

from ckptctl.errors import UnreadableError
from ckptctl.model import dtype_of_torch
from ckptctl.ops.convert import Options, convert
from ckptctl.ops.diff import diff
from ckptctl.ops.inspect import inspect
from ckptctl.storage import address, open_file
from ckptctl.storage.remote_file import RemoteFile
from ckptctl.storage.stores import transferred
from ckptctl.storage.streams import STEP, Streams
from tests.storage.stores import Watched, bucket, start

KB, MB = 1 << 10, 1 << 20
NESTED = sorted(range(400), key=str)  # 0, 1, 10, 100, 101, ...: as names that end in numbers are sorted


class Asked:
    """A file of `size` bytes, and which of them were asked for."""

    def __init__(self, size):
        self.data = random.Random(1).randbytes(size)
        self.spans = []
        self.lock = threading.Lock()

    def __call__(self, begin, end):
        with self.lock:
            self.spans.append((begin, end))
        return memoryview(self.data)[begin:end]

    @property
    def nbytes(self):
        return sum(end - begin for begin, end in self.spans)

    def streams(self):
        return Streams(self, len(self.data), lambda: None)


def read(streams, asked, offset, length, end, *others):
    streams.go(offset, length)
    found = b""
    while len(found) < length:
        at, data = streams.part(offset + len(found), length - len(found), end, others)
        inside = offset + len(found) - at
        assert inside >= 0
        found += data[inside : inside + length - len(found)]
    assert found == asked.data[offset : offset + length]


@pytest.mark.parametrize("size", [2 * KB, 50 * KB, 200 * KB])
def test_ranges_one_behind_another_are_asked_for_together(size):
    asked = Asked(400 * size)
    streams = asked.streams()
    for at in range(0, len(asked.data), size):
        read(streams, asked, at, size, at + size)
    assert asked.nbytes < 1.01 * len(asked.data) + 128 * KB
    assert len(asked.spans) < 12 + len(asked.data) / STEP


def test_a_range_is_read_to_its_end_and_no_farther():
    asked = Asked(40 * MB)
    streams = asked.streams()
    for at in range(MB, 13 * MB, 128 * KB):
        read(streams, asked, at, 128 * KB, 13 * MB)
    assert max(end for _, end in asked.spans) == 13 * MB
    assert asked.nbytes == 12 * MB
    assert len(asked.spans) <= 6


def test_runs_in_runs_are_read_as_several_streams():
    asked = Asked(400 * 100 * KB)
    streams = asked.streams()
    for number in NESTED:
        read(streams, asked, number * 100 * KB, 100 * KB, (number + 1) * 100 * KB)
    assert asked.nbytes < 1.3 * len(asked.data)
    assert len(asked.spans) < 80


def test_pieces_here_and_there_stay_small():
    asked = Asked(40 * MB)
    streams = asked.streams()
    chosen = random.Random(2)
    for _ in range(50):
        at = chosen.randrange(0, 39 * MB)
        read(streams, asked, at, 100, 40 * MB)
    assert asked.nbytes <= 50 * 64 * KB


def test_what_one_thread_has_asked_for_serves_another():
    asked = Asked(32 * MB)
    one, other = asked.streams(), asked.streams()
    for at in range(0, 32 * MB, MB):  # runs of eight, each read by the other thread
        reader, beside = (one, other) if at // (8 * MB) % 2 else (other, one)
        for piece in range(at, at + MB, 256 * KB):
            read(reader, asked, piece, 256 * KB, piece + 256 * KB, beside)
    assert asked.nbytes < 1.3 * len(asked.data)


def test_little_is_held_and_all_can_be_let_go():
    asked = Asked(64 * MB)
    streams = asked.streams()
    for at in range(0, 60 * MB, MB):
        read(streams, asked, at, MB, 64 * MB)
        assert streams.nbytes <= 5 * STEP
    streams.leave()
    assert not streams.nbytes
    read(streams, asked, 60 * MB, MB, 64 * MB)


def test_reading_in_any_order_gives_the_bytes():
    chosen = random.Random(3)
    for _ in range(30):
        asked = Asked(chosen.randrange(1, 3 * MB))
        size = len(asked.data)
        streams, at = [asked.streams(), asked.streams()], 0
        for _ in range(200):
            mine = chosen.randrange(2)
            if chosen.random() < 0.3 or at >= size:
                at = chosen.randrange(size)
            length = chosen.randrange(0, min(size - at, 90_000) + 1)
            end = chosen.choice((at + length, size, min(at + 3 * length, size)))
            read(streams[mine], asked, at, length, end, streams[1 - mine])
            at += length + chosen.choice((0, 0, 0, 64, 70_000))


def state(count, size):
    return {f"layers.{i}.weight": torch.full((size,), float(i)) for i in range(count)}


@pytest.mark.parametrize(("count", "size"), [(12, 1 << 20), (300, 50_000)])
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_converting_transfers_a_file_once(count, size, dtype, tmp_path):
    torch.save(state(count, size), tmp_path / "x.pt")
    raw = (tmp_path / "x.pt").read_bytes()
    obstore.put(bucket("once").store, "x.pt", raw)
    start()
    options = Options(dtype=dtype and dtype_of_torch(dtype))
    convert(address("s3://once/x.pt"), tmp_path / "there.safetensors", options=options)
    assert transferred.nbytes < 1.3 * len(raw)
    assert transferred.requests < 80
    convert(tmp_path / "x.pt", tmp_path / "here.safetensors", options=options)
    assert (tmp_path / "here.safetensors").read_bytes() == (tmp_path / "there.safetensors").read_bytes()


def test_comparing_transfers_a_file_once(tmp_path):
    torch.save(state(300, 50_000), tmp_path / "x.pt")
    raw = (tmp_path / "x.pt").read_bytes()
    obstore.put(bucket("both").store, "x.pt", raw)
    start()
    report = diff(tmp_path / "x.pt", address("s3://both/x.pt"))
    assert report.equal
    assert report.byte_identical
    assert transferred.nbytes < 1.3 * len(raw)


def test_a_stream_that_another_thread_let_go_of_is_asked_for_again():
    data = random.Random(5).randbytes(24 * MB)
    obstore.put(bucket("gone").store, "x", data)
    start()
    file, stop = RemoteFile(address("s3://gone/x")), threading.Event()

    def let_go():
        while not stop.wait(0.001):
            file.release()

    thread = threading.Thread(target=let_go)
    thread.start()
    try:
        for at in range(0, len(data), 256 * KB):
            assert file.pread(256 * KB, at) == data[at : at + 256 * KB]
    finally:
        stop.set()
        thread.join()


def test_what_failed_once_is_asked_for_again():
    data, broken = random.Random(6).randbytes(30 * MB), threading.Event()

    def before(name, *_):
        if name == "get" and broken.is_set():
            raise exceptions.GenericError("status code: 403 Forbidden")

    obstore.put(bucket("failing", before).store, "x", data)
    start()
    file = RemoteFile(address("s3://failing/x"))
    for at in range(0, 6 * MB, 256 * KB):
        file.pread(256 * KB, at)
    broken.set()
    failed = 0
    for at in range(6 * MB, 30 * MB, 256 * KB):
        try:
            assert file.pread(256 * KB, at) == data[at : at + 256 * KB]
        except UnreadableError:  # noqa: PERF203  # each says its own
            failed += 1
    assert failed
    broken.clear()
    for at in range(0, 30 * MB, 256 * KB):
        assert file.pread(256 * KB, at) == data[at : at + 256 * KB]


def test_an_answer_that_is_too_short_is_asked_for_again_and_then_an_error(monkeypatch):
    monkeypatch.setattr("ckptctl.storage.stores._FIRST_PAUSE", 0.001)
    data, short = random.Random(7).randbytes(3 * MB), [2]
    store = bucket("short")
    obstore.put(store.store, "x", data)

    class Short:
        def __init__(self, found):
            self.meta, self.found = found.meta, found

        def bytes(self):
            whole = bytes(self.found.bytes())
            short[0] -= 1
            return whole[: len(whole) // 2] if short[0] >= 0 else whole

    get = store.store.get
    monkeypatch.setattr(Watched, "get", lambda self, *args, **options: Short(get(*args, **options)), raising=False)
    start()
    assert open_file(address("s3://short/x")).pread(3 * MB, 0) == data
    short[0] = 1000
    start()
    with pytest.raises(UnreadableError, match="shorter than it should be"):
        open_file(address("s3://short/x")).pread(3 * MB, 0)


def test_threads_that_read_while_others_let_go_get_the_bytes():
    data = random.Random(8).randbytes(20 * MB)
    obstore.put(bucket("many").store, "x", data)
    start()
    file, stop, errors = RemoteFile(address("s3://many/x")), threading.Event(), []

    def disturb(seed):
        chosen = random.Random(seed)
        while not stop.wait(0.0005):
            file.release() if seed % 2 else file.expect([(chosen.randrange(20 * MB), 100) for _ in range(20)])

    def reading(seed):
        chosen = random.Random(seed)
        try:
            for _ in range(12):
                first = chosen.randrange(18 * MB)
                for at in range(first, min(first + 3 * MB, 20 * MB - 70_000), 70_000):
                    assert file.pread(70_000, at) == data[at : at + 70_000]
        except BaseException as error:  # noqa: BLE001  # whatever it is
            errors.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        others = [threading.Thread(target=disturb, args=(seed,)) for seed in range(2)]
        readers = [threading.Thread(target=reading, args=(seed,)) for seed in range(4)]
        for thread in (*others, *readers):
            thread.start()
        for thread in readers:
            thread.join()
    finally:
        stop.set()
        sys.setswitchinterval(before)
        for thread in others:
            thread.join()
    assert not errors


def test_looking_whether_an_object_is_still_there_costs_a_byte():
    obstore.put(bucket("place").store, "x", bytes(5 * MB))
    start()
    file = RemoteFile(address("s3://place/x"))
    before = transferred.nbytes
    file.check_in_place()
    assert transferred.nbytes == before + 1


def test_the_structure_of_an_hdf5_file_costs_its_headers(tmp_path):
    rng = np.random.default_rng(3)
    with h5py.File(tmp_path / "x.weights.h5", "w") as file:
        for number in range(30):
            file[f"layers/dense_{number}/vars/0"] = rng.random((500, 1000), np.float32)
    obstore.put(bucket("h5").store, "x.weights.h5", (tmp_path / "x.weights.h5").read_bytes())
    start()
    assert inspect(address("s3://h5/x.weights.h5")).tensors == 30
    assert transferred.nbytes < 6 * MB


def test_a_transposed_tensor_is_transferred_once(tmp_path):
    torch.save({"w": torch.arange(6_000_000.0).reshape(2000, 3000).t()}, tmp_path / "x.pt")
    raw = (tmp_path / "x.pt").read_bytes()
    obstore.put(bucket("turned").store, "x.pt", raw)
    start()
    convert(address("s3://turned/x.pt"), tmp_path / "there.safetensors")
    assert transferred.nbytes < 2.3 * len(raw)  # once for its CRC
    convert(tmp_path / "x.pt", tmp_path / "here.safetensors")
    assert (tmp_path / "here.safetensors").read_bytes() == (tmp_path / "there.safetensors").read_bytes()
