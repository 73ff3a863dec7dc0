"""`ckptctl consolidate` as its user meets it."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
import safetensors.torch
import torch

from tests.samples import CORPUS

ZERO = CORPUS / "deepspeed" / "zero3_bf16_2ranks"


def test_one_line_for_the_file_and_where_it_is_from(ckptctl, tmp_path):
    result = ckptctl("consolidate", ZERO, "-o", tmp_path / "m.safetensors")
    assert (result.status, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0].startswith(f"{tmp_path / 'm.safetensors'}   8 tensors · 1.2 kB")
    assert lines[1] == (
        "  from DeepSpeed ZeRO-3, 2 ranks, fp32 weights · step 10 · under module · left out: optimizer 1.7 kB (--only all)"
    )
    assert "bytes checked against 11 recorded CRCs" in lines[2]
    assert lines[3] == "  tied: lm_head.weight → embed.weight"
    assert len(safetensors.torch.load_file(tmp_path / "m.safetensors")) == 7


def test_the_default_target_and_what_is_there_already(ckptctl, tmp_path):
    shutil.copytree(ZERO, tmp_path / "run")
    assert ckptctl("consolidate", tmp_path / "run", "--quiet").out == ""
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == ["run", "run.safetensors", "run.safetensors.sha256"]
    again = ckptctl("consolidate", tmp_path / "run")
    assert again.status == 2
    assert "exists already" in again.err
    assert ckptctl("consolidate", tmp_path / "run", "--force", "--brief").out.count("\n") == 1


def test_one_document(ckptctl, tmp_path):
    result = ckptctl("consolidate", CORPUS / "dcp" / "dcp_fsdp2_2ranks", "-o", tmp_path / "m.safetensors", "--json")
    document = json.loads(result.out)
    assert document["schema"] == "ckptctl.consolidate/1"
    found = document["consolidation"]
    assert (found["taken"], found["layout"], found["step"]) == ("app.model", "torch-dcp", 100)
    assert found["left_out"] == {"optimizer": 1932}
    assert found["output"]["files"][0]["sha256"]


def test_a_dry_run_writes_nothing(ckptctl, tmp_path):
    result = ckptctl("consolidate", ZERO, "--only", "optimizer", "-o", tmp_path / "x.safetensors", "-n")
    assert "embed.weight.exp_avg" in result.out
    assert "nothing was written (--dry-run)" in result.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([CORPUS / "damaged" / "fsdp_rank_missing"], "checkpoint-100-rank2.pt is missing; 45 tensors of 64 are not whole"),
        ([CORPUS / "damaged" / "dcp_metadata_missing"], ".metadata, which is written last, is missing"),
        ([CORPUS / "damaged" / "dcp_shard_file_truncated"], "is cut at"),
        ([CORPUS / "damaged" / "zero_optimizer_rank_missing"], "optim_states.pt is missing"),
        ([CORPUS / "torch_save" / "train_dict.pt"], "one file, not shards"),
        ([CORPUS / "fsdp" / "fsdp1_local_2ranks"], "flat"),
        ([ZERO, "--tag", "nothing"], "no such file or directory"),
        ([ZERO, "--split", "x"], "GLOB=DIM"),
        ([ZERO, "--like", __file__], "not a checkpoint"),
        ([ZERO, "--only", "all", "--include", "nothing*"], "nothing to write"),
    ],
)  # fmt: skip
def test_what_is_refused_says_why(ckptctl, tmp_path, arguments, word):
    result = ckptctl("consolidate", *arguments, "-o", tmp_path / "x.safetensors")
    assert result.status == 2
    assert word in result.err
    assert list(tmp_path.iterdir()) == []


def test_a_state_may_be_chosen_and_numbers_cast(ckptctl, tmp_path):
    shutil.copytree(ZERO, tmp_path / "run")
    shutil.copytree(ZERO / "global_step10", tmp_path / "run" / "global_step5")
    options = ["--tag", "global_step5", "--dtype", "bf16", "-o", tmp_path / "m.safetensors"]
    assert ckptctl("consolidate", tmp_path / "run", *options).status == 0
    made = safetensors.torch.load_file(tmp_path / "m.safetensors")
    assert {str(tensor.dtype) for tensor in made.values()} == {"torch.bfloat16"}


def test_back_to_torch(ckptctl, tmp_path):
    assert ckptctl("consolidate", CORPUS / "dcp" / "dcp_fsdp2_4ranks", "-o", tmp_path / "m.pt").status == 0
    state = torch.load(tmp_path / "m.pt", weights_only=True)
    expected = safetensors.torch.load_file(CORPUS / "dcp" / "dcp_fsdp2_4ranks.expected.safetensors")
    assert all(torch.equal(tensor, expected[f"app.model.{name}"]) for name, tensor in state.items())


def test_shapes_may_come_from_a_checkpoint_or_from_json(ckptctl, tmp_path):
    whole = {"wq": torch.arange(32.0).reshape(8, 4), "wo": torch.arange(32.0).reshape(4, 8)}
    for rank in range(2):
        half = slice(4 * rank, 4 * rank + 4)
        part = {"wq": whole["wq"][half].clone(), "wo": whole["wo"][:, half].clone()}
        (tmp_path / "tp").mkdir(exist_ok=True)
        torch.save(part, tmp_path / "tp" / f"mp_rank_{rank:02d}.pt")
    safetensors.torch.save_file(whole, tmp_path / "like.safetensors")
    (tmp_path / "like.json").write_text(json.dumps({name: list(tensor.shape) for name, tensor in whole.items()}))
    for like in ("like.safetensors", "like.json"):
        done = ckptctl(
            "consolidate", tmp_path / "tp", "--like", tmp_path / like, "-o", tmp_path / f"{like}.safetensors"
        )
        assert done.status == 0, done.err
        made = safetensors.torch.load_file(tmp_path / f"{like}.safetensors")
        assert all(torch.equal(made[name], tensor) for name, tensor in whole.items())
    (tmp_path / "bad.json").write_text('{"wq": "x"}')
    result = ckptctl("consolidate", tmp_path / "tp", "--like", tmp_path / "bad.json", "-o", tmp_path / "x.safetensors")
    assert "not an object of names and shapes" in result.err


def test_torch_is_not_needed(tmp_path):
    code = f"""
import sys
class Refuse:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] in ("torch", "deepspeed"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
from ckptctl.cli.app import main
sys.exit(main(["consolidate", {str(ZERO)!r}, "-o", {str(tmp_path / "m.safetensors")!r}]))
"""
    import subprocess

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
