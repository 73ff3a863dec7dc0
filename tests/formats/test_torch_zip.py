"""Every torch zip file of the corpus against torch itself: names, shapes, dtypes, bits."""

from __future__ import annotations

import collections
import io
import pickle
import re
import sys
import types
import warnings
from pathlib import Path

import pytest
import torch

from ckptctl.errors import CkptctlError, UnsupportedError
from ckptctl.formats import torch_zip
from ckptctl.model import DTYPES, Level
from ckptctl.storage import LocalFile, MemoryFile
from tests.samples import CORPUS, read, values_of

OTHERS = {"exported.pt2"}


def is_torch_zip(path: Path) -> bool:
    return path.is_file() and torch_zip.accepts(LocalFile(path).range())


FILES = [
    path
    for path in sorted(CORPUS.rglob("*"))
    if is_torch_zip(path) and path.suffix != ".distcp" and "damaged" not in path.parts and path.name not in OTHERS
]


class _Stub(dict):
    """Stands for any class or function that is not installed."""

    def __init__(self, *args, **kwargs):
        super().__init__()

    def __setstate__(self, state):
        self.state = state


class _Unpickler(pickle.Unpickler):
    """Full unpickling of the corpus's own files, with stand-ins for what is not torch, NumPy or Python."""

    def find_class(self, module, name):
        root = module.split(".")[0]
        if (module, name) == ("builtins", "print"):
            return lambda *args: "printed"
        if root in (
            "torch",
            "numpy",
            "collections",
            "_codecs",
            "argparse",
            "pathlib",
            "datetime",
            "builtins",
            "__builtin__",
        ):
            try:
                return super().find_class(module, name)
            except (ImportError, AttributeError):
                return _Stub
        return _Stub


def by_torch(path: Path):
    """Load with torch; DTensor and ShardedTensor become (full shape, local tensors and offsets)."""
    module = types.ModuleType("stub_pickle")
    module.Unpickler = _Unpickler
    module.load = pickle.load
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(path, map_location="cpu", pickle_module=module, weights_only=False)


def flatten(tree, prefix=""):
    """Name every tensor by the keys that lead to it."""
    if isinstance(tree, torch.Tensor):
        return {prefix or "tensor": tree}
    items = []
    if isinstance(tree, collections.abc.Mapping):
        items = tree.items()
    elif isinstance(tree, (list, tuple, collections.deque)):
        items = enumerate(tree)
    flat = {}
    for key, value in items:
        flat |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def has_shards(path: Path) -> bool:
    return "fsdp" in path.parts and "full" not in path.parent.name


# Objects, not trees of tensors: tested on their own.
SPECIAL = {
    "special_layouts.pt", "whole_module.pt", "whole_module_in_main.pt", "whole_module_torch_only.pt",
    "numpy_objects.pt", "python_objects.pt", "training_args.bin",
}  # fmt: skip
WHOLE = [path for path in FILES if not has_shards(path) and path.name not in SPECIAL]


@pytest.mark.parametrize("path", WHOLE, ids=lambda path: str(path.relative_to(CORPUS)))
def test_lists_what_torch_loads(path):
    expected, found = flatten(by_torch(path)), read(path).tensors
    # Beyond the tensors that torch has, only NumPy arrays are listed.
    values = {name: found[name] for name in found.keys() - expected.keys()}
    assert all(isinstance(piece.range.file, MemoryFile) for tensor in values.values() for piece in tensor.pieces)
    assert expected.keys() <= found.keys()
    for name, tensor in expected.items():
        info = found[name]
        shape = tuple(tensor.shape)
        if tensor.dtype is torch.float4_e2m1fn_x2:
            assert (info.dtype.name, info.shape) == ("F4", (*shape[:-1], shape[-1] * 2))
        else:
            assert info.dtype.torch == str(tensor.dtype).removeprefix("torch.")
            assert info.shape == shape
        if path.name != "skip_data.pt":
            assert values_of(info) == raw(tensor), name


def raw(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return bytes(plain.reshape(-1).view(torch.uint8).numpy().tobytes()) if plain.numel() else b""


SHARDED = sorted({path.parent for path in FILES if has_shards(path)})


@pytest.mark.parametrize("directory", SHARDED, ids=lambda path: path.name)
def test_shards_of_all_ranks_make_the_whole(directory):
    from safetensors.torch import load_file

    truth = load_file(directory / "expected.safetensors")
    ranks = [read(path).tensors for path in sorted(directory.glob("*rank*.pt"))]
    names = set().union(*ranks)
    if "local" in directory.name:
        assert all("_flat_param" in name for rank in ranks for name, tensor in rank.items() if not tensor.whole)
        return
    compared = 0
    for name in names & truth.keys():
        infos = [rank[name] for rank in ranks if name in rank]
        expected = truth[name]
        whole = bytearray(len(raw(expected)))
        covered = bytearray(len(whole))
        width = expected.element_size()
        for info in infos:
            assert info.shape == tuple(expected.shape), name
            for piece in info.pieces:
                single = values_of(type(info)(name=name, dtype=info.dtype, shape=info.shape, pieces=(piece,)))
                mask = torch.zeros(expected.shape, dtype=torch.bool)
                mask[tuple(slice(o, o + n) for o, n in zip(piece.offsets, piece.shape, strict=True))] = True
                for index in mask.reshape(-1).nonzero().flatten().tolist():
                    whole[index * width : (index + 1) * width] = single[index * width : (index + 1) * width]
                    covered[index * width : (index + 1) * width] = b"\1" * width
        assert all(covered), name
        assert bytes(whole) == raw(expected), name
        compared += 1
    assert compared == len(truth.keys() & names) > 0


@pytest.mark.parametrize("name", ["views", "dtypes", "big_endian", "tied", "train_dict"])
def test_bits_equal_the_truth_file(name, corpus):
    from safetensors.torch import load_file

    truth = load_file(corpus / "torch_save" / f"{name}.expected.safetensors")
    found = read(corpus / "torch_save" / f"{name}.pt").tensors
    prefix = "model_state_dict." if name == "train_dict" else ""
    for key, tensor in truth.items():
        assert values_of(found[prefix + key]) == raw(tensor), key


def test_describes_sparse_quantized_and_nested(corpus):
    found = read(corpus / "torch_save" / "special_layouts.pt").tensors
    layouts = {name: (tensor.layout, tensor.dtype.name, tensor.shape) for name, tensor in found.items()}
    assert layouts == {
        "sparse_coo": ("sparse_coo", "F32", (2, 3)),
        "sparse_coo_uncoalesced": ("sparse_coo", "F32", (2, 3)),
        "sparse_csr": ("sparse_csr", "F32", (2, 3)),
        "sparse_csc": ("sparse_csc", "F32", (2, 3)),
        "sparse_bsr": ("sparse_bsr", "F32", (4, 4)),
        "quantized_per_tensor": ("quantized per_tensor_affine", "QU8", (2, 3)),
        "quantized_per_tensor_int8": ("quantized per_tensor_affine", "QI8", (2, 3)),
        "quantized_per_channel": ("quantized per_channel_affine", "QI8", (2, 3)),
        "nested_jagged": ("jagged", "F32", (6, 3)),
        "nested_strided": ("nested", "F32", (18,)),
        "meta": ("meta", "F32", (3, 4)),
    }
    assert [part.name for part in found["sparse_csr"].parts] == [
        "sparse_csr.crow_indices", "sparse_csr.col_indices", "sparse_csr.values",
    ]  # fmt: skip


def test_reads_numpy_arrays_in_every_order(corpus):
    import numpy as np

    found = read(corpus / "torch_save" / "numpy_objects.pt").tensors
    assert values_of(found["array"]) == np.arange(6, dtype=np.float32).tobytes()
    assert values_of(found["fortran_order"]) == np.arange(6.0).tobytes()
    assert values_of(found["big_endian"]) == np.arange(3, dtype=np.float32).tobytes()
    assert values_of(found["legacy_state.1"]) == np.random.RandomState(5).get_state()[1].tobytes()


def test_numpy_1_and_2_read_alike(corpus):
    one, two = read(corpus / "numpy1" / "train_dict_numpy1.pt"), read(corpus / "torch_save" / "train_dict.pt")
    assert all(use.level is Level.KNOWN for use in one.globals)
    kinds = [
        {name: (t.dtype.name, t.shape) for name, t in found.tensors.items() if "rng" in name} for found in (one, two)
    ]
    assert kinds[0] == kinds[1]
    assert any(dtype == "U32" and shape == (624,) for dtype, shape in kinds[0].values())


def test_dtypes_of_torch_are_all_known():
    names = {str(value).removeprefix("torch.") for value in vars(torch).values() if isinstance(value, torch.dtype)}
    # Placeholders without storage or arithmetic that no checkpoint can hold.
    placeholders = {f"{kind}{bits}" for kind in ("int", "uint") for bits in range(1, 8)}
    placeholders |= {"bits1x8", "bits2x4", "bits4x2", "bits8", "bits16"}
    assert names - placeholders == {dtype.torch for dtype in DTYPES.values() if dtype.torch}


def saved(tree, **options) -> bytes:
    buffer = io.BytesIO()
    torch.save(tree, buffer, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_pickle_protocol_gives_the_same_listing(tmp_path, protocol):
    path = tmp_path / "x.pt"
    path.write_bytes(saved({"a": {"b": torch.ones(2, 3)}, 7: torch.zeros(1), "step": 3}, pickle_protocol=protocol))
    contents = read(path)
    assert {name: tensor.shape for name, tensor in contents.tensors.items()} == {"a.b": (2, 3), "7": (1,)}
    assert contents.values["step"] == 3


def test_same_dotted_name_twice_is_told_apart(tmp_path):
    path = tmp_path / "x.pt"
    path.write_bytes(saved({"a.b": torch.ones(1), "a": {"b": torch.ones(2)}, "0": torch.ones(3), 0: torch.ones(4)}))
    assert {name: tensor.shape for name, tensor in read(path).tensors.items()} == {
        "a.b": (1,), "a.b#2": (2,), "0": (3,), "0#2": (4,),
    }  # fmt: skip


def test_a_dict_shared_by_two_keys_is_named_under_both(tmp_path):
    path, weights = tmp_path / "x.pt", {"w": torch.ones(2)}
    path.write_bytes(saved({"model": weights, "ema": weights}))
    found = read(path).tensors
    assert found.keys() == {"model.w", "ema.w"}
    assert found["model.w"].identity == found["ema.w"].identity


@pytest.mark.parametrize("make", [list, dict])
def test_a_structure_that_holds_itself_is_left_out_and_said_so(tmp_path, make):
    path, loop = tmp_path / "x.pt", make()
    loop.append(loop) if make is list else loop.update(me=loop)
    path.write_bytes(saved({"w": torch.ones(2), "loop": loop}))
    contents = read(path)
    assert contents.tensors.keys() == {"w"}
    assert [finding.slug for finding in contents.findings] == ["left-out"]


def test_long_bytes_and_text_stay_in_the_file(tmp_path):
    path = tmp_path / "x.pt"
    path.write_bytes(saved({"blob": b"\xff" * 100_000, "text": "é" * 100_000}, pickle_protocol=4))
    values = read(path).values
    assert values["blob"].range.read() == b"\xff" * 100_000
    assert values["text"].range.read().decode() == "é" * 100_000


def test_a_large_numpy_array_of_protocol_2_is_read_in_place(tmp_path):
    import numpy as np

    array = np.arange(100_000, dtype=np.float64)
    path = tmp_path / "x.pt"
    path.write_bytes(saved({"buffer": array}, pickle_protocol=2))
    assert values_of(read(path).tensors["buffer"]) == array.tobytes()


def test_a_flipped_bit_in_the_pickle_is_refused(tmp_path, corpus):
    good = (corpus / "torch_save" / "tied.pt").read_bytes()
    start = good.index(b"\x80\x02")
    (tmp_path / "x.pt").write_bytes(good[: start + 50] + bytes([good[start + 50] ^ 1]) + good[start + 51 :])
    with pytest.raises(CkptctlError, match="CRC"):
        read(tmp_path / "x.pt")


@pytest.mark.parametrize(
    ("name", "slug"),
    [("views", "storage-kept-alive"), ("no_crc32", "no-checksums"), ("skip_data", "data-never-written")],
)
def test_says_what_is_odd(name, slug, corpus):
    assert [finding.slug for finding in read(corpus / "torch_save" / f"{name}.pt").findings] == [slug]


def test_a_rank_says_that_it_is_one(corpus):
    contents = read(corpus / "fsdp" / "fsdp2_1d_2ranks" / "checkpoint-100-rank0.pt")
    assert "one-rank" in [finding.slug for finding in contents.findings]


def test_reads_parameters_subclasses_and_storages(corpus):
    found = read(corpus / "torch_save" / "python_objects.pt").tensors
    assert {name: (tensor.dtype.name, tensor.shape) for name, tensor in found.items()} == {
        "parameter": ("F32", (4,)), "frozen_parameter": ("I64", (4,)), "parameter_with_attributes": ("F32", (3,)),
        "buffer": ("F32", (3,)), "subclass": ("F32", (4,)), "ordered.a": ("F32", (2,)), "ordered.b": ("F32", (2,)),
        "int_keys.0": ("F32", (1,)), "int_keys.1": ("F32", (1,)),
        "untyped_storage": ("U8", (4,)), "typed_storage": ("F32", (4,)),
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_a_saved_list_of_storages_reads_as_vectors(tmp_path):
    path = tmp_path / "x.pt"
    path.write_bytes(saved([torch.arange(4, dtype=torch.int16).untyped_storage(), torch.ones(2).storage()]))
    found = read(path).tensors
    assert [(tensor.dtype.name, tensor.shape) for tensor in found.values()] == [("U8", (8,)), ("F32", (2,))]


def test_a_tensor_made_in_an_unknown_way_is_not_left_out_in_silence(tmp_path):
    path = tmp_path / "x.pt"
    data = saved({"w": torch.ones(2), "v": torch.ones(2)}).replace(b"_rebuild_tensor_v2", b"_rebuild_tensor_v9")
    start = data.index(b"\x80\x02")
    path.write_bytes(without_crc(data))
    assert start > 0
    with pytest.raises(UnsupportedError, match="torch._utils._rebuild_tensor_v9, which this version does not know"):
        read(path)


def without_crc(data: bytes) -> bytes:
    """The same archive as one saved without checksums."""
    import struct
    import zipfile

    changed = bytearray(data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            for at in (
                [i for i in range(len(data) - 4) if data[i : i + 4] == struct.pack("<I", info.CRC)] if info.CRC else []
            ):
                changed[at : at + 4] = bytes(4)
    return bytes(changed)


def listing(tensors) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (str(t.dtype).removeprefix("torch."), tuple(t.shape)) for name, t in tensors.items()}


@pytest.mark.parametrize("bit", range(8))
def test_every_flipped_bit_of_a_pickle_without_checksum(tmp_path, bit):
    """A listing that differs is given only if torch, told to accept any class, gives it too."""
    tree = {"model": {"w.a": torch.ones(2, 3), "b": torch.zeros(4, dtype=torch.int16)[1:3]}, "step": 7, "lr": 0.5}
    good = without_crc(saved(tree, pickle_protocol=2 if bit % 2 else 4))
    path = tmp_path / "x.pt"
    path.write_bytes(good)
    expected = read(path).tensors.keys()
    with __import__("zipfile").ZipFile(io.BytesIO(saved(tree, pickle_protocol=2 if bit % 2 else 4))) as archive:
        info = archive.getinfo("archive/data.pkl")
        pickled = archive.read(info)
    start, differing = good.index(pickled), 0
    for at in range(start, start + len(pickled)):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1 << bit]) + good[at + 1 :])
        try:
            found = {n: (t.dtype.torch, t.shape) for n, t in read(path).tensors.items()}
        except CkptctlError:
            continue
        if found.keys() != expected:
            differing += 1
            loaded = listing(flatten(by_torch(path)))
            assert {re.sub(r"#\d+$", "", name): kind for name, kind in found.items()} == loaded, at - start
    assert differing > 0 or bit == 7


class Wrapped(torch.Tensor):
    """A subclass that keeps its data in another tensor, as libraries for quantized weights do."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, (4, 4), dtype=torch.float32)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return NotImplemented


def test_tensors_that_hang_on_tensors_are_listed(tmp_path):
    weight = torch.ones(1000)
    weight.extra = torch.ones(4000)
    weight.note = "plain"
    torch.save({"t": weight, "w": Wrapped(torch.ones(16, dtype=torch.int8))}, tmp_path / "x.pt")
    contents = read(tmp_path / "x.pt")
    shapes = {name: (tensor.shape, tensor.layout) for name, tensor in contents.tensors.items()}
    assert shapes["t"] == ((1000,), "strided")
    assert shapes["t.extra"] == ((4000,), "strided")
    assert shapes["w"] == ((4, 4), "subclass")
    assert shapes["w.inner"] == ((16,), "strided")
    assert contents.values["t"].state["note"] == "plain"
    assert [finding.slug for finding in contents.findings] == []


def test_tensors_in_an_array_of_objects_are_listed(tmp_path):
    import numpy as np

    torch.save({"a": np.array([torch.ones(3), {"b": 1}, None], dtype=object)}, tmp_path / "x.pt")
    assert [tensor.shape for tensor in read(tmp_path / "x.pt").tensors.values()] == [(3,)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.quint4x2, torch.quint2x4])
def test_two_or_four_quantized_values_in_a_byte(tmp_path, dtype):
    scale, zero = torch.full((3,), 0.1), torch.zeros(3)
    torch.save({"q": torch.quantize_per_channel(torch.rand(3, 7), scale, zero, 0, dtype)}, tmp_path / "x.pt")
    tensor = read(tmp_path / "x.pt").tensors["q"]
    assert (tensor.dtype.torch, tensor.shape) == (str(dtype).removeprefix("torch."), (3, 7))


@pytest.mark.parametrize("protocol", [2, 4])
def test_keys_of_every_kind_keep_their_names(tmp_path, protocol):
    one = torch.ones(1)
    tree = {
        1: one,
        "1": one,
        "": {"w": one},
        "w": one,
        b"raw": one,
        (1, "x"): one,
        None: one,
        2.5: one,
        "a": {1: "int", "1": "text"},
    }
    torch.save(tree, tmp_path / "x.pt", pickle_protocol=protocol)
    contents = read(tmp_path / "x.pt")
    assert list(contents.tensors) == ["1", "1#2", ".w", "w", "raw", "(1, 'x')", "None", "2.5"]
    assert list(contents.values) == list(tree)


def test_a_shard_of_a_kind_of_its_own_is_named(tmp_path):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (2,))
        local = torch.empty(2, 3, device="meta")
        torch.save({"d": DTensor.from_local(local, mesh, [Shard(0)], run_check=False)}, tmp_path / "x.pt")
    finally:
        dist.destroy_process_group()
    tensors = read(tmp_path / "x.pt").tensors
    assert (tensors["d"].shape, tensors["d"].layout) == ((4, 3), "subclass")
    assert tensors["d._local_tensor"].layout == "meta"


def test_the_stub_module_is_not_left_behind():
    assert "stub_pickle" not in sys.modules
