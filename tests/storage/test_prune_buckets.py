"""`prune` in buckets: the plan is that of a disk, and no moment leaves something half there that looks whole."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import sys
import warnings
from datetime import datetime, timedelta, timezone

import obstore
import pytest
import torch
from obstore import exceptions

from ckptctl.errors import CkptctlError, ExistsError, LockedError, UnreadableError, UnsupportedError
from ckptctl.ops.prune import Pruning, Settings, restore_from_trash
from ckptctl.retention import Mode, Policy
from ckptctl.runs import find_checkpoints
from ckptctl.storage import address
from ckptctl.storage import lease as leases
from ckptctl.storage.directory import open_directory
from ckptctl.storage.remote import forget
from ckptctl.storage.set_aside import MARK, MOVED, PREFIX, Record, Stored, record_of, stored_below, to_move
from tests.samples import CORPUS, HERE
from tests.storage.stores import bucket, start

sys.path.insert(0, str(HERE / "cases"))
import common
import open_cases  # noqa: F401  # registers the cases

LAST = Policy(last=1, best=0, anchor_every=0)
NOW = datetime.now(tz=timezone.utc)
HOUR = timedelta(hours=1)
RUN = address("s3://b/run")
CASES = [name for name, case in common.REG.items() if case["cmd"] == "prune" and name != "P15"]


def made(path, *steps):
    """A run of Hugging Face's Trainer, and beside it files with digests of the same steps."""
    for step in steps:
        directory = path / f"checkpoint-{step}"
        directory.mkdir(parents=True)
        torch.save({"w": torch.full((300,), float(step))}, directory / "optimizer.pt")
        torch.save({"w": torch.full((300,), float(step))}, directory / "pytorch_model.bin")
        (directory / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": []}))
        torch.save({"step": step, "w": torch.full((30,), float(step))}, path / f"step_{step}.pt")
        (path / f"step_{step}.pt.sha256").write_text(f"{'0' * 64}  step_{step}.pt\n")
    return path


def prune(path=RUN, policy=LAST, now=NOW, **options):
    forget()
    with Pruning([path], Settings(policy=policy, **options), now) as pruning:
        if pruning.errors:
            raise pruning.errors[0]
        return [pruning.apply(plan) for plan in pruning.plans]


def planned(path, policy):
    with Pruning([path], Settings(policy=policy), NOW, lock=False) as pruning:
        return [error.message.replace(str(path), "RUN") for error in pruning.errors], sorted(
            (
                str(one.checkpoint.path).replace(str(path), "RUN"),
                one.action.value,
                one.reasons,
                int(one.checkpoint.saved_at.timestamp()),
            )
            for plan in pruning.plans
            for group in plan.groups
            for one in group.decisions
        )


def filled(run, name="b", **options):
    store = bucket(name, **options)
    store.fill(run, "run/")
    return store


# --- the same as on a disk ---


@pytest.mark.parametrize("name", CASES)
def test_the_plan_and_what_is_left_are_those_of_a_disk(name, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        common.REG[name]["fn"](tmp_path)
    if any(one.is_symlink() or (one.is_dir() and not any(one.iterdir())) for one in tmp_path.rglob("*")):
        pytest.skip("stores have no links and no empty directories")
    rules = {key.removeprefix("keep_"): value for key, value in common.REG[name]["expect"]["policy"].items()}
    mode = Mode(rules.pop("mode")) if "mode" in rules else None
    policy = Policy(**{"last": 0, "best": 0, "anchor_every": 0} | rules, mode=mode)
    store = filled(tmp_path, aged=True)
    assert planned(RUN, policy) == planned(tmp_path, policy)
    assert all(not report.errors for report in prune(policy=policy))
    prune(tmp_path, policy)
    left = {f"run/{one.relative_to(tmp_path).as_posix()}" for one in tmp_path.rglob("*") if one.is_file()}
    assert store.keys == left


def test_real_runs_too(tmp_path):
    for source in ("transformers/trainer_run", "lightning/run", "ckptctl/run"):
        if not (CORPUS / source).is_dir():
            continue
        run = tmp_path / source
        shutil.copytree(CORPUS / source, run)
        filled(run, aged=True)
        assert planned(RUN, LAST) == planned(run, LAST)
        assert planned(RUN, LAST)[1]


# --- the trash ---


def test_what_lies_in_the_trash_is_no_checkpoint_and_comes_back_as_it_was(tmp_path):
    store = filled(made(tmp_path, 100, 200, 300))
    before = {key: store.read(key) for key in store.keys}
    report = prune(trash_for=HOUR)
    assert [(one.count, one.freed, one.errors) for one in report] == [(4, 0, ())]
    assert [one.path.name for one in find_checkpoints(RUN)] == ["checkpoint-300", "step_300.pt"]
    left = {key for key in store.keys if MOVED not in key and MARK not in key}
    assert left == {
        "run/checkpoint-100/pytorch_model.bin", "run/checkpoint-100/optimizer.pt",
        "run/checkpoint-200/pytorch_model.bin", "run/checkpoint-200/optimizer.pt",
        *(key for key in before if "300" in key),
    }  # fmt: skip
    assert {one.name for one in restore_from_trash(RUN, "checkpoint-100")} == {"checkpoint-100"}
    assert {one.name for one in restore_from_trash(RUN, "step_200.pt")} == {"step_200.pt", "step_200.pt.sha256"}
    assert len(find_checkpoints(RUN)) == 4
    with pytest.raises(UnreadableError, match="no checkpoint-100 in the trash"):
        restore_from_trash(RUN, "checkpoint-100")
    restore_from_trash(RUN, "step_100.pt")
    restore_from_trash(RUN, "checkpoint-200")
    assert {key: store.read(key) for key in store.keys} == before
    store = filled(tmp_path)  # what comes back is as young as its return
    prune(trash_for=HOUR)
    emptied = [
        "checkpoint-100",
        "checkpoint-200",
        *(f"step_{n}.pt{end}" for n in (100, 200) for end in ("", ".sha256")),
    ]
    assert sorted(prune(now=NOW + 2 * HOUR)[0].emptied) == emptied
    assert store.keys == {key for key in before if "300" in key}


def test_what_is_written_under_the_name_of_trash_is_a_checkpoint_again_and_stays(tmp_path):
    store = filled(made(tmp_path, 100, 200))
    prune(trash_for=HOUR)
    assert len(find_checkpoints(RUN)) == 2
    for name in ("pytorch_model.bin", "trainer_state.json"):
        obstore.put(store.store, f"run/checkpoint-100/{name}", (tmp_path / "checkpoint-100" / name).read_bytes())
    forget()
    assert [one.path.name for one in find_checkpoints(RUN)] == ["checkpoint-100", "checkpoint-200", "step_200.pt"]
    with pytest.raises(ExistsError, match="exists already"):
        restore_from_trash(RUN, "checkpoint-100")
    pinned = Policy(last=9, best=0, anchor_every=0)
    prune(policy=pinned, now=NOW + 2 * HOUR)
    assert {key for key in store.keys if "100" in key} == {
        f"run/checkpoint-100/{name}" for name in ("pytorch_model.bin", "optimizer.pt", "trainer_state.json")
    }


def test_something_that_was_lost_meanwhile_is_not_restored(tmp_path):
    store = filled(made(tmp_path, 100, 200))
    prune(trash_for=HOUR)
    store.delete("run/checkpoint-100/pytorch_model.bin")
    before = store.keys
    with pytest.raises(OSError, match="not there any more; nothing was restored"):
        restore_from_trash(RUN, "checkpoint-100")
    assert store.keys == before


def test_trash_that_was_copied_from_a_disk_is_emptied(tmp_path):
    store = filled(made(tmp_path, 100, 200))
    old = f"{PREFIX}20200101T000000Z-"
    obstore.put(store.store, f"run/{old}checkpoint-50/pytorch_model.bin", b"x" * 100)
    obstore.put(store.store, f"run/{old}step_50.pt", b"x" * 200)
    with pytest.raises(OSError, match="on a disk"):
        restore_from_trash(RUN, "checkpoint-50")
    report = prune(policy=Policy(last=9, best=0, anchor_every=0))[0]
    assert (set(report.emptied), report.freed) == ({"checkpoint-50", "step_50.pt"}, 300)
    assert not any(old in key for key in store.keys)


def test_an_object_that_is_too_large_to_be_moved_is_left_alone(tmp_path, monkeypatch):
    store = filled(made(tmp_path, 100, 200))
    monkeypatch.setattr("ckptctl.storage.bucket_trash._MOST_COPIED", 500)
    before = store.keys
    assert any("too large to be moved" in error for error in prune(trash_for=HOUR)[0].errors)
    assert {key for key in store.keys if "step" in key} == {key for key in before if "step" in key}
    assert not [key for key in store.keys if PREFIX in key and "step" in key]
    assert prune()[0].errors == ()


LAYOUTS = sorted(
    str(path.relative_to(CORPUS)) for group in CORPUS.iterdir() if group.is_dir()
    for path in group.iterdir() if path.is_dir() and not any(one.is_symlink() for one in path.rglob("*"))
)  # fmt: skip


@pytest.mark.parametrize("source", LAYOUTS)
@pytest.mark.parametrize("small", [1200, 1 << 20])
def test_what_goes_first_is_what_makes_it_whole(source, small, monkeypatch):
    """Without it nobody takes what is left for a whole checkpoint of several files."""
    from ckptctl.checks.completeness import glance

    monkeypatch.setattr("ckptctl.storage.set_aside._SMALL", small)
    store = filled(CORPUS / source)
    store.delete([key for key in store.keys if "expected" in key])  # what the corpus has it compared with
    before = glance(RUN)
    every = stored_below(address("s3://b"), "run")
    first = to_move(every)
    if not before.completeness.whole or len(first) == len(every) or not before.checkpoint:
        return
    store.delete([one.name for one in first])
    forget()
    after = glance(RUN)
    assert not (after.completeness.whole and after.checkpoint.layout == before.checkpoint.layout), first


# --- stopped anywhere ---


class Stopped(BaseException):
    """Ends a prune as a kill would: nothing is taken back."""


def stopped_at(number):
    """Let a store refuse everything from its nth change on, as for a process that is not there any more."""
    count = itertools.count(1)
    reached = []

    def before(name, _arguments, _options):
        if name in ("put", "copy", "delete") and (reached or next(count) >= number):
            reached.append(name)
        if reached:
            raise Stopped

    return before, reached


def looks(store, before):
    """What is neither as it was nor hidden nor visibly not whole."""
    start()
    wrong = []
    for info in find_checkpoints(RUN):
        name = f"run/{info.path.name}"
        as_it_was = all(key in store.keys for key in before if key == name or key.startswith(f"{name}/"))
        if info.complete and not as_it_was:
            wrong.append(name)
    for key in before:  # and in the eyes of others
        if key.endswith("trainer_state.json") and key in store.keys:
            directory = key.rpartition("/")[0]
            wrong += [one for one in before if one.startswith(directory) and one not in store.keys]
    return wrong


@pytest.mark.parametrize("trash_for", [timedelta(0), HOUR])
def test_a_prune_that_is_killed_anywhere_leaves_nothing_half_that_looks_whole_and_the_next_one_ends_it(
    tmp_path, trash_for, monkeypatch
):
    monkeypatch.setattr(leases, "_STALE", -1.0)
    made(tmp_path, 100, 200)
    undisturbed = filled(tmp_path)
    before = undisturbed.keys
    prune(trash_for=trash_for)
    prune(now=NOW + 2 * HOUR)
    for number in range(1, 99):
        refuse, reached = stopped_at(number)
        store = filled(tmp_path)
        store.before = refuse
        with contextlib.suppress(Stopped):
            prune(trash_for=trash_for)
        store.before = None
        assert looks(store, before) == [], number
        prune(trash_for=trash_for)
        assert looks(store, before) == [], number
        prune(now=NOW + 2 * HOUR)
        assert store.keys == undisturbed.keys, number
        if not reached:
            break
    assert number > 8


def test_a_restore_that_is_killed_anywhere_is_ended_by_a_second_one_or_by_a_prune(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "_STALE", -1.0)
    made(tmp_path, 100, 200)
    keep_all = Policy(last=9, best=0, anchor_every=0)
    for number, by_prune in itertools.product(range(1, 99), (False, True)):
        refuse, reached = stopped_at(number)
        store = filled(tmp_path)
        before = {key: store.read(key) for key in store.keys}
        prune(trash_for=HOUR)
        store.before = refuse
        with contextlib.suppress(Stopped):
            restore_from_trash(RUN, "checkpoint-100")
        store.before = None
        start()
        own = {key: before[key] for key in before if "checkpoint-100" in key}
        if by_prune:  # it ends what was begun; where nothing was, the time of the trash has come
            prune(policy=keep_all, now=NOW + 2 * HOUR)
            assert {key for key in store.keys if "checkpoint-100" in key} in ({*own}, set()), number
        else:
            with contextlib.suppress(UnreadableError, ExistsError):  # it is back already
                restore_from_trash(RUN, "checkpoint-100")
            assert {*own} <= store.keys, number
        assert all(store.read(key) == raw for key, raw in own.items() if key in store.keys), number
        if not reached:
            return


def test_a_store_that_stumbles_is_asked_again_and_one_that_is_gone_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("ckptctl.storage.stores._FIRST_PAUSE", 0.0)
    asked = set()

    def first(name, arguments, _options):
        question = name, str(arguments[0])
        if question not in asked:
            asked.add(question)
            raise exceptions.GenericError("Server returned status code: 500 Internal Server Error")

    store = filled(made(tmp_path, 100, 200, 300))
    before = store.keys
    store.before = first
    assert prune()[0].errors == ()
    assert store.keys == {key for key in before if "300" in key}

    def gone(name, *_):
        if name == "delete":
            raise exceptions.GenericError("Server returned status code: 500 Internal Server Error")

    store = filled(tmp_path)
    store.before = gone
    with pytest.raises(UnreadableError, match="500"):  # the lock could not be let go either
        prune()
    assert set(before) <= store.keys


# --- two at a time ---


def test_a_second_prune_is_kept_out_until_the_first_has_ended_or_died(tmp_path, monkeypatch):
    store = filled(made(tmp_path, 100, 200))
    with open_directory(RUN) as directory:
        directory.lock()
        with pytest.raises(LockedError, match=r"another prune is at work here \(.+, process [0-9]+, since 20"):
            prune()
        assert prune(tmp_path)[0].count
    assert ".ckptctl-lock" not in " ".join(store.keys)
    obstore.put(store.store, "run/.ckptctl-lock", b"\xff not JSON")
    with pytest.raises(LockedError):
        prune()
    monkeypatch.setattr(leases, "_STALE", -1.0)  # as if it had not been written again for long
    assert prune()[0].count == 2


def test_a_prune_whose_lock_was_taken_over_deletes_nothing_more(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "_AGAIN", 0.01)
    store = filled(made(tmp_path, 100, 200))
    before = store.keys
    with Pruning([RUN], Settings(policy=LAST), NOW) as pruning:
        obstore.put(store.store, "run/.ckptctl-lock", b"{}")
        held = next(iter(pruning._opened.values()))
        held._lease._ended.wait(0.3)
        assert held._lease.lost
        report = pruning.apply(pruning.plans[0])
    assert report.count == 0
    assert all("the lock is lost" in error for error in report.errors)
    assert len(report.errors) == 2
    assert store.keys == before | {"run/.ckptctl-lock"}


def test_a_lock_that_was_let_go_is_not_written_again(tmp_path):
    """Its thread may have woken just before: what it wrote after the release would lock out others."""
    store = filled(made(tmp_path, 100, 200))
    with Pruning([RUN], Settings(policy=LAST), NOW) as pruning:
        held = next(iter(pruning._opened.values()))._lease
    assert held._kept()
    assert "run/.ckptctl-lock" not in store.keys
    with Pruning([RUN], Settings(policy=LAST), NOW):
        pass


def test_a_lock_whose_answer_was_lost_is_ones_own(tmp_path, monkeypatch):
    monkeypatch.setattr("ckptctl.storage.stores._FIRST_PAUSE", 0.0)
    store = filled(made(tmp_path, 100, 200))
    real = store.store.put
    lost = []

    def before(name, arguments, options):
        if name == "put" and arguments[0] not in lost:
            lost.append(arguments[0])
            real(*arguments, **options)
            raise exceptions.GenericError("operation timed out")

    store.before = before
    assert prune()[0].errors == ()
    assert len(lost) > 3


def test_a_store_without_conditions_needs_a_word(tmp_path):
    def before(name, _arguments, options):
        if name == "put" and options.get("mode") == "create":
            raise exceptions.NotSupportedError("conditional put")

    store = filled(made(tmp_path, 100, 200))
    store.before = before
    with pytest.raises(UnsupportedError, match="no lock can be made there") as caught:
        prune()
    assert "--no-lock" in caught.value.hint


# --- odds and ends ---


@pytest.mark.parametrize(
    "change",
    [
        lambda store: obstore.put(store.store, "run/latest", b"checkpoint-100"),
        lambda store: obstore.put(store.store, "run/checkpoint-100/new.bin", b"x"),
        lambda store: obstore.put(store.store, "run/checkpoint-100/pytorch_model.bin", b"y"),
        lambda store: obstore.put(store.store, "run/checkpoint-100.keep", b""),
    ],
)
def test_what_happens_between_plan_and_deletion_counts(tmp_path, change, monkeypatch):
    monkeypatch.setattr("ckptctl.storage.remote_directory._SEEN_FOR", 0.0)
    store = filled(made(tmp_path, 100, 200))
    with Pruning([RUN], Settings(policy=LAST), NOW) as pruning:
        change(store)
        report = pruning.apply(pruning.plans[0])
    assert report.count == 1
    assert ["left alone" in error for error in report.errors] == [True]
    assert {"run/checkpoint-100/pytorch_model.bin", "run/checkpoint-100/trainer_state.json"} <= store.keys


def test_a_pin_counts(tmp_path):
    made(tmp_path, 100, 200, 300)
    (tmp_path / "checkpoint-100" / ".keep").touch()
    (tmp_path / "step_200.pt.keep").touch()
    store = filled(tmp_path)
    prune()
    assert {key.split("/")[1] for key in store.keys} == {
        "checkpoint-100", "checkpoint-300", "step_200.pt", "step_200.pt.keep", "step_200.pt.sha256", "step_300.pt",
        "step_300.pt.sha256",
    }  # fmt: skip


def test_runs_below_and_what_is_no_run(tmp_path):
    made(tmp_path / "one", 100, 200)
    made(tmp_path / "two", 100, 200)
    store = filled(tmp_path)
    assert [one.count for one in prune()] == [2, 2]
    assert not any("100" in key for key in store.keys)
    with pytest.raises(CkptctlError, match="a checkpoint, not a run"):
        prune(RUN / "one" / "checkpoint-200")
    with pytest.raises(UnreadableError, match="no such"):
        prune(address("s3://b/nothing"))
    with pytest.raises(UnsupportedError, match="nothing is deleted there"):
        open_directory(address("https://127.0.0.1:9/run"))


def test_records_are_read_as_they_were_written_and_nothing_else_is_one():
    objects = (Stored("run/é\n", 3, "x", 1.5), Stored("run/z", 0, "", 0.1 + 0.2))
    record = Record(name="run", objects=objects, moved=("run/z",), restoring=True)
    assert record_of(record.to_bytes()) == record
    assert not record.hides(objects)
    for raw in (b"", b"[]", b"{}", b"\xff", b'{"schema": "ckptctl.set-aside/1"}', b"[" * 10_000):
        with pytest.raises(ValueError, match="what was set aside"):
            record_of(raw)


def test_it_takes_few_requests_even_of_many(tmp_path):
    run = made(tmp_path, *range(100, 2100, 100))
    store = filled(run)
    store.calls.clear()
    assert prune()[0].count == 38
    assert len(store.calls) < 38 * 25  # what was set aside is looked at once more before it is deleted
