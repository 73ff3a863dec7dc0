"""Faults that people reported, as far as `inspect` answers them."""

from __future__ import annotations

import sys
import warnings

import pytest

from tests.samples import HERE

sys.path.insert(0, str(HERE / "cases"))
import common
import open_cases  # noqa: F401  # registers the cases

from ckptctl.model.run import State
from ckptctl.runs import find_checkpoints, find_runs


@pytest.fixture
def case(tmp_path):
    """Make a reported case and return its directory."""

    def make(name):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.distributed says that it saves from one process
            common.REG[name]["fn"](tmp_path)
        return tmp_path

    return make


def test_i01_a_pointer_of_git_lfs_is_named_with_oid_and_size(case, ckptctl):
    result = ckptctl("inspect", case("I01") / "model.safetensors")
    assert result.status == 2
    assert "a Git LFS pointer, not the file" in result.err
    assert "4976698672 bytes" in result.err
    assert "sha256 4d7a" in result.err
    assert "hint: git lfs pull" in result.err


def test_i02_a_web_page_is_named_with_its_title(case, ckptctl):
    result = ckptctl("inspect", case("I02") / "weights.pth")
    assert result.status == 2
    assert "a web page, not a checkpoint (its title: Quota exceeded)" in result.err


def test_i10_options_beside_the_weights_do_not_hide_them(case, ckptctl):
    result = ckptctl("inspect", case("I10") / "ckpt.pth", "--tensors", "--values")
    assert result.status == 0
    assert "state_dict.fc.weight   F32     [3, 4]" in result.out
    assert "state_dict.fc.bias     F32     [3]" in result.out
    assert "not built: argparse.Namespace (inert, called 1×)" in result.out
    assert 'name: "run"' in result.out


def test_i11_a_call_is_named_and_not_made(case, ckptctl, monkeypatch):
    directory = case("I11")
    monkeypatch.chdir(directory)
    result = ckptctl("inspect", "model.bin", "--tensors")
    assert result.status == 0
    assert "unsafe: a loader would run posix.mkdir (dangerous, called 1×)" in result.out
    assert "state_dict.w" in result.out
    assert [path.name for path in directory.iterdir()] == ["model.bin"]


def test_i06_a_slice_of_a_large_table_shows_both_sizes(case, ckptctl):
    out = ckptctl("inspect", case("I06") / "slice.pt", "--tensors").out
    assert "rows   F32     [10, 8]     320" in out
    assert "320 of 320000 bytes are used, 99.9 % are dead" in out


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("V01", "cut at"), ("V02", "cut at"), ("V09", "belong to none"), ("V11", "needs"),
    ],
)  # fmt: skip
def test_files_that_verify_will_fail_are_refused_by_inspect_with_the_cause(case, ckptctl, name, words):
    (path,) = [p for p in case(name).iterdir() if p.is_file()]
    result = ckptctl("inspect", path)
    assert result.status == 2
    assert words in result.err


def test_v05_a_missing_shard_is_named(case, ckptctl):
    directory = case("V05")
    index = next(directory.rglob("*.index.json"))
    result = ckptctl("inspect", index.parent)
    assert result.status == 0
    assert "error: " in result.out
    assert "is missing" in result.out


def steps_of(directory):
    return [info.path.name for info in find_checkpoints(directory)]


def test_v16_a_save_that_lacks_what_its_siblings_have_is_unfinished(case):
    infos = find_checkpoints(case("V16"))
    assert [(info.path.name, info.complete) for info in infos] == [
        ("checkpoint-100", True), ("checkpoint-200", True), ("checkpoint-300", False),
    ]  # fmt: skip
    assert "trainer_state.json" in infos[2].completeness.why[0]


@pytest.mark.parametrize("name", ["V18", "L07"])
def test_v18_l07_a_distributed_save_without_metadata_never_committed(case, name):
    infos = {info.path.name: info for info in find_checkpoints(case(name))}
    assert infos["step-300"].completeness.state is State.UNFINISHED
    assert ".metadata" in infos["step-300"].completeness.why[0]
    assert all(info.complete for path, info in infos.items() if path != "step-300")


def test_l07_the_link_that_was_moved_too_early_is_known(case):
    infos = find_checkpoints(case("L07"))
    assert [(info.path.name, info.pointers) for info in infos] == [("step-200", ()), ("step-300", ("latest",))]


def test_p01_p03_steps_order_never_names_or_times(case):
    assert steps_of(case("P01")) == ["step_500", "step_2500", "step_9000", "step_10000"]


def test_p03_times_never_outrank_steps(case):
    assert steps_of(case("P03")) == [f"checkpoint-{step}" for step in (200, 400, 600, 800, 1000)]


def test_p12_only_full_matches_are_checkpoints_and_the_rest_is_listed(case):
    (run,) = find_runs(case("P12"))
    assert [info.path.name for info in run.checkpoints] == ["step-300", "step-400"]
    assert set(run.others) == {"step-100.backup", "foo-step-200", "step-300-hf", "step-best", "notes.txt"}


def test_p13_two_runs_under_one_root_stay_two(case):
    runs = find_runs(case("P13"))
    assert {run.path.name: [i.path.name for i in run.checkpoints] for run in runs} == {
        "runA": ["checkpoint-200", "checkpoint-300"], "runB": ["checkpoint-8000", "checkpoint-9000"],
    }  # fmt: skip


def test_p24_the_step_inside_decides_which_last_is_last(case):
    assert [(i.path.name, i.step.value) for i in find_checkpoints(case("P24"))] == [
        ("last.ckpt", 400),
        ("last-v1.ckpt", 900),
    ]


def test_k16_the_index_decides_and_the_other_set_is_not_counted(case, ckptctl):
    result = ckptctl("inspect", case("K16"), "--tensors")
    assert result.status == 0
    assert "2 tensors" in result.out
    assert "tok.a" not in result.out


def test_k19_the_directory_above_a_distributed_model_is_opened(case, ckptctl):
    result = ckptctl("inspect", case("K19") / "checkpoint-2000")
    assert result.status == 0
    assert "step 2,000 (trainer_state.json: global_step)" in result.out


def test_i09_the_old_format_is_named_and_listed(case, ckptctl):
    (path,) = [p for p in case("I09").iterdir() if p.is_file()]
    result = ckptctl("inspect", path, "--tensors")
    assert result.status == 0
    assert "torch legacy" in result.out
    assert "[3, 2]" in result.out
