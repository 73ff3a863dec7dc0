"""What readers of the whole house found: each fault by the shortest way to it."""

from __future__ import annotations

import json
import os
import shutil
import threading

import pytest
import torch
from safetensors.torch import load_file, save_file

from ckptctl.errors import ChangedError, CkptctlError
from ckptctl.layouts import open_checkpoint
from ckptctl.model import Level
from ckptctl.ops.diff import diff
from ckptctl.runs import find_runs
from ckptctl.storage import LocalFile
from ckptctl.storage.atomic import write_small
from ckptctl.tensors.measure import merged
from ckptctl.training import AfterSave, Uploader, latest_good, save
from ckptctl.values import Described
from ckptctl.values.compare import value_differences
from tests.samples import CORPUS


def test_a_short_write_is_never_published(tmp_path, monkeypatch):
    target, real = tmp_path / "small.json", os.write
    write_small(target, b"old")
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:7]))
    write_small(target, b"x" * 100)
    assert target.read_bytes() == b"x" * 100


def test_a_limit_of_addresses_that_the_reference_library_does_not_fit_into(tmp_path, ckptctl, monkeypatch):
    import safetensors

    def no_room(*_args, **_more):
        raise MemoryError

    monkeypatch.setattr(safetensors, "safe_open", no_room)
    source = CORPUS / "torch_save" / "train_dict.pt"
    assert ckptctl("convert", source, "-o", tmp_path / "m.safetensors").status == 0
    from ckptctl.rewrite import read_back

    monkeypatch.setattr(read_back, "_listed_by_hand", lambda _: "another")
    done = ckptctl("convert", source, "-o", tmp_path / "n.safetensors")
    assert (done.status, (tmp_path / "n.safetensors").exists()) == (2, False)


def test_threads_that_open_one_file_share_its_handle(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"x" * 10)
    before = len(os.listdir("/proc/self/fd"))
    files = [LocalFile(path) for _ in range(50)]
    for file in files:
        file.release()
        threads = [threading.Thread(target=file.fileno) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        file.release()
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    file = LocalFile(path)
    file.release()
    path.write_bytes(b"y" * 11)
    for _ in range(2):
        with pytest.raises(ChangedError):
            file.range().head(3)


def test_sets_that_differ_are_all_found():
    def of(**sets):
        return {
            name: Described(type="builtins.set", level=Level.KNOWN, args=(list(one),)) for name, one in sets.items()
        }

    one, other = of(x=(1, 2), y=(1, 2), z=(5, 6)), of(x=(1, 2), y=(1, 2), z=(5, 7))
    assert list(value_differences(one, other))


def test_the_worst_of_several_blocks_is_the_worst(tmp_path):
    from ckptctl.tensors.measure import measure

    parts = []
    for number, (a, b) in enumerate((([1.0, float("nan")], [1.0, 2.0]), ([1.0, 2.0], [1.0, 102.0]))):
        for name, values in (("a", a), ("b", b)):
            save_file({"w": torch.tensor(values)}, tmp_path / f"{name}{number}.safetensors")
        pair = [open_checkpoint(tmp_path / f"{name}{number}.safetensors") for name in "ab"]
        tensors = [next(t for part in one.parts.values() for t in part.tensors.values()) for one in pair]
        parts.append(measure(*tensors))
    assert merged(parts).max_abs == 100.0


def test_files_that_were_compared_in_part_are_not_called_byte_identical(tmp_path):
    save_file({"x": torch.zeros(2), "y": torch.ones(2)}, tmp_path / "a.safetensors")
    save_file({"x": torch.full((2,), 9.0), "y": torch.ones(2)}, tmp_path / "b.safetensors")
    from ckptctl import DiffOptions

    report = diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors", options=DiffOptions(include=("y",)))
    assert report.equal
    assert report.byte_identical is None


def test_a_version_in_a_name_is_no_metric(tmp_path):
    save_file({"w": torch.zeros(1)}, tmp_path / "step-200-torch=2.1.0.safetensors")
    save_file({"w": torch.zeros(1)}, tmp_path / "step-300-torch=2.1.0.safetensors")
    assert find_runs(tmp_path)


def test_no_conversion_writes_over_the_source_of_another(tmp_path, ckptctl):
    torch.save({"w": torch.zeros(2)}, tmp_path / "m.pt")
    save_file({"w": torch.ones(2)}, tmp_path / "m.safetensors")
    done = ckptctl("convert", "--force", tmp_path / "m.pt", tmp_path / "m.safetensors")
    assert done.status == 2
    assert "is to be converted itself" in done.err
    assert load_file(tmp_path / "m.safetensors")["w"].tolist() == [1, 1]


def test_digests_alone_are_not_called_good(tmp_path, ckptctl):
    for name in ("x.sha256", "y.sha256"):
        (tmp_path / name).write_text("0" * 64)
    done = ckptctl("verify", tmp_path / "x.sha256", tmp_path / "y.sha256")
    assert done.status == 1


def test_a_digest_by_the_stem_is_not_of_a_document(tmp_path, ckptctl):
    directory = tmp_path / "m"
    directory.mkdir()
    save_file({"w": torch.zeros(2)}, directory / "model.safetensors")
    (directory / "model.json").write_text("{}")
    import hashlib

    (directory / "model.sha256").write_text(hashlib.sha256((directory / "model.safetensors").read_bytes()).hexdigest())
    assert ckptctl("verify", "--write", directory).status == 0


def test_what_a_list_of_the_run_says_of_others_is_not_about_this_checkpoint(tmp_path, ckptctl):
    for step in (100, 200):
        for rank in range(2):
            shutil.copy(
                CORPUS / "fsdp" / "fsdp2_1d_2ranks" / f"checkpoint-100-rank{rank}.pt",
                tmp_path / f"step-{step}-rank{rank}.pt",
            )
    import hashlib

    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(tmp_path.glob("*.pt"))
    ]
    (tmp_path / "SHA256SUMS").write_text("".join(lines))
    for rank in range(2):
        (tmp_path / f"step-100-rank{rank}.pt").unlink()
    assert latest_good(tmp_path).name == "step-200-rank0.pt"


def test_a_hook_never_stops_a_training(tmp_path, monkeypatch):
    path = tmp_path / "step_1.safetensors"
    save(path, {"w": torch.zeros(2)})
    after = AfterSave()

    def full(*_args, **_more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ckptctl.training.hooks.after_save.verify", full)
    with pytest.warns(UserWarning, match="No space left"):
        after(path)
    with pytest.raises(OSError, match="No space"):
        AfterSave(strict=True)(path)


def test_a_failed_upload_does_not_use_up_the_anchor(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    with Uploader(run, tmp_path / "to", anchor_every=100, drain_seconds=30.0) as uploader:
        with pytest.raises(CkptctlError):
            uploader.upload(run / "step_100.safetensors")
        save(run / "step_100.safetensors", {"w": torch.zeros(2)})
        assert uploader.upload(run / "step_100.safetensors").done()  # it was waited for


def test_a_state_of_ranks_that_is_saved_again_has_no_list_of_before(tmp_path, ckptctl):
    for step in (1, 2):
        save(tmp_path / "state", {"w": torch.full((3,), float(step)), "step": step})
        assert ckptctl("verify", "--write", tmp_path / "state").status == 0


def test_a_manifest_that_lies_takes_no_memory(tmp_path, ckptctl):
    save(tmp_path / "d", {"w": torch.zeros(2)})
    manifest = tmp_path / "d" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "world_size": 10**10}))
    assert ckptctl("verify", tmp_path / "d").status == 1


def test_blocks_that_overlap_do_not_hide_a_hole(tmp_path):
    from ckptctl.layouts import scan
    from ckptctl.layouts.dcp_safetensors import _uncovered
    from ckptctl.model import DTYPES, Piece, TensorInfo

    (tmp_path / "raw").write_bytes(bytes(64))
    place = LocalFile(tmp_path / "raw").range()
    blocks = ((0, 4), (1, 4), (7, 1))
    pieces = tuple(Piece(range=place.sub(4 * at, 4 * size), offsets=(at,), shape=(size,)) for at, size in blocks)
    tensor = TensorInfo(name="w", dtype=DTYPES["F32"], shape=(8,), pieces=pieces)
    (found,) = _uncovered(scan(tmp_path), {"w": tensor})
    assert "overlap" in found.message
    whole = TensorInfo(name="w", dtype=DTYPES["F32"], shape=(4,), pieces=pieces[:1])
    assert not list(_uncovered(scan(tmp_path), {"w": whole}))


def test_a_lambda_behind_a_million_nodes_is_not_hidden():
    from ckptctl.errors import LimitError
    from ckptctl.formats._keras import configured_code

    with pytest.raises(LimitError):
        configured_code({"a": {"class_name": "Lambda", "module": "keras.layers"}, "z": [0] * 1_000_001})


def test_a_dict_that_pretends_to_be_a_module_hides_no_tensor(tmp_path):
    import collections

    state = collections.OrderedDict(w=torch.arange(3.0))
    for name in ("_parameters", "_buffers", "_modules"):
        setattr(state, name, {})
    torch.save(state, tmp_path / "m.pt")
    found = open_checkpoint(tmp_path / "m.pt")
    assert [name for part in found.parts.values() for name in part.tensors] == ["w"]
