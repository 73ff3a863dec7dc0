"""`verify` on what its first readers stumbled over."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest
import safetensors.torch
import torch

from ckptctl.checks.resume import rng_kinds
from ckptctl.model import Component, Part
from ckptctl.ops.verify import Judgement, Level, Outcome, Verdict, verify
from ckptctl.ops.verify.run import latest_good, verify_path
from tests.samples import CORPUS

SMALL = {"w": torch.ones(4)}


def slugs(report):
    return {finding.slug for finding in report.findings if finding.severity.value == "error"}


def saved(path, tensors=None, **values):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".safetensors":
        safetensors.torch.save_file(tensors or SMALL, path, metadata=values)
    else:
        torch.save({"model": tensors or SMALL, **values}, path)
    return path


def test_a_digest_counts_as_compared_only_if_one_is_on_record(tmp_path):
    path = saved(tmp_path / "a.safetensors")
    assert verify(path, level=Level(write=True)).compared == 0
    assert verify(path).compared == 1


def test_under_strict_a_digest_that_cannot_be_read_is_an_error(tmp_path):
    path = saved(tmp_path / "a.pt")
    (tmp_path / "a.pt.sha256").write_text("who knows\n")
    assert verify(path).good
    assert slugs(verify(path, level=Level(strict=True))) == {"no-digest"}


def test_a_list_that_is_not_understood_is_not_written_over(tmp_path):
    directory = tmp_path / "checkpoint"
    shutil.copytree(CORPUS / "dcp" / "dcp_fsdp2_2ranks", directory)
    (directory / "SHA256SUMS").write_text("# made by hand\n")
    report = verify(directory, level=Level(write=True))
    assert slugs(report) == {"no-digest"}
    assert not report.wrote
    assert (directory / "SHA256SUMS").read_text() == "# made by hand\n"


def test_a_list_above_a_checkpoint_counts(tmp_path):
    path = saved(tmp_path / "runs" / "checkpoint-1" / "model.safetensors")
    (tmp_path / "runs" / "SHA256SUMS").write_text(f"{'0' * 64}  checkpoint-1/model.safetensors\n")
    assert slugs(verify(path)) == {"digest-mismatch"}


def test_names_of_one_step_are_judged_each_by_itself(tmp_path):
    torn = saved(tmp_path / "step_5.pt", step=5)
    saved(tmp_path / "step_5.safetensors")
    torn.write_bytes(torn.read_bytes()[:-200])
    verdicts = {r.path.name: r.judgement for r in (call() for call in verify_path(tmp_path, Level(quick=True)))}
    assert verdicts == {"step_5.pt": Judgement.WRONG, "step_5.safetensors": Judgement.GOOD}
    for level in (Level(), Level(quick=True)):
        assert latest_good(tmp_path, level)[0].name == "step_5.safetensors"


def test_the_newest_good_one_is_as_good_as_was_asked(tmp_path):
    saved(tmp_path / "step_1.pt", step=1)
    saved(tmp_path / "step_2.pt", {"w": torch.tensor([1.0, float("nan")])}, step=2)
    assert latest_good(tmp_path, Level())[0].name == "step_2.pt"
    assert latest_good(tmp_path, Level(values=True))[0].name == "step_1.pt"
    assert latest_good(tmp_path, Level(require=Verdict.EXACT))[0] is None


def test_the_newest_of_several_families_is_the_one_saved_last(tmp_path):
    for seconds, name in enumerate(("step_9.pt", "epoch_1.pt"), 1):
        os.utime(saved(tmp_path / name), (seconds, seconds))
    assert latest_good(tmp_path, Level())[0].name == "epoch_1.pt"


def test_an_empty_file_is_not_passed_over(tmp_path):
    (tmp_path / "step_1.pt").touch()
    saved(tmp_path / "step_2.pt", step=2)
    (tmp_path / "checkpoint-1").mkdir()
    found = [call() for call in verify_path(tmp_path, Level())]
    assert {report.path.name: report.good for report in found}["step_1.pt"] is False


def test_weights_beside_the_checkpoints_of_a_run_are_verified_too(tmp_path):
    saved(tmp_path / "step_1.pt", step=1)
    best = saved(tmp_path / "best.safetensors")
    best.write_bytes(best.read_bytes()[:-3])
    torch.save({"lr": 0.1}, tmp_path / "notes.pt")
    found = {report.path.name: report.good for report in (call() for call in verify_path(tmp_path, Level()))}
    assert found == {"step_1.pt": True, "best.safetensors": False}


def test_json_that_is_cut_is_found(tmp_path):
    shutil.copytree(CORPUS / "dcp" / "dcp_fsdp2_2ranks", tmp_path / "c")
    (tmp_path / "c" / "config.json").write_text('{"a": ')
    assert slugs(verify(tmp_path / "c")) == {"bad-json"}


@pytest.mark.parametrize("lost", ["state/manifest.ocdbt", "state/_METADATA"])
def test_orbax_without_a_file_is_not_whole(tmp_path, lost):
    source = next(path for path in sorted((CORPUS / "orbax").rglob(lost)))
    step = source.parents[1]
    shutil.copytree(step, tmp_path / step.name)
    (tmp_path / step.name / lost).write_bytes(b"")
    assert slugs(verify(tmp_path / step.name)) == {"missing-file"}


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("step_3.pt", True), ("checkpoint-3.pt", True), ("run-2step3.pt", False), ("two_step_3_model.pt", False)],
)
def test_only_a_name_that_can_mean_nothing_else_is_held_against_the_step(tmp_path, name, wrong):
    assert slugs(verify(saved(tmp_path / name, step=4))) == ({"step-mismatch"} if wrong else set())


def test_sparse_values_and_powers_of_two(tmp_path):
    values = torch.tensor([1.0, float("nan")])
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), values, (3,), check_invariants=True)
    assert slugs(verify(saved(tmp_path / "a.pt", {"s": sparse}), level=Level(values=True))) == {"not-finite"}
    raw = torch.tensor([0, 1, 0xFF], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    report = verify(saved(tmp_path / "b.safetensors", {"scale": raw}), level=Level(values=True))
    assert "1 NaN, the first at [2]" in report.findings[0].message
    smallest = torch.zeros(3, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    report = verify(saved(tmp_path / "c.safetensors", {"scale": smallest}), level=Level(values=True))
    assert not report.findings


def test_a_mask_may_be_infinite(tmp_path):
    mask = {"attn.mask": torch.full((3,), float("-inf"))}
    assert verify(saved(tmp_path / "a.safetensors", mask), level=Level(values=True)).good
    mask["attn.mask"][1] = float("nan")
    assert not verify(saved(tmp_path / "a.safetensors", mask), level=Level(values=True)).good


def resumed(path, optimizer, **more):
    model = {f"{i}.w": torch.ones(i + 1) for i in range(4)}
    saved(path, model, optimizer=optimizer, step=3, **more)
    return verify(path, level=Level(resume=True)).resume


def group(**more):
    return [{"lr": 0.1, "params": [0, 1, 2, 3], **more}]


def test_optimizers_of_every_kind_count(tmp_path):
    plain = {"state": {}, "param_groups": group(momentum=0, dampening=0, nesterov=False)}
    assert resumed(tmp_path / "a.pt", plain).verdict is Verdict.CONTINUES
    factored = {"state": {i: {"step": 1, "exp_avg_sq_row": torch.ones(1)} for i in range(4)}, "param_groups": group()}
    assert resumed(tmp_path / "b.pt", factored).verdict is Verdict.CONTINUES
    lost = {"state": {}, "param_groups": group(betas=(0.9, 0.99))}
    assert resumed(tmp_path / "c.pt", lost).verdict is Verdict.WEIGHTS_ONLY


def test_the_state_of_one_strange_parameter_is_no_other_model(tmp_path):
    state = {i: {"exp_avg": torch.ones(i + 1 if i else 7)} for i in range(4)}
    resume = resumed(tmp_path / "a.pt", {"state": state, "param_groups": group()})
    assert resume.verdict is Verdict.CONTINUES
    state = {i: {"exp_avg": torch.ones(i + 7)} for i in range(4)}
    resume = resumed(tmp_path / "b.pt", {"state": state, "param_groups": group()})
    assert resume.verdict is Verdict.WEIGHTS_ONLY
    assert "of another model" in resume.reason


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (("random_states", "np_rng_state"), ("python", "numpy")),
        (("numpy_random_state",), ("numpy",)),
        (("torch_random_state", "gpu_rng_state"), ("torch", "cuda")),
        (("random_rng_state", "torch_rng_state", "cuda_rng_state"), ("python", "torch", "cuda")),
    ],
)
def test_whose_random_state_it_is(keys, expected):
    part = Part(component=Component.RNG, prefix="", tensors={}, values=dict.fromkeys(keys, 1))
    assert rng_kinds(part) == expected


def test_what_nobody_may_read_is_not_wrong(tmp_path):
    path = saved(tmp_path / "step_1.pt", step=1)
    path.unlink()
    assert verify(path).judgement is Judgement.UNSEEN
    assert verify(path).bytes is None


def test_numpy_values_are_read_in_parts(tmp_path):
    big = torch.zeros(300_000)
    big[200_000] = float("inf")
    report = verify(saved(tmp_path / "a.safetensors", {"w": big}), level=Level(values=True))
    assert "the first at [200000]" in report.findings[0].message
    assert np.isinf(big[200_000].item())
    assert report.bytes is Outcome.UNVERIFIED
