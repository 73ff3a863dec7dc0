"""Faults that people reported, as far as `inspect` and `convert` answer them."""

from __future__ import annotations

import json
import sys
import warnings

import pytest

from tests.samples import HERE, read

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


def weights(path):
    from safetensors.numpy import load_file

    return load_file(path)


def test_c01_tied_weights_convert_and_both_names_can_be_read(case, ckptctl):
    directory = case("C01")
    result = ckptctl("convert", directory / "pytorch_model.bin")
    assert result.status == 0
    assert "tied: lm_head.weight → embed.weight" in result.out
    assert set(weights(directory / "model.safetensors")) == {"embed.weight", "mid.weight"}
    assert read(directory / "model.safetensors").metadata["lm_head.weight"] == "embed.weight"


def test_c04_views_are_packed_row_by_row(case, ckptctl):
    import torch

    directory = case("C04")
    assert ckptctl("convert", directory / "m.pt").status == 0
    original = torch.load(directory / "m.pt")
    found = weights(directory / "m.safetensors")
    assert all((found[name] == tensor.numpy()).all() for name, tensor in original.items())
    assert found["conv"].shape == (2, 3, 2, 2)


def test_c05_only_the_weights_and_a_stray_dict_is_reported(case, ckptctl):
    directory = case("C05")
    (path,) = directory.iterdir()
    result = ckptctl("convert", path, "--only", "model")
    assert result.status == 0
    found = weights(directory / "epoch=76-step=38576.safetensors")
    assert set(found) == {"unet.w", "clip.w"}
    assert "state_dict, a dict among the weights (1 tensor)" in result.out
    assert "optimizer (1 tensor)" in result.out


def test_c07_a_sparse_tensor_is_named_and_nothing_is_left(case, ckptctl):
    directory = case("C07")
    result = ckptctl("convert", directory / "m.pt")
    assert result.status == 2
    assert "adj: a sparse tensor (sparse_coo)" in result.err
    assert [path.name for path in directory.iterdir()] == ["m.pt"]
    assert ckptctl("convert", directory / "m.pt", "--densify").status == 0
    assert weights(directory / "m.safetensors")["adj"].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_c08_a_cast_leaves_integers_and_masks_alone(case, ckptctl):
    directory = case("C08")
    assert ckptctl("convert", directory / "m.pt", "--dtype", "f16").status == 0
    found = weights(directory / "m.safetensors")
    assert [found[name].dtype.name for name in ("w", "ids", "mask")] == ["float16", "int64", "bool"]
    assert found["ids"].tolist() == [16777217, 3]


def test_c10_prefixes_are_stripped_however_nested(case, ckptctl):
    directory = case("C10")
    options = ("--strip-prefix", "module.", "--strip-prefix", "_orig_mod.")
    result = ckptctl("convert", directory / "m.pt", *options)
    assert set(weights(directory / "m.safetensors")) == {"fc.weight", "fc.bias", "enc.module.w"}
    assert "renamed: 3 tensors" in result.out


def test_c13_metadata_is_carried_over_and_has_a_format(case, ckptctl):
    directory = case("C13")
    for name in ("plain", "withmeta"):
        assert (
            ckptctl("convert", directory / f"{name}.safetensors", "-o", directory / f"{name}2.safetensors").status == 0
        )
    assert read(directory / "plain2.safetensors").metadata == {"format": "pt"}
    assert read(directory / "withmeta2.safetensors").metadata == {"format": "pt", "author": "someone"}


def test_c18_weights_beside_an_unknown_class(case, ckptctl):
    directory = case("C18")
    refused = ckptctl("convert", directory / "last.ckpt")
    assert refused.status == 2
    assert "acme_cfg.TrainConfig (foreign)" in refused.err
    assert ckptctl("convert", directory / "last.ckpt", "--only", "model").status == 0
    assert set(weights(directory / "last.safetensors")) == {"net.w"}


def test_c21_the_same_bytes_every_time(case, ckptctl):
    directory = case("C21")
    made = set()
    for number in range(3):
        ckptctl("convert", directory / "m.pt", "-o", directory / f"{number}.safetensors")
        made.add((directory / f"{number}.safetensors").read_bytes())
    assert len(made) == 1


def test_i11_a_call_is_not_converted(case, ckptctl, monkeypatch):
    directory = case("I11")
    monkeypatch.chdir(directory)
    assert ckptctl("convert", "model.bin").status == 2
    assert [path.name for path in directory.iterdir()] == ["model.bin"]


def test_v05_shards_that_are_not_all_there_are_not_converted(case, ckptctl, tmp_path):
    directory = case("V05")
    result = ckptctl("convert", next(directory.rglob("*.index.json")).parent, "-o", tmp_path / "x.pt")
    assert result.status == 2
    assert "is missing" in result.err
    assert not (tmp_path / "x.pt").exists()


def test_v13_weights_that_were_never_gathered_are_not_called_good(case, ckptctl, tmp_path):
    (path,) = [p for p in case("V13").rglob("*") if p.is_file() and p.suffix in (".bin", ".safetensors", ".pt")]
    result = ckptctl("convert", path, "-o", tmp_path / "out.pt")
    assert result.status == 2
    assert "empty placeholders" in result.err


def test_i06_only_what_a_view_shows_is_written(case, ckptctl):
    directory = case("I06")
    assert ckptctl("convert", directory / "slice.pt").status == 0
    assert sum(t.nbytes for t in read(directory / "slice.safetensors").tensors.values()) == 320


def test_d01_nan_equals_nan(case, ckptctl):
    directory = case("D01")
    assert ckptctl("diff", directory / "a.pt", directory / "b.pt").status == 0
    result = ckptctl("diff", directory / "a.pt", directory / "c.pt", "--json")
    (one,) = json.loads(result.out)["diff"]["tensors"]
    assert (result.status, one["measures"]["nan"], one["measures"]["infinite"]) == (1, 1, 1)


def test_d02_a_rounded_copy_is_told_from_a_changed_one(case, ckptctl):
    directory = case("D02")
    command = ("diff", directory / "a.safetensors", directory / "b.safetensors")
    result = ckptctl(*command, "--json")
    found = {
        one["name"]: (one["kind"], one["measures"]["changed"]) for one in json.loads(result.out)["diff"]["tensors"]
    }
    assert (result.status, found) == (1, {"w": ("rounded", 0), "v": ("dtype", 1)})
    assert ckptctl(*command, "--dtype-tolerant").status == 1
    assert ckptctl(*command, "--dtype-tolerant", "--include", "w").status == 0


def test_d04_the_same_weights_saved_twice(case, ckptctl):
    directory = case("D04")
    result = ckptctl("diff", directory / "first.pt", directory / "second.pt")
    assert result.status == 0
    assert result.out.splitlines()[1].startswith("  the two files are not byte-identical")


def test_d06_a_file_and_the_shards_of_it(case, ckptctl):
    directory = case("D06")
    result = ckptctl("diff", directory / "pytorch_model.bin", directory / "sharded")
    assert (result.status, result.out.splitlines()[0]) == (0, "equal: 2 tensors (44 B), bit for bit")


def test_v05_shards_that_are_not_all_there_are_not_compared(case, ckptctl):
    directory = next(case("V05").rglob("*.index.json")).parent
    result = ckptctl("diff", directory, directory)
    assert (result.status, result.out) == (2, "")
    assert "model-00002-of-00002.safetensors is missing" in result.err
