"""What a reading of the format readers found: files that are shown, or converted, otherwise than they are."""

from __future__ import annotations

import pickle
import re
import shutil
import zlib

import h5py
import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

from ckptctl.errors import CorruptError, UnsupportedError
from ckptctl.layouts import open_checkpoint
from ckptctl.model import Component
from ckptctl.ops.convert import convert
from ckptctl.ops.diff import diff
from ckptctl.ops.inspect import inspect
from ckptctl.ops.verify import verify
from ckptctl.training import load, save
from tests.samples import CORPUS, read, values_of


def converted(path, target):
    convert(path, target)
    return load_file(target)


def test_values_with_many_lists_are_read_back(tmp_path):
    path, pairs = tmp_path / "x.safetensors", [[i, i + 1] for i in range(150_000)]
    save(path, {"w": torch.ones(3), "pairs": pairs})
    assert load(path)["pairs"] == pairs
    assert verify(path).judgement.value == "good"
    save_file({"w": torch.ones(3)}, tmp_path / "y.safetensors", metadata={"notes": "[" * 200_000})
    assert inspect(tmp_path / "y.safetensors").tensors == 1


SHORT = {
    "a short stream": (0, zlib.compress(b"a" * 40)),
    "a short stream, and more behind it": (0, zlib.compress(b"a" * 40) + bytes(7000)),
    "not packed, and short": (1, b"b" * 500),
    "not packed, and long": (1, b"b" * 50_000),
    "a stream that breaks off": (0, zlib.compress(np.random.default_rng(1).bytes(24_000))[:9000]),
    "a stream that is longer": (0, zlib.compress(bytes(24_001))),
    "no stream": (0, b"c" * 900),
}


@pytest.mark.parametrize("what", SHORT)
def test_a_chunk_that_is_not_as_long_as_it_should_be_is_damage(what, tmp_path):
    mask, raw = SHORT[what]
    with h5py.File(tmp_path / "x.h5", "w") as file:
        made = file.create_dataset("w", shape=(60, 100), dtype="f4", chunks=(60, 100), compression="gzip")
        made.id.write_direct_chunk((0, 0), raw, filter_mask=mask)
    with pytest.raises(CorruptError, match="a chunk cannot be unpacked|its chunks hold"):
        convert(tmp_path / "x.h5", tmp_path / "y.safetensors")
    assert not (tmp_path / "y.safetensors").exists()


def test_an_lzf_chunk_that_is_too_short_is_damage(tmp_path):
    values = np.arange(6000, dtype="f4").reshape(60, 100)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("w", data=values, chunks=(60, 100), compression="lzf")
        _, raw = file["w"].id.read_direct_chunk((0, 0))
    assert values_of(read(tmp_path / "x.h5").tensors["w"]) == values.tobytes()
    for damaged in (raw[:-5], raw + b"\0a", b"\0a", raw[: len(raw) // 2], b"\xff\xff\xff" * 40):
        with h5py.File(tmp_path / "y.h5", "w") as file:
            made = file.create_dataset("w", shape=(60, 100), dtype="f4", chunks=(60, 100), compression="lzf")
            made.id.write_direct_chunk((0, 0), damaged)
        with pytest.raises(CorruptError, match="a chunk cannot be unpacked|its chunks hold"):
            convert(tmp_path / "y.h5", tmp_path / "y.safetensors")


@pytest.mark.parametrize("shape", [(60, 100), (7, 13), (64,), (3, 5, 9)])
@pytest.mark.parametrize(
    "packing",
    [{"compression": "gzip"}, {"compression": "gzip", "shuffle": True}, {"compression": "lzf", "shuffle": True},
     {"compression": "lzf"}, {"shuffle": True}, {}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("kind", ["f4", "f8", "i2", "u1", ">f4"])
@pytest.mark.parametrize("noise", [False, True])
def test_chunks_unpack_to_what_the_library_reads(shape, packing, kind, noise, tmp_path):
    rng = np.random.default_rng(2)
    count = int(np.prod(shape)) * np.dtype(kind).itemsize
    raw = rng.bytes(count) if noise else bytes(count - 8) + rng.bytes(8)
    values = np.frombuffer(raw, kind).reshape(shape)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("w", data=values, chunks=tuple(min(size, 5) for size in shape), **packing)
    found = values_of(read(tmp_path / "x.h5").tensors["w"])
    assert found == values.astype(values.dtype.newbyteorder("<")).tobytes()


def test_edges_that_are_left_unpacked_are_read(tmp_path):
    """As the library leaves chunks that stick out, if it is told so; h5py has no name for that."""
    values = np.arange(1, 71, dtype="f4").reshape(7, 10)
    edge = np.zeros((5, 10), "f4")
    edge[:2] = values[5:]
    with h5py.File(tmp_path / "x.h5", "w") as file:
        made = file.create_dataset("w", shape=(7, 10), dtype="f4", chunks=(5, 10), compression="gzip")
        made[:5] = values[:5]
        made.id.write_direct_chunk((5, 0), edge.tobytes())
    assert values_of(read(tmp_path / "x.h5").tensors["w"]) == values.tobytes()


def test_a_bool_that_is_wider_than_a_byte_is_not_read_as_bytes(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        kind = h5py.h5t.enum_create(h5py.h5t.STD_I32LE)
        kind.enum_insert(b"FALSE", 0)
        kind.enum_insert(b"TRUE", 1)
        made = h5py.h5d.create(file.id, b"w", kind, h5py.h5s.create_simple((6,)))
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array([1, 0, 1, 1, 0, 1], np.bool_))
    with pytest.raises(UnsupportedError, match="a type of its own"):
        read(tmp_path / "x.h5")


def test_attributes_without_values_are_no_damage(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.attrs["layer_names"] = np.array([], dtype="S5")
        file.attrs["nothing"] = h5py.Empty("f4")
        file["w"] = np.ones(3, "f4")
    assert list(read(tmp_path / "x.h5").tensors) == ["w"]


def test_a_user_block_is_told(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w", userblock_size=512) as file:
        file["w"] = np.ones(3, "f4")
    with pytest.raises(UnsupportedError, match="begins with something else"):
        read(tmp_path / "x.h5")


class Holds(torch.nn.Module):
    def __init__(self, value):
        super().__init__()
        self.register_buffer("b", value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


COMPLEX = torch.tensor([1 + 2j, 3 - 4j, -5 + 6j])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "value",
    [COMPLEX, COMPLEX.conj(), COMPLEX.conj().imag, torch.arange(3).to(torch.uint16),
     torch.ones(3).to(torch.float8_e4m3fn), torch.ones(3).to(torch.float8_e5m2)],
    ids=["plain", "conj", "neg", "uint16", "e4m3", "e5m2"],
)  # fmt: skip
def test_buffers_of_torchscript_are_what_torch_loads(value, tmp_path):
    torch.jit.save(torch.jit.script(Holds(value)), tmp_path / "x.pt")
    wanted = torch.jit.load(tmp_path / "x.pt").b.resolve_conj().resolve_neg()
    found = converted(tmp_path / "x.pt", tmp_path / "x.safetensors")["b"]
    assert found.dtype is wanted.dtype
    assert found.contiguous().view(torch.uint8).tolist() == wanted.contiguous().view(torch.uint8).tolist()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_frozen_module_keeps_its_weights(tmp_path):
    layer = torch.nn.Sequential(torch.nn.Linear(3, 3))
    torch.jit.save(torch.jit.freeze(torch.jit.script(layer.eval())), tmp_path / "x.pt")
    found = converted(tmp_path / "x.pt", tmp_path / "x.safetensors")
    weights = {tuple(one.flatten().tolist()) for one in found.values()}
    assert {tuple(one.flatten().tolist()) for one in layer.parameters()} <= weights
    assert verify(tmp_path / "x.pt").judgement.value == "good"


def test_arrays_in_other_orders_of_axes_are_tensors(tmp_path):
    values = np.arange(24, dtype="f4").reshape(2, 3, 4).transpose(1, 0, 2)
    torch.save({"a": values}, tmp_path / "x.pt", pickle_protocol=5)
    (tmp_path / "x.pkl").write_bytes(pickle.dumps({"a": values}, 5))
    for name in ("x.pt", "x.pkl"):
        assert values_of(read(tmp_path / name).tensors["a"]) == values.tobytes()


def test_a_long_pickle_with_arrays_in_it_is_read(tmp_path):
    torch.save({"buffer": np.zeros(270 << 17), "w": torch.ones(3)}, tmp_path / "x.pt", pickle_protocol=4)
    assert inspect(tmp_path / "x.pt").tensors == 2


STATE = {"layer.weight": torch.ones(4, 4), "layer.bias": torch.ones(4), "step": 5, "lr": 0.1, "cfg": {"depth": 3}}


def saved_dcp(path, state):
    dcp.save(state, checkpoint_id=path, no_dist=True)
    return path


@pytest.mark.filterwarnings("ignore")
def test_values_of_a_distributed_save_whose_keys_name_nothing_are_kept(tmp_path):
    one = saved_dcp(tmp_path / "one", STATE)
    other = saved_dcp(tmp_path / "other", STATE | {"step": 6})
    report = diff(one, other)
    assert not report.equal
    assert [found.path for found in report.values] == ["step"]
    parts = open_checkpoint(one).parts
    assert set(parts[Component.MODEL].tensors) == {"layer.weight", "layer.bias"}
    torch.save(STATE, tmp_path / "x.pt")
    assert diff(tmp_path / "x.pt", one).equal


@pytest.mark.filterwarnings("ignore")
def test_of_many_items_none_is_passed_over(tmp_path):
    many = {f"optim.{i}": {"lr": float(i), "betas": (0.9, 0.99)} for i in range(600)}
    state = {"model": {"w": torch.ones(3)}, "settings": many, "step": 5}
    saved_dcp(tmp_path / "d", state)
    found = inspect(tmp_path / "d")
    assert found.step.value == 5
    torch.save(state, tmp_path / "x.pt")
    assert diff(tmp_path / "x.pt", tmp_path / "d").equal


@pytest.mark.filterwarnings("ignore")
def test_four_bits_in_a_distributed_save_are_those_of_a_file(tmp_path):
    value = torch.arange(8, dtype=torch.uint8).reshape(2, 4).view(torch.float4_e2m1fn_x2)
    saved_dcp(tmp_path / "d", {"model": {"w": value}})
    torch.save({"model": {"w": value}}, tmp_path / "x.pt")
    assert diff(tmp_path / "x.pt", tmp_path / "d").equal


def test_what_only_other_ranks_have_is_kept(tmp_path):
    for rank in range(2):
        torch.save(
            {"model": {"w": torch.ones(3)}, "step": 5, "seen": 100 + rank, **({"own": [1]} if rank else {})},
            tmp_path / f"ck-rank{rank}.pt",
        )
    changed = tmp_path / "changed"
    changed.mkdir()
    for path in tmp_path.glob("*.pt"):
        (changed / path.name).write_bytes(path.read_bytes())
    torch.save({"model": {"w": torch.ones(3)}, "step": 5, "seen": 7, "own": [2]}, changed / "ck-rank1.pt")
    run = tmp_path / "run"
    run.mkdir()
    for path in tmp_path.glob("*.pt"):
        path.rename(run / path.name)
    assert {found.path for found in diff(run, changed).values} == {"rank_1.seen", "rank_1.own.0"}


def test_a_damaged_item_is_named_and_the_others_are_read(tmp_path):
    shutil.copytree(CORPUS / "dcp" / "dcp_fsdp2_2ranks", tmp_path / "d")
    for path in (tmp_path / "d").glob("*.distcp"):
        path.write_bytes(re.sub(rb"(?s)(PK\x03\x04.{26}archive/byteorde)r", rb"\1x", path.read_bytes()))
    found = open_checkpoint(tmp_path / "d")
    assert any("cannot be read" in one.message for one in found.findings)
    assert inspect(tmp_path / "d").tensors
