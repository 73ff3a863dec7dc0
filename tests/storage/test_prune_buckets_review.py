"""What an independent reader found wrong with `prune` in buckets, each as it should be."""

from __future__ import annotations

import contextlib
import itertools
import json
from datetime import timedelta

import obstore
import pytest
import torch
from obstore import exceptions

from ckptctl.cli.app import main
from ckptctl.errors import CkptctlError, LockedError, UnreadableError, UnsupportedError
from ckptctl.ops.inspect import inspect
from ckptctl.ops.prune import Pruning, Settings, restore_from_trash
from ckptctl.ops.verify import verify
from ckptctl.retention import Policy
from ckptctl.runs import find_checkpoints
from ckptctl.storage import address
from ckptctl.storage import lease as leases
from ckptctl.storage.directory import open_directory
from ckptctl.storage.remote import forget
from ckptctl.storage.set_aside import MARK, MOVED, PREFIX, Stored, to_move
from tests.storage.stores import Watched, bucket, start
from tests.storage.test_prune_buckets import HOUR, LAST, NOW, RUN, filled, made, prune

ALL = Policy(last=99, best=0, anchor_every=0)
DENIED = exceptions.PermissionDeniedError("Forbidden")


def of_run(store, name):
    return {key: store.read(key) for key in store.keys if key.startswith(f"run/{name}") and MARK not in key}


# --- what somebody writes meanwhile ---


def resaving(store, new, number, hit):
    """Save anew at the nth question; not just before a deletion, as stores delete without conditions."""
    count = itertools.count()

    def before(name, _arguments, _options):
        if name != "delete" and next(count) >= number and not hit:
            hit.append(name)
            for key, raw in new.items():
                obstore.put(store.store, key, raw)

    return before


@pytest.mark.parametrize("trash_for", [timedelta(0), HOUR])
def test_what_is_saved_under_the_name_meanwhile_is_never_deleted(tmp_path, trash_for, monkeypatch):
    monkeypatch.setattr("ckptctl.storage.bucket_trash._BATCH", 1)
    for one in made(tmp_path, 100, 200).glob("step_*"):
        one.unlink()
    for number in range(99):
        store = filled(tmp_path)
        new = {
            f"run/checkpoint-100/{one.name}": b"new" + one.read_bytes()
            for one in (tmp_path / "checkpoint-100").iterdir()
        }
        hit = []
        before = resaving(store, new, number, hit)
        with Pruning([RUN], Settings(policy=LAST, trash_for=trash_for), NOW) as pruning:
            store.before = before
            report = pruning.apply(pruning.plans[0])
            store.before = None
        prune(policy=ALL, now=NOW + 2 * HOUR)
        if not hit:
            break
        left = of_run(store, "checkpoint-100")
        assert {key: left.get(key) for key in new} == new, (number, hit, report)
    assert number > 6


def test_what_is_added_to_trash_brings_back_what_was_moved(tmp_path):
    store = filled(made(tmp_path, 100, 200))
    before = of_run(store, "checkpoint-100")
    prune(trash_for=HOUR)
    obstore.put(store.store, "run/checkpoint-100/README.md", b"# mine")
    report = prune(policy=ALL, now=NOW + 2 * HOUR)[0]
    assert any("somebody has written there meanwhile" in error for error in report.errors)
    assert of_run(store, "checkpoint-100") == before | {"run/checkpoint-100/README.md": b"# mine"}
    assert not any(MOVED in key or MARK in key for key in store.keys)


def test_a_planned_one_that_was_written_since_is_said(tmp_path):
    store = filled(made(tmp_path, 100, 200))
    with Pruning([RUN], Settings(policy=LAST), NOW) as pruning:
        held = next(iter(pruning._opened.values()))
        remove = held.remove

        def late(entry):
            obstore.put(store.store, "run/checkpoint-100/pytorch_model.bin", b"new")
            return remove(entry)

        held.remove = late
        report = pruning.apply(pruning.plans[0])
    assert ["all of it was left there" in error for error in report.errors] == [True]
    assert store.read("run/checkpoint-100/pytorch_model.bin") == b"new"
    assert not any(PREFIX in key or MARK in key for key in store.keys)


def test_a_pointer_that_cannot_be_read_protects_all(tmp_path):
    made(tmp_path, 100, 200)
    (tmp_path / "latest").write_text("checkpoint-100")
    for least in (1, 2, 3):
        store, asked = filled(tmp_path), itertools.count(1)

        def before(name, arguments, _options, asked=asked, least=least):
            if name == "get" and arguments[0] == "run/latest" and next(asked) >= least:
                raise DENIED

        store.before = before
        held = of_run(store, "checkpoint-100")
        with contextlib.suppress(UnreadableError):
            assert prune()[0].errors
        store.before = None
        assert of_run(store, "checkpoint-100") == held


# --- locks ---


def test_a_clock_that_is_wrong_takes_no_lock_that_is_alive(tmp_path, monkeypatch):
    filled(made(tmp_path, 100, 200))
    with open_directory(RUN) as directory:
        directory.lock()
        monkeypatch.setattr("time.time", lambda real=leases.time.time: real() + 3600)
        with pytest.raises(LockedError):
            prune()
        assert directory._lease.lost  # one's own clock says that it was not kept for long: nothing more is done
    monkeypatch.undo()
    forget()
    assert ".ckptctl-lock" in {one.rpartition("/")[2] for one in _keys()}


def _keys():
    return {one["path"] for batch in RUN.store.list("run") for one in batch}


def test_the_lock_of_another_is_never_let_go(tmp_path):
    store = filled(made(tmp_path, 100, 200))
    with open_directory(RUN) as directory:
        directory.lock()
        obstore.put(store.store, "run/.ckptctl-lock", b'{"token": "theirs"}')
    assert store.read("run/.ckptctl-lock") == b'{"token": "theirs"}'


def test_a_store_that_passes_over_conditions_is_no_place_for_locks(tmp_path):
    store = filled(made(tmp_path, 100, 200))
    put = store.store.put

    class Careless:
        def __getattr__(self, name):
            return getattr(store.real, name)

        def put(self, key, data, **options):
            return put(key, data, **{**options, "mode": "overwrite"})

    store.real, store.store = store.store, Careless()
    with pytest.raises(UnsupportedError, match="no lock can be made there: it creates an object where there is one"):
        prune()
    store.store = store.real
    assert not any("lock" in key for key in store.keys)


def test_the_locks_of_earlier_runs_are_let_go_when_the_plan_of_a_later_one_is_interrupted(tmp_path):
    made(tmp_path / "one", 100, 200)
    made(tmp_path / "two", 100, 200)
    store = filled(tmp_path)

    def before(name, arguments, _options):
        if name == "put" and arguments[0] == "run/two/.ckptctl-lock":
            raise KeyboardInterrupt

    store.before = before
    with pytest.raises(KeyboardInterrupt):
        prune()
    assert not any("lock" in key for key in store.keys)


# --- what looks like something else ---


def test_an_address_that_was_set_aside_says_so_until_it_is_saved_anew(tmp_path):
    store = filled(made(tmp_path, 100, 200))
    held = (tmp_path / "checkpoint-100" / "pytorch_model.bin").read_bytes()
    prune(trash_for=HOUR)
    forget()
    assert [one.slug for one in inspect(RUN / "checkpoint-100").findings] == ["unfinished"]
    assert verify(RUN / "checkpoint-100").judgement.value == "wrong"
    for path in (tmp_path / "checkpoint-100").iterdir():
        obstore.put(store.store, f"run/checkpoint-100/{path.name}", path.read_bytes())
    start()
    assert verify(RUN / "checkpoint-100").judgement.value == "good"
    assert [one.complete for one in find_checkpoints(RUN)] == [True] * 3
    assert held


def test_tags_with_and_without_quotes_are_one(tmp_path):
    store = filled(made(tmp_path, 100, 200))

    class Bare:
        """Lists tags without quotes and serves them with, as Azure does."""

        def __getattr__(self, name):
            return getattr(store.real, name)

        def list_with_delimiter(self, *arguments):
            found = store.real.list_with_delimiter(*arguments)
            return {**found, "objects": [{**one, "e_tag": one["e_tag"].strip('"')} for one in found["objects"]]}

        def list(self, *arguments, **options):
            for batch in store.real.list(*arguments, **options):
                yield [{**one, "e_tag": one["e_tag"].strip('"')} for one in batch]

    store.real, store.store = store.store, Bare()
    start()
    assert [one.complete for one in find_checkpoints(RUN)] == [True] * 4
    assert prune(trash_for=HOUR)[0].errors == ()
    restore_from_trash(RUN, "step_100.pt")
    restore_from_trash(RUN, "checkpoint-100")
    assert [one.complete for one in find_checkpoints(RUN)] == [True] * 4


@pytest.mark.parametrize("name", ["step_100_" + "x" * 230 + ".pt", "step_100_" + "一" * 90 + ".pt"])
def test_long_names_are_hidden_too(tmp_path, name):
    made(tmp_path, 100, 200)
    (tmp_path / "step_100.pt").unlink()
    (tmp_path / "step_100.pt.sha256").unlink()
    store = filled(tmp_path)
    obstore.put(store.store, f"run/{name}", (tmp_path / "step_200.pt").read_bytes())
    with open_directory(RUN) as directory:
        from ckptctl.runs.trash import discard

        discard(directory, [name], NOW, for_good=True)
        assert name not in directory.names()
    forget()
    assert name not in {one.path.name for one in find_checkpoints(RUN)}
    prune()
    assert not any(name in key for key in store.keys)


def test_of_ranks_the_first_goes_first():
    ranks = [Stored(f"c/rank_{rank}.pt", size, "", 0.0) for rank, size in enumerate((9 << 20, 9 << 20, 5 << 20))]
    assert [one.name for one in to_move(ranks)] == ["c/rank_0.pt"]
    assert [one.name for one in to_move(ranks, 6 << 20)] == ["c/rank_2.pt"]


# --- what stands in the way of the rest ---


def test_one_that_may_not_be_deleted_does_not_stop_the_others(tmp_path):
    made(tmp_path, 100, 200, 300, 400)
    for error in (DENIED, exceptions.GenericError("Server returned status code: 403 Forbidden")):
        store = filled(tmp_path)

        def before(name, arguments, _options, error=error):
            if name == "delete" and "run/checkpoint-200" in str(arguments[0]):
                raise error

        store.before = before
        for _ in range(2):
            report = prune()[0]
            assert any(error.startswith("checkpoint-200: ") for error in report.errors)
        assert {key.split("/")[1] for key in store.keys if not key.startswith("run/.")} == {
            "checkpoint-200", "checkpoint-400", "step_400.pt", "step_400.pt.sha256",
        }  # fmt: skip
        store.before = None
        prune()
        assert not any("200" in key for key in store.keys)


def test_leftovers_that_are_too_large_to_be_moved_block_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("ckptctl.storage.bucket_trash._MOST_COPIED", 10)
    for step in (100, 200):
        for rank in (0, 1):
            torch.save({"step": step, "w": torch.ones(9)}, tmp_path / f"step_{step}_rank{rank}.pt")
    store = filled(tmp_path)
    entry = f"{PREFIX}20200101T000000Z-step_100_rank0.pt"
    with open_directory(RUN) as directory:
        directory.discard("step_100_rank0.pt", entry, for_good=True)
    assert prune()[0].errors == ()
    assert {key.split("/")[1] for key in store.keys} == {"step_200_rank0.pt", "step_200_rank1.pt"}


@pytest.mark.parametrize(
    "raw",
    [
        b"", b'{"schema": "ckptctl.set-aside/2"}', b'{"schema": "ckptctl.set-aside/1", "na',
        *(json.dumps({"schema": "ckptctl.set-aside/1", "objects": [{"name": "checkpoint-100/x", "size": size,
                      "tag": "", "modified": 1.0}], "moved": moved, "restoring": True, "name": name}).encode()
          for name, size, moved in (("..", 1, []), ("../x", 1, []), ("", 1, []), ("\ud800", 1, []),
                                    ("checkpoint-100", float("inf"), []), ("checkpoint-100", 1, ["checkpoint-100/y"]),
                                    ("step_1", 1, []))),
    ],
)  # fmt: skip
def test_records_that_no_prune_wrote_are_left_alone(tmp_path, raw, capsys):
    store = filled(made(tmp_path, 100, 200))
    obstore.put(store.store, f"run/{PREFIX}20200101T000000Z-checkpoint-100", raw)
    start()
    assert main(["inspect", str(RUN)]) in (0, 1)
    assert len(find_checkpoints(RUN)) == 4
    assert main(["prune", str(RUN), "--keep-last", "9", "--yes"]) in (0, 1)
    assert main(["prune", str(RUN), "--restore", "checkpoint-100"]) == 2
    said = capsys.readouterr()
    assert "internal" not in said.err
    assert len(of_run(store, "checkpoint-100")) == 3


def test_a_store_that_minds_deleting_what_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr("ckptctl.storage.stores._FIRST_PAUSE", 0.0)
    store = filled(made(tmp_path, 100, 200))
    lost = set()

    def before(name, arguments, _options):
        if name != "delete":
            return
        wanted = arguments[0] if isinstance(arguments[0], list) else [arguments[0]]
        gone = [key for key in wanted if key not in store.keys]
        if gone:
            raise FileNotFoundError(gone[0])
        if str(wanted) not in lost:
            lost.add(str(wanted))
            store.store.delete(wanted)
            raise exceptions.GenericError("operation timed out")  # it was done, and the answer was lost

    store.before = before
    assert prune()[0].errors == ()
    store.before = None
    assert not any("100" in key or "lock" in key for key in store.keys)


def test_nothing_comes_back_unless_all_of_it_can(tmp_path):
    store = filled(made(tmp_path, 100, 200))
    prune(trash_for=HOUR)
    store.delete([key for key in store.keys if MOVED in key and key.endswith("/step_100.pt")])
    before = store.keys
    with pytest.raises(OSError, match="nothing was restored"):
        restore_from_trash(RUN, "step_100.pt")
    assert store.keys == before


def test_a_second_restore_after_a_killed_one_says_what_is_back(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "_STALE", -1.0)
    store = filled(made(tmp_path, 100, 200))
    prune(trash_for=HOUR)
    entry = next(key for key in store.keys if key.endswith("Z-checkpoint-100"))
    record = json.loads(store.read(entry))
    obstore.put(store.store, entry, json.dumps({**record, "restoring": True}).encode())
    start()
    assert restore_from_trash(RUN, "checkpoint-100") == (RUN / "checkpoint-100",)
    assert len(of_run(store, "checkpoint-100")) == 3


def test_where_nothing_is_deleted_nothing_is_asked(capsys):
    for where in ("https://127.0.0.1:9/run", "hf://owner/model"):
        assert main(["prune", where, "--yes"]) == 2
        assert "nothing is deleted there, only on disks and in buckets" in capsys.readouterr().err


def test_many_files_that_are_looked_at_are_not_held(tmp_path):
    from ckptctl.storage import opening

    store = bucket("looked")
    for number in range(100):
        obstore.put(store.store, f"f/{number}.pt", bytes(2 << 20))
    start()
    assert all(address(f"s3://looked/f/{number}.pt").is_file() for number in range(100))
    assert opening._ahead._held <= 65 << 20
    assert isinstance(store, Watched)
    with pytest.raises(CkptctlError):
        prune(address("s3://looked/f"))
