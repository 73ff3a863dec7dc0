"""`verify` at every level: what is wrong is found and named, what is good is not failed."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess

import numpy as np
import pytest
import safetensors.torch
import torch

from ckptctl import formats
from ckptctl.layouts import layout_of
from ckptctl.ops.verify import Judgement, Level, Outcome, Verdict, verify
from ckptctl.ops.verify.run import latest_good, verify_path
from ckptctl.runs import find_runs
from ckptctl.storage import LocalFile
from tests.samples import CORPUS

# Good to a reader, and not to be trusted.
WRONG = {
    "safetensors/edge/duplicate_name.safetensors": "duplicate-name", "torch_save/skip_data.pt": "data-never-written",
    "torch_save/calls_print_on_load.pt": "dangerous-global", "torch_save/custom_class.pt": "foreign-global",
    "torch_save/legacy_whole_module.pt": "foreign-global", "torch_save/python_objects.pt": "foreign-global",
    "torch_save/whole_module.pt": "foreign-global", "torch_save/whole_module_in_main.pt": "foreign-global",
}  # fmt: skip


def entries():
    found = []
    for path in sorted(CORPUS.rglob("*")):
        if {"damaged", "invalid"} & set(path.parts) or path.suffix == ".distcp":
            continue
        if path.is_file():
            good = any(f.accepts(LocalFile(path).range()) for f in formats.FORMATS)
        else:
            good = layout_of(path) is not None or bool(find_runs(path))
        if good:
            found.append(path)
    return found


def reports(path, **options):
    return [call() for call in verify_path(path, Level(**options))]


def slugs(report):
    return {finding.slug for finding in report.findings if finding.severity.value == "error"}


@pytest.mark.parametrize("path", entries(), ids=lambda path: str(path.relative_to(CORPUS)))
def test_nothing_good_is_failed(path):
    expected = WRONG.get(str(path.relative_to(CORPUS)))
    for report in reports(path):
        assert slugs(report) == ({expected} if expected else set()), report.findings
        assert report.judgement is (Judgement.WRONG if expected else Judgement.GOOD)


@pytest.mark.parametrize("path", sorted((CORPUS / "safetensors" / "invalid").iterdir()), ids=lambda path: path.name)
def test_invalid_files_are_found_at_every_level(path):
    for options in ({}, {"quick": True}):
        (report,) = reports(path, **options)
        assert report.judgement is Judgement.WRONG
        assert not report.complete


DAMAGED = {
    "dcp_chunk_missing": "missing-block", "dcp_metadata_missing": "unfinished", "dcp_shard_file_missing": "missing-file",
    "dcp_shard_file_truncated": "truncated", "fsdp_rank_missing": "missing-file", "index_escapes_directory": "corrupt",
    "index_names_absent_tensor": "corrupt", "index_shard_missing": "missing-shard", "index_shard_truncated": "truncated",
    "index_total_size_wrong": "total-size", "legacy_truncated.pt": "truncated", "lfs_pointer.safetensors": "git-lfs-pointer",
    "lightning_last_link_dangling": "dangling-pointer", "pt_all_zero_bytes.pt": "zeros",
    "pt_flipped_storage_byte_crc_wrong.pt": "bad-crc", "pt_pickle_missing.pt": "corrupt",
    "pt_storage_record_missing.pt": "corrupt", "pt_truncated_half.pt": "truncated", "pt_truncated_last_bytes.pt": "truncated",
    "pt_zero_length.pt": "empty", "run_with_faults": "digest-mismatch", "text_named.pt": "unknown-format",
    "trainer_last_save_cut_short": "unfinished", "zero_latest_dangling": "missing-file", "zero_latest_missing": "missing-file",
    "zero_optimizer_rank_missing": "missing-file",
}  # fmt: skip


def test_every_damaged_entry_of_the_corpus_is_listed():
    assert {path.name for path in (CORPUS / "damaged").iterdir()} == set(DAMAGED)


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_found_and_named(name):
    found = reports(CORPUS / "damaged" / name)
    assert Judgement.WRONG in {report.judgement for report in found}
    assert DAMAGED[name] in set().union(*map(slugs, found))


def test_what_is_beside_a_run_is_said():
    found = {f.slug for report in reports(CORPUS / "damaged" / "run_with_faults") for f in report.findings}
    assert {"digest-mismatch", "unfinished", "orphan-digest"} <= found


# --- bytes ---


def saved(path, **tensors):
    safetensors.torch.save_file(tensors or {"w": torch.arange(8.0)}, path)
    return path


def sha(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("name", "line", "outcome"),
    [
        ("m.safetensors.sha256", "{digest}  m.safetensors\n", Outcome.VERIFIED),
        ("m.safetensors.sha256", "{digest}", Outcome.VERIFIED),
        ("m.safetensors.sha256", "{DIGEST} */builds/run-7/other/m.safetensors\r\n", Outcome.VERIFIED),
        ("m.safetensors.sha256", "SHA256 (m.safetensors) = {digest}\n", Outcome.VERIFIED),
        ("m.safetensors.sha256", "{other}  m.safetensors\n", Outcome.FAILED),
        ("m.safetensors.sha256", "", Outcome.UNVERIFIED),
        ("m.safetensors.sha256", "<html>not found</html>", Outcome.UNVERIFIED),
        ("m.sha256", "{digest}\n", Outcome.VERIFIED),
        ("m.sha256", "{other}\n", Outcome.FAILED),
        ("m.sha256", "{other}  m.pt\n", Outcome.FAILED),
        ("SHA256SUMS", "{other}  x.json\n{digest}  m.safetensors\n", Outcome.VERIFIED),
        ("SHA256SUMS", "{other}  ./m.safetensors\n", Outcome.FAILED),
        ("SHA256SUMS", "{other}  unrelated\n", Outcome.UNVERIFIED),
    ],
)
def test_digests_on_record(name, line, outcome, tmp_path):
    path = saved(tmp_path / "m.safetensors")
    (tmp_path / name).write_text(line.format(digest=sha(path), DIGEST=sha(path).upper(), other="0" * 64))
    report = verify(path)
    assert report.bytes is outcome
    assert report.good == (outcome is not Outcome.FAILED)
    if outcome is Outcome.FAILED:
        assert "changed after its digest was made, or it is damaged" in report.findings[0].message


def test_what_else_a_list_names_is_not_of_this_file(tmp_path):
    path = saved(tmp_path / "m.safetensors")
    saved(tmp_path / "other.safetensors", w=torch.zeros(9))
    (tmp_path / "SHA256SUMS").write_text(f"{sha(path)}  m.safetensors\n{'0' * 64}  other.safetensors\n")
    report = verify(path)
    assert report.bytes is Outcome.VERIFIED
    assert list(report.digests) == [path]


def test_the_full_name_wins_over_the_stem(tmp_path):
    path = saved(tmp_path / "m.safetensors")
    (tmp_path / "m.safetensors.sha256").write_text(sha(path))
    (tmp_path / "m.sha256").write_text("0" * 64)
    assert verify(path).bytes is Outcome.VERIFIED


def test_a_bare_sidecar_of_two_files_with_one_stem(tmp_path):
    one = saved(tmp_path / "m.safetensors")
    torch.save({"w": torch.ones(2)}, tmp_path / "m.pt")
    (tmp_path / "m.sha256").write_text(f"{sha(one)}  m.safetensors\n")
    assert verify(one).bytes is Outcome.VERIFIED
    assert verify(tmp_path / "m.pt").good  # it names the other one
    (tmp_path / "m.sha256").write_text(sha(tmp_path / "m.pt"))
    assert verify(one).bytes is Outcome.UNVERIFIED  # it is of the other one, as its digest shows
    (tmp_path / "m.sha256").write_text("0" * 64)
    assert verify(one).bytes is Outcome.FAILED  # it is of neither


def test_without_checksums_is_unverified_and_strict_fails_it():
    path = CORPUS / "torch_save" / "no_crc32.pt"
    assert verify(path).bytes is Outcome.UNVERIFIED
    report = verify(path, level=Level(strict=True))
    assert slugs(report) == {"unverified"}


def test_quick_reads_no_tensor():
    path = CORPUS / "damaged" / "pt_flipped_storage_byte_crc_wrong.pt"
    report = verify(path, level=Level(quick=True))
    assert report.good
    assert report.bytes is None


def test_a_flipped_bit_in_a_distributed_checkpoint(tmp_path):
    shutil.copytree(CORPUS / "dcp" / "dcp_fsdp2_2ranks", tmp_path / "d")
    path = next((tmp_path / "d").glob("__1_0.distcp"))
    raw = bytearray(path.read_bytes())
    at = raw.index(b"archive/data/0")
    start = raw.index(b"Z", at)
    while raw[start] == ord("Z"):
        start += 1
    raw[start] ^= 1
    path.write_bytes(raw)
    report = verify(tmp_path / "d")
    assert slugs(report) == {"bad-crc"}
    assert "damaged: " in report.findings[-1].message


# --- values ---


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2",
                                   "float8_e4m3fnuz", "float8_e5m2fnuz", "complex64"])  # fmt: skip
def test_nan_is_counted_and_placed(dtype, tmp_path):
    tensor = torch.ones(5, 7).to(getattr(torch, dtype))
    assert verify(saved(tmp_path / "good.safetensors", w=tensor), level=Level(values=True)).good
    tensor[2, 3] = float("nan")
    tensor[4, 1] = float("nan")
    report = verify(saved(tmp_path / "m.safetensors", w=tensor), level=Level(values=True))
    (finding,) = report.findings
    assert finding.slug == "not-finite"
    assert "2 NaN, the first at [2, 3]" in finding.message


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "float8_e5m2"])
def test_infinities_and_dead_tensors(dtype, tmp_path):
    kind = getattr(torch, dtype)
    tiny = torch.full((3,), torch.finfo(kind).smallest_normal / 2, dtype=torch.float64).to(kind)
    state = {"inf": torch.tensor([1.0, float("-inf")]).to(kind), "zero": torch.zeros(9).to(kind), "tiny": tiny}
    report = verify(saved(tmp_path / "m.safetensors", **state), level=Level(values=True))
    assert {finding.slug for finding in report.findings} == {"not-finite", "all-zero", "subnormal"}
    assert "1 Inf, the first at [1]" in next(f.message for f in report.findings if f.slug == "not-finite")


def test_values_of_a_large_tensor_are_placed_rightly(tmp_path):
    tensor = torch.ones(3, 1 << 20)
    tensor[2, 77_777] = float("nan")
    report = verify(saved(tmp_path / "m.safetensors", w=tensor), level=Level(values=True))
    assert "the first at [2, 77777]" in report.findings[0].message


def test_values_of_a_distributed_checkpoint_are_read_from_inside_its_items():
    report = verify(CORPUS / "dcp" / "dcp_fsdp2_2ranks", level=Level(values=True))
    assert report.good
    assert {finding.slug for finding in report.findings if finding.aspect.value == "values"} <= {"all-zero"}


def test_padding_that_nobody_writes_is_no_error():
    report = verify(
        next(CORPUS.glob("deepspeed/zero3_bf16_gathered_2ranks/*/*_rank_1_*optim*")), level=Level(values=True)
    )
    assert report.good
    assert any("it may be padding" in finding.message for finding in report.findings)


@pytest.mark.parametrize("name", ["zero1_bf16_2ranks", "zero2_bf16_2ranks", "zero2_bf16_round_robin_2ranks"])
def test_the_weights_in_16_bits_are_held_against_those_in_fp32(name, tmp_path):
    source = CORPUS / "deepspeed" / name
    assert verify(source, level=Level(values=True)).good
    shutil.copytree(source, tmp_path / "d")
    path = next((tmp_path / "d" / "global_step10").glob("*_rank_0_*optim*"))
    contents = formats.read(LocalFile(path).range())
    flat = contents.tensors["optimizer_state_dict.single_partition_of_fp32_groups.0"].pieces[0].range
    raw = bytearray(path.read_bytes())
    raw[flat.offset + 3] ^= 0x40  # the exponent of the first weight
    path.write_bytes(raw)
    assert "halves-differ" in slugs(verify(tmp_path / "d", level=Level(values=True)))


# --- safety ---


def test_a_class_of_ones_own_can_be_allowed():
    path = CORPUS / "torch_save" / "custom_class.pt"
    allowed = frozenset({"user_model.TrainConfig", "user_model.Phase"})
    assert verify(path, level=Level(allowed=allowed)).good
    assert not verify(path, level=Level(allowed=frozenset({"user_model"}))).good
    assert verify(path).complete  # safety never makes a checkpoint incomplete


# --- resume ---


RESUME = {
    "transformers/trainer_run/checkpoint-40": (Verdict.EXACT, None),
    "accelerate/save_state_1ranks/checkpoints/checkpoint_3": (Verdict.CONTINUES, ("step",)),
    "lightning/top2_improving/checkpoints/last.ckpt": (Verdict.CONTINUES, ("python rng", "numpy rng", "torch rng")),
    "deepspeed/zero2_bf16_2ranks": (Verdict.CONTINUES, ("python rng", "numpy rng", "torch rng", "data position")),
    "dcp/dcp_fsdp2_2ranks": (Verdict.CONTINUES, ("python rng", "numpy rng", "torch rng")),
    "fsdp/fsdp2_1d_2ranks": (Verdict.CONTINUES, ("python rng", "numpy rng", "torch rng", "data position")),
    "torch_save/train_dict.pt": (Verdict.CONTINUES, ("data position",)),
    "torch_save/bare_state_dict.pth": (Verdict.WEIGHTS_ONLY, None),
    "transformers/sharded_llama": (Verdict.WEIGHTS_ONLY, None),
    "transformers/trainer_run/checkpoint-40/scheduler.pt": (Verdict.NOT_RESUMABLE, None),
}


@pytest.mark.parametrize("name", RESUME)
def test_what_each_framework_stores(name):
    verdict, lacking = RESUME[name]
    resume = verify(CORPUS / name, level=Level(resume=True, quick=True)).resume
    assert resume.verdict is verdict
    if lacking is not None:
        assert resume.why == lacking


def training(tmp_path, **changes):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 1, "epoch": 0,
             "rng": {"python": (3, tuple(range(625)), None), "numpy": np.random.RandomState(0).get_state(), "torch": torch.get_rng_state()},
             "dataloader": {"position": 5}} | changes  # fmt: skip
    torch.save(state, tmp_path / "x.pt")
    return verify(tmp_path / "x.pt", level=Level(resume=True)).resume


def test_a_checkpoint_with_everything_is_exact(tmp_path):
    assert training(tmp_path).verdict is Verdict.EXACT


def test_an_optimizer_without_all_its_states_is_no_optimizer(tmp_path):
    other = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))
    assert training(tmp_path, model=other.state_dict()).verdict is Verdict.WEIGHTS_ONLY
    optimizer = torch.optim.AdamW(other.parameters())
    assert training(tmp_path, optimizer=optimizer.state_dict()).verdict is Verdict.WEIGHTS_ONLY
    other(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    del state["state"][3]
    resume = training(tmp_path, model=other.state_dict(), optimizer=state)
    assert resume.verdict is Verdict.CONTINUES
    assert "a state for 3 of 4 parameters" in resume.why[0]


def test_what_is_required_and_not_there_fails():
    path = CORPUS / "torch_save" / "train_dict.pt"
    assert verify(path, level=Level(require=Verdict.CONTINUES)).good
    report = verify(path, level=Level(require=Verdict.EXACT))
    assert slugs(report) == {"resume"}


# --- writing ---


def test_a_sidecar_is_written_once_and_never_over_another(tmp_path):
    path = saved(tmp_path / "m.safetensors")
    report = verify(path, level=Level(write=True))
    assert report.wrote == (tmp_path / "m.safetensors.sha256",)
    assert (
        subprocess.run(
            ["sha256sum", "-c", "m.safetensors.sha256"], cwd=tmp_path, check=False, capture_output=True
        ).returncode
        == 0
    )
    assert verify(path, level=Level(write=True)).wrote == ()
    saved(path, w=torch.zeros(8))
    before = (tmp_path / "m.safetensors.sha256").read_bytes()
    assert not verify(path, level=Level(write=True)).good
    assert (tmp_path / "m.safetensors.sha256").read_bytes() == before


def test_a_directory_gets_a_list_that_sha256sum_takes(tmp_path):
    for name in ("transformers/trainer_run/checkpoint-40", "deepspeed/zero2_bf16_2ranks"):
        directory = tmp_path / name.replace("/", "-").replace("transformers-trainer_run-", "")
        shutil.copytree(CORPUS / name, directory)
        report = verify(directory, level=Level(write=True))
        assert report.wrote == (directory / "SHA256SUMS",)
        done = subprocess.run(
            ["sha256sum", "-c", "SHA256SUMS"], cwd=directory, check=False, capture_output=True, text=True
        )
        assert done.returncode == 0
        assert verify(directory).bytes is Outcome.VERIFIED
        assert verify(directory, level=Level(write=True)).wrote == ()
    victim = tmp_path / "checkpoint-40" / "trainer_state.json"
    victim.write_text(victim.read_text() + "\n")
    assert slugs(verify(victim.parent)) == {"digest-mismatch"}


def test_nothing_is_written_for_what_is_wrong(tmp_path):
    shutil.copy(CORPUS / "damaged" / "pt_truncated_half.pt", tmp_path / "m.pt")
    verify(tmp_path / "m.pt", level=Level(write=True))
    assert [path.name for path in tmp_path.iterdir()] == ["m.pt"]


# --- the newest good one ---


def make_run(directory, steps):
    for step in steps:
        saved(directory / f"checkpoint-{step}.safetensors", w=torch.full((4,), float(step)))
        path = directory / f"checkpoint-{step}.safetensors"
        (directory / f"checkpoint-{step}.safetensors.sha256").write_text(sha(path))


def test_the_newest_good_checkpoint(tmp_path):
    make_run(tmp_path, (9, 100, 1000))
    assert latest_good(tmp_path, Level())[0] == tmp_path / "checkpoint-1000.safetensors"
    raw = bytearray((tmp_path / "checkpoint-1000.safetensors").read_bytes())
    raw[-1] ^= 1
    (tmp_path / "checkpoint-1000.safetensors").write_bytes(raw)
    found, skipped = latest_good(tmp_path, Level())
    assert found == tmp_path / "checkpoint-100.safetensors"
    assert "changed after its digest was made" in skipped[0].why
    assert latest_good(tmp_path, Level(quick=True))[0] == tmp_path / "checkpoint-1000.safetensors"
    os.truncate(tmp_path / "checkpoint-100.safetensors", 50)
    assert latest_good(tmp_path, Level())[0] == tmp_path / "checkpoint-9.safetensors"


def test_a_save_that_lacks_what_its_siblings_have_is_passed_over():
    found, skipped = latest_good(CORPUS / "damaged" / "trainer_last_save_cut_short", Level())
    assert found.name == "checkpoint-10"
    assert [one.path.name for one in skipped] == ["tmp-checkpoint-50", "checkpoint-40"]


def test_a_directory_without_any(tmp_path):
    assert latest_good(tmp_path, Level()) == (None, ())


def test_what_cannot_be_looked_at_is_not_called_good(tmp_path):
    (tmp_path / "notes").mkdir()
    for path in (tmp_path / "nothing", tmp_path / "notes"):
        (report,) = reports(path)
        assert report.judgement is Judgement.UNSEEN
        assert not report.complete
