"""The trials find what they look for: planted faults are seen, and what is right is let be."""

from __future__ import annotations

import errno
import json
import random
import shutil

import pytest
import torch

from tests.samples import CORPUS
from tests.trials import errors, fuzz, pickles
from tests.trials.mutate import KINDS, mutated


def test_what_is_wrong_with_any_answer():
    assert fuzz.wrong(0, "fine\n", "") == ""
    assert fuzz.wrong(2, "", "ckptctl: cut\n  hint: copy it again\n") == ""
    assert "exit status 3" in fuzz.wrong(3, "", "")
    assert "internal error" in fuzz.wrong(2, "", "ckptctl: internal error: KeyError\n")
    assert "Traceback" in fuzz.wrong(2, "", "Traceback (most recent call last): x")
    assert "control character" in fuzz.wrong(0, "a\x1b[31mb", "")
    assert "control character" in fuzz.wrong(0, "a\u202eb", "")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_of_damage_changes_a_file(kind):
    for source in ("torch_save/train_dict.pt", "safetensors/edge/with_metadata.safetensors"):
        raw = (CORPUS / source).read_bytes()
        changed = 0
        for seed in range(20):
            made = bytearray(raw)
            kind(made, random.Random(seed))
            changed += bytes(made) != raw
        assert changed >= 10
    made, how = mutated(raw, random.Random(1))
    assert made != raw
    assert how


def test_a_file_that_is_called_whole_and_is_not_is_found(tmp_path, monkeypatch):
    good = CORPUS / "safetensors" / "edge" / "with_metadata.safetensors"
    bad = tmp_path / "m.safetensors"
    bad.write_bytes(good.read_bytes()[:-3])
    assert fuzz.tried(good, bad, bad, random.Random(1))[1] == ""
    clean = json.dumps({"checkpoints": [{"findings": []}]})
    monkeypatch.setattr(fuzz, "said", lambda *_: (0, clean, ""))
    assert "the safetensors library refuses it" in fuzz.tried(good, bad, bad, random.Random(1))[1]


def test_a_zip_archive_that_is_another_and_called_whole_is_found(tmp_path):
    one, other = CORPUS / "torch_save" / "train_dict.pt", tmp_path / "m.pt"
    shutil.copy(CORPUS / "torch_save" / "tied.pt", other)
    assert "it is another than before" in fuzz.called_whole(one, other)
    shutil.copy(one, other)
    assert fuzz.called_whole(one, other) == ""


def test_an_error_of_the_system_comes_and_what_it_leaves_is_seen(monkeypatch):
    assert errors.trial("convert", "fsync", 1, errno.EIO) == (True, "")
    assert errors.trial("convert", "fsync", 10_000, errno.EIO) == (False, "")
    real = errors.said

    def careless(*arguments):
        answer = real(*arguments)
        if arguments[0] == "convert":
            arguments[1].write_bytes(b"lost")
        return answer

    monkeypatch.setattr(errors, "said", careless)
    assert "changed or lost" in errors.trial("convert", "fsync", 1, errno.EIO)[1]


def test_a_summary_counts_what_was_found():
    tally = fuzz.Tally(tried=3, found=["one"])
    every = fuzz.summed([{"a": tally}, {"a": fuzz.Tally(tried=2)}])
    assert "| all | 5 |" in fuzz.table(every)[-1]
    assert fuzz.table(every)[-1].endswith("| 1 |")


def test_all_that_torch_loads_of_random_objects_is_listed(tmp_path):
    for seed in range(300):
        assert pickles.tried(tmp_path / "m.pt", seed) == "", seed


def test_a_tensor_that_is_not_listed_is_found(tmp_path, monkeypatch):
    torch.save({"w": torch.ones(2), "v": torch.zeros(3)}, tmp_path / "m.pt")
    assert pickles.problem(tmp_path / "m.pt") == ""
    whole = pickles.read

    def less(source):
        found = whole(source)
        del found.tensors["v"]
        return found

    monkeypatch.setattr(pickles, "read", less)
    assert pickles.problem(tmp_path / "m.pt") == "not listed: [(0.0, 0.0, 0.0)]"
