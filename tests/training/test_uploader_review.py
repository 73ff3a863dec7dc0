"""What an independent reader broke of the uploader: its queue on disk, its thread, its lock, its end."""

from __future__ import annotations

import json
import os
import shutil
import time
import warnings
from datetime import datetime, timezone

import pytest

from ckptctl.errors import ChangedError, LockedError, UnreadableError, UsageError
from ckptctl.ops.prune import Pruning, Settings
from ckptctl.runs.pending import STAGING, waiting_in
from ckptctl.training import Uploader, snapshot, upload_queue
from tests.training.test_delta import LAST
from tests.training.test_uploader import contents, saved, warned


@pytest.fixture
def run(tmp_path):
    made = tmp_path / "run"
    made.mkdir()
    return made


def blocked(run, **options):
    """An uploader that cannot send anything, as its destination is a file."""
    to = run.parent / "to"
    to.write_text("no directory")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Uploader(run, to, **{"pause": 60.0, "drain_seconds": 0.0, **options})


def ended(uploader):
    with pytest.raises(UnreadableError, match="not uploaded"):
        uploader.close()
    uploader._queue._thread.join(10)


def wait_for(what, seconds=20.0):
    until = time.monotonic() + seconds
    while not what() and time.monotonic() < until:
        time.sleep(0.01)
    assert what()


def unblocked(run):
    (run.parent / "to").unlink()
    return Uploader(run, run.parent / "to", drain_seconds=60.0)


@pytest.mark.parametrize("ticket", [b"{}", b"\xff", b'{"schema": "ckptctl.upload/9", "files": []}', None])
def test_what_is_held_under_a_ticket_that_nobody_can_read_is_kept(run, ticket):
    uploader = blocked(run)
    first, second = saved(run, 10), saved(run, 20)
    uploader.upload(first)
    uploader.upload(second)
    ended(uploader)
    (entry,) = run.glob(f"{STAGING}/*-{first.name}")
    before = contents(entry / "files")
    if ticket is None:
        (entry / "upload.json").unlink()
        (entry / "upload.json").mkdir()
    else:
        (entry / "upload.json").write_bytes(ticket)
    with warned("kept, and not uploaded"):
        uploader = unblocked(run)
    with uploader:
        assert first.name not in uploader.pending
        uploader.upload(saved(run, 30))
    assert contents(entry / "files") == before
    assert waiting_in(run) == {first.name}  # no prune deletes it
    for step in (40, 50):
        saved(run, step)
    with Pruning([run], Settings(policy=LAST), datetime.now(timezone.utc)) as pruning:
        pruning.apply(pruning.plans[0])
    assert first.exists()
    assert not second.exists()


def test_what_was_only_begun_is_removed(run):
    begun = run / STAGING / "000007-step_7.safetensors" / "files"
    begun.mkdir(parents=True)
    (begun / "step_7.safetensors").write_bytes(b"x")
    with Uploader(run, run.parent / "to") as uploader:
        assert not begun.exists()
        uploader.upload(saved(run, 8))


def test_a_queue_that_cannot_be_read_stops_prune_and_uploader(run, monkeypatch):
    uploader = blocked(run)
    uploader.upload(saved(run, 10))
    ended(uploader)
    saved(run, 20)
    from pathlib import Path

    real = Path.lstat

    def refused(self):
        if self.name == "upload.json":
            raise PermissionError(13, "Permission denied", str(self))
        return real(self)

    monkeypatch.setattr(Path, "lstat", refused)
    with pytest.raises(UnreadableError):
        Uploader(run, run.parent / "other")
    with Pruning([run], Settings(policy=LAST), datetime.now(timezone.utc)) as pruning:
        assert not pruning.plans
        assert "permission denied" in str(pruning.errors[0])
    monkeypatch.undo()
    unblocked(run).close()  # nobody kept the lock


def test_what_waits_for_another_destination_is_left_for_it(run):
    uploader = blocked(run)
    path = saved(run, 10)
    uploader.upload(path)
    ended(uploader)
    with warned("waits to be uploaded to"), Uploader(run, run.parent / "elsewhere") as other:
        assert other.pending == ()
    assert not (run.parent / "elsewhere").exists()
    unblocked(run).close()
    assert (run.parent / "to" / path.name).read_bytes() == path.read_bytes()


def test_nobody_can_cancel_an_upload(run):
    uploader = blocked(run)
    future = uploader.upload(saved(run, 10))
    assert not future.cancel()
    ended(uploader)
    with unblocked(run) as uploader:
        assert not uploader.upload(saved(run, 20)).cancel()
    assert (run.parent / "to" / "step_10.safetensors").exists()


def test_pauses_end_somewhere(run):
    uploader = blocked(run, pause=0.0)
    uploader.upload(saved(run, 10))
    wait_for(lambda: uploader._queue._jobs and uploader._queue._jobs[0].tries)
    uploader._queue._jobs[0].tries = 5000
    before = uploader._queue._jobs[0].tries
    wait_for(lambda: uploader._queue._jobs[0].tries > before)
    ended(uploader)


def test_a_thread_that_dies_says_so_to_all(run, monkeypatch):
    uploader = blocked(run)
    waiting = uploader.upload(saved(run, 10))
    wait_for(lambda: uploader._queue._jobs[0].tries)

    def broken(self):
        raise RuntimeError("no more")

    monkeypatch.setattr(upload_queue.UploadQueue, "_next", broken)
    with warned("the uploader ends"):
        last = uploader.upload(saved(run, 20))  # the thread is in the real one, and comes to this after it
        uploader._queue._thread.join(10)
        for future in (waiting, last):
            with pytest.raises(UnreadableError, match="RuntimeError: no more"):
                future.result(timeout=10)
    with pytest.raises(UsageError, match="was closed"):
        uploader.upload(saved(run, 30))
    monkeypatch.undo()
    unblocked(run).close()
    assert (run.parent / "to" / "step_10.safetensors").exists()


def test_who_waits_is_told_at_the_end(run):
    uploader = blocked(run)
    future = uploader.upload(saved(run, 10))
    ended(uploader)
    with pytest.raises(UnreadableError, match="the uploader was closed"):
        future.result(timeout=10)


def test_a_forked_child_has_neither_the_lock_nor_an_uploader(run):
    uploader = Uploader(run, run.parent / "to")
    (reading, writing), (ready, begun) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.close(writing)  # it ends with its parent
        try:
            uploader.upload(saved(run, 10))
            os._exit(1)
        except UsageError:
            os.write(begun, b"x")
            os.read(reading, 1)
            uploader.close()
            os._exit(0)
        finally:
            os._exit(2)
    assert os.read(ready, 1)
    with pytest.raises(LockedError):
        Uploader(run, run.parent / "to")
    uploader.close()
    uploader._queue._thread.join(10)
    Uploader(run, run.parent / "to").close()  # while the child lives
    os.write(writing, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_cannot_be_removed_after_it_was_sent_is_sent_all_the_same(run, monkeypatch):
    real = shutil.rmtree

    def stuck(path, *args, **more):
        if more.get("ignore_errors"):
            return
        raise OSError(16, "Device or resource busy", str(path))

    monkeypatch.setattr(snapshot.shutil, "rmtree", stuck)
    with Uploader(run, run.parent / "to", drain_seconds=30.0) as uploader:
        done = uploader.upload(saved(run, 10), wait=True).result()
    assert done.path.exists()
    monkeypatch.setattr(snapshot.shutil, "rmtree", real)
    with Uploader(run, run.parent / "to") as uploader:
        assert uploader.pending == ()
    assert not list((run / STAGING).iterdir())


def test_what_could_not_be_linked_and_is_gone_is_given_up(run, monkeypatch):
    monkeypatch.setattr(snapshot, "_cloned", lambda *_: False)
    monkeypatch.setattr(snapshot, "_linked", lambda *_: False)
    uploader = blocked(run)
    future = uploader.upload(saved(run, 10))
    ended(uploader)
    assert isinstance(future.exception(), UnreadableError)
    (run / "step_10.safetensors").unlink()
    with warned("it is gone"), pytest.raises(ChangedError, match="it is gone, and was to be uploaded"):
        unblocked(run).close()


def test_the_ticket_says_where(run):
    uploader = blocked(run)
    uploader.upload(saved(run, 10))
    ended(uploader)
    (ticket,) = run.glob(f"{STAGING}/*/upload.json")
    assert json.loads(ticket.read_bytes())["to"] == str(run.parent / "to")
