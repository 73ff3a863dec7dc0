"""HDF5 files of Keras, real ones against the truth that Keras gives, and hostile ones made on the spot."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np
import pytest

from ckptctl.errors import CorruptError, LimitError, UnsupportedError
from ckptctl.formats import _hdf5
from ckptctl.formats._keras import configured_code
from ckptctl.model import Encoding, Level
from ckptctl.tensors.gather import blocks
from ckptctl.values import TensorRef, nested
from tests.samples import CORPUS, read, values_of

FILES = CORPUS / "keras" / "files"


@pytest.fixture
def made(tmp_path):
    """Write an HDF5 file by a function, and return its path."""

    def make(fill, **options):
        path = tmp_path / "x.weights.h5"
        with h5py.File(path, "w", **options) as file:
            fill(file)
        return path

    return make


@pytest.mark.parametrize("name", ["model.h5", "model.weights.h5", "model.keras"])
def test_pieces_hold_the_bytes_that_keras_wrote(name):
    from safetensors.numpy import load_file

    truth = sorted(array.tobytes() for array in load_file(FILES / "expected.safetensors").values())
    found = read(FILES / name).tensors
    assert sorted(bytes(values_of(tensor)) for tensor in found.values()) == truth


def test_a_large_dataset_is_not_read(made, monkeypatch):
    from ckptctl.storage import LocalFile

    path = made(lambda file: file.create_dataset("layers/a/vars/0", data=np.zeros(20_000_000, np.uint8)))
    spans = []
    pread = LocalFile.pread
    monkeypatch.setattr(LocalFile, "pread", lambda self, n, at: spans.append(n) or pread(self, n, at))
    assert read(path).tensors["layers.a.vars.0"].nbytes == 20_000_000
    assert sum(spans) < 100_000


@pytest.mark.parametrize("version", ["earliest", "v108", "v110", "latest"])
def test_every_version_of_the_superblock_is_read_and_its_end_checked(made, version):
    path = made(lambda file: file.create_dataset("a", data=np.arange(7)), libver=(version, "latest"))
    assert read(path).tensors["a"].shape == (7,)
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(CorruptError, match="cut at"):
        read(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(CorruptError, match="1 byte after the end"):
        read(path)


def test_dtypes_of_numpy_and_the_bfloat16_of_keras(made):
    def fill(file):
        for kind in (
            "<f2",
            "<f4",
            "<f8",
            "|i1",
            "<i2",
            "<i4",
            "<i8",
            "|u1",
            "<u2",
            "<u4",
            "<u8",
            "|b1",
            "<c8",
            "<c16",
            ">f4",
        ):
            file[kind[1:] + ("be" if kind[0] == ">" else "")] = np.ones(3, kind)
        file["bf"] = np.ones(3, "V2")
        file["bf"].attrs["dtype"] = "bfloat16"
        file["text"] = "no tensor"

    found = read(made(fill)).tensors
    assert {name: tensor.dtype.name for name, tensor in found.items()} == {
        "f2": "F16", "f4": "F32", "f8": "F64", "i1": "I8", "i2": "I16", "i4": "I32", "i8": "I64", "u1": "U8", "u2": "U16",
        "u4": "U32", "u8": "U64", "b1": "BOOL", "c8": "C64", "c16": "C128", "f4be": "F32", "bf": "BF16",
    }  # fmt: skip
    assert found["f4be"].pieces[0].encoding is Encoding.SWAPPED


def test_chunks_are_pieces_at_their_places(made):
    path = made(
        lambda file: file.create_dataset(
            "a", data=np.zeros((5, 4), "f4"), chunks=(2, 4), compression="gzip", shuffle=True
        )
    )
    pieces = read(path).tensors["a"].pieces
    assert [(p.offsets, p.shape, p.encoding) for p in pieces] == [
        ((0, 0), (2, 4), Encoding.CHUNK), ((2, 0), (2, 4), Encoding.CHUNK), ((4, 0), (1, 4), Encoding.CHUNK),
    ]  # fmt: skip


def external_link(file):
    file["layers/a"] = h5py.ExternalLink("/etc/passwd", "/")


def soft_link(file):
    file["layers/a"] = h5py.SoftLink("/layers")


def external_storage(file):
    file.create_dataset("a", (4,), "u1", external=[("/etc/passwd", 0, 4)])


def virtual(file):
    layout = h5py.VirtualLayout((4,), "u1")
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", (4,))
    file.create_virtual_dataset("a", layout)


def scaled(file):
    file.create_dataset("a", data=np.zeros(100, "i4"), chunks=(10,), scaleoffset=3)


def checksummed(file):
    file.create_dataset("a", data=np.zeros(100, "i4"), chunks=(10,), fletcher32=True)


def unwritten(file):
    file.create_dataset("a", (1 << 40,), "u1", chunks=(1 << 20,))


def unallocated(file):
    file.create_dataset("a", (1 << 40,), "u1")


def cycle(file):
    file.create_group("a/b")
    file["a/b/c"] = file["a"]


def deep(file):
    file.create_group("/".join("a" * 80))


@pytest.mark.parametrize(
    ("fill", "error", "words"),
    [
        (external_link, UnsupportedError, "layers/a is a link to another file, which is never followed"),
        (soft_link, UnsupportedError, "layers/a is a soft link, which is never followed"),
        (external_storage, UnsupportedError, "lie in other files"),
        (virtual, UnsupportedError, "lie in other files"),
        (scaled, UnsupportedError, "packed by filter 6"),
        (checksummed, UnsupportedError, "packed by filter 3"),
        (unwritten, UnsupportedError, "1048576 of 1048576 chunks never written"),
        (unallocated, UnsupportedError, "was never written"),
        (cycle, UnsupportedError, "is reached by two paths"),
        (deep, LimitError, "nested deeper than 64"),
    ],
)  # fmt: skip
def test_what_leads_out_of_the_file_or_never_ends_is_refused(made, fill, error, words):
    with pytest.raises(error, match=words):
        read(made(fill))


def test_every_flipped_byte_is_read_or_refused_in_one_line(tmp_path):
    data = bytearray((FILES / "model.weights.h5").read_bytes())
    path = tmp_path / "x.h5"
    from ckptctl.errors import CkptctlError

    for at in range(0, 9000, 37):
        data[at] ^= 0xFF
        path.write_bytes(data)
        try:
            read(path)
        except CkptctlError as error:
            assert "\n" not in error.message
        data[at] ^= 0xFF


def keras(path, config, **options):
    with zipfile.ZipFile(path, "w", **options) as archive:
        archive.writestr("metadata.json", "{}")
        archive.writestr("config.json", json.dumps(config) if not isinstance(config, str) else config)
        archive.writestr("model.weights.h5", (FILES / "model.weights.h5").read_bytes())
    return path


def test_code_in_a_configuration_is_reported_and_not_imported(tmp_path):
    layers = [
        {
            "class_name": "Lambda",
            "module": "keras.layers",
            "config": {"function": {"class_name": "__lambda__", "config": {"code": "4wEA"}}},
        },
        {"class_name": "Mine", "module": "this_module_must_not_be_imported", "config": {}},
        {"class_name": "Dense", "module": "keras.layers", "config": {}},
    ]
    found = read(keras(tmp_path / "x.keras", {"config": {"layers": layers}})).globals
    assert [(str(use), use.level) for use in found] == [
        ("keras.layers.Lambda", Level.DANGEROUS), ("keras.layers.__lambda__", Level.DANGEROUS),
        ("this_module_must_not_be_imported.Mine", Level.FOREIGN),
    ]  # fmt: skip


def test_the_real_configuration_names_no_foreign_code():
    assert read(FILES / "model.keras").globals == ()
    assert read(FILES / "model.h5").globals == ()


@pytest.mark.parametrize(
    ("config", "options", "words"),
    [
        ("{", {}, "config.json is no JSON"), ("[" * 100_000, {}, "config.json is no JSON"),
        ({}, {"compression": zipfile.ZIP_DEFLATED}, "is compressed"),
    ],
)  # fmt: skip
def test_archives_that_keras_does_not_write_are_refused(tmp_path, config, options, words):
    with pytest.raises(CorruptError, match=words):
        read(keras(tmp_path / "x.keras", config, **options))


def test_the_step_is_the_optimizers_count(ckptctl):
    out = ckptctl("inspect", FILES / "model.keras").out
    assert "step 2 (inside: iteration)" in out
    assert "Keras · 27.6 kB · 22 tensors · 101 parameters" in out


def test_several_threads_unpack_chunks_of_many_datasets(made):
    def fill(file):
        for number in range(60):
            file.create_dataset(
                f"d{number:02}", data=np.full(40_000, number, "f4"), chunks=(4_000,), compression="gzip"
            )

    found = read(made(fill)).tensors
    for _ in range(3):
        with ThreadPoolExecutor(8) as pool:
            raws = list(pool.map(lambda one: b"".join(blocks(one, most=1 << 20)), found.values()))
        wrong = [
            name for name, raw in zip(found, raws, strict=True) if set(np.frombuffer(raw, "f4")) != {float(name[1:])}
        ]
        assert wrong == []


@pytest.mark.parametrize(
    ("module", "config", "level"),
    [
        ("builtins", "relu", None),
        ("builtins", "exec", Level.DANGEROUS),
        ("builtins", "getattr", Level.DANGEROUS),
        ("keras.activations", "gelu", None),
        ("keras.src.losses.losses", "mean_squared_error", None),
        ("keras.utils", "get_file", Level.FOREIGN),
        ("keras.config", "enable_unsafe_deserialization", Level.FOREIGN),
        ("keras.models", "load_model", Level.FOREIGN),
        ("os", "system", Level.DANGEROUS),
        ("my_team.layers", "scaled", Level.FOREIGN),
    ],
)
def test_a_function_is_judged_by_the_name_that_a_loader_would_look_for(module, config, level):
    inner = {"module": module, "class_name": "function", "config": config, "registered_name": "function"}
    found = configured_code(
        {"layers": [{"module": "keras.layers", "class_name": "Dense", "config": {"activation": inner}}]}
    )
    assert [(str(use), use.level) for use in found] == ([(f"{module}.{config}", level)] if level else [])
    named = configured_code({"module": module, "class_name": config, "config": {}})
    assert [use.level for use in named] == ([level] if level else [])


def with_lambda(padding):
    config = {"module": "keras.layers", "class_name": "Lambda", "config": {"name": "x" * padding}}
    return json.dumps({"module": "keras", "class_name": "Sequential", "config": {"layers": [config]}})


@pytest.mark.parametrize("padding", [0, 2 << 20])
@pytest.mark.parametrize("kind", [str, np.bytes_])
def test_a_long_configuration_hides_no_code(made, padding, kind):
    def fill(file):
        file.create_dataset("a", data=np.arange(3.0))
        file.attrs["model_config"] = kind(with_lambda(padding))

    assert [use.level for use in read(made(fill, libver="latest")).globals] == [Level.DANGEROUS]


def test_a_configuration_that_cannot_be_looked_at_is_refused(made, monkeypatch):
    monkeypatch.setattr(_hdf5, "_MAX_JSON", 1000)
    for value, error, words in (
        (with_lambda(2000), LimitError, "its attribute model_config is longer than 1000 bytes"),
        (with_lambda(100)[:-1], CorruptError, "its attribute model_config is no JSON"),
        (np.arange(3), UnsupportedError, "its attribute model_config is no text"),
    ):
        with pytest.raises(error, match=words):
            read(made(lambda file, value=value: file.attrs.update(model_config=value)))
    assert read(made(lambda file: file.attrs.update(note="x" * (2 << 20)), libver="latest")).values == {}


@pytest.mark.parametrize(
    "data", [np.zeros(3, "V2"), np.zeros(3, [("a", "f4"), ("b", "i4")]), np.zeros(3, np.longdouble)], ids=str
)
def test_a_dataset_of_an_unknown_type_is_not_passed_over(made, data):
    with pytest.raises(UnsupportedError, match="is of the type .*, which is not read"):
        read(made(lambda file: file.create_dataset("a", data=data)))


def test_texts_references_and_nothing_are_no_tensors(made):
    def fill(file):
        file["w"] = np.ones(2)
        file["text"] = "a text"
        file["texts"] = np.array([b"a", b"b"])
        file["refs"] = np.array([file["w"].ref], dtype=h5py.ref_dtype)
        file["nothing"] = h5py.Empty("f4")

    assert list(read(made(fill)).tensors) == ["w"]


def test_chunks_that_were_never_written_are_said(made):
    def some(file):
        file.create_dataset("a", (100,), "f4", chunks=(10,))[:50] = 1

    with pytest.raises(UnsupportedError, match="of a, 5 of 10 chunks never written"):
        read(made(some))


def test_odd_attributes_and_names_are_no_damage(made):
    def named(file):
        file["a"] = np.ones(2, "i2")
        file["a"].attrs["dtype"] = np.arange(3)

    assert read(made(named)).tensors["a"].dtype.name == "I16"

    def twice(file):
        file["a/b"], file["a.b"] = np.ones(2), np.ones(3)

    with pytest.raises(UnsupportedError, match="two datasets are called a.b"):
        read(made(twice))


def test_chunks_are_listed_in_one_walk(made):
    """To ask for one of them by its number is a walk as well."""

    class Walked:
        def chunk_iter(self, take):
            for number in range(3):
                take(number)

    assert _hdf5._infos(Walked(), 3) == [0, 1, 2]
    path = made(lambda file: file.create_dataset("a", data=np.zeros(300, "u1"), chunks=(1,)))
    assert len(read(path).tensors["a"].pieces) == 300


def test_a_dataset_called_as_a_group_with_a_dot_stays_in_the_tree(made):
    def fill(file):
        file["a"], file["a.b.c"] = np.ones(2), np.ones(3)

    found = read(made(fill))
    assert set(found.tensors) == {ref.name for ref in nested(found.values) if isinstance(ref, TensorRef)}


def test_a_heap_of_texts_that_leads_nowhere_does_not_go_round_for_ever(made):
    """Found by fuzzing: the library of HDF5 does, and nothing ends it."""

    def fill(file):
        file["a"] = np.ones(2)
        file.attrs["backend"] = "a text of some length"

    path = made(fill)
    raw = path.read_bytes()
    heap = raw.index(b"GCOL")
    path.write_bytes(raw[: heap + 16] + bytes(200) + raw[heap + 216 :])
    words = [sys.executable, "-m", "ckptctl", "verify", path]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "a heap of texts leads nowhere" in done.stdout) == (1, True), done.stdout
