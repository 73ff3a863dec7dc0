"""What `ckptctl.training.save` wrote from several ranks: whole, or said to be what it is."""

from __future__ import annotations

import json
import shutil
import struct

import pytest

from ckptctl.checks.completeness import completeness
from ckptctl.errors import CkptctlError, UnsupportedError
from ckptctl.layouts import open_checkpoint
from ckptctl.layouts.saved_ranks import MANIFEST
from ckptctl.model import Component
from ckptctl.model.run import State
from ckptctl.ops.convert import Options, convert
from tests.samples import CORPUS, values_of

TWO = CORPUS / "ckptctl" / "ranks_2"


@pytest.fixture
def saved(tmp_path):
    shutil.copytree(TWO / "step_100", tmp_path / "step_100")
    return tmp_path / "step_100"


def why(path):
    found = completeness(path)
    return found.state, "; ".join(found.why)


@pytest.mark.parametrize("world", [2, 4])
def test_blocks_make_the_truth(world):
    from safetensors.numpy import load_file

    truth = load_file(CORPUS / "ckptctl" / f"ranks_{world}.expected.safetensors")
    checkpoint = open_checkpoint(CORPUS / "ckptctl" / f"ranks_{world}" / "step_100")
    model = checkpoint.parts[Component.MODEL]
    found = {name.removeprefix("model."): bytes(values_of(tensor)) for name, tensor in model.tensors.items()}
    assert found == {name: array.tobytes() for name, array in truth.items()}
    assert not checkpoint.findings
    assert checkpoint.step.value == 100
    assert all("ckptctl" not in key for one in checkpoint.files for key in one.metadata)


def test_what_only_other_ranks_have_is_there_under_their_number():
    checkpoint = open_checkpoint(TWO / "step_100")
    assert "rank_1.rng.torch" in checkpoint.parts[Component.OTHER].tensors
    assert "rng.torch" in checkpoint.parts[Component.RNG].tensors
    assert "python" in checkpoint.parts[Component.OTHER].values["rank_1"]["rng"]


@pytest.mark.parametrize("left", [(), (".rank_00000.safetensors.ckptctl-tmp",), ("rank_00001.safetensors",)])
def test_without_a_manifest_it_is_unfinished(saved, left):
    (saved / MANIFEST).unlink()
    for path in saved.iterdir():
        if path.name not in left:
            path.unlink()
    for name in left:
        (saved / name).touch()
    state, said = why(saved)
    assert state is State.UNFINISHED
    assert MANIFEST in said or not left


@pytest.mark.parametrize("name", ["rank_00000.safetensors", "rank_00001.safetensors", "shared.safetensors"])
@pytest.mark.parametrize("harm", ["gone", "cut"])
def test_every_file_has_to_be_there_and_as_long(saved, name, harm):
    path = saved / name
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    state, said = why(saved)
    assert state is State.DAMAGED
    assert name in said
    assert any(name in finding.message for finding in open_checkpoint(saved).findings)


def test_files_of_ranks_that_were_exchanged_are_found(saved):
    one, other = saved / "rank_00000.safetensors", saved / "rank_00001.safetensors"
    one.rename(saved / "x")
    other.rename(one)
    (saved / "x").rename(other)
    document = json.loads((saved / MANIFEST).read_text())
    for path in (one, other):
        document["files"][path.name]["nbytes"] = path.stat().st_size
    (saved / MANIFEST).write_text(json.dumps(document))
    assert {finding.slug for finding in open_checkpoint(saved).findings} == {"exchanged"}
    assert why(saved)[0] is State.DAMAGED


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.pop("schema"),
        lambda document: document.update(schema="ckptctl.manifest/2"),
        lambda document: document.update(world_size=3),
        lambda document: document.update(world_size="2"),
        lambda document: document.update(generation=0),
        lambda document: document.update(files=[]),
        lambda document: document["files"].update({"../x.safetensors": document["files"]["shared.safetensors"]}),
        lambda document: document["files"].update({"rank_00005.safetensors": document["files"]["shared.safetensors"]}),
        lambda document: document["files"]["shared.safetensors"].update(nbytes=-1),
        lambda document: document["files"]["shared.safetensors"].update(sha256="x"),
        lambda document: document["files"]["shared.safetensors"].pop("sha256"),
        lambda document: document["files"].update({"shared.safetensors": None}),
    ],
)
def test_a_manifest_that_makes_no_sense_is_said_to(saved, change):
    document = json.loads((saved / MANIFEST).read_text())
    change(document)
    (saved / MANIFEST).write_text(json.dumps(document))
    with pytest.raises(CkptctlError, match=MANIFEST):
        open_checkpoint(saved)
    assert why(saved)[0] is State.DAMAGED


@pytest.mark.parametrize("text", ["", "[]", "nonsense", "[" * 100_000, '"x"', "null", '{"files": 3}'])
def test_a_manifest_that_is_none_is_said_to_be(saved, text):
    (saved / MANIFEST).write_text(text)
    with pytest.raises(CkptctlError, match=MANIFEST):
        open_checkpoint(saved)


def with_metadata(path, change):
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    change(header["__metadata__"])
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])


@pytest.mark.parametrize(
    "blocks",
    [
        "", "[]", "3", "{", '{"model.embed.weight": 3}', '{"model.embed.weight": [[7, 6], [4]]}', '{"none": [[7], [0]]}',
        '{"model.embed.weight": [[7, 6], [-1, 0]]}', '{"model.embed.weight": [[7, 6], [6, 0]]}',
        '{"model.embed.weight": [[7.5, 6], [0, 0]]}', '{"model.embed.weight": [[1e99, 6], [0, 0]]}',
        '{"model.embed.weight": [[true, 6], [0, 0]]}', '{"model.embed.weight": [["7", "6"], ["0", "0"]]}',
        '{"model.embed.weight": [[999999999999999999999, 6], [0, 0]]}',
    ],
)  # fmt: skip
def test_blocks_that_make_no_sense_are_said_to(saved, blocks, ckptctl):
    path = saved / "rank_00000.safetensors"
    with_metadata(path, lambda metadata: metadata.update({"ckptctl.blocks": blocks}))
    done = ckptctl("inspect", path)
    assert done.status == 2
    assert "ckptctl.blocks" in done.err


def test_the_file_of_one_rank_alone_is_no_whole(saved, tmp_path):
    shutil.copy(saved / "rank_00001.safetensors", tmp_path)
    path = tmp_path / "rank_00001.safetensors"
    assert "the file of one rank, 1 of 2" in {
        f.message.partition(", with")[0] for f in open_checkpoint(path).files[0].findings
    }
    with pytest.raises(UnsupportedError, match="rank"):
        convert(path, tmp_path / "x.pt", options=Options())
    with_metadata(path, lambda metadata: metadata.pop("ckptctl.blocks"))
    with pytest.raises(UnsupportedError, match="rank"):
        convert(path, tmp_path / "x.pt", options=Options())
    with pytest.raises(UnsupportedError, match="consolidate|several ranks"):
        convert(saved, tmp_path / "x.pt", options=Options())


def test_digests_are_those_of_the_manifest(saved, ckptctl):
    assert "digest verified" in ckptctl("verify", saved).out
    path = saved / "shared.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 1
    path.write_bytes(raw)
    done = ckptctl("verify", saved)
    assert done.status == 1
    assert "shared.safetensors" in done.out
    assert MANIFEST in done.out


def test_an_unfinished_one_is_passed_over_and_pruned_as_such(saved, tmp_path, ckptctl):
    shutil.copytree(saved, tmp_path / "step_50")
    (tmp_path / "step_50" / MANIFEST).unlink()
    shutil.copytree(saved, tmp_path / "step_300")
    (tmp_path / "step_300" / MANIFEST).unlink()
    assert ckptctl("verify", "--latest-good", tmp_path).out.strip() == str(saved)
    said = json.loads(ckptctl("prune", tmp_path, "--keep-last", "1", "--dry-run", "--json").out)
    every = [one for run in said["runs"] for group in run["groups"] for one in group["checkpoints"]]
    states = {one["path"].rpartition("/")[2]: one["state"] for one in every}
    assert states == {"step_50": "unfinished", "step_100": "whole", "step_300": "unfinished"}


def test_values_that_are_not_of_these_tensors_are_said_to_be_so(saved):
    path = saved / "rank_00000.safetensors"
    with_metadata(path, lambda metadata: metadata.update({"ckptctl.rank_values": "{}"}))
    document = json.loads((saved / MANIFEST).read_text())
    document["files"][path.name]["nbytes"] = path.stat().st_size
    (saved / MANIFEST).write_text(json.dumps(document))
    with pytest.raises(CkptctlError, match="plain values"):
        open_checkpoint(saved)
