"""Runs of every framework: steps, epochs, metrics and pointers are those that it recorded."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from ckptctl.errors import UnreadableError, UsageError
from ckptctl.model.run import State
from ckptctl.runs import find_checkpoints, find_runs
from tests.samples import CORPUS

TRAINER = CORPUS / "transformers" / "trainer_run" / "checkpoint-40"


def steps(infos):
    return [info.step.value if info.step else None for info in infos]


def test_a_trainers_run_has_steps_epochs_and_metrics_from_its_newest_state():
    infos = find_checkpoints(CORPUS / "transformers" / "trainer_run")
    history = json.loads((TRAINER / "trainer_state.json").read_text())["log_history"]
    losses = {row["step"]: row["eval_loss"] for row in history if "eval_loss" in row}
    assert steps(infos) == [10, 20, 30, 40]
    assert [info.metrics["eval_loss"] for info in infos] == [losses[step] for step in (10, 20, 30, 40)]
    assert [info.epoch.value for info in infos] == [0.625, 1.25, 1.875, 2.5]
    assert all(info.complete for info in infos)
    assert infos[0].nbytes == sum(path.stat().st_size for path in infos[0].path.iterdir())
    assert infos[0].saved_at.utcoffset().total_seconds() == 0


def test_the_best_checkpoint_of_a_trainer_is_pointed_at():
    infos = find_checkpoints(CORPUS / "transformers" / "trainer_best_limit2")
    assert [(info.step.value, info.pointers) for info in infos] == [(10, ("best",)), (40, ())]


@pytest.mark.parametrize("layout", ["run_plain_names", "run_zero_padded"])
def test_hand_written_names_are_ordered_as_numbers_with_metrics_from_beside(layout):
    (run,) = find_runs(CORPUS / "safetensors" / layout)
    assert steps(run.checkpoints) == sorted(steps(run.checkpoints))
    assert steps(run.checkpoints)[:3] == [1000, 2000, 50000]
    assert run.checkpoints[0].metrics == {"train_loss": 1.016864, "val_loss": 1.11855}
    assert run.others == ()


def test_lightning_keeps_scores_and_best_in_the_callbacks_state():
    (run,) = find_runs(CORPUS / "lightning" / "top2_last_copy")
    assert run.title == "Lightning"
    assert [(i.step.value, i.epoch.value) for i in run.checkpoints] == [(10, 0), (20, 1)]
    assert [path.name for path in run.checkpoints[1].paths] == ["epoch=1-step=20.ckpt", "last.ckpt"]
    assert run.checkpoints[1].pointers == ("best",)
    assert [round(i.metrics["val_loss"], 3) for i in run.checkpoints] == [1.191, 1.183]


def test_metrics_in_names_are_read_and_version_marks_are_no_steps(tmp_path):
    source = CORPUS / "lightning" / "weights_only"
    (file,) = source.rglob("*.ckpt")
    for name in ("epoch=3-step=40-val_loss=2.31.ckpt", "epoch=3-step=40-val_loss=2.31-v1.ckpt"):
        shutil.copyfile(file, tmp_path / name)
    (info,) = find_checkpoints(tmp_path)
    assert len(info.paths) == 2
    assert info.metrics["val_loss"] == 2.31


def test_a_link_is_a_pointer_and_a_dangling_one_is_known(tmp_path):
    source = CORPUS / "lightning" / "top2_last_copy" / "checkpoints"
    shutil.copyfile(source / "epoch=0-step=10.ckpt", tmp_path / "epoch=0-step=10.ckpt")
    (tmp_path / "last.ckpt").symlink_to("epoch=0-step=10.ckpt")
    (tmp_path / "best.ckpt").symlink_to("epoch=9-step=90.ckpt")
    (run,) = find_runs(tmp_path)
    assert [path.name for path in run.checkpoints[0].paths] == ["epoch=0-step=10.ckpt"]
    assert "last.ckpt" in run.checkpoints[0].pointers
    assert {p.name: p.dangling for p in run.pointers if p.name.endswith(".ckpt")} == {
        "best.ckpt": True, "last.ckpt": False,
    }  # fmt: skip


def test_deepspeed_steps_are_ordered_as_numbers_and_latest_is_a_pointer(tmp_path):
    source = CORPUS / "deepspeed" / "zero2_bf16_2ranks"
    for step in (10, 9, 100):
        shutil.copytree(source / "global_step10", tmp_path / f"global_step{step}")
    (tmp_path / "latest").write_text("global_step100\n")
    (run,) = find_runs(tmp_path)
    # All are copies of step 10: what stands inside outranks the name, and three directories stay three.
    assert steps(run.checkpoints) == [10, 10, 10]
    assert {i.path.name: i.pointers for i in run.checkpoints}["global_step100"] == ("latest",)


def test_megatron_and_orbax_and_keras_and_accelerate_names():
    (megatron,) = find_runs(CORPUS / "megatron")
    assert steps(megatron.checkpoints) == [100]
    assert megatron.checkpoints[0].pointers == ("latest_checkpointed_iteration.txt",)
    (orbax,) = find_runs(CORPUS / "orbax" / "manager")
    assert steps(orbax.checkpoints) == [20, 30]
    assert orbax.checkpoints[0].metrics == {"val_loss": 0.05}
    keras = {run.family: run for run in find_runs(CORPUS / "keras" / "model_checkpoint")}
    assert [i.epoch.value for i in keras["keras"].checkpoints] == [1, 2, 3, 4]
    assert keras["keras"].checkpoints[3].metrics == {"val_loss": 1.6206}
    (accelerate,) = find_runs(CORPUS / "accelerate" / "save_state_2ranks")
    assert steps(accelerate.checkpoints) == [1, 2]


def test_ranks_are_one_checkpoint_and_a_missing_one_is_named(tmp_path):
    (info,) = find_checkpoints(CORPUS / "fsdp" / "fsdp2_1d_4ranks")
    assert [path.name for path in info.paths] == [f"checkpoint-100-rank{rank}.pt" for rank in range(4)]
    (lost,) = find_checkpoints(CORPUS / "damaged" / "fsdp_rank_missing")
    assert lost.completeness.state is State.DAMAGED
    assert lost.completeness.why == ("checkpoint-100-rank2.pt is missing",)


def test_a_conversion_beside_its_source_shares_the_slot(tmp_path):
    shutil.copyfile(CORPUS / "torch_save" / "bare_state_dict.pth", tmp_path / "checkpoint-1000.pt")
    shutil.copyfile(
        CORPUS / "safetensors" / "run_plain_names" / "checkpoint-1000.safetensors",
        tmp_path / "checkpoint-1000.safetensors",
    )
    (info,) = find_checkpoints(tmp_path)
    assert [path.name for path in info.paths] == ["checkpoint-1000.pt", "checkpoint-1000.safetensors"]
    with (tmp_path / "checkpoint-1000.pt").open("r+b") as file:
        file.truncate(3000)
    (info,) = find_checkpoints(tmp_path)
    assert info.complete
    assert info.completeness.why[0].startswith("checkpoint-1000.pt: cut")


def test_a_save_in_progress_has_a_slot_of_its_own_and_its_step():
    infos = find_checkpoints(CORPUS / "damaged" / "run_with_faults")
    assert steps(infos) == [1000, 2000, 60000]
    assert [info.complete for info in infos] == [True, True, False]


def test_two_runs_in_one_directory_are_two_and_directories_of_runs_are_runs(tmp_path):
    for name in ("a-step_5.pt", "a-step_6.pt", "b-step_7.pt"):
        shutil.copyfile(CORPUS / "torch_save" / "bare_state_dict.pth", tmp_path / name)
    assert [(run.family, steps(run.checkpoints)) for run in find_runs(tmp_path)] == [
        ("a-step", [5, 6]),
        ("b-step", [7]),
    ]
    root = tmp_path / "root"
    for run in ("one", "two"):
        shutil.copytree(TRAINER, root / run / "checkpoint-40")
    assert [run.path.name for run in find_runs(root)] == ["one", "two"]


@pytest.mark.parametrize(
    "name",
    [
        "step-100.backup",
        "step-best",
        "step-1_0",
        "step-+7",
        "step-٤٠",
        "foo-step-200",
        "checkpoint-40-hf",
        "logs",
        "2024",
    ],
)
def test_names_that_do_not_match_in_full_are_not_taken(tmp_path, name):
    shutil.copytree(TRAINER, tmp_path / "checkpoint-40")
    (tmp_path / name).mkdir()
    (run,) = find_runs(tmp_path)
    assert [info.path.name for info in run.checkpoints] == ["checkpoint-40"]
    assert run.others == (name,)


def test_a_pattern_names_anything_else(tmp_path):
    for name in ("weights.17.final.pt", "weights.9.final.pt", "other.1.pt"):
        shutil.copyfile(CORPUS / "torch_save" / "bare_state_dict.pth", tmp_path / name)
    (run,) = find_runs(tmp_path, pattern=r"weights\.(?P<step>\d+)\.final\.pt")
    assert steps(run.checkpoints) == [9, 17]
    assert run.others == ("other.1.pt",)
    with pytest.raises(UsageError, match="no regular expression"):
        find_runs(tmp_path, pattern="(")


def test_pins_are_seen(tmp_path):
    for step in (1, 2, 3):
        shutil.copytree(TRAINER, tmp_path / f"checkpoint-{step}")
    (tmp_path / "checkpoint-1.keep").touch()
    (tmp_path / "checkpoint-2" / ".keep").touch()
    (run,) = find_runs(tmp_path)
    assert {info.path.name: info.pinned for info in run.checkpoints} == {
        "checkpoint-1": True, "checkpoint-2": True, "checkpoint-3": False,
    }  # fmt: skip
    assert run.others == ()


def test_pointers_never_lead_out(tmp_path):
    shutil.copytree(TRAINER, tmp_path / "run" / "checkpoint-40")
    (tmp_path / "run" / "latest").write_text("../../etc")
    os.symlink(tmp_path, tmp_path / "run" / "checkpoint-50")
    (run,) = find_runs(tmp_path / "run")
    assert [info.path.name for info in run.checkpoints] == ["checkpoint-40"]
    assert run.checkpoints[0].pointers == ()


def test_metrics_that_are_malformed_are_none_and_nan_is_a_number(tmp_path):
    shutil.copytree(TRAINER, tmp_path / "checkpoint-40")
    (tmp_path / "metrics.jsonl").write_text('{"step": 40, "acc": NaN}\n{"step": 40, "acc2": 1}\n{"step": 4\n[]\n"x"\n')
    (tmp_path / "metrics.csv").write_text("step,acc3\n40,2.5\nx,y\n1e999,3\n")
    metrics = find_checkpoints(tmp_path)[0].metrics
    assert metrics["acc"] != metrics["acc"]
    assert (metrics["acc2"], metrics["acc3"]) == (1, 2.5)


def test_there_must_be_a_directory(tmp_path):
    with pytest.raises(UnreadableError):
        find_checkpoints(tmp_path / "nothing")
    assert find_checkpoints(tmp_path) == ()


def test_a_long_history_is_read_once_and_its_metrics_still_found(tmp_path):
    for step in (10, 20, 30):
        target = tmp_path / f"checkpoint-{step}"
        shutil.copytree(TRAINER, target)
        state = json.loads((target / "trainer_state.json").read_text())
        rows = [{"step": i, "loss": 1.0, "epoch": 0.5} for i in range(2000)]
        state |= {
            "global_step": step,
            "log_history": rows + [{"step": s, "eval_loss": s / 10} for s in (10, 20, 30) if s <= step],
        }
        (target / "trainer_state.json").write_text(json.dumps(state, indent=2, sort_keys=True))
    infos = find_checkpoints(tmp_path)
    assert steps(infos) == [10, 20, 30]
    assert [info.metrics for info in infos] == [{"eval_loss": 1.0}, {"eval_loss": 2.0}, {"eval_loss": 3.0}]
    assert all(info.complete for info in infos)
