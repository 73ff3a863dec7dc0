"""What `ckptctl inspect` prints, as a user reads it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch

from ckptctl.formats import FORMATS
from tests.formats.test_conformance import SAMPLES
from tests.samples import HERE, entry, safetensors_bytes


def test_a_training_checkpoint_at_a_glance(ckptctl, corpus, monkeypatch):
    monkeypatch.chdir(corpus / "torch_save")
    assert (
        ckptctl("inspect", "train_dict.pt").out
        == """\
train_dict.pt   torch zip · 27.2 kB · 39 tensors · 238 parameters
step 1,200 (inside: step) · epoch 3 (inside: epoch) · best val_loss 0.4375 (inside: best_val_loss) · loss 1.743 (inside: loss)

component   tensors   parameters    bytes   dtypes
model            10          238    956 B   I64 F32   under model_state_dict
optimizer        27          483   1.9 kB   F32       AdamW: exp_avg 948 B, exp_avg_sq 948 B
scheduler         –            –        –   –         cosine, last_epoch 3
rng               2        5.7 k   7.6 kB   U8 U32    python, numpy, torch
trainer           –            –        –   –         epoch, step, best_val_loss, loss, config
missing: cuda rng        dropout would differ on the GPU
missing: data position   a resume would repeat or skip samples

model       238   956 B
├── calls     1     8 B
├── embed    49   196 B
├── block   150   600 B
│   ├── 0    80   320 B
│   └── 2    70   280 B
├── norm     14    56 B
└── head     24    96 B
"""
    )


def test_shards_are_one_model_with_folded_layers(ckptctl, corpus, monkeypatch):
    monkeypatch.chdir(corpus / "transformers")
    assert (
        ckptctl("inspect", "sharded_llama").out
        == """\
sharded_llama   safetensors, 4 shards with an index · 21.9 kB · 21 tensors · 4.9 k parameters

component   tensors   parameters     bytes   dtypes
model            21        4.9 k   19.8 kB   F32
missing: all but weights   a resume would start optimizer, schedule and data afresh

metadata: format pt

model                                  4.9 k   19.8 kB
├── lm_head                              512    2.0 kB
└── model                              4.4 k   17.7 kB
    ├── embed_tokens                     512    2.0 kB
    ├── layers.[0–1]  × 2              3.9 k   15.6 kB   2.0 k each
    │   ├── input_layernorm               16      64 B
    │   ├── mlp                        1.2 k    4.6 kB
    │   ├── post_attention_layernorm      16      64 B
    │   └── self_attn                    768    3.1 kB
    └── norm                              16      64 B
"""
    )


def test_a_missing_shard_is_said_and_the_rest_listed(ckptctl, corpus):
    result = ckptctl("inspect", corpus / "damaged" / "index_shard_missing")
    assert result.status == 0
    assert "error: model-00002-of-00004.safetensors is missing: 6 tensors lost" in result.out


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("index_shard_truncated", "model-00003-of-00004.safetensors: cut at 4518 of 5648 bytes: 2 of 5 tensors lost"),
        ("index_escapes_directory", "which is no name of a file beside it"),
        ("index_names_absent_tensor", "the index places 1 tensor in a shard that does not hold it"),
    ],
)
def test_a_broken_index_or_shard_is_refused(ckptctl, corpus, name, words):
    result = ckptctl("inspect", corpus / "damaged" / name)
    assert (result.status, result.out) == (2, "")
    assert words in result.err


def test_depth_opens_and_closes_the_tree(ckptctl, corpus):
    path = corpus / "torch_save" / "bare_state_dict.pth"
    assert "├── 0" not in ckptctl("inspect", path, "--depth", "1").out
    assert "├── block" not in ckptctl("inspect", path, "--depth", "0").out
    assert ckptctl("inspect", path, "--depth", "-1").status == 2


def test_tensors_lists_every_tensor_and_where_it_lies(ckptctl, corpus):
    path = corpus / "torch_save" / "tied.pt"
    assert (
        ckptctl("inspect", path, "--tensors").out.split("\n\n")[-1]
        == """\
name             dtype   shape     bytes   offset
embed.weight     F32     [11, 5]     220    1,024
proj.weight      F32     [5, 5]      100    1,344
proj.bias        F32     [5]          20    1,536
lm_head.weight   F32     [11, 5]     220    1,024   tied with embed.weight
"""
    )


@pytest.mark.parametrize(("sort", "first"), [("file", "base"), ("name", "base"), ("size", "base"), ("offset", "base")])
def test_sort_orders_the_list(ckptctl, corpus, sort, first):
    report = json.loads(ckptctl("inspect", corpus / "torch_save/views.pt", "--tensors", "--json", "--sort", sort).out)
    rows = report["checkpoints"][0]["tensor_list"]
    assert rows[0]["name"] == first
    keys = {
        "file": lambda row: 0,
        "name": lambda row: row["name"],
        "size": lambda row: -row["nbytes"],
        "offset": lambda row: row["offset"],
    }
    assert [keys[sort](row) for row in rows] == sorted(keys[sort](row) for row in rows)


def test_values_show_the_plain_state(ckptctl, corpus):
    out = ckptctl("inspect", corpus / "torch_save" / "train_dict.pt", "--values").out
    for line in ("├── step: 1200", "│           ├── lr: 0.009977809823015401", "├── betas: [0.9, 0.999]", '    ├── name: "tiny"',
                 "    ├── hidden: [7, 10, 7]", "│   ├── T_max: 100", "… 625 in all]"):  # fmt: skip
        assert line in out


def test_header_accounts_for_every_byte(ckptctl, corpus):
    path = corpus / "safetensors" / "edge" / "padded_header.safetensors"
    out = ckptctl("inspect", path, "--header").out
    size = path.stat().st_size
    assert out.splitlines()[-1].endswith(f"{size:,} of {size:,} bytes")
    assert "padding" in out


def test_selection_by_glob_and_component(ckptctl, corpus):
    path = corpus / "torch_save" / "train_dict.pt"
    out = ckptctl("inspect", path, "--only", "optimizer", "--include", "*.exp_avg", "--tensors").out
    assert "selected: 9 of 39 tensors" in out
    names = [line.split()[0] for line in out.split("\n\n")[-1].splitlines()[1:]]
    assert names == [f"optimizer_state_dict.state.{i}.exp_avg" for i in range(9)]
    out = ckptctl("inspect", path, "--exclude", "*exp_avg*", "--exclude", "*.step", "--json").out
    assert json.loads(out)["checkpoints"][0]["selected"] == 12


def test_brief_is_one_line_and_quiet_none(ckptctl, corpus):
    path = corpus / "torch_save" / "tied.pt"
    assert (
        ckptctl("inspect", "-q", path, path).out.splitlines()
        == [f"{path}   torch zip · 2.5 kB · 4 tensors · 85 parameters"] * 2
    )
    result = ckptctl("inspect", "--quiet", path, "/nowhere")
    assert (result.status, result.out) == (2, "")
    assert "no such file" in result.err


def test_goes_on_after_a_path_that_cannot_be_read(ckptctl, corpus, tmp_path):
    (tmp_path / "bad.pt").write_bytes(b"")
    result = ckptctl("inspect", tmp_path / "bad.pt", corpus / "torch_save" / "tied.pt")
    assert result.status == 2
    assert "empty file" in result.err
    assert "4 tensors" in result.out


def test_json_is_one_document_and_errors_are_documents_on_stderr(ckptctl, corpus):
    result = ckptctl("inspect", "--json", "/nowhere", corpus / "torch_save" / "tied.pt")
    document = json.loads(result.out)
    assert document["schema"] == "ckptctl.inspect/1"
    assert [checkpoint["tensors"] for checkpoint in document["checkpoints"]] == [4]
    assert json.loads(result.err) == {
        "error": {"slug": "unreadable", "message": "/nowhere: no such file or directory", "hint": None}
    }


def test_json_holds_neither_nan_nor_raw_text(ckptctl, tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"w": torch.ones(1), "loss": float("nan"), "best_loss": float("inf"), "n\u202e\x1b": 1}, path)
    out = ckptctl("inspect", path, "--json", "--values").out
    assert out.isascii()
    values = json.loads(out, parse_constant=lambda name: pytest.fail(name))["checkpoints"][0]["values"]
    assert values["loss"] == {"$float": "nan"}


HOSTILE_NAMES = ["\x1b[2J\x1b[31mred", "a\rb", "[/]", "[red]x[/red]", "x\u202ey", "tab\there", "back\\slash", "\ud800",
                 "zero\u200bwidth", "line\nbreak", ":smile:", "é", "\U000e0041tag"]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=ascii)
def test_names_never_reach_the_terminal_raw(ckptctl, tmp_path, name):
    path = tmp_path / "x.pt"
    torch.save({name: torch.ones(2), "values": {name: name}, "note": name}, path)
    out = ckptctl("inspect", path, "--tensors", "--values").out
    assert all(char.isprintable() or char == "\n" for char in out)
    if name.isprintable() and "\\" not in name:
        assert name in out
    else:
        assert ascii(name)[1:-1].replace("\\t", "\\x09").replace("\\r", "\\x0d").replace("\\n", "\\x0a") in out.replace(
            "é", "\\xe9"
        )


def test_names_in_errors_are_escaped_too(ckptctl, tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors_bytes({"\x1b[31mw": entry(end=9)}, bytes(9)))
    result = ckptctl("inspect", path)
    assert result.status == 2
    assert "\\x1b[31mw" in result.err
    assert "\x1b" not in result.err


def test_a_file_that_asks_for_code_is_answered(ckptctl, corpus):
    result = ckptctl("inspect", corpus / "torch_save" / "calls_print_on_load.pt")
    assert result.status == 0
    assert "unsafe: a loader would run builtins.print (dangerous, called 1×); nothing was run" in result.out


def test_long_lists_of_siblings_are_cut_with_a_count(ckptctl, tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors_bytes({f"t{i}x": entry(shape=(0,), end=0) for i in range(1000)}))
    assert "└── … 960 more" in ckptctl("inspect", path).out


def narrow(*arguments, **env) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "ckptctl", *map(str, arguments)],
        capture_output=True, check=True, cwd=HERE.parent, env={**os.environ, **env},
    )  # fmt: skip
    return done.stdout.decode("ascii" if "ascii" in env.values() else "utf-8")


def test_an_ascii_terminal_gets_ascii(corpus):
    out = narrow("inspect", corpus / "torch_save" / "tied.pt", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert "|-- embed" in out
    assert "torch zip | 2.5 kB" in out


def test_names_beyond_ascii_are_escaped_for_an_ascii_terminal(tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"größe": torch.ones(2)}, path)
    assert "gr\\xf6\\xdfe" in narrow("inspect", path, "--tensors", PYTHONIOENCODING="ascii", PYTHONUTF8="0")


def test_a_reader_that_stops_reading_is_no_error(corpus):
    done = subprocess.run(
        ["/bin/sh", "-c", f"{sys.executable} -m ckptctl inspect --header --tensors {corpus}/torch_save/*.pt | head -1"],
        capture_output=True, check=True, cwd=HERE.parent, text=True,
    )  # fmt: skip
    assert done.stdout.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert "Broken" not in done.stderr


def test_every_format_is_shown_by_its_title(ckptctl, corpus):
    shown = ckptctl("inspect", "-q", *(corpus / path for path, _, _ in SAMPLES.values())).out
    for candidate in FORMATS:
        assert f"   {candidate.title} ·" in shown


def test_a_view_of_a_large_storage_is_noticed(ckptctl, tmp_path):
    torch.save({"rows": torch.arange(80_000.0).reshape(10_000, 8)[100:110]}, tmp_path / "slice.pt")
    out = ckptctl("inspect", tmp_path / "slice.pt", "--tensors").out
    assert "views keep a storage alive: 320 of 320000 bytes are used, 99.9 % are dead" in out


def test_a_run_is_a_table_by_step_with_states_and_pointers(ckptctl, corpus):
    out = ckptctl("inspect", corpus / "damaged" / "trainer_last_save_cut_short").out
    lines = out.splitlines()
    assert "Hugging Face Trainer · 3 checkpoints · 2 not whole · 143.3 kB · newest whole: 10" in lines[0]
    assert lines[2].split() == ["name", "step", "epoch", "eval_loss", "size", "age", "state"]
    assert lines[3].split()[:4] == ["checkpoint-10", "10", "0.625", "3.52"]
    assert lines[3].endswith("whole   best")
    assert "unfinished: trainer_state.json, which is written last, is missing" in lines[4]
    assert "unfinished: it still has the temporary name" in lines[5]


def test_a_run_as_json_has_raw_sizes_absolute_times_and_reasons(ckptctl, corpus):
    document = json.loads(ckptctl("inspect", corpus / "damaged" / "trainer_last_save_cut_short", "--json").out)
    assert document["schema"] == "ckptctl.inspect/1"
    assert document["checkpoints"] == []
    (report,) = document["runs"]
    assert (report["nbytes"], report["whole"], report["metric"]) == (143308, 1, "eval_loss")
    first, second, _ = report["run"]["checkpoints"]
    assert first["step"] == {"name": "global_step", "value": 10, "where": "trainer_state.json: global_step"}
    assert first["saved_at"].endswith("+00:00")
    assert first["completeness"] == {"state": "whole", "why": []}
    assert second["completeness"]["state"] == "unfinished"
    assert first["pointers"] == ["best"]


def test_a_checkpoint_that_holds_another_trainers_files_is_no_run(ckptctl, corpus):
    for name in ("deepspeed/zero2_bf16_2ranks", "fsdp/fsdp2_1d_2ranks", "transformers/trainer_run/checkpoint-40"):
        document = json.loads(ckptctl("inspect", corpus / name, "--json").out)
        assert len(document["checkpoints"]) == 1
        assert document["runs"] == []


def test_a_run_beside_its_final_model_is_a_run(ckptctl, corpus, tmp_path):
    source = corpus / "transformers" / "trainer_run" / "checkpoint-40"
    shutil.copytree(source, tmp_path / "out")
    shutil.copytree(source, tmp_path / "out" / "checkpoint-40")
    out = ckptctl("inspect", tmp_path / "out").out
    assert "1 checkpoint · " in out
    assert "note: not taken for checkpoints: config.json" in out


def test_a_run_in_one_line_and_with_a_pattern(ckptctl, corpus, tmp_path):
    out = ckptctl("inspect", corpus / "safetensors" / "run_zero_padded", "--brief").out
    assert len(out.splitlines()) == 1
    assert "24 checkpoints" in out
    assert ckptctl("inspect", corpus / "safetensors" / "run_zero_padded", "--quiet").out == ""
    result = ckptctl("inspect", tmp_path, "--pattern", "(")
    assert result.status == 2
    assert "no regular expression" in result.err


def test_names_in_a_run_reach_the_terminal_escaped(ckptctl, corpus, tmp_path):
    shutil.copytree(corpus / "transformers" / "trainer_run" / "checkpoint-40", tmp_path / "checkpoint-40")
    (tmp_path / "\x1b[31mred\u202e").mkdir()
    (tmp_path / "latest").symlink_to("\x1b[2Jgone")
    out = ckptctl("inspect", tmp_path).out
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert "latest points at \\x1b[2Jgone, which is not there" in out


def test_a_single_checkpoint_shows_the_marks_of_an_unfinished_save(ckptctl, corpus, tmp_path):
    path = tmp_path / "tmp-checkpoint-40"
    shutil.copytree(corpus / "transformers" / "trainer_run" / "checkpoint-40", path)
    (path / "checkpoint-is-incomplete.txt").touch()
    out = ckptctl("inspect", path).out
    assert "error: unfinished: it still has the temporary name of a save in progress" in out
    assert "error: unfinished: it holds checkpoint-is-incomplete.txt" in out
