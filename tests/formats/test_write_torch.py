"""Files of torch.save written by our own code: torch, Python's zipfile and our strict reader take them as their own."""

from __future__ import annotations

import argparse
import collections
import datetime as dt
import decimal
import fractions
import io
import math
import os
import pathlib
import pickle
import pickletools
import random
import sys
import types
import uuid
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptctl.errors import CkptctlError, LimitError, UnsupportedError
from ckptctl.formats._format import Stored
from ckptctl.formats._pickle import emit_objects
from ckptctl.formats._pickle import writer as pickle_writer
from ckptctl.formats._pickle.levels import _INERT, _KNOWN
from ckptctl.formats._pickle.writer import Writer
from ckptctl.formats.write_torch import Record, TorchWriter, end_records
from ckptctl.model import DTYPES, Contents, Level
from ckptctl.storage import MemoryFile
from ckptctl.storage.copy import Pump
from ckptctl.values import Described, Elided, Numbers, Span, TensorRef, Token, is_module, nested
from tests.compare import load, same
from tests.samples import CORPUS, HERE, read, values_of

F32 = DTYPES["F32"]
ALLOWED = {
    "PROTO", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT",
    "BINUNICODE", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_DICT",
    "SETITEM", "SETITEMS", "GLOBAL", "REDUCE", "NEWOBJ", "BUILD", "BINPERSID", "BINPUT", "LONG_BINPUT", "BINGET",
    "LONG_BINGET",
}  # fmt: skip


def written(path: Path, writer: TorchWriter, pour) -> Path:
    """Write a file, which must become as long as was said."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    pump = Pump(fd, digest=False)
    try:
        writer.write(pump, pour)
        pump.finish()
    finally:
        pump.close()
        os.close(fd)
    assert path.stat().st_size == writer.nbytes
    return path


def copied(contents: Contents, path: Path) -> Path:
    """Write what was read, tied where it was tied."""
    first, ties, stored = {}, {}, {}
    for name, tensor in contents.tensors.items():
        known = first.setdefault(tensor.identity, name)
        if known == name:
            stored[name] = Stored(tensor.dtype, tensor.shape)
        else:
            ties[name] = known

    def bytes_of(name):
        return values_of(contents.tensors[name])

    writer = TorchWriter(contents.values, stored, ties, read=bytes_of)
    return written(path, writer, lambda name, pump, crc: pump.put(bytes_of(name), crc))


def saved(value: object, path: Path) -> Contents:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(value, path)
    return read(path)


def loaded_alike(original: Path, made: Path) -> None:
    """Both load in the same way, to the same values."""
    try:
        expected, safe = load(original, weights_only=True), True
    except (pickle.UnpicklingError, RuntimeError):
        expected, safe = load(original, weights_only=False), False
    assert same(expected, load(made, weights_only=safe)) == []


# What is refused, what becomes a state dict, and what is made less of, has tests of its own.
OTHERS = {
    "calls_print_on_load.pt",
    "custom_class.pt",
    "numpy_objects.pt",
    "python_objects.pt",
    "whole_module_in_main.pt",
}
UNLOADABLE = {"legacy_untyped_unreadable.pt"}


def described(path: Path) -> Contents | None:
    try:
        contents = read(path)
    except CkptctlError:
        return None
    plain = all(tensor.layout == "strided" and tensor.whole for tensor in contents.tensors.values())
    return contents if plain and not is_module(contents.values) else None


FILES = [
    path
    for path in sorted(CORPUS.rglob("*"))
    if path.suffix in {".pt", ".pth", ".bin", ".ckpt", ".tar"} and path.is_file() and path.name not in OTHERS
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CORPUS)))
def test_what_torch_wrote_is_written_again(path, tmp_path):
    contents = described(path)
    if contents is None:
        return
    made = copied(contents, tmp_path / "made.pt")
    again = read(made)
    assert again.format == "torch-zip"
    assert again.findings == ()
    assert again.values == contents.values
    assert again.tensors.keys() == contents.tensors.keys()
    for name, tensor in contents.tensors.items():
        other = again.tensors[name]
        assert (other.dtype, other.shape) == (tensor.dtype, tensor.shape)
        assert values_of(other) == values_of(tensor), name
    if path.name not in UNLOADABLE:
        loaded_alike(path, made)
    opcodes = {op.name for op, _, _ in pickletools.genops(zipfile.ZipFile(made).read("archive/data.pkl"))}
    assert opcodes <= ALLOWED


def test_most_of_the_corpus_is_read():
    assert sum(described(path) is not None for path in FILES) > 150


@pytest.mark.parametrize("name", ["numpy_objects.pt", "python_objects.pt"])
def test_objects_of_the_corpus(name, tmp_path):
    path = CORPUS / "torch_save" / name
    contents = read(path)
    # Foreign, big-endian, and with a dtype whose fields are not read.
    without = {"subclass", "big_endian", "structured"}
    values = {key: value for key, value in contents.values.items() if key not in without}
    tensors = {key: tensor for key, tensor in contents.tensors.items() if key not in without}
    made = copied(replace(contents, values=values, tensors=tensors), tmp_path / "made.pt")
    assert read(made).values == values
    sys.path.insert(0, str(HERE / "corpus" / "generate"))
    try:
        expected = load(path, weights_only=False)
    finally:
        sys.path.pop(0)
    for key in without:
        expected.pop(key, None)
    assert same(expected, load(made, weights_only=False)) == []


def with_attribute(tensor, **attributes):
    vars(tensor).update(attributes)
    return tensor


class _Rng:
    random = random.Random(5)
    numpy = np.random.RandomState(5)


TYPED = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64", "bool", "complex64",
         "complex128")  # fmt: skip
UNTYPED = ("uint16", "uint32", "uint64", "complex32", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
           "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2")  # fmt: skip
OBJECTS = {
    "none": None, "true": True, "false": False, "float": 0.1, "nan": math.nan, "inf": -math.inf, "minus zero": -0.0,
    "ints": [0, 1, 255, 256, 65535, 65536, 2**31 - 1, 2**31, -1, -(2**31), -(2**31) - 1, 2**63, -(2**63), 127, 128, -128,
             -129, 32767, 32768, -32768, 2**80, -(2**80)],
    "texts": ["", "a", "é", "\U0001f600", "\ud800", "x" * 300, "a\0b\n", "x" * 70_000],
    "bytes": [b"", b"a", bytes(range(256)), b"\xff" * 5000],
    "empty": [[], {}, (), [()], [[]], {"a": {}}],
    "tuples": [(1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), tuple(range(2000)), ((), ((),))],
    "keys": {0: 1, "a": 2, (1, "x"): 3, 1.5: 4, None: 5, True: 6, b"k": 7, -7: 8, (): 9},
    "long": {"list": [str(i) for i in range(2001)], "dict": {i: str(i) for i in range(2001)}, "one": dict.fromkeys(range(1001), 0)},
    "ordered": collections.OrderedDict(b=1, a=2),
    "ordered attributes": with_attribute(collections.OrderedDict(b=1), _metadata=collections.OrderedDict(x={"version": 1})),
    "counter": collections.Counter("abca"), "deque": collections.deque([1, 2], maxlen=5), "deque free": collections.deque("ab"),
    "deque empty": collections.deque(maxlen=0),
    "default": collections.defaultdict(list, a=[1]), "default of none": collections.defaultdict(None, a=1),
    "default of dict": collections.defaultdict(dict, a={1: 2}),
    "sets": [{1, 2}, frozenset({"a"}), set(), frozenset(), {(1, 2)}],
    "builtins": [range(3), slice(1, None), Ellipsis, 3 + 4j, bytearray(b"xy"), bytearray(), int, float, list],
    "namespace": argparse.Namespace(lr=1e-3, nested=argparse.Namespace(a=[1]), training=True),
    "simple namespace": types.SimpleNamespace(a=1, b="x"),
    "paths": [pathlib.PosixPath("a/b"), pathlib.PurePosixPath("/a"), pathlib.PureWindowsPath("c:/a")],
    "dates": [dt.datetime(2025, 1, 2, 3, 4, 5, 6), dt.date(2025, 1, 2), dt.time(3, 4),  # noqa: DTZ001  # naive ones are saved too
              dt.timedelta(1, 2, 3), dt.datetime(2025, 1, 2, tzinfo=dt.timezone.utc)],
    "numbers": [decimal.Decimal("1.50"), fractions.Fraction(1, 3), uuid.UUID(int=5)],
    "torch": [torch.float32, torch.bfloat16, torch.device("cpu"), torch.device("cuda", 1), torch.Size([2, 3]), torch.strided,
              torch.float8_e4m3fn],
    "scalars": [np.float16(0.5), np.float32(0.1), np.float64(0.1), np.int8(-3), np.uint8(200), np.int16(-3), np.uint16(3),
                np.int32(-3), np.uint32(3), np.int64(-3), np.uint64(2**64 - 1), np.bool_(True), np.str_("é"), np.str_(""),
                np.str_("\ud800"), np.complex64(1 + 2j), np.complex128(1j), np.bytes_(b"ab"), np.float32("nan"),
                np.float64("-inf"), np.datetime64("2025-01-02"), np.timedelta64(3, "s")],
    "numpy dtypes": [np.dtype("f4"), np.dtype(">f4"), np.dtype("U3"), np.dtype(object)],
    "arrays": [np.arange(6, dtype="f4").reshape(2, 3), np.array(2.5), np.zeros((0, 3)), np.array([True, False]),
               np.arange(3, dtype="u8"), np.array([1j]), np.arange(9000, dtype="i2"), np.array(["a", "bc"]),
               np.array([1, "x", None], dtype=object), np.full(5000, 255, "u1"), np.array([b"ab"])],
    "generators": [np.random.Generator(kind(5)) for kind in (np.random.PCG64, np.random.MT19937, np.random.Philox,
                                                            np.random.SFC64)],
    "random states": {"python": _Rng.random.getstate(), "numpy": _Rng.numpy.get_state(), "object": np.random.RandomState(3)},
    "tensors": [torch.arange(6.0).reshape(2, 3), torch.tensor(1.5), torch.empty(0), torch.empty(0, 7), torch.empty(3, 0, 2),
                torch.arange(6.0).reshape(2, 3).t(), torch.arange(9.0)[::2], torch.ones(1, 2, 3, 4, 5)],
    "typed": {name: torch.tensor([1, 0, 1]).to(getattr(torch, name)) for name in TYPED},
    "untyped": {name: torch.arange(24, dtype=torch.uint8).view(getattr(torch, name)) for name in UNTYPED},
    "lazy": [torch.tensor([1 + 2j]).conj(), torch.tensor([1 + 2j]).conj().imag],
    "grad": [torch.ones(2, requires_grad=True), torch.nn.Parameter(torch.ones(2)),
             torch.nn.Parameter(torch.ones(2, dtype=torch.int64), requires_grad=False)],
    "attributes": [with_attribute(torch.ones(2), x=1, y=torch.zeros(1)),
                   with_attribute(torch.nn.Parameter(torch.ones(2)), partition_dim=0, spec=[torch.ones(1)])],
    "parameter untyped": torch.nn.Parameter(torch.ones(4).to(torch.float8_e4m3fn)),
    "attributes untyped": with_attribute(torch.ones(4).to(torch.uint16), x=1),
    "buffers": [torch.nn.Buffer(torch.ones(2)), torch.nn.Buffer(torch.ones(2), persistent=False)],
    "module state": torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).state_dict(),
}  # fmt: skip
UNSAFE = {"builtins", "numpy dtypes", "scalars", "arrays", "generators", "random states", "deque", "deque free", "deque empty",
          "default", "default of none", "default of dict", "sets", "namespace", "simple namespace", "paths", "dates",
          "numbers", "bytes", "keys", "torch"}  # fmt: skip
"""Those that ``torch.load(weights_only=True)`` refuses, or some of them."""


@pytest.mark.parametrize("value", OBJECTS.values(), ids=OBJECTS.keys())
def test_object_by_object(value, tmp_path):
    contents = saved(value, tmp_path / "saved.pt")
    made = copied(contents, tmp_path / "made.pt")
    again = read(made)
    if not any(isinstance(item, Span) for item in nested(contents.values)):
        assert same(again.values, contents.values) == []
    assert list(again.tensors) == list(contents.tensors)
    loaded_alike(tmp_path / "saved.pt", made)
    assert same(value, load(made, weights_only=False)) == []


@pytest.mark.parametrize("name", sorted(set(OBJECTS) - UNSAFE))
def test_plain_loading_takes_it(name, tmp_path):
    made = copied(saved(OBJECTS[name], tmp_path / "saved.pt"), tmp_path / "made.pt")
    load(made, weights_only=True)


def test_storages(tmp_path):
    """Torch itself loads one without a type as one of uint8."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = [torch.arange(4.0).storage(), torch.ones(2, dtype=torch.bool).storage()]
    value += [
        torch.arange(4, dtype=torch.uint8).untyped_storage(),
        torch.ones(3, dtype=torch.float64).untyped_storage(),
    ]
    made = copied(saved(value, tmp_path / "saved.pt"), tmp_path / "made.pt")
    loaded_alike(tmp_path / "saved.pt", made)
    assert read(made).values == read(tmp_path / "saved.pt").values


def test_the_pickle_is_as_long_as_that_of_torch(corpus, tmp_path):
    path = corpus / "torch_save" / "bare_state_dict.pth"
    made = copied(read(path), tmp_path / "made.pt")
    sizes = [next(info.file_size for info in zipfile.ZipFile(file).infolist() if info.filename.endswith("data.pkl"))
             for file in (path, made)]  # fmt: skip
    assert sizes[1] <= sizes[0]


def test_lays_records_out_as_torch_does(tmp_path):
    value = {"a": torch.ones(3), "empty": torch.empty(0), "b": torch.ones(5, 5)}
    made = copied(saved(value, tmp_path / "saved.pt"), tmp_path / "made.pt")
    found = zipfile.ZipFile(made)
    assert found.testzip() is None
    ours = found.infolist()
    theirs = zipfile.ZipFile(tmp_path / "saved.pt").infolist()
    names = ["data.pkl", ".format_version", ".storage_alignment", "byteorder", "data/0", "data/1", "data/2", "version"]
    assert [info.filename for info in ours] == [f"archive/{name}" for name in names]
    assert [info.filename.partition("/")[2] for info in theirs][: len(names)] == names
    for mine, other in zip(ours[1:], theirs[1:], strict=False):
        for attribute in (
            "file_size",
            "CRC",
            "flag_bits",
            "date_time",
            "create_version",
            "extract_version",
            "compress_type",
        ):
            assert getattr(mine, attribute) == getattr(other, attribute), mine.filename
    raw = made.read_bytes()
    for info in ours:
        name, extra = (
            int.from_bytes(raw[info.header_offset + at : info.header_offset + at + 2], "little") for at in (26, 28)
        )
        assert (info.header_offset + 30 + name + extra) % 64 == 0


@pytest.mark.parametrize("computed", [True, False])
def test_torch_maps_it(computed, tmp_path, monkeypatch):
    from torch.utils.serialization import config

    monkeypatch.setenv("TORCH_SERIALIZATION_DEBUG", "1")
    value = {str(i): torch.arange(i).to(torch.uint16 if i % 3 else torch.float32) for i in range(40)}
    made = copied(saved(value, tmp_path / "saved.pt"), tmp_path / "made.pt")
    with config.patch("load.calculate_storage_offsets", computed):
        assert same(value, torch.load(made, mmap=True, weights_only=True)) == []
        assert same(value, torch.load(made, weights_only=True)) == []


def test_the_same_input_gives_the_same_bytes(corpus, tmp_path):
    contents = read(corpus / "torch_save" / "train_dict.pt")
    one, two = copied(contents, tmp_path / "one.pt"), copied(contents, tmp_path / "two.pt")
    assert one.read_bytes() == two.read_bytes()
    assert copied(read(one), tmp_path / "three.pt").read_bytes() == one.read_bytes()


@pytest.mark.parametrize("name", ["whole_module_torch_only.pt", "whole_module.pt", "scripted.pt", "traced.pt"])
def test_a_module_becomes_its_state_dict(name, corpus, tmp_path):
    path = corpus / "torch_save" / name
    made = load(copied(read(path), tmp_path / "made.pt"), weights_only=True)
    sys.path.insert(0, str(HERE / "corpus" / "generate"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = torch.jit.load(path) if name in {"scripted.pt", "traced.pt"} else load(path, weights_only=False)
    finally:
        sys.path.pop(0)
    expected = collections.OrderedDict(module.state_dict())
    if "whole" in name:
        assert list(made) == list(expected)
    assert same({**expected}, {key: made[key] for key in expected}) == []
    assert made.keys() == expected.keys()
    assert type(made) is collections.OrderedDict


def test_a_module_inside_other_values(tmp_path):
    layers = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    layers[1].mask = torch.ones(3)
    made = copied(saved({"epoch": 3, "model": layers}, tmp_path / "saved.pt"), tmp_path / "made.pt")
    found = load(made, weights_only=True)
    assert found["epoch"] == 3
    # A tensor that is a plain attribute is in no state dict; it is kept rather than lost.
    expected = {**layers.state_dict(), "1.mask": torch.ones(3)}
    assert same(found["model"], collections.OrderedDict(expected)) == []


# From records that no file of ours has yet.


def made_of(root: object, path: Path, tensors=None, ties=None) -> Path:
    tensors = {name: Stored(*stored) for name, stored in (tensors or {}).items()}
    writer = TorchWriter(root, tensors, ties or {}, read=lambda name: bytes(tensors[name].nbytes))
    return written(path, writer, lambda name, pump, crc: pump.put(bytes(tensors[name].nbytes), crc))


def in_memory(data: bytes):
    return MemoryFile(data, path=Path("memory")).range()


@pytest.mark.parametrize(("dtype", "values"), [
    ("BOOL", [True, False] * 1500), ("I64", [0, 1, -1, 2**62, -(2**63), 300, 70_000]), ("U64", [2**64 - 1, 5]),
    ("F64", [0.5, -0.0, math.inf] * 900), ("F64", []), ("I64", [7]), ("F64", [1.0, 2.0]), ("I64", list(range(140_000))),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["list", "tuple"])
def test_long_lists_of_numbers(dtype, values, kind, tmp_path):
    raw = np.array(values, dtype={"BOOL": "?", "I64": "<i8", "U64": "<u8", "F64": "<f8"}[dtype]).tobytes()
    numbers = Numbers(range=in_memory(raw), dtype=DTYPES[dtype], type=kind)
    made = made_of({"n": numbers, "d": Described(type="collections.deque", items=numbers)}, tmp_path / "made.pt")
    expected = {"n": tuple(values) if kind == "tuple" else values, "d": collections.deque(values)}
    assert same(load(made, weights_only=False), expected) == []
    assert read(made).values["n"] == expected["n"]


def test_long_texts_and_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(pickle_writer, "_PIECE", 7)
    text, raw = "né\ud800€" * 10, bytes(range(256)) * 3
    root = [
        Span(range=in_memory(text.encode("utf-8", "surrogatepass")), text=True),
        Span(range=in_memory(raw)),
        Span(range=in_memory(raw.decode("latin1").encode()), latin1=True),
    ]
    made = made_of([*root, Described(type="builtins.bytearray", args=(root[1],))], tmp_path / "made.pt")
    assert same(load(made, weights_only=True), [text, raw, raw, bytearray(raw)]) == []


def test_ties_share_a_storage(tmp_path):
    refs = {name: TensorRef(name=name) for name in "abc"}
    made = made_of(refs, tmp_path / "made.pt", {"b": (F32, (2, 2)), "c": (F32, (0,))}, {"a": "b"})
    found = load(made, weights_only=True)
    assert found["a"].data_ptr() == found["b"].data_ptr()
    assert [name for name in zipfile.ZipFile(made).namelist() if "/data/" in name] == [
        "archive/data/0",
        "archive/data/1",
    ]


@pytest.mark.filterwarnings("ignore:TypedStorage")
def test_one_tensor_as_two_kinds_of_storage_is_stored_twice(tmp_path):
    root = [TensorRef(name="a"), TensorRef(name="b", type="torch.storage.UntypedStorage"), TensorRef(name="c")]
    made = made_of(root, tmp_path / "made.pt", {"a": (DTYPES["U8"], (3,))}, {"b": "a", "c": "a"})
    assert len(read(made).tensors) == 3
    found = load(made, weights_only=False)
    assert found[0].data_ptr() == found[2].data_ptr() != found[1].data_ptr()


def test_shared_values_stay_shared(tmp_path):
    inner = [1, 2]
    found = load(made_of({"a": inner, "b": inner, "c": (inner,)}, tmp_path / "made.pt"), weights_only=True)
    assert found["a"] is found["b"] is found["c"][0]
    doubled: object = []
    for _ in range(100):
        doubled = [doubled, doubled]
    assert made_of(doubled, tmp_path / "made.pt").stat().st_size < 10_000


@pytest.mark.parametrize("make", [lambda inner: [inner], lambda inner: {"a": inner}, lambda inner: (inner,),
                                  lambda inner: Described(type="collections.OrderedDict", items={"a": inner})])  # fmt: skip
def test_deeply_nested(make):
    value: object = []
    for _ in range(250):
        value = make(value)

    def deep(frames):
        return deep(frames - 1) if frames else Writer({Described: emit_objects.open_described}).pickle(value)

    assert deep(700)


def test_a_gradient_is_asked_of_no_integer(tmp_path):
    root = [TensorRef(name=name, type=kind, requires_grad=True) for name, kind in
            (("a", "torch.Tensor"), ("b", "torch.nn.Parameter"), ("c", "torch.Tensor"))]  # fmt: skip
    made = made_of(root, tmp_path / "made.pt", {"a": (DTYPES["I32"], (2,)), "b": (DTYPES["BOOL"], ()), "c": (F32, ())})
    assert [tensor.requires_grad for tensor in load(made, weights_only=True)] == [False, False, True]


def foreign(name: str, **more) -> Described:
    return Described(type=name, level=Level.KNOWN, **more)


REFUSED = {
    "foreign": foreign("user_model.Config"),
    "system": foreign("os.system", args=("true",)),
    "posix": foreign("posix.system", args=("true",)),
    "eval": foreign("builtins.eval", args=("1",)),
    "eval by Python 2": foreign("__builtin__.eval", args=("1",)),
    "getattr": foreign("builtins.getattr", args=(1, "real")),
    "import": foreign("builtins.__import__", args=("os",)),
    "attribute of a known class": foreign("collections.OrderedDict.fromkeys", args=([],)),
    "newline": foreign("collections\nOrderedDict\n(S'x'.OrderedDict"),
    "type of system": foreign("type", args=("os.system",)),
    "type of nothing": foreign("type"),
    "type of a number": foreign("type", args=(1,)),
    "type of the loader": foreign("type", args=("torch.storage._load_from_bytes",)),
    "loader": foreign("torch.storage._load_from_bytes", args=(b"",)),
    "by type": foreign(
        "torch._tensor._rebuild_from_type_v2", args=(foreign("type", args=("builtins.list",)), 1, (), {})
    ),
    "rebuild": foreign("torch._utils._rebuild_tensor_v2", args=()),
    "jit": foreign("torch.jit._pickle.restore_type_tag", args=(1, "x")),
    "computed": foreign("a computed function"),
    "extension": foreign("copyreg.extension 5"),
    "unknown torch": foreign("torch.utils.unknown"),
    "hidden in a factory": foreign("collections.defaultdict", args=(foreign("type", args=("os.system",)),)),
    "in a state": foreign("argparse.Namespace", state={"a": foreign("os.system")}),
    "in a key": {(1, foreign("os.system")): 1},
    "bytearray of a size": foreign("builtins.bytearray", args=(10**12,)),
    "other codec": foreign("_codecs.encode", args=("x", "rot13")),
    "one argument": foreign("_codecs.encode", args=("x",)),
    "keyword arguments": foreign("argparse.Namespace", args=({"a": 1},), how="new-ex"),
    "fields": foreign("numpy.dtype", args=("V12", False, True), state={"f": 1}),
    "scalar of text": foreign("numpy.float32", args=("x",)),
    "scalar without value": foreign("numpy.float32"),
    "scalar too large": foreign("numpy.int8", args=(300,)),
    "scalar too large for half": foreign("numpy.float16", args=(1e10,)),
    "other scalar": foreign("numpy.float128", args=(1.0,)),
    "left out": Elided("too deep"),
    "left out below": [{"a": Elided("too deep")}],
    "key": {Token("x"): 1},
    "no value": object(),
}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED.keys())
def test_refuses(value):
    with pytest.raises(UnsupportedError):
        TorchWriter([value], {}, {})


def test_names_what_it_refuses():
    with pytest.raises(UnsupportedError, match=r"os\.system is not written"):
        TorchWriter(REFUSED["type of system"], {}, {})
    with pytest.raises(UnsupportedError, match="too deep"):
        TorchWriter(REFUSED["left out below"], {}, {})


@pytest.mark.parametrize(("dtype", "shape", "kind"), [
    ("F6_E2M3", (4,), "torch.Tensor"), ("F6_E3M2", (4,), "torch.Tensor"), ("F4", (2, 3), "torch.Tensor"),
    ("F4", (), "torch.Tensor"), ("QI8", (2,), "torch.Tensor"), ("U16", (2,), "torch.storage.TypedStorage"),
    ("BF16", (2,), "numpy.ndarray"),
])  # fmt: skip
def test_refuses_tensors_that_torch_has_no_type_for(dtype, shape, kind):
    with pytest.raises(UnsupportedError, match=r"the\.name: "):
        TorchWriter(TensorRef(name="the.name", type=kind), {"the.name": Stored(DTYPES[dtype], shape)}, {})


def test_refuses_attributes_of_an_array():
    with pytest.raises(UnsupportedError, match="attributes"):
        TorchWriter(TensorRef(name="a", type="numpy.ndarray", state={"x": 1}), {"a": Stored(F32, (1,))}, {})


def test_a_tensor_that_nothing_names_is_our_own_mistake():
    with pytest.raises(ValueError, match="lost"):
        TorchWriter({}, {"lost": Stored(F32, (1,))}, {})
    with pytest.raises(ValueError, match="no way to read"):
        TorchWriter(TensorRef(name="a", type="numpy.ndarray"), {"a": Stored(F32, (1,))}, {})


def test_a_pickle_has_a_limit():
    with pytest.raises(LimitError) as caught:
        TorchWriter(TensorRef(name="a", type="numpy.ndarray"), {"a": Stored(F32, (51 << 20,))}, {})
    assert "--plain" in caught.value.hint
    with pytest.raises(LimitError):
        Writer({}, most=100).pickle([[i] for i in range(100)])


@pytest.mark.parametrize(
    "pair", sorted((m, n) for table in (_KNOWN, _INERT) for m, names in table.items() for n in names.split())
)
def test_every_trusted_global_can_be_looked_at(pair):
    module, name = pair
    if module in emit_objects._NEVER or pair in emit_objects._NEVER_PAIRS:
        with pytest.raises(UnsupportedError):
            emit_objects.trusted(f"{module}.{name}")
    else:
        assert emit_objects.trusted(f"{module}.{name}") == pair


# Large numbers, without large files.

GIB = 1 << 30


@pytest.mark.parametrize(("size", "offset", "fields"), [
    (5, 100, []), (0, 100, []), (4 * GIB - 2, 0, []), (4 * GIB - 1, 0, [4 * GIB - 1] * 2), (5 * GIB, 64, [5 * GIB] * 2),
    (5, 4 * GIB, [4 * GIB]), (0, 6 * GIB, [6 * GIB]), (5 * GIB, 6 * GIB, [5 * GIB, 5 * GIB, 6 * GIB]),
])  # fmt: skip
def test_large_records_have_their_numbers_in_full(size, offset, fields):
    record = Record(b"archive/data/7", size, offset)
    header, entry, descriptor = record.header(), record.entry(0x01020304), record.descriptor(0x01020304)
    assert (offset + len(header)) % 64 == 0
    assert record.end == offset + len(header) + size + len(descriptor)
    assert header[14:26] == bytes(12)
    assert len(descriptor) == (0 if not size else 24 if fields else 16)
    raw = end_records(1, len(entry), record.end)
    info = zipfile.ZipFile(_Sparse(record.end, entry + raw)).infolist()[0]
    assert (info.file_size, info.compress_size, info.header_offset, info.CRC) == (size, size, offset, 0x01020304)
    wide = b"".join(value.to_bytes(8, "little") for value in fields)
    assert info.extra == (b"\1\0" + len(wide).to_bytes(2, "little") + wide if wide else b"")
    assert header[30 + len(record.name) :].startswith(info.extra)


class _Sparse(io.RawIOBase):
    """A file of zeros that ends in some bytes."""

    def __init__(self, start: int, tail: bytes) -> None:
        self.start, self.tail, self.at = start, tail, 0

    def seekable(self):
        return True

    def readable(self):
        return True

    def seek(self, offset, whence=0):
        self.at = offset + {0: 0, 1: self.at, 2: self.start + len(self.tail)}[whence]
        return self.at

    def tell(self):
        return self.at

    def read(self, count=-1):
        assert self.at >= self.start - 64
        whole = bytes(64) + self.tail
        begin = self.at - self.start + 64
        part = whole[begin:] if count < 0 else whole[begin : begin + count]
        self.at += len(part)
        return part


def test_the_end_records_of_many_records():
    raw = end_records(100_000, 5 * GIB, 6 * GIB)
    assert raw[32:40] == (100_000).to_bytes(8, "little")
    assert raw[40:56] == (5 * GIB).to_bytes(8, "little") + (6 * GIB).to_bytes(8, "little")
    assert raw[56 + 8 : 56 + 16] == (11 * GIB).to_bytes(8, "little")
    assert raw[-22:] == b"PK\5\6\0\0\0\0" + b"\xff" * 12 + b"\0\0"


def test_many_small_tensors(tmp_path):
    count = 66_000
    names = [str(i) for i in range(count)]
    made = made_of([TensorRef(name=name) for name in names], tmp_path / "made.pt", dict.fromkeys(names, (F32, (1,))))
    assert len(zipfile.ZipFile(made).namelist()) == count + 5
    assert len(read(made).tensors) == count


KEYS = st.one_of(st.text(), st.integers(-(2**63), 2**63), st.booleans(), st.none(), st.floats(allow_nan=False), st.binary(),
                 st.tuples(st.text(), st.integers(-(2**31), 2**31)))  # fmt: skip
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(),
                   st.characters(categories=["Cs"]))  # fmt: skip
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner), st.lists(inner).map(tuple), st.dictionaries(KEYS, inner),
        st.dictionaries(KEYS, inner).map(lambda items: Described(type="collections.OrderedDict", items=items)),
    ),
    max_leaves=20,
)  # fmt: skip


def plain(value: object) -> object:
    """The values that descriptions of ordered dicts stand for."""
    if isinstance(value, Described):
        return collections.OrderedDict(plain(value.items))
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(plain, value))
    return value


@settings(max_examples=150, deadline=None)
@given(NESTED)
def test_any_values_survive(tmp_path_factory, value):
    writer = TorchWriter(value, {}, {})
    data = bytes(writer._before[b"data.pkl"])
    assert same(pickle.loads(data), plain(value)) == []
    path = written(tmp_path_factory.mktemp("any") / "made.pt", writer, None)
    assert same(plain(read(path).values), plain(value)) == []
