"""`prune` on what its first reader could make it lose."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from datetime import datetime, timedelta, timezone

import pytest
import safetensors.torch
import torch

from ckptctl.errors import PolicyError, UnreadableError
from ckptctl.ops.prune import Pruning, Settings, restore_from_trash
from ckptctl.retention import Policy
from ckptctl.runs import pointers
from ckptctl.storage.directory import Directory
from ckptctl.storage.removal import remove_tree
from tests.ops.test_prune import LAST, NOW, age, apply_after, names, of_trainer, plan_of, prune, reasons, saved, trained
from tests.samples import CORPUS

OLD = timedelta(hours=1)


# --- what something that stays leads into ---


def test_a_kept_checkpoint_that_leads_into_another_keeps_it(tmp_path):
    of_trainer(tmp_path, 10, 20, 30, 40)
    for target, source in ((40, 30), (30, 10)):
        weights = tmp_path / f"checkpoint-{target}" / "model.safetensors"
        weights.unlink()
        weights.symlink_to(f"../checkpoint-{source}/model.safetensors")
    for step in (10, 20, 30):
        age(tmp_path / f"checkpoint-{step}")
    found = reasons(tmp_path)
    assert found["checkpoint-30"][0] == "keep"
    assert found["checkpoint-10"] == ("keep", "checkpoint-30/model.safetensors leads into it")
    assert found["checkpoint-20"] == ("delete",)


def test_so_does_any_other_directory_of_the_run_and_a_link_beside_it(tmp_path):
    run = trained(tmp_path / "run", 1, 2, 3, 4)
    (run / "export").mkdir()
    (run / "export" / "weights.pt").symlink_to("../step_1.pt")
    (tmp_path / "production").symlink_to("run/step_2.pt")
    found = reasons(run)
    assert found["step_1.pt"] == ("keep", "export/weights.pt leads into it")
    assert found["step_2.pt"] == ("keep", "../production")
    assert found["step_3.pt"] == ("delete",)


@pytest.mark.parametrize(
    "text",
    [
        "step_1.pt/", "/x/y/step_1.pt/", "C:\\runs\\step_1.pt", "\ufeffstep_1.pt\r\n", "note\n/x/step_1.pt\n",
        "/" + "x" * 300 + "/step_1.pt",
    ],
)  # fmt: skip
def test_latest_may_be_written_anyhow(tmp_path, text):
    trained(tmp_path, 1, 2, 3)
    (tmp_path / "latest").write_text(text)
    assert reasons(tmp_path)["step_1.pt"] == ("keep", "latest")


def test_latest_may_name_bytes(tmp_path):
    trained(tmp_path, 2, 3)
    name = os.fsencode(tmp_path) + b"/step\xff_1"
    os.mkdir(name)  # a name of bytes
    (tmp_path / "latest").write_bytes(b"/elsewhere/step\xff_1\n")
    assert plan_of(tmp_path)[0].groups[0].run.pointers[0].target == os.fsdecode(b"step\xff_1")


def test_links_from_another_mount_count_by_name(tmp_path):
    trained(tmp_path, 1, 2, 3)
    (tmp_path / "best").symlink_to("/mnt/elsewhere/run/step_1.pt")
    assert reasons(tmp_path)["step_1.pt"] == ("keep", "best")


def test_a_pointer_that_cannot_be_read_stops_it(tmp_path, monkeypatch):
    trained(tmp_path, 1, 2)
    (tmp_path / "latest").write_text("step_1.pt")
    real = pointers.open_file

    def denied(path, **more):
        if path.name == "latest":
            raise UnreadableError(f"{path}: Permission denied")
        return real(path, **more)

    monkeypatch.setattr(pointers, "open_file", denied)
    with pytest.raises(UnreadableError, match="latest may say which checkpoint counts, and cannot be read"):
        prune(tmp_path)


def resumed(path, *steps, best):
    """Checkpoints of the Trainer, the later ones saved later, with what each holds for the best."""
    for minutes, step in enumerate(steps):
        directory = path / f"checkpoint-{step}"
        shutil.copytree(CORPUS / "transformers" / "trainer_run" / "checkpoint-10", directory)
        state = json.loads((directory / "trainer_state.json").read_text())
        state |= {"global_step": step, "log_history": [], "best_model_checkpoint": best.get(step)}
        (directory / "trainer_state.json").write_text(json.dumps(state))
        for one in [directory, *directory.rglob("*")]:
            os.utime(one, (1e9 + 60 * minutes,) * 2)


def test_the_best_of_a_resumed_run_stays_too(tmp_path):
    resumed(tmp_path, 60, 80, 100, 65, 75, best={100: "out/checkpoint-60", 75: "out/checkpoint-65"})
    found = reasons(tmp_path)
    assert found["checkpoint-60"] == ("keep", "best")
    assert found["checkpoint-65"] == ("keep", "best")
    assert found["checkpoint-80"] == ("delete",)


def test_a_record_without_a_best_wipes_out_none_and_the_runs_own_counts(tmp_path):
    resumed(tmp_path, 10, 20, 30, 40, best={20: "out/checkpoint-10"})
    (tmp_path / "trainer_state.json").write_text(json.dumps({"best_model_checkpoint": "x/checkpoint-20"}))
    found = reasons(tmp_path)
    assert [step for step, why in found.items() if why == ("keep", "best")] == ["checkpoint-10", "checkpoint-20"]


# --- what is inside ---


@pytest.mark.parametrize(
    "inner",
    [
        "sub/step_100.pt", "lightning_logs/version_0/checkpoints/epoch=1-step=9.ckpt", "step_100.pt", "ft/iter_0000100/x",
        "ft/epoch_3/x", "ft/chkpt-100/x", "ft/model_100/x", "ft/200/x", "ft/global_step100/x",
    ],
)  # fmt: skip
def test_nested_runs_stay(tmp_path, inner):
    of_trainer(tmp_path, 10, 20)
    path = tmp_path / "checkpoint-10" / inner
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    age(tmp_path / "checkpoint-10")
    assert "may be a checkpoint of another run" in reasons(tmp_path)["checkpoint-10"][1]


def test_what_belongs_to_a_checkpoint_goes_with_it(tmp_path):
    of_trainer(tmp_path, 10, 20)
    for number in (0, 1):
        shutil.copyfile(
            tmp_path / "checkpoint-10" / "rng_state.pth", tmp_path / "checkpoint-10" / f"rng_state_{number}.pth"
        )
    source = CORPUS / "deepspeed" / "zero2_bf16_2ranks"
    shutil.copytree(source / "global_step10", tmp_path / "checkpoint-10" / "global_step10")
    (tmp_path / "checkpoint-10" / "latest").write_text("global_step10")
    age(tmp_path / "checkpoint-10")
    assert reasons(tmp_path)["checkpoint-10"] == ("delete",)


def test_what_is_not_known_is_never_removed(tmp_path):
    trained(tmp_path, 2, 3)
    (tmp_path / "step_1.pt").write_bytes(b"who knows what this is" * 9)
    os.utime(tmp_path / "step_1.pt", (1, 1))
    policy = Policy(last=9, best=0, anchor_every=0, remove_incomplete=OLD)
    assert reasons(tmp_path, policy)["step_1.pt"][0] == "skip"


# --- all or nothing ---


def test_ranks_are_renamed_together_or_not_at_all(tmp_path, monkeypatch):
    for step in (1, 2):
        for rank in range(4):
            saved(tmp_path / f"ckpt_step{step}_rank_{rank}.pt", step)
    before = names(tmp_path)
    real = os.rename

    def rename(old, new, **options):
        if old == "ckpt_step1_rank_2.pt":
            raise PermissionError(errno.EPERM, "Operation not permitted")
        real(old, new, **options)

    monkeypatch.setattr(os, "rename", rename)
    report = apply_after(tmp_path, lambda: None)
    assert report.errors == ("ckpt_step1_rank_0.pt: Operation not permitted; left alone",)
    assert names(tmp_path) == before
    assert (report.count, report.freed) == (0, 0)


def test_a_full_disk_is_tried_again_for_each_checkpoint(tmp_path, monkeypatch):
    for step in (1, 2, 3):
        for rank in range(3):
            saved(tmp_path / f"ckpt_step{step}_rank_{rank}.pt", step)
    real, calls = os.rename, []

    def rename(old, new, **options):
        calls.append(old)
        if len(calls) == 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(old, new, **options)

    monkeypatch.setattr(os, "rename", rename)
    prune(tmp_path)
    assert names(tmp_path) == [f"ckpt_step3_rank_{rank}.pt" for rank in range(3)]


def test_a_long_name_is_no_obstacle_but_for_the_trash(tmp_path):
    long = f"{'x' * 230}_step_"
    for step in (1, 2):
        path = saved(tmp_path / f"{long}{step}.pt", step)
        path.with_name(f"{path.name}.sha256").write_text("0" * 64)
    report = apply_after(tmp_path, lambda: None)
    assert (report.errors, report.count) == ((), 1)
    assert len(names(tmp_path)) == 2
    saved(tmp_path / f"{long}1.pt", 1)
    os.utime(tmp_path / f"{long}1.pt", (1, 1))
    with Pruning([tmp_path], Settings(policy=LAST, trash_for=OLD), NOW) as pruning:
        report = pruning.apply(pruning.plans[0])
    assert "File name too long; left alone" in report.errors[0]
    assert (tmp_path / f"{long}1.pt").exists()


# --- output that takes no more ---


@pytest.mark.parametrize("output", ["full", "closed"])
def test_an_output_that_takes_no_more_stops_no_prune(tmp_path, output):
    run = trained(tmp_path / "run", 1, 2, 3)
    command = [sys.executable, "-m", "ckptctl", "prune", run, "--keep-last", "1"]
    reader, writer = os.pipe()
    os.close(reader)
    full = os.open("/dev/full", os.O_WRONLY)
    out = full if output == "full" else writer
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    os.close(full)
    assert done.returncode == 0
    assert (b"could not be printed" in done.stderr) == (output == "full")
    assert names(run) == ["step_3.pt"]


# --- several runs ---


def test_one_directory_by_two_names_is_one(tmp_path):
    run = trained(tmp_path / "run", 1, 2)
    (tmp_path / "current").symlink_to("run")
    with Pruning([run, tmp_path / "current", run / "."], Settings(policy=LAST, wait=True), NOW) as pruning:
        assert len(pruning.plans) == 1
        assert pruning.errors == []


def test_what_cannot_be_looked_at_stops_only_its_own_run(tmp_path, monkeypatch):
    trained(tmp_path / "a", 1, 2)
    trained(tmp_path / "b", 1, 2)
    real = os.scandir

    def scandir(path="."):
        if str(path) == str(tmp_path / "a"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with Pruning([tmp_path / "a", tmp_path / "b"], Settings(policy=LAST), NOW) as pruning:
        assert [plan.path.name for plan in pruning.plans] == ["b"]
        assert [type(error) for error in pruning.errors] == [UnreadableError]


def test_more_runs_than_a_process_may_open_by_default(tmp_path):
    for number in range(60):
        trained(tmp_path / f"r{number}", 1, 2)
    code = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (40, {resource.getrlimit(resource.RLIMIT_NOFILE)[1]}))
from ckptctl.cli.app import main
sys.exit(main(["prune", {str(tmp_path)!r}, "--keep-last", "1", "--quiet"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(names(path) == ["step_2.pt"] for path in tmp_path.iterdir())


def test_a_run_of_nothing_whole_is_wrong(tmp_path):
    for step in (1, 2):
        path = saved(tmp_path / f"step_{step}.pt", step)
        path.write_bytes(path.read_bytes()[:-90])
    (plan,) = plan_of(tmp_path)  # the first save may still be going on
    assert "no save has reached its end yet" in plan.groups[0].notices[0]
    with pytest.raises(PolicyError, match="no complete checkpoint is here"):
        prune(tmp_path, now=NOW + 2 * OLD)


# --- rules ---


def test_a_declared_metric_that_is_not_recorded_yet_is_waited_for(tmp_path):
    resumed(tmp_path, 10, 20, 30, best={})
    source = CORPUS / "transformers" / "trainer_best_limit2" / "checkpoint-40" / "training_args.bin"
    for path in tmp_path.iterdir():
        shutil.copyfile(source, path / "training_args.bin")
    (plan,) = plan_of(tmp_path, Policy(last=1))
    assert plan.victims == ()
    assert "not recorded yet" in plan.groups[0].notices[0]
    assert plan_of(tmp_path, Policy(last=1, best=0))[0].victims


def test_metrics_that_cannot_be_read_are_no_missing_metrics(tmp_path, monkeypatch):
    trained(tmp_path, 1, 2, 3)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "val_loss": 1}\n')
    monkeypatch.setattr("ckptctl.runs.metrics._MOST_BYTES", 5)
    with pytest.raises(PolicyError, match="are more than are read"):
        prune(tmp_path, Policy(last=1))
    assert len(plan_of(tmp_path, LAST)[0].victims) == 2


def test_rules_that_have_nothing_to_go_by_delete_nothing(tmp_path):
    for epoch in (1, 2, 3):
        saved(tmp_path / f"epoch_{epoch}.pt")
    for policy in (
        Policy(last=0, best=0, anchor_every=2),
        Policy(last=0, best=0, anchor_every=0, steps=frozenset({1})),
    ):
        with pytest.raises(PolicyError, match="no rule that was given applies"):
            prune(tmp_path, policy)


def test_steps_are_never_compared_with_epochs(tmp_path):
    for epoch in range(1, 9):
        path = saved(tmp_path / f"epoch_{epoch}.pt", **({"step": 1000 * epoch} if epoch < 6 else {}), epoch=epoch)
        os.utime(path, (1e9 + epoch, 1e9 + epoch))
    found = reasons(tmp_path, Policy(last=2, best=0, anchor_every=0))
    assert [name for name, why in found.items() if why[0] == "keep"] == ["epoch_7.pt", "epoch_8.pt"]


def test_what_waits_for_its_metric_may_have_a_lower_step(tmp_path):
    trained(tmp_path, 10, 20, 30, 15, 25)
    for minutes, step in enumerate((10, 20, 30, 15, 25)):
        os.utime(tmp_path / f"step_{step}.pt", (1e9 + minutes, 1e9 + minutes))
    rows = "".join(f'{{"step": {step}, "val_loss": {step}}}\n' for step in (10, 20, 30))
    (tmp_path / "metrics.jsonl").write_text(rows)
    found = reasons(tmp_path, Policy(last=1, anchor_every=0, best=1, metric="val_loss"))
    assert found["step_15.pt"] == ("keep", "not measured yet (val_loss)")
    assert "not measured yet (val_loss)" in found["step_25.pt"]
    assert found["step_20.pt"] == ("delete",)


def test_odd_clocks_and_numbers(tmp_path):
    trained(tmp_path, 1, 2)
    os.utime(tmp_path / "step_1.pt", (1e12, 1e12))
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1, "val_loss": 1{"0" * 5000}}}\n{{"step": 2, "val_loss": 1}}\n')
    assert reasons(tmp_path, Policy(last=1, anchor_every=0))["step_1.pt"][0] == "keep"


def test_a_metric_turned_round_is_kept_at_both_ends(tmp_path):
    trained(tmp_path, 1, 2, 3)
    rows = "".join(f'{{"step": {step}, "neg_loss": {step}}}\n' for step in (1, 2, 3))
    (tmp_path / "metrics.jsonl").write_text(rows)
    (plan,) = plan_of(tmp_path, Policy(last=1, best=1, anchor_every=0, metric="neg_loss"))
    assert "both ends" in plan.groups[0].notices[0]


def test_a_copy_counts_with_what_it_is_a_copy_of(tmp_path):
    for step in (20, 40, 60):
        torch.save(
            {"global_step": step, "epoch": 1, "state_dict": {"w": torch.ones(5)}}, tmp_path / f"step={step - 1}.ckpt"
        )
    shutil.copyfile(tmp_path / "step=59.ckpt", tmp_path / "last.ckpt")
    (plan,) = plan_of(tmp_path)
    assert [len(one.checkpoint.paths) for one in plan.groups[0].decisions] == [1, 1, 2]


# --- the trash ---


def test_both_formats_of_a_step_come_back_together(tmp_path):
    trained(tmp_path, 1, 2)
    safetensors.torch.save_file({"w": torch.ones(3)}, tmp_path / "step_1.safetensors")
    (tmp_path / "step_1.sha256").write_text("0" * 64)
    os.utime(tmp_path / "step_1.safetensors", (1, 1))
    prune(tmp_path, trash_for=OLD)
    assert [name for name in names(tmp_path) if not name.startswith(".")] == ["step_2.pt"]
    restore_from_trash(tmp_path, "step_1.pt")
    assert names(tmp_path) == ["step_1.pt", "step_1.safetensors", "step_1.sha256", "step_2.pt"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_nothing_mounted_in_the_trash_is_emptied(tmp_path):
    of_trainer(tmp_path, 10, 20)
    outside = tmp_path.parent / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    age(tmp_path / "checkpoint-10")
    prune(tmp_path, trash_for=OLD)
    trash = next(path for path in tmp_path.iterdir() if path.name.startswith(".ckptctl-trash-"))
    (trash / "data").mkdir()
    for name in ("a", "z"):  # found before the mount, or after it
        (trash / name).symlink_to(outside)
    if subprocess.run(["mount", "--bind", outside, trash / "data"], check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        with Pruning([tmp_path], Settings(policy=LAST), datetime.now(tz=timezone.utc) + 2 * OLD) as pruning:
            report = pruning.apply(pruning.plans[0])
        assert "mounted" in report.errors[0]
        assert report.emptied == ()
        assert (outside / "precious").exists()
    finally:
        subprocess.run(["umount", trash / "data"], check=True)
    with Directory(tmp_path) as directory:
        assert remove_tree(directory, trash.name) > 0
