"""`ckptctl diff` as its user meets it."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from ckptctl.cli._diff_text import bar
from tests.samples import CORPUS

LLAMA = CORPUS / "transformers" / "single_llama" / "model.safetensors"


@pytest.fixture
def tuned(tmp_path):
    """A model, and what a fine-tune made of it."""
    torch.manual_seed(0)
    base = {
        f"model.layers.{i}.{part}.weight": torch.randn(8, 8) for i in range(4) for part in ("attn.q", "attn.k", "mlp")
    }
    base["lm_head.weight"] = torch.randn(16, 8)
    after = {name: one.clone() for name, one in base.items()}
    after["lm_head.weight"] += 0.01
    after["model.layers.3.attn.q.weight"] *= 1.5
    after["model.layers.3.mlp.weight"][0, 0] = math.nan
    after["new.weight"] = torch.zeros(3)
    save_file(base, tmp_path / "base.safetensors")
    torch.save({"model": after, "step": 1200, "lr": 0.0}, tmp_path / "tuned.pt")
    return tmp_path


def test_the_report_of_a_fine_tune(ckptctl, tuned, monkeypatch):
    monkeypatch.chdir(tuned)
    result = ckptctl("diff", "base.safetensors", "tuned.pt")
    assert (result.status, result.err) == (1, "")
    lines = result.out.splitlines()
    assert lines[0] == "3 of 13 tensors differ, 1 only in B · 2 values differ · 10 equal"
    assert lines[1].startswith("  A: base.safetensors · safetensors · ")
    assert lines[4].split() == ["module", "changed", "relative", "change", "max", "|Δ|"]
    assert lines[5].startswith("model.layers.3.mlp     1 of 1   not finite             0.0e+00")
    assert lines[6].startswith("model.layers.3.attn    1 of 2   ████████████████████   5.0e-01")
    assert "~ model.layers.3.mlp.weight   F32 [8, 8]" in lines
    assert "    1 of 64 elements (1.56%) · 1 became NaN or ceased to be" in lines
    assert "at [0, 0]: " in result.out
    assert "+ new.weight   F32 [3]" in lines
    assert "values: step: only in B: 1200" in lines
    assert all(len(line) <= 200 for line in lines)


def test_equal_is_one_line(ckptctl, tmp_path):
    (tmp_path / "copy.safetensors").write_bytes(LLAMA.read_bytes())
    result = ckptctl("diff", LLAMA, tmp_path / "copy.safetensors")
    assert result.status == 0
    first, second = result.out.splitlines()
    assert first.startswith("equal: ")
    assert first.endswith(", bit for bit")
    assert second == "  the two files are byte-identical"
    assert "both are the same file" in ckptctl("diff", LLAMA, LLAMA).out


def test_brief_and_quiet(ckptctl, tuned):
    one, other = tuned / "base.safetensors", tuned / "tuned.pt"
    brief = ckptctl("diff", one, other, "-q")
    assert (brief.status, brief.out.count("\n")) == (1, 1)
    assert "stopped at the first difference" in brief.out
    assert ckptctl("diff", one, other, "--quiet").out == ""
    assert ckptctl("diff", one, other, "--quiet").status == 1
    assert ckptctl("diff", one, one, "--quiet").status == 0


def test_one_document(ckptctl, tuned):
    result = ckptctl("diff", tuned / "base.safetensors", tuned / "tuned.pt", "--json")
    document = json.loads(result.out)
    assert (result.status, document["schema"]) == (1, "ckptctl.diff/1")
    found = document["diff"]
    assert (found["equal"], found["complete"], found["compared"], found["unchanged"]) == (False, True, 13, 10)
    by_name = {one["name"]: one for one in found["tensors"]}
    assert by_name["model.layers.3.mlp.weight"]["measures"]["worst_b"] == {"$float": "nan"}
    assert by_name["lm_head.weight"]["measures"]["max_abs"] == pytest.approx(0.01, rel=1e-4)
    assert found["values"] == [
        {"path": "step", "a": None, "b": 1200, "only": "b", "unread": False},
        {"path": "lr", "a": None, "b": 0.0, "only": "b", "unread": False},
    ]
    assert [one["name"] for one in found["only_b"]] == ["new.weight"]
    assert found["modules"][0]["component"] == "model"


def test_depth_and_top(ckptctl, tuned):
    one, other = tuned / "base.safetensors", tuned / "tuned.pt"
    flat = ckptctl("diff", one, other, "--depth", "1", "--top", "1").out
    assert re.search(r"^(model +2 of 12|lm_head +1 of 1) ", flat, re.MULTILINE)
    assert "… 1 more (--top)" in flat
    assert "… 2 more tensors" in flat
    every = ckptctl("diff", one, other, "--all", "--top", "0").out
    assert every.count("\n= ") == 10


def test_names_may_be_changed(ckptctl, tmp_path):
    save_file({"h.0.w": torch.ones(3)}, tmp_path / "a.safetensors")
    save_file({"layers.0.w": torch.zeros(3)}, tmp_path / "b.safetensors")
    command = ("diff", tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert "1 only in A, 1 only in B" in ckptctl(*command).out
    assert "1 of 1 tensor differs" in ckptctl(*command, "--map", r"^h\.=layers.").out
    assert "--map (: not of the form" in ckptctl(*command, "--map", "(").err


def test_tolerance_and_types(ckptctl, tmp_path):
    save_file({"w": torch.ones(3), "v": torch.ones(2)}, tmp_path / "a.safetensors")
    save_file({"w": torch.ones(3) + 1e-6, "v": torch.ones(2).bfloat16()}, tmp_path / "b.safetensors")
    command = ("diff", tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert ckptctl(*command).status == 1
    close = ckptctl(*command, "--close")
    assert close.status == 1
    assert "= w   F32 [3]   close" in close.out
    assert "! F32 → BF16 in 1 tensor, equal once rounded" in close.out
    both = ckptctl(*command, "--atol", "1e-5", "--dtype-tolerant")
    assert (both.status, both.out.splitlines()[0]) == (
        0,
        "equal: 2 tensors (16 B) · 1 of them close · 1 of them once rounded",
    )


@pytest.mark.parametrize(
    "arguments", [("x",), ("nothing.pt", LLAMA), (LLAMA, CORPUS / "damaged" / "index_shard_missing")]
)
def test_trouble_is_two(ckptctl, arguments):
    result = ckptctl("diff", *arguments)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("ckptctl: ")


def test_names_and_values_reach_the_terminal_escaped(ckptctl, tmp_path):
    save_file({"a\x1b[31m": torch.ones(2)}, tmp_path / "a.safetensors", {"k\x1b": "v\u202e"})
    save_file({"b\u202e": torch.zeros(2)}, tmp_path / "b.safetensors")
    out = ckptctl("diff", tmp_path / "a.safetensors", tmp_path / "b.safetensors").out
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert r"a\x1b[31m" in out


def test_bars():
    assert [bar(one) for one in (0, 1e-9, 0.5, 1)] == ["", "▏", "█" * 10, "█" * 20]


def test_neither_torch_nor_numpy_is_needed_to_find_equal(tmp_path):
    (tmp_path / "copy.safetensors").write_bytes(LLAMA.read_bytes())
    code = f"""
import sys
class Refuse:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] in ("torch", "numpy", "safetensors"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
from ckptctl.cli.app import main
sys.exit(main(["diff", {str(LLAMA)!r}, {str(tmp_path / "copy.safetensors")!r}]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
