"""`consolidate` writes exactly what the framework holds, or nothing."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import warnings

import pytest
import safetensors.torch
import torch

from ckptctl.errors import CkptctlError, CorruptError, UnsupportedError, UsageError
from ckptctl.layouts import open_checkpoint
from ckptctl.model import Component
from ckptctl.ops.consolidate import Cuts, Options, Wanted, consolidate, plan
from ckptctl.rewrite.cuts import parse_split
from tests.samples import CORPUS, HERE

sys.path.insert(0, str(HERE / "cases"))
import common
import open_cases  # noqa: F401  # registers the cases

# Of round_robin the truth is what training without it gives, bit for bit, and what the copy in 16 bits was rounded from;
# the running engine, asked for parameters by name, says something else.
MODELS = {
    **{f"dcp/{name}": f"dcp/{name}.expected" for name in (
        "dcp_no_dist", "dcp_fsdp2_1ranks", "dcp_fsdp2_2ranks", "dcp_fsdp2_4ranks", "dcp_async_1ranks", "dcp_async_2ranks",
        "dcp_two_threads_2ranks", "dcp_metadata_per_rank_2ranks", "dcp_files_per_tensor_2ranks", "dcp_tp_fsdp2_4ranks",
        "dcp_safetensors_items_1ranks", "dcp_safetensors_items_2ranks", "dcp_hf_1ranks", "dcp_hf_consolidated_2ranks",
        "dcp_hf_distributed_2ranks", "dcp_hf_distributed_4ranks", "dcp_placements_4ranks")},
    **{f"fsdp/{name}": f"fsdp/{name}/expected" for name in (
        "fsdp1_sharded_tensor_2ranks", "fsdp1_sharded_tensor_4ranks", "fsdp1_dtensor_2ranks", "fsdp1_dtensor_4ranks",
        "fsdp2_1d_2ranks", "fsdp2_1d_4ranks", "fsdp2_hsdp_4ranks", "tp_fsdp2_4ranks", "dtensor_placements_2ranks",
        "dtensor_placements_4ranks")},
    **{f"deepspeed/{name}": f"deepspeed/{name}.expected" for name in (
        "zero0_bf16_2ranks", "zero0_fp32_2ranks", "zero2_bf16_1ranks", "zero2_bf16_2ranks", "zero2_bf16_two_groups_2ranks",
        "zero2_bf16_round_robin_2ranks", "zero3_bf16_1ranks", "zero3_bf16_2ranks", "zero3_bf16_two_groups_2ranks", "zero3_fp32_2ranks")},
    **{f"deepspeed/{name}": f"deepspeed/{name}.live" for name in (
        "zero1_bf16_1ranks", "zero1_bf16_2ranks", "zero1_fp32_2ranks", "zero3_bf16_gathered_2ranks")},
    "accelerate/fsdp1_sharded_2ranks/checkpoint_0": "accelerate/fsdp1_sharded_2ranks.expected",
    "accelerate/fsdp2_sharded_2ranks/checkpoint_0": "accelerate/fsdp2_sharded_2ranks.expected",
    "accelerate/save_model_sharded": "accelerate/save_model_sharded.expected",
    "accelerate/save_model_sharded_bin": "accelerate/save_model_sharded_bin.expected",
    "lightning/fabric_sharded": "lightning/fabric_sharded.expected",
    **{f"ckptctl/{name}/step_100": f"ckptctl/{name}.expected" for name in ("ranks_2", "ranks_4")},
    "megatron/iter_0000100": "megatron/iter_0000100.expected",
    "transformers/sharded_llama": "transformers/sharded_llama.expected",
    "transformers/v4_sharded_bin_llama": "transformers/v4_sharded_bin_llama.expected",
    "transformers/v4_sharded_bin_gpt2_tied": "transformers/v4_sharded_bin_gpt2_tied.expected",
}  # fmt: skip
BUFFERS = {"running"}
"""Of DeepSpeed's running engine only parameters were asked; buffers come from the module."""


def truth(name):
    return safetensors.torch.load_file(CORPUS / f"{name}.safetensors")


def load(path):
    """What a loader gets, tied names included."""
    found = safetensors.torch.load_file(path)
    with safetensors.safe_open(path, "pt") as file:
        metadata = file.metadata() or {}
    return found | {name: found[kept] for name, kept in metadata.items() if name not in found and kept in found}


def same(one, other):
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(
        one.contiguous().reshape(-1).view(torch.uint8), other.contiguous().reshape(-1).view(torch.uint8)
    )  # fmt: skip


def cut(names, prefix):
    return {name.removeprefix(prefix): tensor for name, tensor in names.items() if name.startswith(prefix)}


def only_model(expected, report):
    """The part of a truth that is the model, its path cut off as far as the truth has it."""
    prefix = f"{report.taken}." if report.taken else ""
    return cut(expected, prefix) if any(name.startswith(prefix) for name in expected) else expected


@pytest.mark.parametrize(("source", "expected"), MODELS.items(), ids=MODELS)
def test_the_model_is_what_the_framework_holds(source, expected, tmp_path):
    report = consolidate(CORPUS / source, tmp_path / "m.safetensors")
    made = load(tmp_path / "m.safetensors")
    wanted = only_model(truth(expected), report)
    assert wanted
    assert made.keys() - wanted.keys() <= BUFFERS
    assert wanted.keys() <= made.keys()
    assert [name for name, tensor in wanted.items() if not same(made[name], tensor)] == []


ALL = [name for name in MODELS if name.startswith(("dcp/", "fsdp/", "lightning/", "accelerate/fsdp"))]


@pytest.mark.parametrize("source", ALL)
def test_all_of_it_keeps_its_whole_names(source, tmp_path):
    consolidate(
        CORPUS / source, tmp_path / "m.safetensors", wanted=Wanted(only=None), options=Options(drop_foreign=True)
    )
    made = load(tmp_path / "m.safetensors")
    wanted = truth(MODELS[source])
    assert [name for name, tensor in wanted.items() if name not in made or not same(made[name], tensor)] == []


# Asked by name, the running engine gives those of another parameter under round_robin: see above.
MOMENTS = [
    path for path in sorted((CORPUS / "deepspeed").glob("*.optim.safetensors")) if "round_robin" not in path.name
]


@pytest.mark.parametrize("path", MOMENTS, ids=lambda path: path.name)
def test_the_moments_of_deepspeed_by_parameter(path, tmp_path):
    source = path.with_name(path.name.partition(".")[0])
    consolidate(source, tmp_path / "o.safetensors", wanted=Wanted(only=Component.OPTIMIZER))
    made, wanted = load(tmp_path / "o.safetensors"), safetensors.torch.load_file(path)
    assert made.keys() == wanted.keys()
    assert [name for name, tensor in wanted.items() if not same(made[name], tensor)] == []


def test_round_robin_trains_as_without_it(tmp_path):
    for name in ("zero2_bf16_2ranks", "zero2_bf16_round_robin_2ranks"):
        for only in (Component.MODEL, Component.OPTIMIZER):
            consolidate(
                CORPUS / "deepspeed" / name, tmp_path / f"{name}.{only.value}.safetensors", wanted=Wanted(only=only)
            )
    for kind in ("model", "optimizer"):
        one, other = (load(tmp_path / f"zero2_bf16_{name}2ranks.{kind}.safetensors") for name in ("", "round_robin_"))
        assert one.keys() == other.keys()
        assert [name for name, tensor in one.items() if not same(other[name], tensor)] == []


def test_the_weights_in_16_bits_on_demand(tmp_path):
    source = CORPUS / "deepspeed" / "zero2_bf16_2ranks"
    consolidate(source, tmp_path / "m.safetensors", wanted=Wanted(narrow=True))
    made = load(tmp_path / "m.safetensors")
    held = torch.load(source / "global_step10" / "mp_rank_00_model_states.pt", weights_only=False)["module"]
    assert [name for name, tensor in held.items() if not same(made[name], tensor)] == []
    with pytest.raises(UnsupportedError, match="no whole weights in 16 bits"):
        consolidate(CORPUS / "deepspeed" / "zero3_bf16_2ranks", tmp_path / "x.safetensors", wanted=Wanted(narrow=True))


@pytest.mark.parametrize("source", [name for name in MODELS if name.startswith(("deepspeed", "fsdp", "dcp"))])
def test_inspect_lists_the_same_tensors(source, tmp_path):
    report = consolidate(CORPUS / source, tmp_path / "m.safetensors")
    listed = set(open_checkpoint(CORPUS / source).parts[Component.MODEL].tensors)
    prefix = f"{report.taken}." if report.taken else ""
    assert {name.removeprefix(prefix) for name in listed} == load(tmp_path / "m.safetensors").keys()


# --- what is not whole is refused, and nothing is written ---


def refused(source, tmp_path, **wanted):
    with pytest.raises(CkptctlError) as caught:
        consolidate(source, tmp_path / "out" / "m.safetensors", wanted=Wanted(**wanted))
    assert not (tmp_path / "out").exists()
    return str(caught.value)


SHARDED = [
    "dcp/dcp_fsdp2_2ranks", "dcp/dcp_metadata_per_rank_2ranks", "dcp/dcp_hf_distributed_2ranks", "fsdp/fsdp2_1d_4ranks",
    "fsdp/fsdp1_sharded_tensor_2ranks", "deepspeed/zero1_bf16_2ranks", "deepspeed/zero2_bf16_2ranks",
    "deepspeed/zero3_bf16_2ranks", "transformers/sharded_llama", "accelerate/fsdp2_sharded_2ranks/checkpoint_0",
]  # fmt: skip
DATA = (".distcp", ".pt", ".safetensors", ".bin")


def shards_of(path):
    return sorted(one for one in path.rglob("*") if one.suffix in DATA and "expected" not in one.name)


@pytest.mark.parametrize("source", SHARDED)
def test_a_missing_shard_is_named(source, tmp_path):
    for index in range(len(shards_of(CORPUS / source))):
        here = tmp_path / f"c{index}"
        shutil.copytree(CORPUS / source, here)
        lost = shards_of(here)[index]
        lost.unlink()
        if "optimizer_0" in str(lost):
            continue  # the model does not need it
        assert lost.name in refused(here, tmp_path)


@pytest.mark.parametrize("source", SHARDED)
def test_a_cut_shard_is_named(source, tmp_path):
    for index in range(len(shards_of(CORPUS / source))):
        here = tmp_path / f"c{index}"
        shutil.copytree(CORPUS / source, here)
        short = shards_of(here)[index]
        short.write_bytes(short.read_bytes()[:-40])
        if "optimizer_0" in str(short):
            continue
        assert short.name in refused(here, tmp_path)


SWAPPED = [name for name in SHARDED if not name.startswith(("transformers", "accelerate"))]


@pytest.mark.parametrize("source", SWAPPED)
def test_swapped_shards_are_refused(source, tmp_path):
    here = tmp_path / "c"
    shutil.copytree(CORPUS / source, here)
    first, *_, last = [one for one in shards_of(here) if "model_states" not in one.name]
    first.rename(tmp_path / "x")
    last.rename(first)
    (tmp_path / "x").rename(last)
    if source == "dcp/dcp_hf_distributed_2ranks":  # each file says where its blocks belong: its name means nothing
        consolidate(here, tmp_path / "m.safetensors")
        made, wanted = load(tmp_path / "m.safetensors"), truth(MODELS[source])
        assert [name for name, tensor in wanted.items() if not same(made[name], tensor)] == []
        return
    message = refused(here, tmp_path)
    assert first.name in message or last.name in message


def test_swapped_partitions_are_noticed_where_the_files_do_not_tell(tmp_path):
    here = tmp_path / "c"
    shutil.copytree(CORPUS / "deepspeed" / "zero2_bf16_2ranks", here)
    first, last = [one for one in shards_of(here) if "model_states" not in one.name]
    raw = [one.read_bytes() for one in (first, last)]
    first.write_bytes(raw[1].replace(b"pp_rank_1_mp", b"pp_rank_0_mp"))  # the name in the archive is changed as well
    last.write_bytes(raw[0].replace(b"pp_rank_0_mp", b"pp_rank_1_mp"))
    assert "it is padded, and not the last of its ranks" in refused(here, tmp_path)


def test_ranks_of_two_steps_are_refused(tmp_path):
    here = tmp_path / "c"
    shutil.copytree(CORPUS / "fsdp" / "fsdp2_1d_2ranks", here)
    path = here / "checkpoint-100-rank1.pt"
    state = torch.load(path, weights_only=False)
    torch.save(state | {"step": 90}, path)
    assert "different steps" in refused(here, tmp_path)


# --- parts of which nothing says how they were cut ---


def tensor_parallel(path):
    path.mkdir()
    wq, wo, norm = torch.arange(32.0).reshape(8, 4), torch.arange(32.0).reshape(4, 8) + 50, torch.ones(4)
    for rank in range(2):
        torch.save(
            {"wq": wq[4 * rank : 4 * rank + 4].clone(), "wo": wo[:, 4 * rank : 4 * rank + 4].clone(), "norm": norm},
            path / f"consolidated.{rank:02d}.pth",
        )
    return {"wq": wq, "wo": wo, "norm": norm}


def test_parts_need_a_reference_or_a_rule(tmp_path):
    expected = tensor_parallel(tmp_path / "tp")
    assert "--like REFERENCE" in refused_hint(tmp_path / "tp")
    shapes = {"wq": (8, 4), "wo": (4, 8), "norm": (4,)}
    for cuts in (Cuts(shapes=shapes), Cuts(rules=(("wq", 0), ("wo", 1)))):
        consolidate(tmp_path / "tp", tmp_path / "m.safetensors", wanted=Wanted(cuts=cuts), options=Options(force=True))
        made = load(tmp_path / "m.safetensors")
        assert all(same(made[name], tensor) for name, tensor in expected.items())


def refused_hint(path):
    with pytest.raises(CkptctlError) as caught:
        plan(path, None, Wanted(), Options())
    return f"{caught.value} {caught.value.hint}"


def test_rules_that_do_not_fit_are_refused(tmp_path):
    tensor_parallel(tmp_path / "tp")
    for cuts, word in (
        (Cuts(rules=(("wqq", 0),)), "no name matches"),
        (Cuts(rules=(("w?", 5),)), "was not cut along 5"),
        (Cuts(shapes={"wq": (9, 4), "wo": (4, 8)}), "do not make"),
        (Cuts(rules=(("wq", 0),)), "wo differs between"),
    ):
        with pytest.raises(CkptctlError, match=word):
            plan(tmp_path / "tp", None, Wanted(cuts=cuts), Options())
    for text in ("wq", "=1", "wq=x", "wq=-1"):
        with pytest.raises(UsageError, match="GLOB=DIM"):
            parse_split(text)


NAMES = ("embed.weight", "embed.bias", "block.0.weight", "block.0.bias", "block.2.weight", "norm.weight", "norm.bias",
         "head.weight", "head.bias")  # fmt: skip


@pytest.mark.parametrize("ranks", [2, 4])
def test_flat_parameters_need_names_in_their_order(ranks, tmp_path):
    source = CORPUS / "fsdp" / f"fsdp1_local_{ranks}ranks"
    expected = cut(truth(f"fsdp/fsdp1_local_{ranks}ranks/expected"), "model.")
    assert "names, shapes and order are not in the files" in refused_hint(source)
    shapes = {name: tuple(expected[name].shape) for name in NAMES}
    with pytest.raises(UnsupportedError, match="order are not in the files"):
        plan(source, None, Wanted(cuts=Cuts(shapes=shapes, ordered=False)), Options())
    with pytest.raises(UnsupportedError, match="87 elements"):
        plan(source, None, Wanted(cuts=Cuts(shapes=shapes | {"norm.more": (2,)})), Options())
    consolidate(source, tmp_path / "m.safetensors", wanted=Wanted(cuts=Cuts(shapes=shapes)))
    made = load(tmp_path / "m.safetensors")
    assert made.keys() == expected.keys()
    assert [name for name, tensor in expected.items() if not same(made[name], tensor)] == []


def test_whole_dicts_of_all_ranks_are_compared(tmp_path):
    state = {"model": {"w": torch.arange(6.0), "b": torch.ones(2)}, "step": 3}
    for rank in range(3):
        torch.save(state, tmp_path / f"ck-rank{rank}.pt")
    consolidate(tmp_path, tmp_path / "m.safetensors")
    assert same(load(tmp_path / "m.safetensors")["w"], torch.arange(6.0))
    state["model"]["w"][3] += 1
    torch.save(state, tmp_path / "ck-rank2.pt")
    with pytest.raises(CorruptError, match=r"w differs between ck-rank0.pt and ck-rank2.pt"):
        plan(tmp_path, tmp_path / "n.safetensors", Wanted(), Options())


def test_replicas_of_a_grid_are_compared(tmp_path):
    here = tmp_path / "c"
    shutil.copytree(CORPUS / "fsdp" / "fsdp2_hsdp_4ranks", here)
    path = here / "checkpoint-100-rank3.pt"
    raw = path.read_bytes()
    for name, tensor in truth("fsdp/fsdp2_hsdp_4ranks/expected").items():
        half = tensor[len(tensor) // 2 :] if tensor.dim() == 2 else None
        at = raw.find(half.contiguous().numpy().tobytes()) if half is not None and half.numel() > 8 else -1
        if at >= 0 and name.startswith("model."):
            break
    path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
    assert "differs between" in refused(here, tmp_path)


# --- the result ---


def test_the_default_target_lies_beside(tmp_path):
    shutil.copytree(CORPUS / "dcp" / "dcp_fsdp2_2ranks", tmp_path / "step-100")
    report = consolidate(tmp_path / "step-100")
    assert report.output.files[0].path == tmp_path / "step-100.safetensors"
    assert (tmp_path / "step-100.safetensors.sha256").exists()
    assert report.taken == "app.model"
    assert report.left_out.keys() == {"optimizer"}


def test_shards_types_and_files_beside(tmp_path):
    source = tmp_path / "llama"
    shutil.copytree(CORPUS / "transformers" / "sharded_llama", source)
    (source / "tokenizer.json").write_text("{}")
    (source / "consolidated.safetensors").write_bytes(b"")
    options = Options(max_shard_size=4000)
    report = consolidate(source, tmp_path / "out", wanted=Wanted(copy_files=True), options=options)
    assert len(report.output.files) > 3
    assert report.ignored == ("consolidated.safetensors",)
    assert {"tokenizer.json", "config.json", "llama.safetensors.index.json"} <= {
        p.name for p in (tmp_path / "out").iterdir()
    }
    index = json.loads((tmp_path / "out" / "llama.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == truth("transformers/sharded_llama.expected").keys()


@pytest.mark.parametrize("workers", [2, 3, 64])
def test_several_threads_write_the_same_file(workers, tmp_path):
    source = CORPUS / "deepspeed" / "zero2_bf16_2ranks"
    for count in (1, workers):
        report = consolidate(source, tmp_path / f"{count}.safetensors", options=Options(workers=count))
        assert report.output.bytes_checked == "verified"
    one, other = (tmp_path / f"{count}.safetensors" for count in (1, workers))
    assert one.read_bytes() == other.read_bytes()
    assert hashlib.sha256(one.read_bytes()).hexdigest() in (tmp_path / f"{workers}.safetensors.sha256").read_text()


def test_a_flipped_bit_stops_every_thread(tmp_path):
    here = tmp_path / "c"
    shutil.copytree(CORPUS / "dcp" / "dcp_fsdp2_2ranks", here)
    tensor = open_checkpoint(here).parts[Component.MODEL].tensors["app.model.embed.weight"]
    place = tensor.pieces[0].inner().range
    raw = bytearray(place.file.path.read_bytes())
    raw[place.offset + 1] ^= 4
    place.file.path.write_bytes(raw)
    for workers in (1, 3):
        with pytest.raises(CorruptError, match=r"damaged: embed.weight"):
            consolidate(here, tmp_path / "out" / "m.safetensors", options=Options(workers=workers))
        assert not (tmp_path / "out").exists()


def test_what_is_no_sharded_checkpoint(tmp_path):
    with pytest.raises(UsageError, match="one file, not shards"):
        consolidate(CORPUS / "torch_save" / "train_dict.pt", tmp_path / "x.safetensors")
    with pytest.raises(UsageError, match="--tag"):
        consolidate(CORPUS / "dcp" / "dcp_no_dist", tmp_path / "x.safetensors", wanted=Wanted(tag="x"))
    with pytest.raises(UsageError, match="no optimizer"):
        consolidate(
            CORPUS / "transformers" / "sharded_llama",
            tmp_path / "x.safetensors",
            wanted=Wanted(only=Component.OPTIMIZER),
        )
    step = next(path for path in (CORPUS / "orbax").rglob("30") if path.is_dir())
    with pytest.raises(UnsupportedError, match="Orbax"):
        consolidate(step, tmp_path / "x.safetensors")


CASES = ("K01", "K03", "K05", "K08", "K11", "K13", "K16", "K19")


@pytest.mark.parametrize("name", CASES)
def test_reported_cases(name, tmp_path):
    out = tmp_path / "case"
    out.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        common.REG[name]["fn"](out)
    inner = sorted(path for path in out.iterdir() if path.is_dir() and path.name.startswith(("step-", "checkpoint-")))
    consolidate(inner[0] if inner else out, tmp_path / "m.safetensors")
    made = load(tmp_path / "m.safetensors")
    expected = common.TRUTH[name]()
    assert made.keys() == expected.keys()
    assert all(same(made[key], tensor.contiguous()) for key, tensor in expected.items())


def test_k06_the_missing_rank_is_named(tmp_path):
    out = tmp_path / "case"
    out.mkdir()
    common.REG["K06"]["fn"](out)
    assert "rank_2" in refused(out, tmp_path)


def test_k10_needs_the_reference(tmp_path):
    out = tmp_path / "case"
    out.mkdir()
    common.REG["K10"]["fn"](out)
    refused(out, tmp_path)
    shapes = {name: tuple(shape) for name, shape in json.loads((out / "reference.json").read_text()).items()}
    consolidate(out, tmp_path / "m.safetensors", wanted=Wanted(cuts=Cuts(shapes=shapes)))
    made = load(tmp_path / "m.safetensors")
    assert all(same(made[key], tensor) for key, tensor in common.TRUTH["K10"]().items())
