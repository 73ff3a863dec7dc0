"""`diff` finds nothing between what is equal, and just what was changed between what is not."""

from __future__ import annotations

import math
import re
import shutil

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from ckptctl.errors import CkptctlError, CorruptError, UsageError
from ckptctl.layouts import open_checkpoint
from ckptctl.model import Component
from ckptctl.ops.convert import convert
from ckptctl.ops.diff import Kind, Options, diff
from ckptctl.rewrite.options import Options as Rewrite
from ckptctl.tensors.tolerance import Tolerance
from tests.ops.test_consolidate import MODELS
from tests.samples import CORPUS

MODEL = Options(only=Component.MODEL)


def entries():
    """Everything in the corpus that can be opened."""
    found = []
    for path in sorted(CORPUS.rglob("*")):
        if "damaged" in path.parts or path.is_symlink():
            continue
        try:
            open_checkpoint(path)
        except CkptctlError:
            continue
        found.append(path)
    return found


ENTRIES = entries()
FILES = [path for path in ENTRIES if path.is_file()]


@pytest.mark.parametrize("path", ENTRIES, ids=lambda path: str(path.relative_to(CORPUS)))
def test_every_entry_equals_its_copy(path, tmp_path):
    copy = tmp_path / path.name
    if path.suffix == ".json":  # an index needs its shards beside it
        copy = shutil.copytree(path.parent, tmp_path / "d") / path.name
    else:
        shutil.copytree(path, copy, symlinks=True) if path.is_dir() else shutil.copy(path, copy)
    report = diff(path, copy)
    assert (report.equal, report.complete, report.tensors, report.same_file) == (True, True, (), False)
    assert report.compared == report.unchanged == report.a.tensors == report.b.tensors
    assert report.byte_identical in (None, True)
    again = diff(path, path)
    assert (again.equal, again.same_file, again.read) == (True, True, 0)


_NOT_CONVERTED = (
    "shard of a larger whole|metadata of a distributed checkpoint|part of an optimizer of DeepSpeed|empty placeholders|"
    "nothing to write|values cannot be kept|occurs twice|it is not converted|data was never written"
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CORPUS)))
def test_every_file_equals_its_converted_copy(path, tmp_path):
    for suffix in (".safetensors", ".pt"):
        try:
            convert(path, tmp_path / f"x{suffix}")
        except CkptctlError as error:
            assert re.search(_NOT_CONVERTED, error.message), error
            continue
        report = diff(path, tmp_path / f"x{suffix}")
        assert report.equal, (report.tensors, report.values, report.only_a, report.only_b, report.ties)
        assert diff(tmp_path / f"x{suffix}", path).equal


BUFFERS = {"running"}
"""What the truth from a running engine of DeepSpeed does not have."""


@pytest.mark.parametrize(("source", "expected"), MODELS.items(), ids=MODELS)
def test_every_sharded_entry_equals_its_truth(source, expected):
    report = diff(CORPUS / source, CORPUS / f"{expected}.safetensors", options=MODEL)
    assert report.tensors == ()
    assert report.unchanged == report.compared > 0
    assert {one.name for one in report.only_a} <= (BUFFERS if expected.endswith("live") else set())
    assert not report.only_b or "placements" in source  # whose truth has more than the model
    assert not any(tie.known for tie in report.ties)


STATE = {
    "model.layers.0.w": torch.arange(24.0).reshape(4, 6),
    "model.layers.1.w": torch.arange(24.0).reshape(4, 6) + 100,
    "model.layers.1.b": torch.full((4,), 0.5),
    "model.embed.w": torch.arange(15.0).reshape(5, 3),
    "head.w": torch.tensor([1.0, -2.0, 3.0]),
}


def compared(tmp_path, change, **options):
    """Compare a state with a changed one, as safetensors against torch."""
    state = {name: one.clone() for name, one in STATE.items()}
    save_file(state, tmp_path / "a.safetensors")
    torch.save(change(state) or state, tmp_path / "b.pt")
    return diff(tmp_path / "a.safetensors", tmp_path / "b.pt", options=Options(**options))


def test_equal_under_another_format(tmp_path):
    report = compared(tmp_path, lambda _: None)
    assert (report.equal, report.compared, report.byte_identical) == (True, 5, False)
    every = compared(tmp_path, lambda _: None, all=True)
    assert [one.kind for one in every.tensors] == [Kind.EQUAL] * 5


def test_a_changed_value(tmp_path):
    def change(state):
        state["model.layers.1.w"][2, 3] += 7

    report = compared(tmp_path, change)
    (one,) = report.tensors
    assert (one.name, one.kind, one.different) == ("model.layers.1.w", Kind.VALUES, True)
    assert (one.measures.changed, one.measures.worst, one.measures.max_abs) == (1, (2, 3), 7)
    assert (one.measures.worst_a, one.measures.worst_b) == (115.0, 122.0)
    assert [(row.name, row.changed, row.tensors) for row in report.modules] == [("model.layers.1", 1, 2)]
    expected = 7 / math.sqrt(float((STATE["model.layers.1.w"].double() ** 2).sum()))
    assert report.modules[0].relative_l2 == pytest.approx(expected)
    assert not report.equal


def test_tensors_on_one_side(tmp_path):
    def change(state):
        del state["head.w"]
        state["more"] = torch.zeros(9, dtype=torch.int32)

    report = compared(tmp_path, change)
    assert [(one.name, one.dtype, one.shape) for one in report.only_a] == [("head.w", "F32", (3,))]
    assert [(one.name, one.dtype, one.nbytes) for one in report.only_b] == [("more", "I32", 36)]
    assert (report.equal, report.tensors, report.renamed) == (False, (), ())


@pytest.mark.parametrize(
    ("rename", "expected"),
    [
        (lambda name: f"module.{name}", ("", "module", True, 5)),
        (lambda name: f"_orig_mod.{name}", ("", "_orig_mod", True, 5)),
        (lambda name: name.replace("layers.", "layers._checkpoint_wrapped_module."), ("", "_checkpoint_wrapped_module", False, 3)),
        (lambda name: name.replace("layers", "blocks"), ("layers", "blocks", False, 3)),
        (lambda name: name.replace("head.w", "output.w"), ("head", "output", True, 1)),
        (lambda name: name.removeprefix("model."), ("model", "", True, 4)),
    ],
    ids=["module", "compiled", "inside", "other-name", "one", "without"],
)  # fmt: skip
def test_renamed(rename, expected, tmp_path):
    report = compared(tmp_path, lambda state: {rename(name): one for name, one in state.items()})
    assert [(one.old, one.new, one.front, one.count) for one in report.renamed] == [expected]
    assert (report.only_a, report.only_b, report.tensors, report.unchanged) == ((), (), (), 5)
    assert not report.equal


def test_a_wrapped_model_that_changed_too(tmp_path):
    def change(state):
        state["head.w"][0] = 9
        return {f"module.{name}": one for name, one in state.items()}

    report = compared(tmp_path, change)
    assert [(one.name, one.was) for one in report.tensors] == [("module.head.w", "head.w")]
    stripped = compared(tmp_path, change, strip_prefix=("module.",))
    assert ([one.name for one in stripped.tensors], stripped.renamed) == (["head.w"], ())
    mapped = compared(tmp_path, change, rename=((re.compile("^"), "module."),))
    assert ([one.name for one in mapped.tensors], mapped.renamed) == (["module.head.w"], ())


def test_equal_bytes_under_several_names_go_by_the_others(tmp_path):
    ones = {f"layers.{i}.norm": torch.ones(8) for i in range(12)} | {f"layers.{i}.w": torch.randn(8) for i in range(12)}
    save_file(ones, tmp_path / "a.safetensors")
    save_file({name.replace("layers", "h"): one for name, one in ones.items()}, tmp_path / "b.safetensors")
    report = diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert [(one.old, one.new, one.count) for one in report.renamed] == [("layers", "h", 24)]


def test_type_and_shape(tmp_path):
    def change(state):
        state["head.w"] = state["head.w"].bfloat16()
        state["model.embed.w"] = state["model.embed.w"].T.contiguous()

    report = compared(tmp_path, change)
    kinds = {one.name: (one.kind, one.dtype_b, one.shape_b) for one in report.tensors}
    assert kinds == {
        "head.w": (Kind.ROUNDED, "BF16", (3,)),
        "model.embed.w": (Kind.SHAPE, "F32", (3, 5)),
    }
    assert all(one.different for one in report.tensors)
    assert not compared(tmp_path, change, dtype_tolerant=True, exclude=("*embed*",)).tensors[0].different

    def cast(state):
        state["head.w"] = state["head.w"].bfloat16() + 1

    assert compared(tmp_path, cast, dtype_tolerant=True).tensors[0].kind is Kind.DTYPE


def test_ties(tmp_path):
    def tied(state):
        state["model.layers.1.w"] = state["model.layers.0.w"]

    shared = torch.arange(6.0)
    torch.save({"a": shared, "b": shared}, tmp_path / "tied.pt")
    torch.save({"a": shared, "b": shared.clone()}, tmp_path / "apart.pt")
    report = diff(tmp_path / "tied.pt", tmp_path / "apart.pt")
    assert [(tie.names, tie.made, tie.known) for tie in report.ties] == [(("a", "b"), False, True)]
    assert (report.equal, report.unchanged) == (False, 2)
    assert diff(tmp_path / "apart.pt", tmp_path / "tied.pt").ties[0].made
    save_file({"a": shared, "b": shared.clone()}, tmp_path / "apart.safetensors")
    silent = diff(tmp_path / "tied.pt", tmp_path / "apart.safetensors")
    assert (silent.equal, [tie.known for tie in silent.ties]) == (True, [False])
    save_file({"a": shared}, tmp_path / "one.safetensors")
    assert diff(tmp_path / "tied.pt", tmp_path / "one.safetensors").only_a[0].tied == "a"
    assert compared(tmp_path, tied).tensors[0].name == "model.layers.1.w"


def test_plain_values(tmp_path):
    nan = float("nan")
    one = {
        "model": {"w": torch.ones(2)},
        "step": 1,
        "lr": 0.1,
        "betas": (0.9, 0.99),
        "loss": nan,
        "gone": {"x": {"y": 1}},
    }
    other = {"model": {"w": torch.ones(2)}, "step": 1.0, "lr": 0.2, "betas": [0.9, 0.999], "loss": nan, "new": None}
    torch.save(one, tmp_path / "a.pt")
    torch.save(other, tmp_path / "b.pt")
    report = diff(tmp_path / "a.pt", tmp_path / "b.pt")
    found = {value.path: (value.a, value.b, value.only) for value in report.values}
    assert found == {
        "step": (1, 1.0, ""),
        "lr": (0.1, 0.2, ""),
        "betas.1": (0.99, 0.999, ""),
        "gone": ({"x": {"y": 1}}, None, "a"),
        "new": (None, None, "b"),
    }
    assert (report.equal, report.unchanged) == (False, 1)


def test_long_lists_are_values_wherever_they_lie(tmp_path):
    torch.save({"model": {"w": torch.ones(2)}, "order": list(range(5000)), "text": "é" * 70000}, tmp_path / "a.pt")
    convert(tmp_path / "a.pt", tmp_path / "b.safetensors")
    assert diff(tmp_path / "a.pt", tmp_path / "b.safetensors").equal
    torch.save(
        {"model": {"w": torch.ones(2)}, "order": [*range(4999), 0], "text": "é" * 69999 + "e"}, tmp_path / "c.pt"
    )
    for path in ("a.pt", "b.safetensors"):
        report = diff(tmp_path / "c.pt", tmp_path / path)
        assert {value.path.partition(".")[0] for value in report.values} == {"order", "text"}


def test_metadata_where_both_sides_have_some(tmp_path):
    for name, metadata in (("a", {"format": "pt", "by": "me"}), ("b", {"format": "np", "by": "you", "more": "x"})):
        save_file({"w": torch.ones(2)}, tmp_path / f"{name}.safetensors", metadata)
    report = diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert [(one.path, one.a, one.b) for one in report.metadata] == [("by", "me", "you"), ("more", None, "x")]
    torch.save({"w": torch.ones(2)}, tmp_path / "c.pt")
    assert diff(tmp_path / "a.safetensors", tmp_path / "c.pt").equal


def test_close(tmp_path):
    def change(state):
        state["head.w"] *= 1 + 1e-6

    for options, equal in (
        ({}, False),
        ({"tolerance": Tolerance()}, True),
        ({"tolerance": Tolerance(rtol=1e-9, atol=0)}, False),
    ):
        report = compared(tmp_path, change, **options)
        assert report.equal is equal
        assert report.tensors[0].kind is (Kind.CLOSE if equal else Kind.VALUES)


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_sparse_and_dense_of_the_same_values(tmp_path):
    dense = torch.zeros(50, 4)
    dense[7, 2], dense[30, 0] = 3.0, -1.0
    torch.save({"w": dense.to_sparse(), "v": dense.to_sparse_csr()}, tmp_path / "a.pt")
    torch.save({"w": dense, "v": dense}, tmp_path / "b.pt")
    assert diff(tmp_path / "a.pt", tmp_path / "b.pt").unchanged == 2
    dense[7, 2] = 4.0
    torch.save({"w": dense, "v": dense.to_sparse_csr()}, tmp_path / "c.pt")
    report = diff(tmp_path / "a.pt", tmp_path / "c.pt")
    assert [(one.measures.changed, one.measures.worst) for one in report.tensors] == [(1, (7, 2)), (1, (7, 2))]


def test_layout_in_memory_is_no_difference(tmp_path):
    w = torch.arange(24.0).reshape(4, 6)
    torch.save({"w": w, "c": torch.randn(1, 2, 3, 3)}, tmp_path / "a.pt")
    state = torch.load(tmp_path / "a.pt")
    state["w"] = w.T.contiguous().T
    state["c"] = state["c"].to(memory_format=torch.channels_last)
    torch.save(state, tmp_path / "b.pt")
    assert diff(tmp_path / "a.pt", tmp_path / "b.pt").equal


def test_the_files_of_one_rank(tmp_path):
    source = CORPUS / "fsdp" / "fsdp1_dtensor_2ranks"
    names = sorted(path.name for path in source.iterdir() if path.name.endswith((".pt", ".bin")))
    assert diff(source / names[0], shutil.copy(source / names[0], tmp_path / "same.pt")).equal
    report = diff(source / names[0], source / names[1])
    assert {one.kind for one in report.tensors} >= {Kind.UNREAD}
    assert not report.equal


def test_what_is_not_whole_is_not_compared(tmp_path):
    with pytest.raises(CorruptError, match="is missing"):
        diff(CORPUS / "damaged" / "index_shard_missing", CORPUS / "dcp" / "dcp_no_dist")
    with pytest.raises(UsageError, match="checkpoints, not one"):
        diff(CORPUS / "transformers" / "trainer_run", CORPUS / "dcp" / "dcp_no_dist")


def test_a_block_that_cannot_be_read_is_said_and_the_rest_compared(tmp_path):
    source = CORPUS / "dcp" / "dcp_no_dist"
    shutil.copytree(source, tmp_path / "d")
    tensor = open_checkpoint(source).parts[Component.MODEL].tensors["app.model.embed.weight"]
    place = tensor.pieces[0].range
    path = tmp_path / "d" / place.file.path.name
    raw = bytearray(path.read_bytes())
    raw[place.offset : place.offset + 4] = b"XXXX"
    path.write_bytes(raw)
    report = diff(source, tmp_path / "d", options=MODEL)
    assert [(one.name, one.kind) for one in report.tensors] == [("embed.weight", Kind.UNREAD)]
    assert report.tensors[0].why
    assert (report.equal, report.unread, report.unchanged) == (False, True, report.compared - 1)


def test_hard_links_are_the_same_file(tmp_path):
    save_file({"w": torch.ones(1000)}, tmp_path / "a.safetensors")
    (tmp_path / "b.safetensors").hardlink_to(tmp_path / "a.safetensors")
    report = diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert (report.same_file, report.equal, report.read) == (True, True, 0)


def test_digests_on_record_are_stated_and_never_trusted(tmp_path):
    save_file({"w": torch.ones(1000)}, tmp_path / "a.safetensors")
    save_file({"w": torch.zeros(1000)}, tmp_path / "b.safetensors")
    for name in "ab":
        (tmp_path / f"{name}.safetensors.sha256").write_text(f"{'5c' * 32}  {name}.safetensors\n")
    report = diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert report.notes == ("the digests on record agree (sha256 5c5c5c5c… and 5c5c5c5c…); bytes were compared too",)
    assert not report.equal


def test_it_stops_at_the_first_difference(tmp_path):
    save_file({f"{i:03d}": torch.zeros(1 << 20) for i in range(40)}, tmp_path / "a.safetensors")
    save_file({f"{i:03d}": torch.full((1 << 20,), float(i < 2)) for i in range(40)}, tmp_path / "b.safetensors")
    report = diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors", options=Options(first=True))
    assert (report.equal, report.complete, len(report.tensors)) == (False, False, 1)
    assert report.read < 40 << 20


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_planted_changes_are_found_and_nothing_else(data, tmp_path):
    """Random tensors, random changes of each kind: exactly those are reported, with the values of float64 arithmetic."""
    dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.uint8])
    shapes = st.lists(st.integers(1, 5), max_size=3).map(tuple)
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    names = [f"m.{i}.w{j}" for i in range(3) for j in range(3)]
    a = {name: (torch.randn(data.draw(shapes)) * 50 + 60).to(data.draw(dtypes)) for name in names}
    b = {name: one.clone() for name, one in a.items()}
    changed = data.draw(st.sets(st.sampled_from(names)))
    for name in changed:
        flat = b[name].view(-1)
        flat[data.draw(st.integers(0, flat.numel() - 1))] += 1
    gone = data.draw(st.sets(st.sampled_from(names), max_size=2)) - changed
    for name in gone:
        del b[name]
    save_file(a, tmp_path / "a.safetensors")
    torch.save({"state_dict": b}, tmp_path / "b.pt")
    report = diff(tmp_path / "a.safetensors", tmp_path / "b.pt")
    assert {one.name for one in report.tensors} == {name for name in changed if not torch.equal(a[name], b[name])}
    assert {one.name for one in report.only_a} == gone
    assert (report.only_b, report.renamed, report.values) == ((), (), ())
    assert report.equal == (not gone and not report.tensors)
    for one in report.tensors:
        x, y = a[one.name].double().numpy(), b[one.name].double().numpy()
        assert one.measures.max_abs == pytest.approx(np.abs(y - x).max())
        norm = np.linalg.norm(x)
        relative = np.linalg.norm(y - x) / norm if norm else math.inf
        assert one.measures.relative_l2 == pytest.approx(relative, rel=1e-9)
        assert np.abs(y - x)[one.measures.worst] == pytest.approx(np.abs(y - x).max())


def test_a_rewritten_checkpoint_in_shards(tmp_path):
    source = CORPUS / "transformers" / "single_llama"
    (tmp_path / "out").mkdir()
    convert(source / "model.safetensors", tmp_path / "out" / "model.safetensors", options=Rewrite(max_shard_size=3000))
    assert len(list((tmp_path / "out").glob("model-*.safetensors"))) > 1
    report = diff(source / "model.safetensors", tmp_path / "out")
    assert report.equal
    assert load_file(source / "model.safetensors").keys()
