"""No tensor hides in a pickle: not in states, in keys, in attributes, behind another of its name, nor where nobody looks."""

from __future__ import annotations

import collections
import pickle
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from ckptctl.errors import CkptctlError
from ckptctl.formats import read
from ckptctl.model import Level
from ckptctl.storage import LocalFile
from tests.trials.pickles import Made


class Thing:
    """A class of some team, whose state only it understands."""


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)
        self._cache = torch.arange(7.0)
        self._kept = [{"deep": torch.arange(6.0)}]


def opened(path):
    return read(LocalFile(path).range())


def saved(path, value):
    torch.save(value, path)
    return opened(path)


def shapes(found):
    return sorted(tensor.shape for tensor in found.tensors.values())


def of(number):
    return torch.arange(float(number))


STATES = {
    "attributes": ({"a": of(3), "b": of(4)}, 2),
    "attributes without text for names": ({1: of(3), (2, 3): of(4)}, 2),
    "attributes and slots": (({"a": of(3)}, {"b": of(4)}), 2),
    "slots": ((None, {"b": of(4)}), 1),
    "a tensor beside attributes": ((of(3), {"b": of(4)}), 2),
    "a list": ([of(3), [of(4)]], 2),
    "three things": ((of(3), {"b": of(4)}, of(5)), 3),
    "a tensor": (of(3), 1),
}


@pytest.mark.parametrize(("state", "count"), STATES.values(), ids=STATES)
def test_the_state_of_an_object_is_listed_whatever_it_is(tmp_path, state, count):
    found = saved(tmp_path / "m.pt", {"thing": Made(Thing, (), state)})
    assert len(found.tensors) == count
    assert not [one for one in found.findings if one.slug == "left-out"]


def test_private_tensors_of_a_module_are_listed(tmp_path):
    found = saved(tmp_path / "m.pt", Net())
    assert shapes(found) == [(2,), (2, 2), (6,), (7,)]
    assert {"inner.weight", "inner.bias", "_cache", "_kept.0.deep"} == set(found.tensors)


def test_what_is_kept_where_a_module_has_no_room_for_it_makes_it_no_module(tmp_path):
    dicts = {"_parameters": {}, "_buffers": {}, "_modules": {}}
    for name, other in {
        "a list": [of(3)],
        "an ordered dict of pairs": Made(collections.OrderedDict, ([["w", of(3)]],)),
        "an ordered dict with a state": Made(collections.OrderedDict, (), {"w": of(3)}),
        "an object": Made(Thing, (), [of(3)]),
    }.items():
        found = saved(tmp_path / "m.pt", {"net": Made(Thing, (), {**dicts, "_modules": other})})
        assert shapes(found) == [(3,)], name
        found = saved(tmp_path / "m.pt", {"net": Made(Thing, (of(4),), {**dicts, "_buffers": other})})
        assert shapes(found) == [(3,), (4,)], name


def test_the_last_of_several_values_of_a_key_is_the_one(tmp_path):
    pairs = [["w", of(3)], ["v", of(2)], ["w", of(5)]]
    for name, made in {
        "made of pairs": Made(collections.OrderedDict, (pairs,)),
        "filled with pairs": Made(collections.OrderedDict, (), None, None, iter(map(tuple, pairs))),
        "made of pairs and filled": Made(collections.OrderedDict, (pairs[:2],), None, None, iter([("w", of(5))])),
    }.items():
        path = tmp_path / "m.pt"
        found = saved(path, made)
        loaded = torch.load(path, weights_only=False)
        assert {key: tensor.shape for key, tensor in found.tensors.items()} == {
            key: tuple(tensor.shape) for key, tensor in loaded.items()
        }, name
        assert list(found.tensors) == list(loaded), name
        assert any("no name leads to 1 tensor" in one.message for one in found.findings), name


def test_tensors_that_are_keys_are_listed(tmp_path):
    key = torch.nn.Parameter(of(3))
    found = saved(tmp_path / "m.pt", {"state": {key: {"exp_avg": of(4)}, Made(Thing, (), [of(5)]): 1}})
    assert shapes(found) == [(3,), (4,), (5,)]
    found = saved(tmp_path / "m.pt", {"state": {key: {"exp_avg": of(4)}}, "params": [key]})
    assert shapes(found) == [(3,), (4,)], "what is a value too is listed there"
    assert "params.0" in found.tensors


def test_a_state_that_replaces_what_a_tensor_holds_is_refused(tmp_path):
    storage = of(4).untyped_storage()
    build = torch._utils._rebuild_tensor_v2
    args = (torch.storage.TypedStorage(wrap_storage=storage, dtype=torch.float32, _internal=True), 0, (4,), (1,),
            False, collections.OrderedDict())  # fmt: skip
    for more in ((0, (2,), (1,)), {"x": 1}):
        torch.save({"w": Made(build, args, more)}, tmp_path / "m.pt")
        with pytest.raises(CkptctlError, match="something is set on what"):
            opened(tmp_path / "m.pt")
    torch.save({"w": Made(build, args, None, None, iter([(0, 7.0)]))}, tmp_path / "m.pt")
    assert torch.load(tmp_path / "m.pt", weights_only=False)["w"][0] == 7
    with pytest.raises(CkptctlError, match="something is set on what"):
        opened(tmp_path / "m.pt")


def test_arrays_keep_their_state(tmp_path):
    (tmp_path / "m.pkl").write_bytes(pickle.dumps({"a": np.arange(5), "s": np.float32(2)}, protocol=2))
    assert shapes(opened(tmp_path / "m.pkl")) == [(5,)]


def test_a_tensor_that_hides_in_hooks_is_said(tmp_path):
    storage = torch.storage.TypedStorage(wrap_storage=of(4).untyped_storage(), dtype=torch.float32, _internal=True)
    args = (storage, 0, (4,), (1,), False, {"hook": of(9)})
    found = saved(tmp_path / "m.pt", {"w": Made(torch._utils._rebuild_tensor_v2, args)})
    assert shapes(found) == [(4,)]
    assert [one.message for one in found.findings if one.slug == "left-out"] == [
        "a part of the values is left out: no name leads to 1 tensor that it makes"
    ]


def test_attributes_that_are_shared_cost_no_more_than_they_may(tmp_path):
    tensor = of(1)
    for _ in range(60):  # 2**60 paths lead to the first
        outer = of(1)
        outer.left, outer.right = tensor, tensor
        tensor = outer
    torch.save({"w": tensor}, tmp_path / "m.pt")
    with zipfile.ZipFile(tmp_path / "m.pt") as archive:
        assert len(archive.namelist()) > 60
    found = opened(tmp_path / "m.pt")
    assert any("repeated too often" in one.message for one in found.findings)


def test_large_plain_attributes_are_described_once_for_each_tensor(tmp_path):
    notes = {str(number): number for number in range(1000)}
    tensors = [of(1) for _ in range(3)]
    for one in tensors:
        one.notes = notes
    found = saved(tmp_path / "m.pt", {"a": tensors, "b": tensors})
    assert len(found.tensors) == 6
    refs = [*found.values["a"], *found.values["b"]]
    assert [ref.name for ref in refs] == ["a.0", "a.1", "a.2", "b.0", "b.1", "b.2"]
    assert all(ref.state["notes"] == notes for ref in refs)


def test_items_and_pairs_of_one_object_are_both_described(tmp_path):
    class Both(list):
        def __setitem__(self, key, value):
            pass

    globals()["Both"] = Both
    Both.__qualname__ = "Both"
    found = saved(tmp_path / "m.pt", Made(Both, (), None, iter([1, of(3)]), iter([("k", of(4))])))
    assert shapes(found) == [(3,), (4,)]
    assert found.values.items[0] == 1
    assert found.values.items[2] == {"k": found.values.items[2]["k"]}


class ModuleOrderedDict(collections.OrderedDict):
    """As DeepSpeed has one: it knows the module that it is of."""

    def __init__(self, owner=None, **items):
        super().__init__(**items)
        self.owner = owner

    def __reduce__(self):
        return ModuleOrderedDict, (self.owner,), None, None, iter(self.items())


class Hooked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)
        self._again = [self.inner.weight, self.inner]
        self.register_forward_hook(self.seen)

    def seen(self, *_):
        """A hook that is bound to the module itself."""


@pytest.mark.parametrize(
    "make", [lambda: torch.nn.LSTM(3, 2), lambda: torch.nn.GRU(3, 2, 2), Hooked, lambda: torch.nn.Sequential(Hooked())]
)
def test_what_a_module_keeps_twice_is_listed_under_the_names_of_its_state_dict(make, tmp_path, ckptctl):
    module = make()
    found = saved(tmp_path / "m.pt", module)
    assert list(found.tensors) == list(module.state_dict())
    assert not [one for one in found.findings if one.slug == "left-out"]
    if not any(use.level is Level.DANGEROUS for use in found.globals):  # as what binds a hook is
        assert ckptctl("convert", tmp_path / "m.pt", "-o", tmp_path / "m.safetensors").status == 0
        module.load_state_dict(load_file(tmp_path / "m.safetensors"))
    torch.save(module.state_dict(), tmp_path / "s.pt")
    assert ckptctl("diff", tmp_path / "m.pt", tmp_path / "s.pt").status == 0


def test_modules_with_ordered_dicts_of_another_class_keep_their_names(tmp_path):
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    names = list(module.state_dict())
    module._parameters = ModuleOrderedDict(module)
    module[0]._parameters = ModuleOrderedDict(module[0], **module[0]._parameters)
    module._modules = ModuleOrderedDict(None, **module._modules)
    assert sorted(saved(tmp_path / "m.pt", module).tensors) == sorted(names)
    module._modules.owner = [of(9)]
    assert shapes(saved(tmp_path / "m.pt", module))[-1] == (9,)
