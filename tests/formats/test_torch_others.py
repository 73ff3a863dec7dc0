"""Legacy files, TorchScript, plain pickles and whole modules of the corpus, against torch itself."""

from __future__ import annotations

import io
import pickle
import sys
import warnings

import pytest
import torch

from ckptctl.errors import CorruptError
from ckptctl.model import Level
from tests.formats.test_torch_zip import by_torch, flatten, raw
from tests.samples import CORPUS, HERE, read, values_of

LEGACY = ["legacy", "legacy_views_tied", "legacy_dtypes", "cuda_tagged_legacy"]


def assert_same(found, expected):
    assert expected.keys() <= found.keys()
    for name, tensor in expected.items():
        info = found[name]
        assert (info.dtype.torch, info.shape) == (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        assert values_of(info) == raw(tensor), name


@pytest.mark.parametrize("name", LEGACY)
def test_legacy_files_hold_what_torch_loads(name):
    path = CORPUS / "torch_save" / f"{name}.pt"
    assert_same(read(path).tensors, flatten(by_torch(path)))


@pytest.mark.parametrize("name", ["scripted", "traced"])
def test_programs_hold_the_weights_that_torch_loads(name):
    path = CORPUS / "torch_save" / f"{name}.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = dict(torch.jit.load(path).state_dict())
    contents = read(path)
    assert contents.tensors.keys() == expected.keys()
    assert_same(contents.tensors, expected)
    assert [finding.slug for finding in contents.findings] == ["program"]
    assert {use.level for use in contents.globals} <= {Level.KNOWN, Level.INERT}


def test_plain_pickles_hold_what_python_loads():
    path = CORPUS / "torch_save" / "plain_pickle_protocol_4.pkl"
    contents = read(path)
    assert_same(contents.tensors, flatten(pickle.loads(path.read_bytes())))
    assert {use.level for use in contents.globals} == {Level.KNOWN}


@pytest.mark.parametrize(
    "name", ["whole_module", "whole_module_in_main", "whole_module_torch_only", "legacy_whole_module"]
)
def test_whole_modules_hold_their_state_dict(name, monkeypatch):
    path = CORPUS / "torch_save" / f"{name}.pt"
    monkeypatch.syspath_prepend(HERE / "corpus" / "generate")
    import user_model

    monkeypatch.setattr(sys.modules["__main__"], "MainNet", type("MainNet", (user_model.UserNet,), {}), raising=False)
    loaded = torch.load(path, weights_only=False)
    module, prefix = (loaded["model"], "model.") if isinstance(loaded, dict) else (loaded, "")
    expected = {prefix + key: tensor for key, tensor in module.state_dict().items()}
    contents = read(path)
    assert list(contents.tensors) == list(expected)
    assert_same(contents.tensors, expected)


def test_classes_of_torch_are_inert_and_those_of_users_are_foreign():
    levels = {str(use): use.level for use in read(CORPUS / "torch_save" / "whole_module.pt").globals}
    assert levels["torch.nn.modules.conv.Conv2d"] is Level.INERT
    assert levels["user_model.UserNet"] is Level.FOREIGN


def test_module_classes_are_those_of_torch():
    from ckptctl.formats._pickle.torch_modules import TORCH_MODULES

    for module, names in TORCH_MODULES.items():
        for name in names.split():
            assert issubclass(getattr(sys.modules[module], name), torch.nn.Module)


def test_storages_that_torch_itself_cannot_read_back_are_described():
    """Types without a storage class of their own are untyped here; torch wrote them so."""
    found = read(CORPUS / "torch_save" / "legacy_untyped_unreadable.pt").tensors
    assert {"float64", "uint16", "float8_e4m3fn"} <= found.keys()


def legacy(tree) -> bytes:
    buffer = io.BytesIO()
    torch.save(tree, buffer, _use_new_zipfile_serialization=False)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d[:-1], "cut at"),
        (lambda d: d + b"x", "1 byte follow"),
        (lambda d: d.replace(b"M\xe9\x03", b"M\xe8\x03"), "second and third pickle"),
        (lambda d: d[:-20] + b"\x05" + d[-19:], "elements, its tensors need"),
    ],
)
def test_legacy_files_that_contradict_themselves_are_refused(tmp_path, change, words):
    (tmp_path / "x.pt").write_bytes(change(legacy({"w": torch.ones(3)})))
    with pytest.raises(CorruptError, match=words):
        read(tmp_path / "x.pt")


def test_a_big_endian_legacy_file_is_swapped(tmp_path):
    data = bytearray(legacy({"w": torch.tensor([1.0, 2.0])}))
    data[data.index(b"\x88", data.index(b"little_endian"))] = 0x89
    data = bytes(data)
    (tmp_path / "x.pt").write_bytes(data[:-8] + data[-8:-4][::-1] + data[-4:][::-1])
    assert values_of(read(tmp_path / "x.pt").tensors["w"]) == raw(torch.tensor([1.0, 2.0]))


def test_large_arrays_in_a_plain_pickle_stay_in_the_file(tmp_path):
    import numpy as np

    array = np.arange(300_000, dtype=np.float32).reshape(3, -1)
    for protocol in (2, 4, 5):
        (tmp_path / "x.pkl").write_bytes(pickle.dumps({"a": array}, protocol=protocol))
        tensor = read(tmp_path / "x.pkl").tensors["a"]
        assert tensor.pieces[0].range.file.path == tmp_path / "x.pkl"
        assert tensor.shape == (3, 100_000)
        assert values_of(tensor) == array.tobytes()


def test_a_call_hidden_in_a_nested_storage_is_named(tmp_path):
    """The bytes of a storage are a pickle file of their own, and may ask for code like any other."""
    good = pickle.dumps(torch.ones(2), protocol=4)
    start = good.index(b"\x80\x02\x8a")
    system = good.index(b"}q\x00(X\x10\x00\x00\x00protocol_version", start)
    call = b"cos\nsystem\n(X\x04\0\0\0true" + b"tR0"
    length = good.index(b"B", start - 6)
    inner = int.from_bytes(good[length + 1 : length + 5], "little")
    data = (
        good[: length + 1]
        + (inner + len(call)).to_bytes(4, "little")
        + good[length + 5 : system]
        + call
        + good[system:]
    )
    data = data.replace(data[2:11], b"\x95" + (len(data) - 11).to_bytes(8, "little"), 1)
    (tmp_path / "x.pkl").write_bytes(data)
    levels = {str(use): use.level for use in read(tmp_path / "x.pkl").globals}
    assert levels["os.system"] is Level.DANGEROUS
