"""The inert pickle reader: every opcode, every limit, and the same values as Python's own unpickler."""

from __future__ import annotations

import collections
import io
import os
import pickle
import pickletools
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptctl.errors import CkptctlError, CorruptError, LimitError, UnsafePickleError
from ckptctl.formats._pickle import limits, unpickle
from ckptctl.formats._pickle.loop import record
from ckptctl.formats._pickle.machine import Machine
from ckptctl.formats._pickle.opcodes import OPCODES
from ckptctl.formats._pickle.table import unknown as _unknown
from ckptctl.model import Level
from ckptctl.storage import MemoryFile
from ckptctl.values import Described, Elided, Span, Token


class _NoStorages:
    def find(self, value):
        raise CorruptError("no storages here")


def source(data: bytes):
    return MemoryFile(data, path=Path("x.pkl")).range()


def read(data: bytes):
    return unpickle(source(data), _NoStorages())


def plain(value):
    """Build from our description what Python's unpickler builds, for the types used below."""
    match value:
        case Described(type="builtins.set"):
            return {plain(item) for item in value.items}
        case Described(type="builtins.frozenset"):
            return frozenset(plain(item) for item in value.items)
        case Described(type="builtins.bytearray"):
            return bytearray(plain(value.args[0])) if value.args else bytearray()
        case Described(type="builtins.complex"):
            return complex(*value.args)
        case Described(type="builtins.range"):
            return range(*value.args)
        case Described(type="builtins.slice"):
            return slice(*value.args)
        case Described(type="collections.OrderedDict"):
            return collections.OrderedDict((key, plain(inner)) for key, inner in value.items.items())
        case Described(type="collections.deque"):
            return collections.deque([plain(item) for item in value.items], *value.args[:1])
        case Span(text=True):
            return value.range.read().decode("utf-8", "surrogatepass")
        case Span():
            return value.range.read()
        case dict():
            return {key: plain(inner) for key, inner in value.items()}
        case list():
            return [plain(inner) for inner in value]
        case tuple():
            return tuple(plain(inner) for inner in value)
    return value


# Bytes are no keys here: protocols below 3 write them as calls, which are never hashed.
KEYS = st.one_of(st.text(max_size=8), st.integers(-(2**63), 2**63), st.booleans(), st.none(),
                 st.tuples(st.integers(-9, 9), st.text(max_size=3)))  # fmt: skip
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**200), 2**200), st.floats(allow_nan=False), st.text(max_size=300),
    st.binary(max_size=300), st.complex_numbers(allow_nan=False), st.binary(max_size=20).map(bytearray),
    st.frozensets(st.integers(), max_size=3), st.sets(st.text(max_size=3), max_size=3), st.just(range(1, 9, 2)),
)  # fmt: skip
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(KEYS, inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3).map(collections.OrderedDict),
        st.lists(inner, max_size=3).map(lambda items: collections.deque(items, 5)),
    ),
    max_leaves=20,
)


@given(TREES, st.integers(0, 5))
def test_gives_the_values_that_python_gives(tree, protocol):
    data = pickle.dumps(tree, protocol=protocol)
    expected = pickle.loads(data)
    found = plain(read(data).values)
    assert repr(found) == repr(expected)


@given(TREES, st.integers(0, 5), st.data())
def test_changed_streams_raise_nothing_but_our_errors(tree, protocol, data):
    stream = bytearray(pickle.dumps(tree, protocol=protocol))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(stream) - 1))
        stream[at] = data.draw(st.integers(0, 255))
    _read_or_refuse(bytes(stream))


CODES = [opcode.code.encode("latin1") for opcode in pickletools.opcodes]


@given(st.lists(st.one_of(st.sampled_from(CODES), st.binary(min_size=1, max_size=4)), max_size=60).map(b"".join))
def test_random_opcodes_raise_nothing_but_our_errors(stream):
    _read_or_refuse(stream)
    _read_or_refuse(b"\x80\x04" + stream + b".")


def _read_or_refuse(stream: bytes) -> None:
    try:
        read(stream)
    except CkptctlError as error:
        assert error.message


def test_knows_every_opcode():
    assert len(pickletools.opcodes) == 68
    inside_the_loop = set("qrhK(t\x94")
    unknown = [
        o.name for o in pickletools.opcodes if OPCODES[ord(o.code)] is _unknown and o.code not in inside_the_loop
    ]
    assert unknown == []


def g(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


STREAMS = {
    b"I42\n.": 42, b"I01\n.": True, b"I00\n.": False, b"L9999999999999999999L\n.": 9999999999999999999,
    b"F1.5\n.": 1.5, b"N.": None, b"S'a\\x41'\n.": "aA", b'S"q"\n.': "q", b"V\\u00e9\n.": "é",
    b"T\x02\0\0\0\xff\xfe.": b"\xff\xfe", b"U\x02ab.": "ab", b"J\xff\xff\xff\xff.": -1, b"M\xff\xff.": 65535,
    b"G\x3f\xf8\0\0\0\0\0\0.": 1.5, b"\x8a\x02\xff\x7f.": 32767, b"\x8b\x01\0\0\0\x80.": -128, b"\x8a\0.": 0,
    b"(I1\nI2\nl.": [1, 2], b"(S'k'\nI1\nd.": {"k": 1}, b"(I1\n0I2\nt.": (2,), b"I7\n2\x86.": (7, 7),
    b"I1\np5\n0g5\n.": 1, b"]I1\na.": [1], b"}S'k'\nI1\ns.": {"k": 1},
    b"(0I5\n.": 5, b")\x85.": ((),), b"K\x01K\x02K\x03\x87.": (1, 2, 3), b"\x8c\x01a\x94h\0\x86.": ("a", "a"),
}  # fmt: skip


@pytest.mark.parametrize(("stream", "value"), STREAMS.items(), ids=[repr(stream)[:40] for stream in STREAMS])
def test_reads_hand_written_streams(stream, value):
    assert read(stream).values == value


MALFORMED = [
    b"", b"\x80", b"\x80\x06.", b"(", b".", b"NN.", b"(N.", b"0.", b"1.", b"h\0.", b"j\0\0\0\0.", b"N\x86.", b"t.",
    b"K", b"J\0\0", b"X\xff\xff\xff\xffa.", b"X\x02\0\0\0\xff\xff.", b"Ix\n.", b"Fx\n.",
    b"L\n.", b"S'a\n.", b"S\n.", b"Sab\n.", b"S'\\x'\n.", b"V\\ud\n.", b"\x8a\xff\0.", b"\x8b\xff\xff\xff\xff.",
    b"\x8b\0\0\0\x7f.", b"\x95\xff\0\0\0\0\0\0\0.", b"\x97.", b"\x98.", b"\xff.", b"Na.", b"]NNs.", b"}(Nu.", b"NNb.",
    b"K\x01K\x02\x93.", b"cos\nsystem", b"(o.", b"cos\nsystem\nNR.", b"g\n.", b"p", b"I123", b"\x82\0.",
    b"cbuiltins\nbytearray\n(K\x09tR.", b"c_codecs\nencode\n(X\x03\0\0\0\xe2\x82\xac" b"X\x06\0\0\0latin1tR.",
]  # fmt: skip


@pytest.mark.parametrize("stream", MALFORMED, ids=[repr(stream)[:40] for stream in MALFORMED])
def test_refuses_malformed_streams(stream):
    with pytest.raises(CorruptError if b"cos" not in stream else (CorruptError, UnsafePickleError)) as caught:
        read(stream)
    assert "x.pkl: " in caught.value.message


@pytest.mark.parametrize("ahead", [*range(limits.WINDOW - 40, limits.WINDOW + 8), limits.WINDOW - limits.MARGIN])
@pytest.mark.parametrize("tail", ["opcodes", "string", "long string"])
def test_windows_may_end_anywhere(ahead, tail):
    filler = b"\x8e" + struct.pack("<Q", ahead - 30) + bytes(ahead - 30)
    value = {"opcodes": [1, -70000, 2**70, 1.5, ("x", None)], "string": "é" * 3000, "long string": "é" * 60000}[tail]
    inner = pickle.dumps(value, protocol=4)[2:]
    if inner[:1] == b"\x95":
        inner = inner[9:]
    data = b"\x80\x04" + filler + b"0" + inner
    assert plain(read(data).values) == pickle.loads(data)


def test_many_strings_longer_than_a_window_margin():
    value = [chr(97 + i % 26) * (i * 37 % 9000) for i in range(600)]
    for protocol in (2, 4):
        assert plain(read(pickle.dumps(value, protocol=protocol)).values) == value


def test_counts_globals_and_calls():
    call = g("os", "system") + b"(X\x02\0\0\0hi" + b"tR"
    found = read(b"(" + call + b"0" + call + g("json", "loads") + g("mine.core", "C") + b")\x81" + b"t.").globals
    assert {str(use): (use.level, use.calls, use.count, use.opcodes) for use in found} == {
        "os.system": (Level.DANGEROUS, 2, 2, ("GLOBAL",)),
        "json.loads": (Level.DANGEROUS, 0, 1, ("GLOBAL",)),
        "mine.core.C": (Level.FOREIGN, 1, 1, ("GLOBAL",)),
    }


LEVELS = {
    ("collections", "OrderedDict"): Level.KNOWN, ("torch._utils", "_rebuild_tensor_v2"): Level.KNOWN,
    ("__builtin__", "set"): Level.KNOWN, ("argparse", "Namespace"): Level.INERT,
    ("datetime", "datetime"): Level.INERT, ("transformers.training_args", "TrainingArguments"): Level.INERT,
    ("mytrainer", "Config"): Level.FOREIGN, ("torch.nn.modules.linear", "Custom"): Level.FOREIGN,
    ("torch", "load"): Level.FOREIGN, ("builtins", "eval"): Level.DANGEROUS, ("builtins", "getattr"): Level.DANGEROUS,
    ("commands", "getoutput"): Level.DANGEROUS, ("subprocess", "Popen"): Level.DANGEROUS,
    ("torch.serialization", "os.system"): Level.DANGEROUS, ("x", "a b"): Level.DANGEROUS,
    ("x", "é"): Level.DANGEROUS, ("", "x"): Level.DANGEROUS, ("collections", "orderedDict"): Level.DANGEROUS,
    ("collections.abc", "OrderedDict"): Level.DANGEROUS,
}  # fmt: skip


@pytest.mark.parametrize(("name", "level"), LEVELS.items(), ids=[".".join(name) for name in LEVELS])
def test_judges_globals_by_their_exact_names(name, level):
    (use,) = record(source(g(*name) + b"(tR.")).globals
    assert use.level is level


def test_getattr_is_known_only_in_the_shape_that_torch_writes():
    sharded = g("torch.distributed._shard.sharded_tensor.api", "ShardedTensor")
    known = read(g("builtins", "getattr") + b"(" + sharded + b"X\x11\0\0\0ProcessGroupStatetR.")
    other = read(g("builtins", "getattr") + b"(" + sharded + b"X\x0b\0\0\0__globals__tR.")
    assert {use.level for use in known.globals} == {Level.KNOWN}
    assert Level.DANGEROUS in {use.level for use in other.globals}


def test_a_foreign_call_before_a_fault_outranks_it():
    with pytest.raises(UnsafePickleError, match="os.system"):
        read(b"\x80\x02" + g("os", "system") + b"(X\x02\0\0\0hitR")


def test_keys_that_cannot_be_keys_become_tokens():
    inner = (g("a", "B") + b"K\x01s") + (b"](K\x01e" + b"K\x02s") + (b"\x8a\x0a" + b"\x7f" * 10 + b"K\x03s")
    values = read(b"\x80\x02}" + inner + b".").values
    assert [type(key) for key in values] == [Token, Token, Token]
    assert list(values.values()) == [1, 2, 3]


def test_deeply_nested_tuples_as_keys_are_not_hashed():
    deep = b")" + b"\x85" * 200_000
    values = read(b"\x80\x02}" + deep + b"K\x01s.").values
    assert [type(key) for key in values] == [Token]


def test_depth_is_cut_and_said():
    found = read(b"\x80\x02" + b"]" * 300 + b"a" * 299 + b".")
    assert found.elided == ("nested deeper than 256",)
    value = found.values
    while isinstance(value, list):
        value = value[0]
    assert isinstance(value, Elided)


@pytest.mark.parametrize(
    ("stream", "what"),
    [
        (b"\x80\x02" + b"N" * 1_400_000, "stack items"),
        (b"\x80\x02" + b"(" * 300_000, "open marks"),
        (b"I" + b"1" * 100 + b"\n.", "100 digits"),
        (b"I" + b"1" * 2000, "a line of text longer"),
    ],
)
def test_limits_are_refused_by_name(stream, what):
    with pytest.raises(LimitError, match=what):
        read(stream + b".")


def test_a_stream_longer_than_any_real_one_is_refused(monkeypatch):
    monkeypatch.setattr(limits, "MAX_BYTES", 100)
    with pytest.raises(LimitError, match="101 bytes long"):
        read(b"N" * 101)


@pytest.mark.parametrize(
    ("limit", "stream"),
    [
        ("MAX_GLOBALS", b"(" + b"".join(g("m", f"x{i}") for i in range(20)) + b"t."),
        ("MAX_ITEMS", b"](" + b"N" * 20 + b"e."),
        ("SECONDS", pickle.dumps(list(range(100)), protocol=2)),
    ],
)
def test_smaller_limits_bite(monkeypatch, limit, stream):
    monkeypatch.setattr(limits, limit, 10 if limit != "SECONDS" else -1000.0)
    with pytest.raises(CkptctlError, match="more than 10|too long"):
        read(stream)


def test_nothing_is_called_or_imported(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'marker'}",)

    for protocol in range(6):
        found = read(pickle.dumps({"x": Trap(), "y": [Trap()]}, protocol=protocol))
        assert "system" in str(found.globals[0])
    assert list(tmp_path.iterdir()) == []


def test_python_2_strings_are_text_where_they_can_be():
    assert read(b"\x80\x02U\x02ab.").values == "ab"
    assert read(b"\x80\x02U\x01\xff.").values == b"\xff"


def test_reads_only_up_to_stop():
    assert read(pickle.dumps([1], protocol=2) + b"garbage").length == len(pickle.dumps([1], protocol=2))


def test_memory_does_not_follow_a_memo_index():
    assert read(b"\x80\x02Nr\xf0\xff\xff\xff.").values is None


def test_the_machine_itself_knows_no_names():
    assert not [name for name in vars(Machine) if name in ("find_class", "load", "persistent_load")]


def test_reads_a_stream_of_many_windows():
    value = {f"layer.{i}": [i, float(i), None, (i, "x" * 50)] for i in range(30_000)}
    buffer = io.BytesIO()
    pickle.Pickler(buffer, protocol=2).dump(value)
    assert plain(read(buffer.getvalue()).values) == value
