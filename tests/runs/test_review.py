"""Runs that a reviewer found answered wrongly."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from ckptctl.errors import UnknownFormatError, UsageError
from ckptctl.model.run import State
from ckptctl.ops.inspect.run import inspect_runs
from ckptctl.runs import find_checkpoints, find_runs
from tests.samples import CORPUS

TRAINER = CORPUS / "transformers" / "trainer_run" / "checkpoint-40"
WEIGHTS = {"model": {"w": torch.ones(9)}}


def rows(path, **options):
    return [([p.name for p in info.paths], info.step and info.step.value) for info in find_checkpoints(path, **options)]


def states(path):
    return {info.path.name: info.completeness.state for info in find_checkpoints(path)}


def test_equal_steps_of_different_epochs_are_different_checkpoints(tmp_path):
    for epoch in (1, 2, 10):
        torch.save({**WEIGHTS, "step": 500, "epoch": epoch}, tmp_path / f"model_epoch{epoch}.pth")
    assert [names for names, _ in rows(tmp_path)] == [["model_epoch1.pth"], ["model_epoch2.pth"], ["model_epoch10.pth"]]
    (tmp_path / "model_epoch2.pth").write_bytes((tmp_path / "model_epoch2.pth").read_bytes()[:400])
    assert [info.epoch.value for info in find_checkpoints(tmp_path)] == [1, 2, 10]


@pytest.mark.parametrize("lost", ["state", "state/d", "state/manifest.ocdbt"])
def test_orbax_items_that_lost_their_data_are_damaged(tmp_path, lost):
    shutil.copytree(CORPUS / "orbax" / "manager" / "30", tmp_path / "30")
    target = tmp_path / "30" / lost
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink()
    if lost == "state/d":
        target.mkdir()
    assert states(tmp_path) == {"30": State.DAMAGED}


def test_the_trainer_over_deepspeed_without_its_states_is_damaged(tmp_path):
    shutil.copytree(TRAINER, tmp_path / "checkpoint-40")
    for name in ("optimizer.pt", "scheduler.pt"):
        (tmp_path / "checkpoint-40" / name).unlink()
    (tmp_path / "checkpoint-40" / "latest").write_text("global_step40")
    (info,) = find_checkpoints(tmp_path)
    assert info.completeness.why == ("global_step40 is missing, though latest names it",)


def test_deepspeed_without_any_optimizer_states_is_damaged(tmp_path):
    for stage, whole in (("zero3_bf16_2ranks", False), ("zero0_fp32_2ranks", True)):
        shutil.copytree(CORPUS / "deepspeed" / stage / "global_step10", tmp_path / stage / "global_step10")
        for path in (tmp_path / stage).glob("*/*optim_states.pt"):
            path.unlink()
        assert find_checkpoints(tmp_path / stage)[0].complete is whole


@pytest.mark.parametrize("lost", ["common.pt", "metadata.json"])
def test_megatron_without_one_of_its_files_is_damaged(tmp_path, lost):
    shutil.copytree(CORPUS / "megatron" / "iter_0000100", tmp_path / "iter_0000100")
    (tmp_path / "iter_0000100" / lost).unlink()
    assert states(tmp_path) == {"iter_0000100": State.DAMAGED}


def test_the_highest_rank_is_missed_where_siblings_have_it(tmp_path):
    for step in (100, 200):
        for rank in range(4):
            torch.save(WEIGHTS, tmp_path / f"checkpoint-{step}-rank{rank}.pt")
    (tmp_path / "checkpoint-200-rank3.pt").unlink()
    assert list(states(tmp_path).values()) == [State.WHOLE, State.UNKNOWN]
    # A restart on fewer machines that records its world size is whole.
    for rank in range(2):
        torch.save({**WEIGHTS, "world_size": 2, "rank": rank}, tmp_path / f"checkpoint-300-rank{rank}.pt")
    assert list(states(tmp_path).values()) == [State.WHOLE, State.UNKNOWN, State.WHOLE]


def test_ranks_are_grouped_by_name_and_the_runs_own_name_is_no_mark(tmp_path):
    run = tmp_path / "tmp-run"
    run.mkdir()
    for stem in ("checkpoint-100", "checkpoint-0100"):
        for rank in range(2):
            torch.save(WEIGHTS, run / f"{stem}-rank{rank}.pt")
    assert all(info.complete for info in find_checkpoints(run))
    torch.save(WEIGHTS, run / "checkpoint-7-rank0.pt.tmp")
    assert states(run)["checkpoint-7-rank0.pt.tmp"] is State.UNFINISHED


def test_data_files_that_were_never_written_are_damaged(tmp_path):
    shutil.copytree(CORPUS / "dcp" / "dcp_fsdp2_2ranks", tmp_path / "step-6")
    size = (tmp_path / "step-6" / "__0_0.distcp").stat().st_size
    (tmp_path / "step-6" / "__0_0.distcp").write_bytes(bytes(size))
    assert states(tmp_path) == {"step-6": State.DAMAGED}


def test_a_long_state_that_is_cut_behind_a_brace_is_unfinished(tmp_path):
    shutil.copytree(TRAINER, tmp_path / "checkpoint-40")
    path = tmp_path / "checkpoint-40" / "trainer_state.json"
    state = json.loads(path.read_text())
    state["log_history"] = [{"step": i, "loss": 1.0} for i in range(5000)]
    text = json.dumps(state, indent=2)
    path.write_text(text[: text.index("}", 90_000) + 1])
    assert states(tmp_path) == {"checkpoint-40": State.UNFINISHED}


def test_patterns_take_digits_before_the_suffix_and_refuse_what_is_none(tmp_path):
    for name in ("w-1.h5", "w-2.h5", "a-3.pt", "b-3.pt"):
        shutil.copyfile(CORPUS / "keras" / "files" / "sharded_00001.weights.h5", tmp_path / name)
    assert rows(tmp_path, pattern=r".*\.h5") == [(["w-1.h5"], 1), (["w-2.h5"], 2)]
    assert [run.family for run in find_runs(tmp_path, pattern=r".*\.pt")] == ["a", "b"]
    assert len(rows(tmp_path, pattern="(?P<step>.*)")) == 4
    for wrong in ("a{99999999999}", "(" * 5000):
        with pytest.raises(UsageError):
            find_runs(tmp_path, pattern=wrong)
    with pytest.raises(UnknownFormatError, match="--pattern"):
        inspect_runs(tmp_path, pattern="nothing")


def test_the_mark_of_an_unfinished_save_is_no_checkpoint_itself(tmp_path):
    torch.save(WEIGHTS, tmp_path / "ckpt-5.pt")
    (tmp_path / "ckpt-5.pt-unfinished").touch()
    assert states(tmp_path) == {"ckpt-5.pt": State.UNFINISHED}


def test_a_checkpoint_callback_without_a_monitor_has_no_best(tmp_path):
    callbacks = {
        "ModelCheckpoint{'monitor': None}": {"monitor": None, "best_model_path": "/x/epoch=2-step=30.ckpt"},
        "ModelCheckpoint{'monitor': 'val_loss'}": {
            "monitor": "val_loss", "best_model_path": "/x/epoch=0-step=10.ckpt",
            "best_k_models": {"/x/epoch=0-step=10.ckpt": torch.tensor(0.5)},
        },
    }  # fmt: skip
    for epoch, step in ((0, 10), (2, 30)):
        state = {"state_dict": {"w": torch.ones(3)}, "global_step": step, "epoch": epoch, "callbacks": callbacks}
        torch.save(state, tmp_path / f"epoch={epoch}-step={step}.ckpt")
    first, second = find_checkpoints(tmp_path)
    assert (first.pointers, first.metrics) == (("best",), {"val_loss": 0.5})
    assert second.pointers == ()


def test_a_diverged_run_keeps_its_checkpoints(tmp_path):
    for name in ("epoch=1-step=20-val_loss=nan.ckpt", "epoch=2-step=30-val-loss=inf.ckpt"):
        torch.save({"state_dict": {"w": torch.ones(3)}}, tmp_path / name)
    assert [step for _, step in rows(tmp_path)] == [20, 30]


def test_long_names_and_odd_pointers_do_not_stop_the_rest(tmp_path):
    torch.save(WEIGHTS, tmp_path / "checkpoint-1.pt")
    torch.save(WEIGHTS, tmp_path / f"{'a' * 235}-step-2.pt")
    (tmp_path / "latest").write_text("€" * 200)
    assert len(find_checkpoints(tmp_path)) == 2


def test_files_of_a_run_beside_a_final_model_are_a_run(tmp_path):
    shutil.copyfile(TRAINER / "model.safetensors", tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    assert inspect_runs(tmp_path) == ()
    for step in (100, 200):
        torch.save(WEIGHTS, tmp_path / f"checkpoint-{step}.pt")
    (report,) = inspect_runs(tmp_path)
    assert report.whole == 2


def test_an_empty_directory_is_as_old_as_itself(tmp_path):
    shutil.copytree(TRAINER, tmp_path / "checkpoint-40")
    (tmp_path / "checkpoint-50").mkdir()
    assert find_checkpoints(tmp_path)[-1].saved_at.year >= 2024


def test_a_byte_order_mark_does_not_hide_metrics(tmp_path):
    shutil.copytree(TRAINER, tmp_path / "checkpoint-40")
    (tmp_path / "metrics.csv").write_bytes(b"\xef\xbb\xbfstep,acc\n40,2.5\n")
    (run,) = find_runs(tmp_path)
    assert run.checkpoints[0].metrics["acc"] == 2.5
    assert run.others == ()


@pytest.mark.parametrize(
    "name", ["ckpt_epoch_{}_step_{}00.pt", "epoch{}_step{}00.pt", "run-epoch_{}-global_step{}00.ckpt"]
)
def test_names_with_epoch_and_step_are_one_run(tmp_path, name):
    for number in (1, 2, 10):
        torch.save(WEIGHTS, tmp_path / name.format(number, number))
    (run,) = find_runs(tmp_path)
    assert [(i.epoch.value, i.step.value) for i in run.checkpoints] == [(1, 100), (2, 200), (10, 1000)]


def test_a_run_that_may_not_be_read_does_not_hide_its_siblings(tmp_path, monkeypatch):
    from ckptctl import runs
    from ckptctl.errors import UnreadableError

    for run in ("a", "b"):
        shutil.copytree(TRAINER, tmp_path / run / "checkpoint-40")
    look = runs.look_into

    def denied(path, pattern):
        if path.name == "b":
            raise UnreadableError(f"{path}: permission denied")
        return look(path, pattern)

    monkeypatch.setattr(runs, "look_into", denied)
    first, second = find_runs(tmp_path)
    assert len(first.checkpoints) == 1
    assert (second.title, second.checkpoints) == ("not read: permission denied", ())


@pytest.mark.parametrize("text", ["./checkpoint-40", "{}/checkpoint-40\n", "checkpoint-40"])
def test_latest_may_name_a_path_in_its_own_directory(tmp_path, text):
    shutil.copytree(TRAINER, tmp_path / "checkpoint-40")
    (tmp_path / "latest").write_text(text.format(tmp_path))
    assert find_checkpoints(tmp_path)[0].pointers == ("latest",)
