"""`convert` over the whole corpus: nothing lost on the way there, the same again on the way back."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors import safe_open

from ckptctl import formats
from ckptctl.errors import (
    CkptctlError,
    CorruptError,
    ExistsError,
    LockedError,
    NoSpaceError,
    OverflowRefusedError,
    UnreadableError,
    UnsafePickleError,
    UnsupportedError,
    UsageError,
)
from ckptctl.model import DTYPES, Component
from ckptctl.ops.convert import Options, convert, plan
from ckptctl.rewrite.names import parse_rename
from ckptctl.storage import LocalFile
from tests.compare import load, same
from tests.samples import CORPUS, read, values_of

# Refused, each for its reason.
REFUSED = {
    "torch_save/big_endian.pt": "complex128", "torch_save/dtypes.pt": "complex128",
    "torch_save/legacy_dtypes.pt": "complex128", "torch_save/legacy_untyped_unreadable.pt": "complex128",
    "torch_save/calls_print_on_load.pt": "a loader would run builtins.print",
    "torch_save/custom_class.pt": "user_model.TrainConfig (foreign)",
    "torch_save/whole_module_in_main.pt": "user_model.TrainConfig (foreign)",
    "torch_save/python_objects.pt": "a tensor of the class user_model.TaggedTensor",
    "torch_save/skip_data.pt": "their data was never written",
    "torch_save/special_layouts.pt": "a sparse tensor (sparse_coo); --densify",
    "torch_save/empty_dict.pt": "there is nothing to write",
}  # fmt: skip


def torch_files() -> list[Path]:
    """Files of torch and pickles; of the ranks and parts of one save only what stands alone."""
    found = []
    for path in sorted(CORPUS.rglob("*")):
        if not path.is_file() or {"damaged", "orbax"} & set(path.parts) or path.name.endswith(".metadata"):
            continue
        source = LocalFile(path).range()
        if any(f.accepts(source) for f in formats.FORMATS if f.name.startswith(("torch", "pickle"))):
            found.append(path)
    return found


def name_of(path: Path) -> str:
    return str(path.relative_to(CORPUS))


FILES = [path for path in torch_files() if path.suffix != ".distcp"]


def is_part(path: Path) -> bool:
    """Whether it holds what belongs to one rank."""
    contents = read(path)
    return any(not t.whole for t in contents.tensors.values()) or "zero_pp_rank" in path.name


def values_in(path: Path) -> dict[str, bytes]:
    return {name: values_of(tensor) for name, tensor in read(path).tensors.items()}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_there_and_back(path, tmp_path):
    target, back = tmp_path / "x.safetensors", tmp_path / "x.pt"
    if is_part(path):
        with pytest.raises(UnsupportedError, match=r"rank's|placeholders") as caught:
            convert(path, target)
        assert "consolidate" in caught.value.hint
    if is_part(path) or name_of(path) in REFUSED:
        with pytest.raises(CkptctlError) as caught:
            convert(path, target)
        assert REFUSED.get(name_of(path), "") in caught.value.message
        assert list(tmp_path.iterdir()) == []
        return
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    convert(path, target)
    convert(target, back)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before
    _compare_tensors(path, target)
    if path.suffix != ".pkl" and "script" not in read(path).format and not is_weights(path):
        _compare_loaded(path, back)


def is_weights(path: Path) -> bool:
    """Whether it becomes a plain file, which keeps names and tensors but no order and no classes."""
    values = read(path).values
    items = getattr(values, "items", values) if not isinstance(values, dict) else values
    kinds = {type(value).__name__ for value in items.values()} if isinstance(items, dict) else set()
    return kinds == {"TensorRef"} or getattr(values, "how", "") == "module"


def _compare_tensors(path: Path, target: Path) -> None:
    """Every tensor that the source names is in the target or tied there, with the same values."""
    found = values_in(target)
    with safe_open(target, framework="np") as opened:
        ties = opened.metadata()
    for name, tensor in read(path).tensors.items():
        assert found[name if name in found else ties[name]] == values_of(tensor), name


def _compare_loaded(path: Path, back: Path) -> None:
    try:
        expected, safe = load(path, weights_only=True), True
    except (pickle.UnpicklingError, RuntimeError):
        expected, safe = load(path, weights_only=False), False
    differences = same(expected, load(back, weights_only=safe))
    # Arrays of the other byte order, or of columns, come back in this machine's order, rows first.
    assert [text for text in differences if "order" not in text and "dtype" not in text] == []


@pytest.mark.parametrize("name", ["bare_state_dict.pth", "compiled_prefix.pt", "alignment_4096.pt"])
def test_a_plain_state_dict_becomes_what_safetensors_itself_writes(name, tmp_path):
    convert(CORPUS / "torch_save" / name, tmp_path / "ours.safetensors")
    state = dict(torch.load(CORPUS / "torch_save" / name, weights_only=True))
    safetensors.torch.save_file(state, tmp_path / "theirs.safetensors", {"format": "pt"})
    assert (tmp_path / "ours.safetensors").read_bytes() == (tmp_path / "theirs.safetensors").read_bytes()


@pytest.mark.parametrize("expected", sorted(CORPUS.glob("torch_save/*.expected.safetensors")), ids=lambda p: p.stem)
def test_the_truth_of_the_corpus(expected, tmp_path):
    path = expected.with_name(expected.name.replace(".expected.safetensors", ".pt"))
    if not path.exists() or name_of(path) in REFUSED:
        options = Options(drop_foreign=True)
        if not path.exists():
            pytest.skip("its source is in other files")
    else:
        options = Options()
    keys = values_in(expected)
    convert(path, tmp_path / "x.safetensors", options=options)
    found = values_in(tmp_path / "x.safetensors")
    with safe_open(tmp_path / "x.safetensors", framework="np") as opened:
        ties = opened.metadata()
    prefixes = ("", "model_state_dict.", "state_dict.", "model.")
    for name, raw in keys.items():
        there = [prefix + name for prefix in prefixes if prefix + name in found or prefix + name in ties]
        if not there and name.startswith("complex"):
            continue  # safetensors has neither
        assert found[there[0] if there[0] in found else ties[there[0]]] == raw, name


def test_training_checkpoints_lose_nothing_under_weights_only(tmp_path):
    path = CORPUS / "transformers" / "trainer_run" / "checkpoint-40" / "optimizer.pt"
    convert(path, tmp_path / "x.safetensors")
    convert(tmp_path / "x.safetensors", tmp_path / "x.pt")
    assert same(torch.load(path, weights_only=True), torch.load(tmp_path / "x.pt", weights_only=True)) == []


def test_a_converted_training_checkpoint_is_inspected_like_the_original(tmp_path):
    from ckptctl import inspect

    path = CORPUS / "torch_save" / "train_dict.pt"
    convert(path, tmp_path / "train_dict.safetensors")
    before, after = inspect(path), inspect(tmp_path / "train_dict.safetensors")
    assert (before.step, before.epoch, before.metrics) == (after.step, after.epoch, after.metrics)
    rows = [(row.component, row.values, row.about) for row in after.components]
    assert rows == [(row.component, row.values, row.about) for row in before.components]


def test_plain_loads_without_any_class(tmp_path):
    for name in ("numpy_objects.pt", "python_objects.pt", "train_dict.pt"):
        convert(
            CORPUS / "torch_save" / name, tmp_path / "x.pt", options=Options(plain=True, drop_foreign=True, force=True)
        )
        assert torch.load(tmp_path / "x.pt", weights_only=True)


def test_arrays_of_text_and_objects_survive(tmp_path):
    value = {"names": np.array(["a", "bc"]), "mixed": np.array([1, "x", None], dtype=object), "at": np.datetime64("2026-01-01"),
             "rows": np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])}  # fmt: skip
    torch.save(value, tmp_path / "x.pt")
    convert(tmp_path / "x.pt", tmp_path / "x.safetensors")
    convert(tmp_path / "x.safetensors", tmp_path / "back.pt")
    again = torch.load(tmp_path / "back.pt", weights_only=False)
    assert again["names"].tolist() == ["a", "bc"]
    assert again["mixed"].tolist() == [1, "x", None]
    assert again["rows"].tolist() == [(1, 2.0)]
    assert again["at"] == value["at"]


# --- what is selected ---


def test_one_component_is_a_loadable_file_of_weights(tmp_path):
    (report,) = convert(
        CORPUS / "torch_save" / "train_dict.pt", tmp_path / "m.safetensors", options=Options(only=Component.MODEL)
    )
    expected = values_in(CORPUS / "torch_save" / "train_dict.expected.safetensors")
    assert values_in(tmp_path / "m.safetensors") == expected
    assert read(tmp_path / "m.safetensors").metadata == {"format": "pt"}
    assert report.aside[0] == "optimizer (27 tensors)"


def test_the_optimizer_alone_keeps_its_numbers(tmp_path):
    path = CORPUS / "torch_save" / "train_dict.pt"
    convert(path, tmp_path / "o.safetensors", options=Options(only=Component.OPTIMIZER))
    convert(tmp_path / "o.safetensors", tmp_path / "o.pt")
    expected = load(path, weights_only=False)["optimizer_state_dict"]
    assert same(expected, torch.load(tmp_path / "o.pt", weights_only=True)) == []


def test_globs_choose_tensors_and_leave_values_behind(tmp_path):
    (report,) = convert(
        CORPUS / "torch_save" / "train_dict.pt", tmp_path / "x.safetensors",
        options=Options(include=("model_state_dict.*",), exclude=("*.bias",)),
    )  # fmt: skip
    names = set(read(tmp_path / "x.safetensors").tensors)
    assert "model_state_dict.embed.weight" in names
    assert not any(name.endswith("bias") or name.startswith("optim") for name in names)
    assert read(tmp_path / "x.safetensors").values is None
    assert any("plain values are left out" in note for note in report.notes)


def test_names_are_stripped_and_replaced(tmp_path):
    torch.save({"module._orig_mod.a.w": torch.ones(2), "_orig_mod.module.b.w": torch.ones(3)}, tmp_path / "m.pt")
    options = Options(strip_prefix=("module.", "_orig_mod.", "nobody."), rename=(parse_rename(r"^(\w)\.=layer.\1."),))
    (report,) = convert(tmp_path / "m.pt", options=options)
    assert set(read(tmp_path / "m.safetensors").tensors) == {"layer.a.w", "layer.b.w"}
    assert report.warnings == ("--strip-prefix nobody.: no name begins with it",)
    assert ("module._orig_mod.a.w", "layer.a.w") in report.renamed


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (Options(rename=(parse_rename(".*=x"),)), "would both be called x"),
        (Options(strip_prefix=("a", "b")), "empty name"),
        (Options(only=Component.OPTIMIZER), "it has no optimizer"),
    ],
)
def test_names_that_fall_together_are_refused(options, words, tmp_path):
    torch.save({"a": torch.ones(2), "b": torch.ones(3)}, tmp_path / "m.pt")
    with pytest.raises(UsageError, match=words):
        convert(tmp_path / "m.pt", options=options)
    assert [path.name for path in tmp_path.iterdir()] == ["m.pt"]


@pytest.mark.parametrize("text", ["nothing", "=x", "(=x", r"a=\2"])
def test_renames_that_make_no_sense(text):
    with pytest.raises(UsageError):
        parse_rename(text)


# --- tied tensors and views ---


def test_ties_are_recorded_and_come_back_as_ties(tmp_path):
    weight = torch.randn(4, 3)
    torch.save(
        {"lm_head.weight": weight, "wte.weight": weight, "view": weight[:2], "turned": weight.t()}, tmp_path / "m.pt"
    )
    (report,) = convert(tmp_path / "m.pt")
    contents = read(tmp_path / "m.safetensors")
    assert dict(report.tied) == {"lm_head.weight": "wte.weight"}
    assert contents.metadata == {"format": "pt", "lm_head.weight": "wte.weight"}
    assert set(contents.tensors) == {"wte.weight", "view", "turned"}
    convert(tmp_path / "m.safetensors", tmp_path / "back.pt")
    again = torch.load(tmp_path / "back.pt", weights_only=True)
    assert again["lm_head.weight"].data_ptr() == again["wte.weight"].data_ptr()
    assert torch.equal(again["turned"], weight.t())
    assert torch.equal(again["view"], weight[:2])
    convert(tmp_path / "m.pt", tmp_path / "u.safetensors", options=Options(untie=True))
    assert set(read(tmp_path / "u.safetensors").tensors) == {"lm_head.weight", "wte.weight", "view", "turned"}


# --- casts ---


def test_casts_touch_floats_of_the_model_only(tmp_path):
    path = CORPUS / "torch_save" / "train_dict.pt"
    convert(path, tmp_path / "x.safetensors", options=Options(dtype=DTYPES["BF16"]))
    original = load(path, weights_only=False)
    with safe_open(tmp_path / "x.safetensors", framework="pt") as opened:
        for name, tensor in original["model_state_dict"].items():
            expected = tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
            found = opened.get_tensor(f"model_state_dict.{name}")
            assert found.dtype == expected.dtype
            assert torch.equal(found, expected)
        assert opened.get_slice("optimizer_state_dict.state.0.exp_avg").get_dtype() == "F32"
    convert(path, tmp_path / "all.safetensors", options=Options(dtype=DTYPES["F16"], cast_all=True))
    contents = read(tmp_path / "all.safetensors")
    assert contents.tensors["optimizer_state_dict.state.0.exp_avg"].dtype.name == "F16"
    assert contents.tensors["rng.torch"].dtype.name == "U8"


def test_overflow_is_counted_and_refused(tmp_path):
    torch.save({"w": torch.tensor([1.0, 70000.0, -80000.0, float("inf")]), "ok": torch.ones(2)}, tmp_path / "m.pt")
    with pytest.raises(OverflowRefusedError, match=r"2 numbers in 1 of its tensors .* \(the first tensor is w\)"):
        convert(tmp_path / "m.pt", options=Options(dtype=DTYPES["F16"]))
    assert [path.name for path in tmp_path.iterdir()] == ["m.pt"]
    (report,) = convert(tmp_path / "m.pt", options=Options(dtype=DTYPES["F16"], allow_overflow=True))
    assert dict(report.overflows) == {"w": 2}


# --- what cannot be kept ---


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_sparse_tensors_are_named_or_made_dense(tmp_path):
    dense = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    torch.save({"w": torch.ones(1), "adj": dense.to_sparse(), "csr": dense.to_sparse_csr()}, tmp_path / "m.pt")
    with pytest.raises(UnsupportedError, match=r"adj: a sparse tensor \(sparse_coo\)"):
        convert(tmp_path / "m.pt")
    (report,) = convert(tmp_path / "m.pt", options=Options(drop_foreign=True))
    assert set(report.left_out) == {"adj", "csr"}
    convert(tmp_path / "m.pt", options=Options(densify=True, force=True))
    found = safetensors.torch.load_file(tmp_path / "m.safetensors")
    assert torch.equal(found["adj"], dense)
    assert torch.equal(found["csr"], dense)


def test_foreign_classes_are_left_out_when_asked_for(tmp_path):
    (report,) = convert(
        CORPUS / "torch_save" / "custom_class.pt", tmp_path / "x.safetensors", options=Options(drop_foreign=True)
    )
    assert set(report.left_out) == {"config", "phase"}
    convert(tmp_path / "x.safetensors", tmp_path / "x.pt")
    assert "config" not in torch.load(tmp_path / "x.pt", weights_only=True)


def test_danger_anywhere_refuses_whatever_is_selected(tmp_path):
    path = CORPUS / "torch_save" / "calls_print_on_load.pt"
    for options in (Options(only=Component.MODEL), Options(drop_foreign=True), Options(include=("*",))):
        with pytest.raises(UnsafePickleError):
            convert(path, tmp_path / "x.safetensors", options=options)
    assert list(tmp_path.iterdir()) == []


def test_values_of_a_stranger_cannot_smuggle_a_call_into_a_pickle(tmp_path):
    """A safetensors file is harmless; what is made of it must be too."""
    for kind in ("os.system", "builtins.eval", "torch.storage._load_from_bytes", "builtins.getattr"):
        text = json.dumps(
            {"schema": "ckptctl.values/1", "root": {"w": {"$tensor": "w"}, "x": {"$object": kind, "args": ["true"]}}}
        )
        safetensors.torch.save_file({"w": torch.ones(2)}, tmp_path / "m.safetensors", {"ckptctl.values": text})
        with pytest.raises(CkptctlError):
            convert(tmp_path / "m.safetensors", tmp_path / "m.pt")
        assert not (tmp_path / "m.pt").exists()


def test_one_flipped_bit_stops_it_and_names_the_tensor(tmp_path):
    path = CORPUS / "damaged" / "pt_flipped_storage_byte_crc_wrong.pt"
    assert load(path, weights_only=False)  # torch sees nothing
    for name in ("x.safetensors", "x.pt"):
        with pytest.raises(CorruptError, match=r"record data/3 .* damaged: model_state_dict\.block\.0\.weight"):
            convert(path, tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    (report,) = convert(path, tmp_path / "x.safetensors", options=Options(check=False, digest=False))
    assert report.bytes_checked == "unverified"


def test_a_flipped_bit_under_a_view_is_found_too(tmp_path):
    torch.save({"v": torch.arange(64.0).reshape(8, 8)[:, ::2]}, tmp_path / "m.pt")
    raw = bytearray((tmp_path / "m.pt").read_bytes())
    at = raw.index(np.float32(13.0).tobytes())
    raw[at] ^= 1
    (tmp_path / "m.pt").write_bytes(raw)
    with pytest.raises(CorruptError, match="damaged: v"):
        convert(tmp_path / "m.pt")


# --- how it is written ---


def test_the_sidecar_is_a_line_of_coreutils(tmp_path):
    path = tmp_path / "m.pt"
    torch.save({"w": torch.ones(3)}, path)
    (report,) = convert(path)
    line = (tmp_path / "m.safetensors.sha256").read_text()
    digest = hashlib.sha256((tmp_path / "m.safetensors").read_bytes()).hexdigest()
    assert line == f"{digest}  m.safetensors\n"
    assert report.files[0].sha256 == digest
    assert (
        subprocess.run(
            ["sha256sum", "-c", "m.safetensors.sha256"], cwd=tmp_path, check=False, capture_output=True
        ).returncode
        == 0
    )


@pytest.mark.parametrize("mask", [0o022, 0o002, 0o077])
def test_modes_follow_the_umask(mask, tmp_path):
    torch.save({"w": torch.ones(3)}, tmp_path / "m.pt")
    before = os.umask(mask)
    try:
        convert(tmp_path / "m.pt")
    finally:
        os.umask(before)
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in ("m.safetensors", "m.safetensors.sha256")} == {
        0o666 & ~mask
    }


def test_nothing_is_replaced_without_force_and_then_it_keeps_its_mode(tmp_path):
    torch.save({"w": torch.ones(3)}, tmp_path / "m.pt")
    (tmp_path / "m.safetensors").write_bytes(b"precious")
    with pytest.raises(ExistsError, match="exists already"):
        convert(tmp_path / "m.pt")
    assert (tmp_path / "m.safetensors").read_bytes() == b"precious"
    (tmp_path / "m.safetensors").chmod(0o640)
    convert(tmp_path / "m.pt", options=Options(force=True))
    assert (tmp_path / "m.safetensors").stat().st_mode & 0o777 == 0o640
    assert values_in(tmp_path / "m.safetensors")


def test_an_old_digest_never_stays_beside_a_new_file(tmp_path):
    torch.save({"w": torch.ones(3)}, tmp_path / "m.pt")
    convert(tmp_path / "m.pt")
    torch.save({"w": torch.zeros(3)}, tmp_path / "m.pt")
    convert(tmp_path / "m.pt", options=Options(force=True, digest=False))
    assert not (tmp_path / "m.safetensors.sha256").exists()


def test_a_digest_without_its_file_is_somebody_elses(tmp_path):
    torch.save({"w": torch.ones(3)}, tmp_path / "m.pt")
    (tmp_path / "m.safetensors.sha256").write_text("0" * 64 + "\n")
    with pytest.raises(ExistsError, match="without its file"):
        convert(tmp_path / "m.pt")


def test_the_source_is_never_the_target(tmp_path):
    torch.save({"w": torch.ones(3)}, tmp_path / "m.pt")
    os.link(tmp_path / "m.pt", tmp_path / "hard.pt")
    for target in ("m.pt", "hard.pt"):
        with pytest.raises(ExistsError, match="the source itself"):
            convert(tmp_path / "m.pt", tmp_path / target, options=Options(force=True))
    (tmp_path / "link.pt").symlink_to("elsewhere")
    with pytest.raises(ExistsError, match="not a regular file"):
        convert(tmp_path / "m.pt", tmp_path / "link.pt", options=Options(force=True))


def test_room_is_checked_first(tmp_path, monkeypatch):
    torch.save({"w": torch.ones(3).expand(1 << 40, 3)}, tmp_path / "m.pt")  # a few bytes that would become 12 TB
    with pytest.raises(NoSpaceError, match="are needed"):
        convert(tmp_path / "m.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["m.pt"]


def test_a_directory_that_is_not_there_or_a_name_without_a_format(tmp_path):
    torch.save({"w": torch.ones(3)}, tmp_path / "m.pt")
    with pytest.raises(UnreadableError, match="does not exist"):
        convert(tmp_path / "m.pt", tmp_path / "a" / "b" / "x.safetensors")
    with pytest.raises(UsageError, match="its suffix does not say"):
        convert(tmp_path / "m.pt", tmp_path / "x.onnx")


def test_two_writers_of_one_target(tmp_path):
    from ckptctl.storage.atomic import Staged

    torch.save({"w": torch.ones(3)}, tmp_path / "m.pt")
    with Staged(tmp_path / "m.safetensors", force=False), pytest.raises(LockedError, match="somebody else is writing"):
        convert(tmp_path / "m.pt")


def test_what_a_dead_writer_left_is_swept(tmp_path):
    torch.save({"w": torch.ones(3)}, tmp_path / "m.pt")
    (tmp_path / ".m.safetensors.ckptctl-tmp").write_bytes(b"half")
    (tmp_path / "m.safetensors.sha256").write_text("left between the two renames")
    convert(tmp_path / "m.pt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.pt", "m.safetensors", "m.safetensors.sha256"]


def test_a_source_that_changes_meanwhile_is_noticed(tmp_path):
    torch.save({"w": torch.ones(3)}, tmp_path / "m.pt")
    plans, _ = plan([tmp_path / "m.pt"], None, Options())
    torch.save({"w": torch.zeros(3)}, tmp_path / "m.pt")
    with pytest.raises(CkptctlError, match="changed while"):
        plans[0].apply()
    assert [path.name for path in tmp_path.iterdir()] == ["m.pt"]


def test_the_same_input_gives_the_same_bytes_in_another_process(tmp_path):
    path = CORPUS / "torch_save" / "train_dict.pt"
    digests = set()
    for seed in ("1", "2"):
        target = tmp_path / f"{seed}.safetensors"
        code = f"from ckptctl.ops.convert import convert; convert({str(path)!r}, {str(target)!r})"
        subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONHASHSEED": seed})
        digests.add(hashlib.sha256(target.read_bytes()).hexdigest())
    assert len(digests) == 1


# --- shards and directories ---


def test_shards_and_their_index(tmp_path):
    path = CORPUS / "torch_save" / "train_dict.pt"
    (report,) = convert(path, tmp_path / "m.safetensors", options=Options(max_shard_size=2_000))
    index = json.loads((tmp_path / "m.safetensors.index.json").read_text())
    assert report.index == tmp_path / "m.safetensors.index.json"
    assert len(report.files) > 2
    for name, file in index["weight_map"].items():
        assert name in read(tmp_path / file).tensors
    sizes = [sum(t.nbytes for t in read(f.path).tensors.values()) for f in report.files]
    assert sum(sizes) == index["metadata"]["total_size"]
    assert all(size <= 2_000 or len(read(f.path).tensors) == 1 for size, f in zip(sizes, report.files, strict=True))
    convert(tmp_path, tmp_path / "back.pt")
    assert same(load(path, weights_only=False), load(tmp_path / "back.pt", weights_only=False)) == []


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("v4_sharded_bin_llama", "v4_sharded_bin_llama"), ("v4_sharded_bin_gpt2_tied", "v4_sharded_bin_gpt2_tied"),
    ],
)  # fmt: skip
def test_sharded_pickles_become_shards_under_the_names_that_loaders_look_for(case, expected, tmp_path):
    source = CORPUS / "transformers" / case
    convert(source, tmp_path / "out")
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    olds = json.loads((source / "pytorch_model.bin.index.json").read_text())["weight_map"]
    for name, file in index["weight_map"].items():
        assert file == olds[name].replace("pytorch_model", "model").replace(".bin", ".safetensors")
    truth = values_in(CORPUS / "transformers" / f"{expected}.expected.safetensors")
    found = {
        name: raw
        for file in set(index["weight_map"].values())
        for name, raw in values_in(tmp_path / "out" / file).items()
    }
    ties = {
        k: v for file in set(index["weight_map"].values()) for k, v in read(tmp_path / "out" / file).metadata.items()
    }
    for name, raw in truth.items():
        assert found[name if name in found else ties[name]] == raw


def test_a_directory_gives_its_weights_or_all_of_its_members(tmp_path):
    source = CORPUS / "transformers" / "v4_trainer_bin" / "checkpoint-40"
    convert(source, tmp_path / "weights")
    assert {path.name for path in (tmp_path / "weights").iterdir()} == {"model.safetensors", "model.safetensors.sha256"}
    plans, errors = plan([source], tmp_path / "all", Options(), everything=True)
    assert errors == []
    names = {one.apply().files[0].path.name for one in plans}
    assert names == {"model.safetensors", "optimizer.safetensors", "scheduler.safetensors", "rng_state.safetensors"}
    convert(tmp_path / "all" / "optimizer.safetensors", tmp_path / "optimizer.pt")
    assert (
        same(load(source / "optimizer.pt", weights_only=True), load(tmp_path / "optimizer.pt", weights_only=True)) == []
    )


@pytest.mark.parametrize("name", ["dcp/dcp_fsdp2_2ranks", "deepspeed/zero2_bf16_2ranks", "fsdp/fsdp2_1d_2ranks"])
def test_what_is_spread_over_ranks_is_for_consolidate(name, tmp_path):
    with pytest.raises(UnsupportedError) as caught:
        convert(CORPUS / name, tmp_path / "x.safetensors")
    assert "consolidate" in caught.value.hint


@pytest.mark.parametrize("name", ["damaged/sharded_missing_shard", "damaged/sharded_index_names_absent_tensor"])
def test_incomplete_shards_are_refused(name, tmp_path):
    if not (CORPUS / name).exists():
        pytest.skip("not in this corpus")
    with pytest.raises(CkptctlError):
        convert(CORPUS / name, tmp_path / "x.pt")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["model.keras", "model.h5", "model.weights.h5", "model_unzipped", "sharded.weights.json"]
)
def test_keras_files(name, tmp_path):
    pytest.importorskip("h5py")
    source = CORPUS / "keras" / "files" / name
    before = read(source).tensors if source.is_file() and source.suffix != ".json" else None
    convert(source, tmp_path / "x.safetensors")
    found = read(tmp_path / "x.safetensors").tensors
    for key, tensor in (before or {}).items():
        assert values_of(found[key]) == values_of(tensor), key
    assert found


def test_two_sources_with_one_target_are_refused_before_anything_is_written(tmp_path):
    for name in ("m.pt", "m.bin"):
        torch.save({"w": torch.ones(3)}, tmp_path / name)
    with pytest.raises(UsageError, match="would both be written"):
        plan([tmp_path / "m.pt", tmp_path / "m.bin"], None, Options())
    with pytest.raises(UsageError, match="would both be written"):
        plan([tmp_path / "m.*"], tmp_path / "out", Options())  # a pattern that the shell left alone
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.bin", "m.pt"]


# --- safetensors as a source ---


def test_safetensors_to_safetensors_keeps_its_metadata(tmp_path):
    safetensors.torch.save_file({"w": torch.ones(4)}, tmp_path / "a.safetensors", {"author": "someone"})
    safetensors.torch.save_file({"w": torch.ones(4)}, tmp_path / "plain.safetensors")
    convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    convert(tmp_path / "plain.safetensors", tmp_path / "c.safetensors")
    assert read(tmp_path / "b.safetensors").metadata == {"author": "someone", "format": "pt"}
    assert read(tmp_path / "c.safetensors").metadata == {"format": "pt"}


def test_safetensors_goes_to_pt_unless_an_option_changes_it(tmp_path):
    safetensors.torch.save_file({"w": torch.ones(4)}, tmp_path / "a.safetensors")
    convert(tmp_path / "a.safetensors")
    assert torch.equal(torch.load(tmp_path / "a.pt", weights_only=True)["w"], torch.ones(4))
    with pytest.raises(UsageError, match="need -o"):
        convert(tmp_path / "a.safetensors", options=Options(dtype=DTYPES["BF16"]))


@pytest.mark.parametrize("name", ["all_dtypes", "f4_f6", "f6_by_hand"])
def test_dtypes_that_torch_lacks_are_named(name, tmp_path):
    paths = list((CORPUS / "safetensors" / "edge").glob(f"*{name}*"))
    for path in paths:
        contents = read(path)
        lacking = [n for n, t in contents.tensors.items() if not t.dtype.torch]
        if lacking:
            with pytest.raises(UnsupportedError, match="which torch does not have"):
                convert(path, tmp_path / "x.pt")
        else:
            convert(path, tmp_path / "x.pt", options=Options(force=True))
            assert values_in(tmp_path / "x.pt") == values_in(path)


def test_a_name_that_occurs_twice_is_refused(tmp_path):
    path = next((CORPUS / "safetensors" / "edge").glob("*duplicate*"))
    with pytest.raises(CorruptError, match="occurs twice"):
        convert(path, tmp_path / "x.pt")


def test_weights_that_were_never_gathered_are_refused(tmp_path):
    state = {"a": torch.empty(0), "b": torch.empty(0), "c": torch.empty(0), "n": torch.ones(2)}
    torch.save(state, tmp_path / "m.bin")
    with pytest.raises(UnsupportedError, match="3 of 4 tensors of the model are empty placeholders"):
        convert(tmp_path / "m.bin")


# --- without torch ---


def test_all_of_it_works_without_torch(tmp_path):
    code = """
import sys
sys.modules["torch"] = None
from ckptctl.cli.app import main
path, out = sys.argv[1:]
assert main(["convert", path, "-o", out + "/x.safetensors", "--dtype", "bf16", "--quiet"]) == 0
assert main(["convert", out + "/x.safetensors", "-o", out + "/x.pt", "--quiet"]) == 0
"""
    path = CORPUS / "torch_save" / "train_dict.pt"
    subprocess.run([sys.executable, "-c", code, str(path), str(tmp_path)], check=True)
    assert (tmp_path / "x.pt").exists()
