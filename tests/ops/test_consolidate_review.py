"""What readers of `consolidate` found: results that looked right and were not, refusals that were wrong."""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

from ckptctl.errors import CkptctlError, CorruptError, UnsupportedError, UsageError
from ckptctl.layouts import open_checkpoint
from ckptctl.model import DTYPES, Component, Piece, TensorInfo
from ckptctl.ops.consolidate import Cuts, Options, Wanted, consolidate
from ckptctl.rewrite.checksums import Checksums
from ckptctl.storage import LocalFile
from ckptctl.tensors.gather import blocks, opened
from tests.samples import CORPUS

OPTIMIZERS = [
    *("dcp/dcp_no_dist", "dcp/dcp_fsdp2_2ranks", "dcp/dcp_fsdp2_4ranks"),
    *(
        "fsdp/fsdp1_sharded_tensor_2ranks",
        "fsdp/fsdp1_dtensor_4ranks",
        "fsdp/fsdp2_1d_2ranks",
        "fsdp/fsdp2_hsdp_4ranks",
    ),
    *("lightning/fabric_sharded", "accelerate/fsdp2_sharded_2ranks/checkpoint_0"),
]


def copied(name, tmp_path) -> Path:
    """A directory of the corpus, to be changed."""
    shutil.copytree(CORPUS / name, tmp_path / "source")
    return tmp_path / "source"


def edited(path, change) -> None:
    """Save a file of torch again, changed."""
    state = torch.load(path, weights_only=False)
    change(state)
    torch.save(state, path)


def save(state, directory) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is only one process
        dcp.save(state, checkpoint_id=directory, no_dist=True)


def truth_of(name) -> dict[str, torch.Tensor]:
    beside = CORPUS / f"{name.removesuffix('/checkpoint_0')}.expected.safetensors"
    return load_file(beside if beside.exists() else CORPUS / name / "expected.safetensors")


def equal(one, other) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.numpy().tobytes() == other.numpy().tobytes()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_optimizer_alone(name, tmp_path):
    report = consolidate(CORPUS / name, tmp_path / "o.safetensors", wanted=Wanted(only=Component.OPTIMIZER))
    made = load_file(tmp_path / "o.safetensors")
    truth = {key.removeprefix(f"{report.taken}."): one for key, one in truth_of(name).items() if ".exp_avg" in key}
    found = {key: one for key, one in made.items() if ".exp_avg" in key}
    shared = [key for key in found if key in truth]
    assert found
    assert all(equal(found[key], truth[key]) for key in shared)
    if name.startswith("dcp/"):
        assert found.keys() == truth.keys()


@pytest.mark.parametrize("name", ["dcp/dcp_fsdp2_2ranks", "fsdp/fsdp1_dtensor_2ranks", "lightning/fabric_sharded"])
def test_all_of_it_is_recognised_again(name, tmp_path):
    consolidate(CORPUS / name, tmp_path / "all.safetensors", wanted=Wanted(only=None))
    before, after = open_checkpoint(CORPUS / name), open_checkpoint(tmp_path / "all.safetensors")
    for component in (Component.MODEL, Component.OPTIMIZER):
        one, other = before.parts[component], after.parts[component]
        assert (one.prefix, one.tensors.keys()) == (other.prefix, other.tensors.keys())
    assert after.step.value == before.step.value


def test_two_models_of_accelerate_keep_their_names_apart(tmp_path):
    here = copied("accelerate/save_state_2ranks/checkpoints/checkpoint_2", tmp_path)
    first = load_file(here / "model.safetensors")
    second = {name: one + 1 for name, one in first.items()}
    save_file(second, here / "model_1.safetensors")
    torch.save({"stale": torch.zeros(1)}, here / "pytorch_model.bin")  # which accelerate passes over
    report = consolidate(here, tmp_path / "x.safetensors")
    assert report.ignored == ("pytorch_model.bin",)
    made = load_file(tmp_path / "x.safetensors")
    assert made.keys() == {*first, *(f"model_1.{name}" for name in first)}
    assert all(equal(made[name], one) and equal(made[f"model_1.{name}"], second[name]) for name, one in first.items())


def zero(tmp_path, name="zero2_bf16_2ranks") -> Path:
    return copied(f"deepspeed/{name}", tmp_path)


def test_tensor_parallelism_and_experts_of_deepspeed_are_refused(tmp_path):
    here = zero(tmp_path)
    states = next(here.glob("global_step*"))
    expert = states / "layer_0_expert_0_mp_rank_00_model_states.pt"
    torch.save({"w": torch.zeros(2)}, expert)
    with pytest.raises(UnsupportedError, match="experts lie in 1 file of their own"):
        consolidate(here, tmp_path / "x.safetensors")
    expert.unlink()
    for path in list(states.glob("*mp_rank_00*")):
        shutil.copy(path, states / path.name.replace("mp_rank_00", "mp_rank_01"))
    with pytest.raises(UnsupportedError, match="cut among 2 ranks of tensor parallelism"):
        consolidate(here, tmp_path / "x.safetensors")
    assert not (tmp_path / "x.safetensors").exists()


def test_two_steps_of_deepspeed_are_refused(tmp_path):
    here = zero(tmp_path, "zero3_bf16_2ranks")
    states = next(here.glob("global_step*"))
    path = states / "zero_pp_rank_1_mp_rank_00_model_states.pt"
    edited(path, lambda state: state.update(global_steps=20))
    with pytest.raises(CorruptError, match=r"of 10 global_steps, .* of 20: files of different saves"):
        consolidate(here, tmp_path / "x.safetensors")
    edited(path, lambda state: state.update(global_steps=10))
    path = states / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    raw = bytearray(path.read_bytes())
    tensors = open_checkpoint(path).parts.values()
    steps = [one for part in tensors for name, one in part.tensors.items() if name.endswith(".step")]
    assert steps
    for one in steps:
        at = one.pieces[0].range.offset
        raw[at : at + 4] = np.float32(20).tobytes()
    path.write_bytes(raw)
    with pytest.raises(CorruptError, match=r"of 10 steps of the optimizer, .* of 20"):
        consolidate(here, tmp_path / "x.safetensors")


def test_a_rank_of_deepspeed_with_two_files_is_refused(tmp_path):
    here = zero(tmp_path)
    path = next(here.glob("global_step*/bf16_zero_pp_rank_0_*"))
    shutil.copy(path, path.with_name(path.name.removeprefix("bf16_")))
    with pytest.raises(CorruptError, match="are both of one rank"):
        consolidate(here, tmp_path / "x.safetensors")


def test_states_of_deepspeed_under_other_names(tmp_path):
    here = zero(tmp_path)
    next(here.glob("global_step*")).rename(here / "epoch3")
    (here / "latest").write_text("epoch3")
    report = consolidate(here, tmp_path / "x.safetensors")
    assert report.title.startswith("DeepSpeed ZeRO-2")
    (here / "latest").unlink()
    consolidate(here, tmp_path / "y.safetensors", wanted=Wanted(tag="epoch3"))
    assert (tmp_path / "x.safetensors").read_bytes() == (tmp_path / "y.safetensors").read_bytes()
    with pytest.raises(UsageError, match="it is one state itself, not epoch4"):
        consolidate(here / "epoch3", tmp_path / "z.safetensors", wanted=Wanted(tag="epoch4"))
    with pytest.raises(UsageError, match="--weights chooses among weights of DeepSpeed"):
        consolidate(CORPUS / "dcp" / "dcp_no_dist", tmp_path / "z.safetensors", wanted=Wanted(narrow=True))
    with pytest.raises(UnsupportedError, match="keeps no whole weights in 16 bits") as caught:
        consolidate(CORPUS / "deepspeed" / "zero3_bf16_2ranks", tmp_path / "z.safetensors", wanted=Wanted(narrow=True))
    assert "--weights fp32" in caught.value.hint


def parallel(path) -> Path:
    """Two ranks of tensor parallelism, one tensor of which all are zeros."""
    path.mkdir()
    for rank in range(2):
        w, bias = torch.arange(24.0).reshape(4, 6) + 100 * rank, torch.zeros(4)
        torch.save({"a.weight": w, "a.bias": bias, "norm": torch.ones(6)}, path / f"mp_rank_0{rank}.pt")
    return path


def test_parts_are_never_taken_as_whole(tmp_path):
    here = parallel(tmp_path / "tp")
    for check in (True, False):
        with pytest.raises(CorruptError, match=r"a\.weight differs between"):
            consolidate(here, tmp_path / "x.safetensors", options=Options(check=check, digest=check))
    report = consolidate(here, tmp_path / "x.safetensors", wanted=Wanted(cuts=Cuts(rules=(("a.weight", 0),))))
    assert "all ranks agree, so they were taken as whole: a.bias, norm" in report.output.warnings[0]
    edited(here / "mp_rank_01.pt", lambda state: state.pop("a.weight"))
    for cuts, message in (
        (Cuts(rules=(("a.weight", 0),)), "a.weight is in 1 file, not in all"),
        (Cuts(shapes={"a.weight": (8, 6), "a.bias": (4,), "norm": (6,)}), r"1 part of a.weight.* do not make \[8, 6\]"),
        (Cuts(), "a.weight is in 1 file, not in all"),
    ):
        with pytest.raises(CkptctlError, match=message):
            consolidate(here, tmp_path / "y.safetensors", wanted=Wanted(cuts=cuts))
    cuts = Cuts(shapes={"a.weight": (4, 6), "a.bias": (4,), "norm": (6,), "lm_head": (9, 9)})
    report = consolidate(here, tmp_path / "y.safetensors", wanted=Wanted(cuts=cuts))
    assert report.output.warnings == ("the reference has them, the shards do not: lm_head",)
    (here / "mp_rank_01.pt").unlink()
    with pytest.raises(UsageError, match="the file of one rank"):
        consolidate(here, tmp_path / "z.safetensors")
    with pytest.raises(UsageError) as caught:
        consolidate(here / "mp_rank_00.pt", tmp_path / "z.safetensors")
    assert str(here) in caught.value.hint


def test_the_number_of_ranks_in_a_name_counts(tmp_path):
    for rank in range(2):
        torch.save({"w": torch.ones(3)}, tmp_path / f"model_world_size_3_rank_{rank}.pt")
        torch.save({"state": {}, "param_groups": []}, tmp_path / f"optim_world_size_3_rank_{rank}.pt")
    with pytest.raises(UnsupportedError, match=r"model_world_size_3_rank_2\.pt is missing"):
        consolidate(tmp_path, tmp_path / "x.safetensors")
    torch.save({"w": torch.ones(3)}, tmp_path / "model_world_size_3_rank_2.pt")
    notes = [one.message for one in open_checkpoint(tmp_path).findings]
    assert notes == ["optim_world_size_3_rank_N.pt: 2 files of ranks that are not read, beside the model"]
    assert consolidate(tmp_path, tmp_path / "x.safetensors").ranks == 3


def test_one_rank_in_two_files_is_refused(tmp_path):
    for name in ("mp_rank_00.pt", "mp_rank_01.pt", "mp_rank_1.pt"):
        torch.save({"w": torch.ones(3)}, tmp_path / name)
    with pytest.raises(CorruptError, match=r"mp_rank_01\.pt and mp_rank_1\.pt are both of one rank"):
        consolidate(tmp_path, tmp_path / "out" / "x.safetensors")


def test_shards_that_do_not_say_how_many_they_were(tmp_path):
    report = consolidate(CORPUS / "dcp" / "dcp_hf_distributed_2ranks", tmp_path / "x.safetensors")
    assert report.output.warnings[0].startswith("nothing in these files says how many ranks there were")
    assert report.ranks == 2
    assert consolidate(CORPUS / "dcp" / "dcp_fsdp2_4ranks", tmp_path / "y.safetensors").ranks == 4


def test_an_item_of_another_type_is_refused(tmp_path):
    here = tmp_path / "d"
    save({"w": torch.ones(6, dtype=torch.int32)}, here)
    metadata = (here / ".metadata").read_bytes()
    save({"w": torch.ones(6)}, here)
    (here / ".metadata").write_bytes(metadata)
    with pytest.raises(CorruptError, match="not the block of w it should be"):
        consolidate(here, tmp_path / "x.safetensors")


def test_tensors_inside_other_items_come_along(tmp_path):
    w = torch.arange(12.0).reshape(3, 4)
    state = {"model": {"w": w, "pair": (w + 1, w + 2)}, "arr": np.arange(3), "step": 7}
    save(state, tmp_path / "d")
    consolidate(tmp_path / "d", tmp_path / "x.safetensors")
    made = load_file(tmp_path / "x.safetensors")
    assert {name: one.sum().item() for name, one in made.items()} == {"w": 66, "pair.0": 78, "pair.1": 90}
    consolidate(tmp_path / "d", tmp_path / "y.safetensors", wanted=Wanted(only=None))
    assert load_file(tmp_path / "y.safetensors")["arr"].tolist() == [0, 1, 2]


def test_columns_of_complex_numbers(tmp_path):
    whole = torch.randn(4, 2, dtype=torch.complex64)
    raw = b"".join(column.contiguous().view(torch.float32).numpy().tobytes() for column in whole.T)
    (tmp_path / "raw").write_bytes(raw)
    place = LocalFile(tmp_path / "raw").range()
    pieces = tuple(Piece(range=place.sub(32 * at, 32), offsets=(0, at), shape=(4, 1)) for at in range(2))
    tensor = TensorInfo(name="c", dtype=DTYPES["C64"], shape=(4, 2), pieces=pieces)
    assert b"".join(map(bytes, blocks(tensor))) == whole.view(torch.float32).numpy().tobytes()


def test_globs_take_names_as_they_are_shown_too(tmp_path):
    source = CORPUS / "dcp" / "dcp_fsdp2_2ranks"
    for number, glob in enumerate(("embed.w*", "app.model.embed.w*")):
        consolidate(source, tmp_path / f"{number}.safetensors", options=Options(include=(glob,)))
        assert load_file(tmp_path / f"{number}.safetensors").keys() == {"embed.weight"}
    consolidate(source, tmp_path / "x.safetensors", options=Options(exclude=("head.weight",)))
    assert "head.weight" not in load_file(tmp_path / "x.safetensors")


def test_the_result_may_lie_among_its_sources(tmp_path):
    here = copied("transformers/sharded_llama", tmp_path)
    report = consolidate(here, here / "out.safetensors", wanted=Wanted(copy_files=True))
    assert (report.ignored, report.copied) == ((), ())


def test_of_several_checkpoints_one_has_to_be_named(tmp_path):
    for step in (100, 200):
        shutil.copytree(CORPUS / "dcp" / "dcp_no_dist", tmp_path / "run" / f"step_{step}")
    with pytest.raises(UsageError, match="a directory of 2 checkpoints, not one") as caught:
        consolidate(tmp_path / "run", tmp_path / "x.safetensors")
    assert "step_200" in caught.value.hint


def test_what_is_copied_along_is_whole_where_the_system_writes_less_than_asked(tmp_path, monkeypatch):
    source = copied("transformers/sharded_llama", tmp_path)
    (source / "tokenizer.json").write_bytes(bytes(range(256)) * 8)
    write = os.write
    monkeypatch.setattr("ckptctl.storage.copy.os.write", lambda fd, data: write(fd, data[:1000]))
    consolidate(source, tmp_path / "out", wanted=Wanted(copy_files=True))
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()


def test_checksums_of_items_are_let_go_of_when_they_are_done_with():
    tensors = open_checkpoint(CORPUS / "dcp" / "dcp_fsdp2_2ranks").parts[Component.MODEL].tensors.values()
    sums = Checksums([])
    for tensor in tensors:
        sums.learn(tensor)
        held = sum(map(len, sums._records.values()))
        sums.check_around(opened(tensor), dict)
        sums.forget(tensor)
        assert held > 0
        assert not any(sums._records.values())
        assert not any(sums._starts.values())
        assert not sums._seen
    assert sums.verified >= len(tensors)
