"""The plain state as JSON and back: nothing lost, and nothing believed that a stranger wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptctl.errors import LimitError, UnsupportedError
from ckptctl.formats._pickle.levels import level_named
from ckptctl.model import DTYPES, Level, Piece, TensorInfo
from ckptctl.storage import MemoryFile
from ckptctl.values import Described, Numbers, Span, TensorRef, Token
from ckptctl.values.decode import decode
from ckptctl.values.encode import encode
from tests.samples import values_of

HERE = Path("x.pt")
NAN = float("nan")


def tensor(name: str, dtype: str = "F32", raw: bytes = bytes(4)) -> TensorInfo:
    count = len(raw) * 8 // DTYPES[dtype].bits
    piece = Piece(range=MemoryFile(raw, path=HERE).range(), offsets=(0,), shape=(count,))
    return TensorInfo(name=name, dtype=DTYPES[dtype], shape=(count,), pieces=(piece,))


def again(values: object, *names: str) -> object:
    encoded = encode(values, path=HERE, taken=frozenset(names))
    there = {name: tensor(name) for name in names} | dict(encoded.tensors)
    json.loads(encoded.text)
    return decode(encoded.text, there, frozenset(there), level_named)


def plain(value: object) -> object:
    """Long bytes and lists as they were, so that they compare."""
    match value:
        case Span(range=place, text=text):
            return place.read().decode() if text else place.read()
        case Numbers(range=place, dtype=dtype, type=kind):
            import struct

            code = {"BOOL": "?", "I64": "q", "U64": "Q", "F64": "d"}[dtype.name]
            found = struct.unpack(f"<{place.length * 8 // dtype.bits}{code}", place.read())
            return list(found) if kind == "list" else found
        case dict():
            return {key: plain(inner) for key, inner in value.items()}
        case list():
            return [plain(inner) for inner in value]
        case tuple():
            return tuple(plain(inner) for inner in value)
    return value


def exact(value: object) -> str:
    return repr(plain(value))


KEYS = st.one_of(st.text(max_size=8), st.integers(), st.booleans(), st.none(), st.binary(max_size=4), st.floats(),
                 st.tuples(st.integers(), st.text(max_size=3)))  # fmt: skip
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.binary(max_size=20))
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.lists(inner, max_size=4).map(tuple), st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=30,
)


@pytest.mark.hypothesis
@given(TREES)
def test_any_tree_survives(value):
    assert exact(again(value)) == exact(value)


@pytest.mark.hypothesis
@given(
    st.one_of(
        st.lists(st.integers(), min_size=64), st.lists(st.floats(), min_size=64), st.lists(st.booleans(), min_size=64)
    )
)
def test_long_lists_of_numbers_survive(items):
    assert exact(again({"list": items, "tuple": tuple(items)})) == exact({"list": items, "tuple": tuple(items)})


@pytest.mark.parametrize(
    "value",
    [
        {"$": 1}, {"$tensor": "w"}, {"a": {"$dict": []}}, {1: "a", "1": "b"}, {True: 1, None: 2, 1.5: 3},
        10**400, -(2**63), "\ud800", "a\0b", b"\xff" * 5000, (1, [2, (3,)]), {}, [], (), 1e308, -0.0, float("-inf"),
    ],
    ids=repr,
)  # fmt: skip
def test_odd_values(value):
    assert exact(again(value)) == exact(value)


def test_long_lists_become_tensors_and_mixed_ones_do_not():
    numbers = list(range(100))
    encoded = encode(
        {"rng": [numbers, [*numbers, "x"], [2**64 - 1] * 64, [-1, 2**63] * 40]}, path=HERE, taken=frozenset()
    )
    assert {name: t.dtype.name for name, t in encoded.tensors.items()} == {"rng.0": "I64", "rng.2": "U64"}
    assert values_of(encoded.tensors["rng.0"])[:16] == (0).to_bytes(8, "little") + (1).to_bytes(8, "little")


def test_a_name_that_is_taken_is_not_given_again():
    encoded = encode({"a": list(range(64))}, path=HERE, taken=frozenset({"a"}))
    assert list(encoded.tensors) == ["a#2"]


def test_records_survive():
    value = {
        "w": TensorRef(name="w", type="torch.nn.Parameter", requires_grad=True, state={"tag": (1, 2)}),
        "d": Described(type="collections.OrderedDict", items={"a": 1}, state={"_metadata": {}}),
        "n": Described(type="argparse.Namespace", level=Level.INERT, state={"lr": NAN}, how="new"),
    }
    assert repr(again(value, "w")) == repr(value)


def test_the_level_of_a_class_is_judged_anew():
    text = json.dumps({"schema": "ckptctl.values/1", "root": {"$object": "os.system", "args": ["true"]}})
    assert decode(text, {}, frozenset(), level_named).level is Level.DANGEROUS


@pytest.mark.parametrize("value", [Token("x"), object(), {Token("x"): 1}])
def test_what_cannot_be_written_is_said(value):
    with pytest.raises(UnsupportedError):
        encode(value, path=HERE, taken=frozenset())


def test_depth_and_number_are_bounded():
    deep: object = 1
    for _ in range(120):
        deep = [deep]
    with pytest.raises(LimitError, match="nested too deeply"):
        encode(deep, path=HERE, taken=frozenset())
    laughs: object = ["x"]
    for _ in range(30):
        laughs = [laughs, laughs]
    with pytest.raises(LimitError, match="too many for a header"):
        encode(laughs, path=HERE, taken=frozenset())


@pytest.mark.parametrize(
    "root",
    [
        '{"$tensor":"v"}', '{"$tensor":1}', '{"$nothing":1}', '{"$tuple":1}', '{"$tuple":[],"$float":"nan"}', '{"$float":"1"}',
        '{"$bytes":"&"}', '{"$dict":[1]}', '{"$dict":[[[],1]]}', '{"$data":"w"}', '{"$numbers":"w","type":"list"}',
        '{"$object":1}', '{"$object":"a.b","how":"eval"}', '{"$tensor":"w","extra":1}', "NaN", '{"a":1,"a":2}', "[" * 3000,
    ],
)  # fmt: skip
def test_what_a_stranger_wrote_wrongly_is_refused(root):
    there = {"w": tensor("w")}
    whole = root if root.startswith("[[[") else f'[{{"$tensor":"w"}},{root}]'
    with pytest.raises(ValueError):
        decode(f'{{"schema":"ckptctl.values/1","root":{whole}}}', there, frozenset(there), level_named)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema":"ckptctl.values/2","root":1}', '{"schema":"ckptctl.values/1"}']
)
def test_another_schema_is_refused(text):
    with pytest.raises(ValueError):
        decode(text, {}, frozenset(), level_named)


def test_a_state_that_does_not_name_every_tensor_is_refused():
    there = {"w": tensor("w"), "other": tensor("other")}
    with pytest.raises(ValueError, match="does not name other"):
        decode('{"schema":"ckptctl.values/1","root":{"$tensor":"w"}}', there, frozenset(there), level_named)
