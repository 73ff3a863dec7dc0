"""`Uploader`: what is asked for arrives whole or is not there, is never lost, and never holds up the loop."""

from __future__ import annotations

import itertools
import logging
import random
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
import warnings
from contextlib import contextmanager
from pathlib import Path

import obstore
import pytest
import torch
from moto.server import ThreadedMotoServer
from obstore import exceptions
from obstore.store import S3Store

from ckptctl.errors import (
    ChangedError,
    CorruptError,
    ExistsError,
    LockedError,
    UnreadableError,
    UnsupportedError,
    UsageError,
)
from ckptctl.ops.verify import verify
from ckptctl.retention import Policy
from ckptctl.runs.pending import STAGING, waiting_in
from ckptctl.storage import address
from ckptctl.training import Uploader, load, prune, save
from tests.samples import CORPUS, HERE
from tests.storage.stores import bucket, start

sys.path.insert(0, str(HERE / "cases"))
import common
import open_cases  # noqa: F401  # registers the cases

TO = "s3://up/run"
TRAINER = CORPUS / "transformers" / "trainer_run"
ERROR = exceptions.GenericError("Server returned status code: 500 Internal Server Error")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("ckptctl.storage.stores._FIRST_PAUSE", 0.0)


@pytest.fixture
def run(tmp_path):
    made = tmp_path / "run"
    made.mkdir()
    return made


def saved(run, step, size=300):
    save(run / f"step_{step}.safetensors", {"step": step, "w": torch.full((size,), float(step))})
    return run / f"step_{step}.safetensors"


def of_trainer(run, step):
    return Path(shutil.copytree(TRAINER / f"checkpoint-{step}", run / f"checkpoint-{step}"))


@contextmanager
def warned(match):
    """Somebody is warned of it meanwhile, in whatever thread."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield
    assert any(re.search(match, str(one.message)) for one in found), [str(one.message) for one in found]


def contents(path):
    return {one.relative_to(path).as_posix(): one.read_bytes() for one in sorted(path.rglob("*")) if one.is_file()}


# --- what arrives ---


def test_files_and_directories_arrive_whole_and_verify(run):
    store = bucket("up")
    with Uploader(run, TO) as uploader:
        one = uploader.upload(saved(run, 100))
        other = uploader.upload(of_trainer(run, 10))
        uploader.drain()
        assert str(one.result().path) == f"{TO}/step_100.safetensors"
        assert other.result().nbytes == sum(len(raw) for raw in contents(run / "checkpoint-10").values())
        assert uploader.pending == ()
    for name, title in (("step_100.safetensors", "good"), ("checkpoint-10", "good")):
        start()
        report = verify(address(f"{TO}/{name}"))
        assert (report.judgement.value, report.bytes.value) == (title, "verified")
    assert store.read("run/step_100.safetensors") == (run / "step_100.safetensors").read_bytes()
    assert store.read("run/step_100.safetensors.sha256") == (run / "step_100.safetensors.sha256").read_bytes()
    there = {key.removeprefix("run/checkpoint-10/"): store.read(key) for key in store.keys if "checkpoint" in key}
    assert there.keys() - {"SHA256SUMS"} == contents(run / "checkpoint-10").keys()
    assert all(raw == there[name] for name, raw in contents(run / "checkpoint-10").items())
    assert not list((run / STAGING).iterdir())


def test_data_first_then_what_makes_it_whole_then_the_digests(run):
    store = bucket("up")
    order = []
    store.before = lambda name, arguments, _: order.append(arguments[0]) if name == "put" else None
    with Uploader(run, TO) as uploader:
        uploader.upload(of_trainer(run, 10))
    names = [str(key).rpartition("/")[2] for key in order]
    assert names[-2:] == ["trainer_state.json", "SHA256SUMS"]
    assert len(names) == len(set(names))


def test_into_a_directory(run, tmp_path):
    with Uploader(run, tmp_path / "copy") as uploader:
        uploader.upload(of_trainer(run, 10))
        uploader.upload(saved(run, 3))
    made = contents(tmp_path / "copy" / "checkpoint-10")
    made.pop("SHA256SUMS")
    assert made == contents(run / "checkpoint-10")
    assert verify(tmp_path / "copy" / "checkpoint-10").bytes.value == "verified"
    assert load(tmp_path / "copy")["step"] == 3
    with Uploader(run, tmp_path / "copy") as again:  # what is there already is what was sent
        assert again.upload(run / "checkpoint-10").result(20).nbytes
        (run / "checkpoint-10" / "config.json").write_text("{}")
        with warned("checkpoint-10 is not uploaded: .*exists already"):
            assert again.upload(run / "checkpoint-10").exception(20)
        with pytest.raises(ExistsError, match="1 checkpoint not uploaded"):
            again.drain()
        shutil.rmtree(run / STAGING)
        again._queue._failed.clear()


def test_files_of_ranks_and_nested_directories(run):
    bucket("up")
    source = CORPUS / "ckptctl" / "ranks_2" / "step_100"
    shutil.copytree(source, run / "step_100" / "inner")
    shutil.copytree(source, run / "step_200")
    with Uploader(run, TO, at_once=4) as uploader:
        uploader.upload(run / "step_100")
        uploader.upload(run / "step_200")
    start()
    assert verify(address(f"{TO}/step_200")).bytes.value == "verified"


# --- what fails ---


def test_a_bucket_that_fails_every_third_request(run):
    count = itertools.count(1)

    def before(*_):
        if next(count) % 3 == 0:
            raise ERROR

    store = bucket("up", before)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Uploader(run, TO, pause=0.01) as uploader:
            for step in (10, 20, 30):
                uploader.upload(of_trainer(run, step))
                uploader.upload(saved(run, step))
    assert next(count) > 60
    store.before = None
    for step in (10, 20, 30):
        start()
        assert verify(address(f"{TO}/checkpoint-{step}")).bytes.value == "verified"
        assert verify(address(f"{TO}/step_{step}.safetensors")).bytes.value == "verified"


def test_a_bucket_that_is_away_is_warned_of_and_tried_until_it_is_back(run):
    away = threading.Event()
    away.set()

    def before(*_):
        if away.is_set():
            raise exceptions.GenericError("Generic S3 error: Error performing PUT - HTTP error: error sending request")

    bucket("up", before)
    uploader = Uploader(run, TO, pause=0.05)
    with warned(r"step_5.safetensors is not uploaded after 1 attempt: .*cannot be reached"):
        future = uploader.upload(saved(run, 5))
        time.sleep(0.3)
    with pytest.raises(UnreadableError, match=r"1 checkpoint not uploaded \(step_5.safetensors\): .*cannot be reached"):
        uploader.drain(0.1)
    assert uploader.pending == ("step_5.safetensors",)
    away.clear()
    assert future.result(10).nbytes
    uploader.close()


@pytest.mark.parametrize("where", ["run/step_5.safetensors", "run/step_5.safetensors.sha256", "run/checkpoint-10/own"])
def test_something_else_that_is_there_is_never_replaced(run, where):
    store = bucket("up")
    obstore.put(store.store, where, b"theirs")
    uploader = Uploader(run, TO)
    made = of_trainer(run, 10) if "checkpoint" in where else saved(run, 5)
    with warned("is not uploaded"):
        assert isinstance(uploader.upload(made).exception(20), ExistsError)
    with pytest.raises(ExistsError, match="1 checkpoint not uploaded"):
        uploader.close()
    assert store.read(where) == b"theirs"
    assert not any(key.endswith("SHA256SUMS") for key in store.keys)
    assert waiting_in(run) == {made.name}
    with warned("is not uploaded"), pytest.raises(ExistsError):
        Uploader(run, TO).close()  # it is still queued, and said again


def test_a_file_that_is_not_what_was_saved_is_not_uploaded(run):
    store = bucket("up")
    path = saved(run, 5)
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 1
    path.write_bytes(bytes(raw))
    uploader = Uploader(run, TO)
    with warned("SHA-256 is not the one on record"):
        assert isinstance(uploader.upload(path).exception(20), CorruptError)
    with pytest.raises(CorruptError):
        uploader.close()
    assert store.keys == set()


def test_what_the_store_has_is_compared_with_what_was_sent(run):
    store = bucket("up")
    put = store.store.put

    class Flipping:
        def __getattr__(self, name):
            return getattr(store.__dict__["real"], name)

        def put(self, key, data, **options):
            raw = bytearray(b"".join(data) if not isinstance(data, bytes) else data)
            if key.endswith(".safetensors"):
                raw[-3] ^= 1
            return put(key, bytes(raw), **options)

    store.real, store.store = store.store, Flipping()
    uploader = Uploader(run, TO)
    with warned("what is there is not what was sent"):
        assert isinstance(uploader.upload(saved(run, 5)).exception(20), ChangedError)
    with pytest.raises(ChangedError):
        uploader.close()
    store.store = store.real
    assert not any(key.endswith(".sha256") for key in store.keys)


def test_a_full_disk_is_said_and_nothing_is_touched(run, monkeypatch):
    bucket("up")
    path = saved(run, 5)
    uploader = Uploader(run, TO)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    for name in ("write_small", "_linked"):
        with monkeypatch.context() as patched:
            patched.setattr(f"ckptctl.training.snapshot.{name}", full)
            patched.setattr("ckptctl.training.snapshot._cloned", lambda *_: False)
            with pytest.raises(UnreadableError, match="No space left"):
                uploader.upload(path)
        assert list((run / STAGING).iterdir()) == []
    assert uploader.upload(path).result(20).nbytes
    uploader.close()
    assert load(path)["step"] == 5


# --- what happens meanwhile ---


def stalled(run, **options):
    """An uploader whose bucket answers nothing before `go` is set."""
    go = threading.Event()
    store = bucket("up", lambda *_: go.wait(30))
    return Uploader(run, TO, **options), go, store


def test_a_later_save_or_deletion_changes_nothing_of_what_is_sent(run):
    uploader, go, store = stalled(run)
    path, directory = saved(run, 5), of_trainer(run, 10)
    before, inside = path.read_bytes(), contents(directory)
    uploader.upload(path)
    uploader.upload(directory)
    save(path, {"step": 6, "w": torch.zeros(4000)})
    shutil.rmtree(directory)
    go.set()
    uploader.close()
    assert store.read("run/step_5.safetensors") == before
    assert {
        k.removeprefix("run/checkpoint-10/"): store.read(k) for k in store.keys if "point" in k
    }.items() >= inside.items()


def test_what_is_written_over_in_place_is_never_uploaded_mixed(run):
    uploader, go, store = stalled(run)
    path = run / "step_5.pt"
    torch.save({"w": torch.ones(300)}, path)
    future = uploader.upload(path)
    torch.save({"w": torch.zeros(300)}, path)  # the same inode, other bytes
    with warned("written over in place"):
        go.set()
        error = future.exception(20)
    if error is None:  # a file system that clones
        return
    assert isinstance(error, ChangedError)
    with pytest.raises(ChangedError):
        uploader.close()
    assert store.keys == set()


def test_no_prune_deletes_what_is_not_confirmed(run):
    for step in (1, 2, 3):
        saved(run, step)
    uploader, go, _ = stalled(run)
    uploader.upload(run / "step_1.safetensors")
    rules = Policy(last=1, best=0, anchor_every=0)
    assert [path.name for path in prune(run, rules).deleted] == ["step_2.safetensors"]
    go.set()
    uploader.close()
    assert [path.name for path in prune(run, rules).deleted] == ["step_1.safetensors"]


def test_the_loop_is_not_held_up_but_for_anchors(run):
    for step in range(0, 1000, 100):
        saved(run, step, size=1)
    uploader, go, _ = stalled(run, anchor_every=500, drain_seconds=0.3)
    begin = time.monotonic()
    for step in (100, 200, 300, 400):
        uploader.upload(run / f"step_{step}.safetensors")
    assert time.monotonic() - begin < 2
    with pytest.raises(UnreadableError, match="not uploaded yet: time is up"):
        uploader.upload(run / "step_500.safetensors")
    assert len(uploader.pending) == 5
    go.set()
    uploader.drain(20)
    assert uploader.upload(run / "step_900.safetensors").result(20)
    save(run / "plain.safetensors", {"w": torch.ones(3)})
    assert uploader.upload(run / "plain.safetensors", step=1000).done()
    uploader.close()


def test_the_queue_is_found_again(run):
    uploader, go, _ = stalled(run)
    uploader.upload(saved(run, 5))
    uploader.upload(of_trainer(run, 10))
    with pytest.raises(LockedError, match="another uploader is at work here"):
        Uploader(run, TO)
    with pytest.raises(UnreadableError, match="2 checkpoints not uploaded"):
        uploader.drain(0.01)
    uploader.drain_seconds = 0.01
    with pytest.raises(UnreadableError):
        uploader.close()
    (run / STAGING / "000009-half" / "files").mkdir(parents=True)
    with pytest.raises(LockedError):  # the old one is still sending
        Uploader(run, TO)
    go.set()
    uploader._queue._thread.join(20)
    with Uploader(run, TO) as again:
        assert set(again.pending) <= {"step_5.safetensors", "checkpoint-10"}
    assert not list((run / STAGING).iterdir())
    start()
    assert verify(address(f"{TO}/checkpoint-10")).bytes.value == "verified"


def test_what_cannot_be_asked_for(run, tmp_path):
    bucket("up")
    with pytest.raises(UsageError, match="nothing is written there"):
        Uploader(run, "https://127.0.0.1:1/x")
    with pytest.raises(UsageError, match="this is the run itself"):
        Uploader(run, run.parent / "run")
    with Uploader(run, TO) as uploader:
        with pytest.raises(UsageError, match="no checkpoint in"):
            uploader.upload(tmp_path / "elsewhere.pt")
        with pytest.raises(UnreadableError):
            uploader.upload(run / "nothing.pt")
        (run / "empty").mkdir()
        with pytest.raises(UnreadableError, match="it is empty"):
            uploader.upload(run / "empty")
        (run / "linked").mkdir()
        (run / "linked" / "x").symlink_to("/etc/passwd")
        with pytest.raises(UnsupportedError, match="only files are uploaded"):
            uploader.upload(run / "linked")
        assert not list((run / STAGING).iterdir())
    with pytest.raises(UsageError, match="was closed"):
        uploader.upload(run / "empty")


def test_reported_case_l18(tmp_path):
    """A failed or unconfirmed upload never deletes its source; it is tried again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        common.REG["L18"]["fn"](tmp_path)
        queue = tmp_path / "queue"
        before = contents(queue / "checkpoint-100")
        (tmp_path / "bucket").chmod(0o500)
        failures = itertools.count()

        def before_each(*_):
            if next(failures) < 12:
                raise ERROR

        bucket("up", before_each)
        with Uploader(queue, TO, pause=0.01) as uploader:
            uploader.upload(queue / "checkpoint-100")
            assert contents(queue / "checkpoint-100") == before
    start()
    assert verify(address(f"{TO}/checkpoint-100")).bytes.value == "verified"
    assert contents(queue / "checkpoint-100") == before


# --- against a server, with kills ---


@pytest.fixture
def server(monkeypatch):
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    url = "http://{}:{}".format(*running.get_host_and_port())
    for name, value in {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setattr("ckptctl.storage.stores._stores", {})
    urllib.request.urlopen(urllib.request.Request(f"{url}/moto-api/reset", method="POST")).close()
    urllib.request.urlopen(urllib.request.Request(f"{url}/up-load", method="PUT")).close()
    start()
    yield S3Store("up-load", client_options={"allow_http": True})
    running.stop()


def test_the_tags_of_a_server_confirm_it_without_reading_it_back(server, run, monkeypatch):
    def read_back(path):
        raise AssertionError(f"{path} is read back")

    monkeypatch.setattr("ckptctl.training.transfer._digest", read_back)
    with Uploader(run, "s3://up-load/run") as uploader:
        for number, size in enumerate((1, 300, 2_500_000, 4_200_000, 2 << 20)):
            assert uploader.upload(saved(run, number, size)).result(60).nbytes
    (run / "empty.bin").touch()
    with Uploader(run, "s3://up-load/run") as uploader:
        assert uploader.upload(run / "empty.bin").result(20).nbytes == 0


PROGRAM = """
import sys, warnings
from pathlib import Path
from ckptctl.training import Uploader
warnings.simplefilter("ignore")
run = Path(sys.argv[1])
with Uploader(run, "s3://up-load/run", pause=0.05) as uploader:
    for name in sys.argv[2:]:
        uploader.upload(run / name)
    print("queued", flush=True)
"""


def test_a_process_that_is_killed_anywhere_loses_nothing_and_leaves_nothing_half(server, run):
    chosen = random.Random(5)
    for step in (1, 2, 3):
        saved(run, step, size=5_000_000)
        of_trainer(run, step * 10)
    names = [one.name for one in run.iterdir() if one.suffix != ".sha256"]
    for attempt in range(6):
        words = [sys.executable, "-c", PROGRAM, str(run), *(names if not attempt else ())]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "queued\n"
        time.sleep(chosen.uniform(0.0, 0.6))
        process.kill()
        process.communicate()
        start()
        there = {one["path"] for batch in obstore.list(server) for one in batch}
        sealed = {key for key in there if key.endswith((".sha256", "SHA256SUMS"))}
        waiting = waiting_in(run)
        for name in names:
            mark = f"run/{name}.sha256" if (run / name).is_file() else f"run/{name}/SHA256SUMS"
            assert mark in sealed or name in waiting, name
            if mark in sealed:
                assert verify(address(f"s3://up-load/run/{name}")).bytes.value == "verified"
    subprocess.run([sys.executable, "-c", PROGRAM, str(run)], check=True, capture_output=True)
    for name in names:
        start()
        assert verify(address(f"s3://up-load/run/{name}")).bytes.value == "verified"
    assert not waiting_in(run)


def test_the_end_of_a_program_waits_for_what_is_queued(server, run):
    program = PROGRAM.replace("with Uploader", "uploader = Uploader").replace(" as uploader:", "\nif True:")
    names = [saved(run, step, size=100_000).name for step in (1, 2)]
    done = subprocess.run([sys.executable, "-c", program, str(run), *names], check=True, capture_output=True, text=True)
    assert done.stderr == ""
    for name in names:
        start()
        assert verify(address(f"s3://up-load/run/{name}")).bytes.value == "verified"
    bad = program.replace("s3://up-load", "s3://nobody-has-it").replace("pause=0.05", "pause=0.05, drain_seconds=0.5")
    names = [saved(run, 9).name]
    done = subprocess.run([sys.executable, "-c", bad, str(run), *names], check=False, capture_output=True, text=True)
    assert done.stderr.startswith("ckptctl: s3://nobody-has-it/run: 1 checkpoint not uploaded (step_9.safetensors)")
    assert "Traceback" not in done.stderr


def test_a_store_that_says_nothing_does_not_hold_up_the_end_for_longer_than_was_said(run):
    program = f"""
import sys, time, warnings
sys.path.insert(0, {str(HERE.parent)!r})
warnings.simplefilter("ignore")
from pathlib import Path
from ckptctl.training import Uploader
from tests.storage.stores import bucket
bucket("up", lambda *_: time.sleep(1000))
uploader = Uploader(Path(sys.argv[1]), "s3://up/run", drain_seconds=0.5)
uploader.upload(Path(sys.argv[1]) / "step_1.safetensors")
"""
    saved(run, 1)
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program, str(run)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "1 checkpoint not uploaded (step_1.safetensors): time is up" in done.stderr, done.stderr
    assert time.monotonic() - begin < 20
