"""`prune` deletes what was planned and nothing else, whatever happens meanwhile."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sys
import time
import warnings
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import safetensors.torch
import torch

from ckptctl.errors import ExistsError, LockedError, PolicyError, UnknownFormatError, UnreadableError, UnsupportedError
from ckptctl.ops.prune import Pruning, Settings, restore_from_trash
from ckptctl.retention import Action, Mode, Policy
from ckptctl.runs import trash as trashes
from tests.samples import CORPUS, HERE

sys.path.insert(0, str(HERE / "cases"))
import common
import open_cases  # noqa: F401  # registers the cases

OFF = Policy(last=0, best=0, anchor_every=0)
LAST = Policy(last=1, best=0, anchor_every=0)
NOW = datetime.now(tz=timezone.utc)
PRUNED = [name for name, case in common.REG.items() if case["cmd"] == "prune" and name != "P15"]


def saved(path, step=None, **values):
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(
        {"model": {"w": torch.full((500,), float(step or 0))}, **values} | ({"step": step} if step else {}), path
    )
    return path


def trained(path, *steps):
    for step in steps:
        saved(path / f"step_{step}.pt", step)
    return path


def of_trainer(path, *steps):
    for step in steps:
        source = CORPUS / "transformers" / "trainer_run" / f"checkpoint-{step}"
        shutil.copytree(source, path / source.name)


def age(path):
    """Make everything in a directory, and itself, old."""
    for one in [path, *path.rglob("*")]:
        os.utime(one, (1e9, 1e9), follow_symlinks=False)


def prune(path, policy=LAST, now=NOW, **options):
    with Pruning([path], Settings(policy=policy, **options), now) as pruning:
        if pruning.errors:
            raise pruning.errors[0]
        reports = [pruning.apply(plan) for plan in pruning.plans]
    assert [error for report in reports for error in report.errors] == []
    return reports


def plan_of(path, policy=LAST, **options):
    with Pruning([path], Settings(policy=policy, **options), NOW, lock=False) as pruning:
        if pruning.errors:
            raise pruning.errors[0]
        return pruning.plans


def reasons(path, policy=LAST, **options):
    return {
        one.checkpoint.path.name: (one.action.value, *one.reasons)
        for plan in plan_of(path, policy, **options)
        for group in plan.groups
        for one in group.decisions
    }


def names(path):
    return sorted(one.name for one in path.iterdir())


# --- reported cases ---


@pytest.mark.parametrize("name", PRUNED)
def test_reported_cases_keep_and_delete_what_they_should(name, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        common.REG[name]["fn"](tmp_path)
    expect = common.REG[name]["expect"]
    rules = {key.removeprefix("keep_"): value for key, value in expect["policy"].items()}
    mode = Mode(rules.pop("mode")) if "mode" in rules else None
    prune(tmp_path, Policy(**{"last": 0, "best": 0, "anchor_every": 0} | rules, mode=mode))
    left = {str(one.relative_to(tmp_path)) for one in [*tmp_path.iterdir(), *tmp_path.glob("*/*")]}
    kept = {*expect["keep"], *expect.get("incomplete", ())}
    assert kept <= left
    assert not left & set(expect["delete"])
    assert expect["delete"]


# --- what stays ---


def test_the_oldest_go_and_space_is_freed(tmp_path):
    trained(tmp_path, 500, 2500, 9000, 10000)
    (plan,) = plan_of(tmp_path)
    (report,) = prune(tmp_path)
    assert names(tmp_path) == ["step_10000.pt"]
    assert [path.name for path in report.deleted] == ["step_500.pt", "step_2500.pt", "step_9000.pt"]
    assert report.freed == plan.frees > 3 * 2000


def test_pruning_twice_is_pruning_once(tmp_path):
    trained(tmp_path, 1, 2, 3)
    prune(tmp_path)
    (report,) = prune(tmp_path)
    assert (report.deleted, report.freed) == ((), 0)


def test_what_is_pointed_at_stays(tmp_path):
    trained(tmp_path, *range(1, 10))
    shutil.copytree(CORPUS / "transformers" / "trainer_run" / "checkpoint-10", tmp_path / "step_10")
    (tmp_path / "step_11").mkdir()
    (tmp_path / "best.pt").symlink_to("step_1.pt")
    (tmp_path / "latest").write_text("step_2.pt\n")
    (tmp_path / "last_checkpoint").write_text("/home/elsewhere/run/step_3.pt")
    (tmp_path / "step_4.pt.keep").touch()
    found = reasons(tmp_path)
    assert found["step_1.pt"] == ("keep", "best.pt")
    assert found["step_2.pt"] == ("keep", "latest")
    assert found["step_3.pt"] == ("keep", "last_checkpoint")
    assert found["step_4.pt"] == ("keep", "pinned")
    assert [name for name, why in found.items() if why[0] == "delete"] == [f"step_{n}.pt" for n in (5, 6, 7, 8)]


def test_what_a_link_leads_into_stays(tmp_path):
    of_trainer(tmp_path, 10, 20, 30)
    (tmp_path / "best.safetensors").symlink_to("checkpoint-10/model.safetensors")
    assert reasons(tmp_path)["checkpoint-10"] == ("keep", "best.safetensors")


def test_the_best_of_the_trainer_stays_wherever_it_was_written(tmp_path):
    shutil.copytree(CORPUS / "transformers" / "trainer_best_limit2", tmp_path / "run")
    assert reasons(tmp_path / "run")["checkpoint-10"] == ("keep", "best")


def test_a_torn_newest_one_takes_no_place(tmp_path):
    torn = trained(tmp_path, 1, 2, 3) / "step_3.pt"
    torn.write_bytes(torn.read_bytes()[:-100])
    assert reasons(tmp_path)["step_3.pt"][:2] == ("skip", "damaged, newer than the newest whole one")
    prune(tmp_path)
    assert names(tmp_path) == ["step_2.pt", "step_3.pt"]


def test_what_is_not_whole_goes_only_when_asked_for(tmp_path):
    torn = trained(tmp_path, 1, 2, 3) / "step_1.pt"
    torn.write_bytes(torn.read_bytes()[:-100])
    policy = Policy(last=9, best=0, anchor_every=0, remove_incomplete=timedelta(hours=1))
    prune(tmp_path, policy)
    assert len(names(tmp_path)) == 3
    os.utime(torn, (1, 1))
    prune(tmp_path, policy)
    assert names(tmp_path) == ["step_2.pt", "step_3.pt"]


def test_a_flipped_bit_counts_under_verify_bytes(tmp_path):
    newest = trained(tmp_path, 1, 2, 3) / "step_3.pt"
    raw = bytearray(newest.read_bytes())
    raw[raw.index(torch.full((9,), 3.0).numpy().tobytes()) + 40] ^= 1
    newest.write_bytes(raw)
    assert reasons(tmp_path)["step_2.pt"] == ("delete",)
    assert reasons(tmp_path, verify_bytes=True)["step_2.pt"] == ("keep", "newest that passes verification")


def test_a_class_of_ones_own_is_no_reason_to_refuse(tmp_path):
    for step in (1, 2):
        saved(tmp_path / f"step_{step}.pt", step, config=Path("x"))
    prune(tmp_path)
    assert names(tmp_path) == ["step_2.pt"]


def test_names_that_hold_something_else_stay(tmp_path):
    of_trainer(tmp_path, 10, 20, 30)
    trained(tmp_path / "checkpoint-10" / "old" / "checkpoint-5", 1)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "checkpoint-20" / "data").symlink_to("../elsewhere")
    age(tmp_path / "checkpoint-20")
    age(tmp_path / "checkpoint-10")
    found = reasons(tmp_path)
    assert found["checkpoint-10"] == ("keep", "it holds what may be a checkpoint of another run (old/checkpoint-5)")
    assert found["checkpoint-20"] == ("keep", "data in it is a link that leads out")


def test_a_link_inside_goes_with_its_checkpoint_and_is_never_followed(tmp_path):
    of_trainer(tmp_path, 10, 20)
    (tmp_path / "checkpoint-10" / "again.json").symlink_to("config.json")
    age(tmp_path / "checkpoint-10")
    prune(tmp_path)
    assert names(tmp_path) == ["checkpoint-20"]


def test_a_link_is_no_candidate_and_stays(tmp_path):
    real = trained(tmp_path / "real", 7) / "step_7.pt"
    trained(tmp_path / "run", 8, 9)
    (tmp_path / "run" / "step_7.pt").symlink_to(real)
    (tmp_path / "run" / "step_6").symlink_to(tmp_path / "real")
    prune(tmp_path / "run")
    assert names(tmp_path / "run") == ["step_6", "step_7.pt", "step_9.pt"]
    assert real.exists()


def test_the_names_of_one_step_and_what_goes_with_them(tmp_path):
    trained(tmp_path, 1, 2)
    safetensors.torch.save_file({"w": torch.ones(3)}, tmp_path / "step_1.safetensors")
    (tmp_path / "step_1.pt.sha256").write_text("0" * 64)
    (tmp_path / "step_1.safetensors.sha256").write_text("0" * 64)
    (tmp_path / "step_11.sha256").write_text("0" * 64)
    (report,) = prune(tmp_path)
    assert names(tmp_path) == ["step_11.sha256", "step_2.pt"]
    assert report.count == 1


def test_all_ranks_go_together(tmp_path):
    for step in (1, 2):
        for rank in (0, 1):
            saved(tmp_path / f"ckpt_step{step}_rank_{rank}.pt", step)
    (plan,) = plan_of(tmp_path)
    assert len(plan.groups[0].decisions) == 2
    prune(tmp_path)
    assert names(tmp_path) == ["ckpt_step2_rank_0.pt", "ckpt_step2_rank_1.pt"]


def test_runs_one_level_below_are_pruned_one_by_one_and_no_deeper(tmp_path):
    for run in ("a", "b", "2024"):
        trained(tmp_path / run, 1, 2)
    trained(tmp_path / "deep" / "er", 1, 2)
    prune(tmp_path)
    assert [names(tmp_path / run) for run in ("a", "b", "2024")] == [["step_2.pt"]] * 3
    assert names(tmp_path / "deep" / "er") == ["step_1.pt", "step_2.pt"]


def test_hard_links_are_freed_once_and_only_with_their_last_name(tmp_path):
    trained(tmp_path, 1, 3)
    os.link(tmp_path / "step_1.pt", tmp_path / "archive.bin")
    os.link(saved(tmp_path / "step_2.pt", 2), tmp_path / "x")
    (tmp_path / "x").rename(tmp_path / "step_2.safetensors.pt")
    (plan,) = plan_of(tmp_path)
    (report,) = prune(tmp_path)
    assert (tmp_path / "archive.bin").exists()
    assert report.freed == plan.frees


# --- what is refused ---


def test_a_checkpoint_is_no_run(tmp_path):
    with pytest.raises(UnknownFormatError, match="a checkpoint, not a run"):
        prune(CORPUS / "transformers" / "trainer_run" / "checkpoint-10")
    with pytest.raises(UnknownFormatError, match="not a run"):
        prune(tmp_path)
    with pytest.raises(UnreadableError):
        prune(tmp_path / "nothing")


def test_a_metric_that_nobody_has_is_a_slip(tmp_path):
    shutil.copytree(CORPUS / "transformers" / "trainer_run", tmp_path / "run")
    with pytest.raises(PolicyError, match="has the metric eval_lss") as caught:
        prune(tmp_path / "run", Policy(metric="eval_lss"))
    assert "eval_loss" in caught.value.hint


def test_nothing_is_deleted_where_nothing_passes_verification(tmp_path):
    for path in [saved(tmp_path / f"step_{step}.pt", step) for step in (1, 2, 3)]:
        raw = bytearray(path.read_bytes())
        raw[raw.index(torch.full((9,), float(path.stem[-1])).numpy().tobytes()) + 40] ^= 1
        path.write_bytes(raw)
    with pytest.raises(PolicyError, match="passes verification"):
        prune(tmp_path, verify_bytes=True)
    assert len(names(tmp_path)) == 3


def test_one_that_is_refused_does_not_stop_the_others(tmp_path):
    trained(tmp_path / "a", 1, 2)
    shutil.copytree(CORPUS / "transformers" / "trainer_run", tmp_path / "b")
    with Pruning([tmp_path], Settings(policy=Policy(metric="eval_loss", last=1)), NOW) as pruning:
        assert [plan.path.name for plan in pruning.plans] == ["b"]
        assert [error.slug for error in pruning.errors] == ["policy"]


def test_more_than_a_number_is_refused(tmp_path):
    trained(tmp_path / "a", 1, 2)
    trained(tmp_path / "b", 1, 2)
    with Pruning([tmp_path], Settings(policy=LAST), NOW) as pruning:
        pruning.refuse_more_than(2)
        with pytest.raises(PolicyError, match="2 checkpoints would be deleted, --max-delete is 1"):
            pruning.refuse_more_than(1)


def test_a_second_prune_gives_up_at_once(tmp_path):
    trained(tmp_path, 1, 2)
    with Pruning([tmp_path], Settings(policy=LAST), NOW), pytest.raises(LockedError, match="another prune is at work"):
        prune(tmp_path)
    prune(tmp_path)


def test_where_there_are_no_locks(tmp_path, monkeypatch):
    trained(tmp_path, 1, 2)

    def flock(fd, how):
        raise OSError(errno.ENOSYS, "no locks")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(UnsupportedError, match="no locks") as caught:
        prune(tmp_path)
    assert "--no-lock" in caught.value.hint


# --- metrics ---


def test_the_declared_metric_is_used(tmp_path):
    shutil.copytree(CORPUS / "transformers" / "trainer_best_limit2", tmp_path / "t")
    (plan,) = plan_of(tmp_path / "t", Policy())
    assert (plan.groups[0].policy.metric, plan.groups[0].policy.mode) == ("eval_loss", Mode.MIN)
    (plan,) = plan_of(CORPUS / "lightning" / "top2_improving" / "checkpoints", Policy())
    assert (plan.groups[0].policy.metric, plan.groups[0].policy.mode) == ("val_loss", Mode.MIN)


def test_without_a_mode_both_ends_are_kept_with_a_notice(tmp_path):
    trained(tmp_path, 1, 2, 3, 4)
    rows = "".join(f'{{"step": {step}, "val_quux": {step}}}\n' for step in (1, 2, 3, 4))
    (tmp_path / "metrics.jsonl").write_text(rows)
    policy = Policy(last=0, anchor_every=0, best=1, metric="val_quux")
    (plan,) = plan_of(tmp_path, policy)
    assert "both ends are kept" in plan.groups[0].notices[0]
    assert [d.action for d in plan.groups[0].decisions] == [Action.KEEP, Action.DELETE, Action.DELETE, Action.KEEP]


def test_a_metric_that_is_not_known_is_said(tmp_path):
    trained(tmp_path, 1, 2)
    (plan,) = plan_of(tmp_path, Policy())
    assert "no metric is declared" in plan.groups[0].notices[0]
    (tmp_path / "r").mkdir()
    for epoch in (1, 2):
        saved(tmp_path / "r" / f"epoch_{epoch}.pt")
    (plan,) = plan_of(tmp_path / "r", Policy(best=0))
    assert "anchors do not apply" in plan.groups[0].notices[0]


# --- between plan and deed ---


def apply_after(path, change, policy=LAST):
    with Pruning([path], Settings(policy=policy), NOW) as pruning:
        change()
        (plan,) = pruning.plans
        return pruning.apply(plan)


def test_what_was_changed_since_is_left_alone(tmp_path):
    trained(tmp_path, 1, 2, 3)
    report = apply_after(tmp_path, lambda: saved(tmp_path / "step_1.pt", 1, more=2))
    assert report.errors == ("step_1.pt: it was changed since it was planned; left alone",)
    assert names(tmp_path) == ["step_1.pt", "step_3.pt"]


def test_a_file_in_a_directory_that_was_changed_since(tmp_path):
    of_trainer(tmp_path, 10, 20)
    report = apply_after(tmp_path, lambda: (tmp_path / "checkpoint-10" / "config.json").write_text("{}"))
    assert "changed" in report.errors[0]
    assert names(tmp_path) == ["checkpoint-10", "checkpoint-20"]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda run: (run / "step_1.pt").unlink(), "gone"),
        (lambda run: (run / "latest").write_text("step_1.pt"), "points at it"),
        (lambda run: (run / "step_1.pt.keep").touch(), "pinned"),
        (lambda run: (run / "step_2.pt").unlink(), "step_2.pt, which was to remain, is gone"),
        (lambda run: ((run / "step_1.pt").unlink(), (run / "step_1.pt").symlink_to("step_2.pt")), "neither a file"),
    ],
)
def test_whatever_happens_meanwhile_counts(tmp_path, change, word):
    trained(tmp_path, 1, 2)
    report = apply_after(tmp_path, lambda: change(tmp_path))
    assert word in report.errors[0]
    assert report.deleted == ()


def test_after_a_question_everything_is_looked_at_anew(tmp_path):
    trained(tmp_path, 1, 2, 3)
    with Pruning([tmp_path], Settings(policy=LAST), NOW) as pruning:
        saved(tmp_path / "step_4.pt", 4)
        (tmp_path / "latest").write_text("step_1.pt")
        pruning.plan_again()
        pruning.apply(pruning.plans[0])
    assert names(tmp_path) == ["latest", "step_1.pt", "step_3.pt", "step_4.pt"]


# --- the trash ---


def test_what_lies_in_the_trash_can_be_restored_until_its_time(tmp_path):
    trained(tmp_path, 1, 2, 3)
    (tmp_path / "step_1.pt.sha256").write_text("0" * 64)
    week = timedelta(days=7)
    (report,) = prune(tmp_path, trash_for=week)
    assert (report.count, report.freed) == (2, 0)
    assert names(tmp_path)[-1] == "step_3.pt"
    assert len(names(tmp_path)) == 4
    assert restore_from_trash(tmp_path, "step_1.pt") == (tmp_path / "step_1.pt", tmp_path / "step_1.pt.sha256")
    assert names(tmp_path)[1:] == ["step_1.pt", "step_1.pt.sha256", "step_3.pt"]
    with pytest.raises(UnreadableError, match="no step_1.pt in the trash") as caught:
        restore_from_trash(tmp_path, "step_1.pt")
    assert "step_2.pt" in caught.value.hint
    saved(tmp_path / "step_2.pt", 2)
    with pytest.raises(ExistsError, match="exists already"):
        restore_from_trash(tmp_path, "step_2.pt")
    (report,) = prune(tmp_path, Policy(last=9), now=NOW + week - timedelta(minutes=1))
    assert report.emptied == ()
    (report,) = prune(tmp_path, Policy(last=9), now=NOW + week + timedelta(minutes=1))
    assert report.emptied == ("step_2.pt",)
    assert report.freed > 0


def test_what_is_restored_is_of_one_moment(tmp_path):
    """Two generations of one name lie in the trash, the older with a digest: each comes back as it was."""
    for number, (value, day) in enumerate(((1.0, 1), (2.0, 2))):
        saved(tmp_path / "step_1.pt", 1)
        torch.save({"w": torch.tensor(value)}, tmp_path / "step_1.pt")
        names = ["step_1.pt", "step_1.pt.sha256"][: 2 - number]
        if not number:
            (tmp_path / names[1]).write_text("of the first\n")
        with Pruning([tmp_path], Settings(policy=LAST), NOW) as pruning:
            trashes.discard(pruning._opened[tmp_path], names, NOW + timedelta(days=day), for_good=False)
    entries = sorted(path.name for path in tmp_path.glob(".ckptctl-trash*.pt"))
    assert restore_from_trash(tmp_path, "step_1.pt") == (tmp_path / "step_1.pt",)
    assert torch.load(tmp_path / "step_1.pt")["w"] == 2
    with pytest.raises(ExistsError, match=r"step_1\.pt: exists already"):
        restore_from_trash(tmp_path, entries[0])
    (tmp_path / "step_1.pt").rename(tmp_path / "kept.pt")
    assert {path.name for path in restore_from_trash(tmp_path, entries[0])} == {"step_1.pt", "step_1.pt.sha256"}
    assert torch.load(tmp_path / "step_1.pt")["w"] == 1


def test_restore_looks_into_the_runs_below(tmp_path):
    trained(tmp_path / "a", 1, 2)
    trained(tmp_path / "b", 1, 2)
    prune(tmp_path / "a", trash_for=timedelta(days=1))
    assert restore_from_trash(tmp_path, "step_1.pt") == (tmp_path / "a" / "step_1.pt",)
    prune(tmp_path, trash_for=timedelta(days=1))
    with pytest.raises(ExistsError, match="2 runs"):
        restore_from_trash(tmp_path, "step_1.pt")


def test_what_a_killed_prune_left_is_finished_and_what_is_newer_is_not(tmp_path):
    for rank in (0, 1):
        saved(tmp_path / f"ckpt_step1_rank_{rank}.pt", 1)
        saved(tmp_path / f"ckpt_step2_rank_{rank}.pt", 2)
    with Pruning([tmp_path], Settings(policy=LAST), NOW) as pruning:
        directory = pruning._opened[tmp_path]
        time.sleep(0.02)
        trashes.discard(directory, ["ckpt_step1_rank_0.pt"], NOW, for_good=True)
        assert [name for name, _ in trashes.leftovers(directory)] == ["ckpt_step1_rank_1.pt"]
        saved(tmp_path / "ckpt_step1_rank_1.pt", 1)
        assert trashes.leftovers(directory) == ()


def test_nothing_is_created_on_a_full_disk(tmp_path, monkeypatch):
    of_trainer(tmp_path, 10, 20)

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    real = os.open

    def open_existing(path, flags, *arguments, **options):
        return full() if flags & os.O_CREAT else real(path, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", open_existing)
    for name in ("mkdir", "write", "pwrite", "link", "symlink", "ftruncate", "posix_fallocate"):
        monkeypatch.setattr(os, name, full)
    prune(tmp_path)
    assert names(tmp_path) == ["checkpoint-20"]


def test_a_directory_that_has_no_room_for_a_longer_name(tmp_path, monkeypatch):
    trained(tmp_path, 1, 2, 3, 4)
    real, calls = os.rename, []

    def rename(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(*arguments, **options)

    monkeypatch.setattr(os, "rename", rename)
    prune(tmp_path)
    assert names(tmp_path) == ["step_4.pt"]
    assert len(calls) == 4


def test_what_a_network_file_system_holds_is_tried_again_and_then_reported(tmp_path, monkeypatch):
    of_trainer(tmp_path, 10, 20)
    (tmp_path / "checkpoint-10" / ".nfs0001").touch()
    age(tmp_path / "checkpoint-10")
    real, tries = os.unlink, []

    def unlink(name, **options):
        if name == ".nfs0001":
            tries.append(name)
            if len(tries) < limit:
                raise OSError(errno.EBUSY, "Device or resource busy")
        real(name, **options)

    monkeypatch.setattr(os, "unlink", unlink)
    monkeypatch.setattr("time.sleep", lambda _: None)
    limit = 99
    report = apply_after(tmp_path, lambda: None)
    assert "Device or resource busy; the rest of it lies in .ckptctl-trash-" in report.errors[0]
    assert names(next(tmp_path.glob(".ckptctl-trash-*"))) == [".nfs0001"]
    limit = len(tries) + 2
    (report,) = prune(tmp_path)
    assert report.emptied == ("checkpoint-10",)
    assert names(tmp_path) == ["checkpoint-20"]
