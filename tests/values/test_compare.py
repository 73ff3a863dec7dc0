"""Where trees of plain values differ."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptctl.model import Level
from ckptctl.storage.byterange import MemoryFile
from ckptctl.values import Described, Elided, Span, TensorRef
from ckptctl.values.compare import ValueDiff, value_differences

LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=5))
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def found(one, other):
    return list(value_differences({"x": one}, {"x": other}))


@given(TREES)
def test_a_tree_equals_its_copy(tree):
    assert found(tree, copy.deepcopy(tree)) == []


@given(TREES, TREES)
def test_it_says_the_same_from_either_side(one, other):
    there, back = found(one, other), found(other, one)
    assert {value.path for value in there} == {value.path for value in back}
    sides = {value.path: value.only for value in back}
    assert all({"a": "b", "b": "a", "": ""}[value.only] == sides[value.path] for value in there)


@pytest.mark.parametrize(
    ("one", "other", "paths"),
    [
        (1, 1.0, ["x"]), (1, True, ["x"]), (0.0, -0.0, ["x"]), (float("nan"), float("nan"), []), ("a", b"a", ["x"]),
        ([1, 2], (1, 2), []), ([1, 2], [1, 3, 4], ["x.1", "x.2"]), ({"a": {}}, {}, ["x.a"]), ({"a": []}, {"a": ()}, []),
        ({"a": 1}, [1], ["x"]), ({"_metadata": 1}, {}, []), ({"t": TensorRef(name="t")}, {}, []),
        ({"t": TensorRef(name="t"), "n": None}, {}, ["x.n"]), (TensorRef(name="a"), TensorRef(name="b"), []),
        (TensorRef(name="a"), 3, ["x"]), (Elided("too long"), Elided("too long"), ["x"]),
        (Described(type="A", args=(1,)), Described(type="A", args=(2,)), ["x.(0)"]),
        (Described(type="A", args=(1,)), Described(type="B", args=(1,)), ["x"]),
        (Described(type="collections.OrderedDict", items={"a": 1}), {"a": 1}, []),
        (Described(type="M", level=Level.FOREIGN, items={"w": TensorRef(name="w")}, state={"k": 1}, how="module"),
         {"w": TensorRef(name="w")}, []),
    ],
)  # fmt: skip
def test_what_counts_as_equal(one, other, paths):
    assert [value.path for value in found(one, other)] == paths


def test_text_and_bytes_that_lie_in_files(tmp_path):
    text = "é" * 100_000
    place = MemoryFile(text.encode(), path=tmp_path).range()
    assert found(Span(range=place, text=True), text) == []
    assert found(Span(range=place, latin1=True), text.encode("latin1")) == []
    assert len(found(Span(range=place, text=True), text.encode("latin1"))) == 1
    assert len(found(Span(range=place, text=True), text[:-1] + "e")) == 1


def test_what_holds_itself_ends():
    one: list[object] = [1]
    one.append(one)
    other: list[object] = [2]
    other.append(other)
    assert found(one, other) == [ValueDiff(path="x.0", a=1, b=2)]
