"""The rules of a safetensors header, one by one, and against the reference implementation."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptctl.errors import CkptctlError, CorruptError, LimitError
from ckptctl.model import DTYPES
from tests.samples import CORPUS, entry, read, safetensors_bytes, values_of

EDGE = sorted((CORPUS / "safetensors" / "edge").glob("*.safetensors"))
INVALID = sorted((CORPUS / "safetensors" / "invalid").glob("*.safetensors"))
ODD_TO_TORCH = {"f6_by_hand.safetensors", "duplicate_name.safetensors"}


def by_reference(data: bytes):
    """What the reference lists: name → (dtype, shape, bytes), or None if it refuses."""
    import safetensors

    try:
        return {name: (t["dtype"], tuple(t["shape"]), bytes(t["data"])) for name, t in safetensors.deserialize(data)}
    except safetensors.SafetensorError:
        return None


def by_ckptctl(tmp_path, data: bytes):
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    try:
        contents = read(path)
    except CkptctlError:
        return None
    return {n: (t.dtype.name, t.shape, t.pieces[0].range.read()) for n, t in contents.tensors.items()}


@pytest.mark.parametrize("path", EDGE, ids=lambda path: path.name)
def test_lists_what_the_reference_lists(path, tmp_path):
    data = path.read_bytes()
    assert by_ckptctl(tmp_path, data) == by_reference(data)


@pytest.mark.parametrize("path", INVALID, ids=lambda path: path.name)
def test_refuses_what_is_invalid(path):
    with pytest.raises(CkptctlError) as caught:
        read(path)
    assert caught.value.message.startswith(str(path))


@pytest.mark.parametrize("path", [p for p in EDGE if p.name not in ODD_TO_TORCH], ids=lambda path: path.name)
def test_bits_equal_the_reference(path):
    from safetensors.torch import load_file

    found = read(path).tensors
    for name, tensor in load_file(path).items():
        assert values_of(found[name]) == bits(tensor)


def test_widths_are_those_of_the_format():
    assert {name: dtype.bits for name, dtype in DTYPES.items() if dtype.storable} == {
        "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
        "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
        "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
    }  # fmt: skip


E1 = json.dumps(entry()).encode()
HEADERS = {
    "plain": b'{"w":%s}' % E1,
    "no tensors": b"{}",
    "space after": b'{"w":%s} \t\r\n ' % E1,
    "space before": b'  {"w":%s}' % E1,
    "form feed after": b'{"w":%s}\x0c' % E1,
    "null metadata": b'{"__metadata__":null,"w":%s}' % E1,
    "metadata escaped": b'{"\\u005f_metadata__":{"a":"b"},"w":%s}' % E1,
    "metadata key twice": b'{"__metadata__":{"a":"1","a":"2"},"w":%s}' % E1,
    "metadata twice": b'{"__metadata__":{"a":"1"},"__metadata__":{"a":"2"},"w":%s}' % E1,
    "metadata nested": b'{"__metadata__":{"a":{"b":"c"}},"w":%s}' % E1,
    "metadata list": b'{"__metadata__":["a"],"w":%s}' % E1,
    "metadata like an entry": b'{"__metadata__":{"dtype":"F32","shape":"[2]","data_offsets":"[0,8]"},"w":%s}' % E1,
    "metadata that is an entry": b'{"__metadata__":%s,"w":%s}' % (E1, E1),
    "name empty": b'{"":%s}' % E1,
    "name escaped": b'{"\\u0077\\n\\ud83d\\ude00":%s}' % E1,
    "name twice": b'{"w":%s,"w":%s}' % (E1, E1),
    "name twice, escaped": b'{"w":%s,"\\u0077":%s}' % (E1, E1),
    "name twice, the first of an unknown dtype": b'{"w":{"dtype":"XX","shape":[2],"data_offsets":[0,8]},"w":%s}' % E1,
    "name twice, the first of another size": b'{"w":{"dtype":"F32","shape":[99],"data_offsets":[0,8]},"w":%s}' % E1,
    "name twice, the first at nonsense": b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[9,3]},"w":%s}' % E1,
    "382 spaces before": b" " * 382 + b'{"w":%s}' % E1,
    "100,000 spaces before": b" " * 100_000 + b'{"w":%s}' % E1,
    "unknown field of 124 objects and a number": b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":%s1%s}}'
    % (b'{"a":' * 124, b"}" * 124),
    "unknown field of 125 objects and a number": b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":%s1%s}}'
    % (b'{"a":' * 125, b"}" * 125),
    "unknown field of 126 objects and a number": b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":%s1%s}}'
    % (b'{"a":' * 126, b"}" * 126),
    "half a surrogate": b'{"\\ud83d":%s}' % E1,
    "halves in the wrong order": b'{"\\ude00\\ud83d":%s}' % E1,
    "escaped backslash before u": b'{"\\\\ud83d":%s}' % E1,
    "raw newline in a name": b'{"a\nb":%s}' % E1,
    "raw DEL in a name": b'{"a\x7fb":%s}' % E1,
    "fields in another order": b'{"w":{"data_offsets":[0,8],"shape":[2],"dtype":"F32"}}',
    "field twice": b'{"w":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
    "field unknown": b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":[1e300,-0,-1,1.5,{"y":null}]}}',
    "field unknown beyond floats": b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1e999}}',
    "field unknown of 400 digits": b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":%s}}' % (b"9" * 400),
    "field unknown of 300 digits": b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":%s}}' % (b"9" * 300),
    "field unknown twice": b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1,"x":2}}',
    "unknown field nested 120": b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":%s}}'
    % (b"[" * 120 + b"]" * 120),
    "unknown field nested 125": b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":%s}}'
    % (b"[" * 125 + b"]" * 125),
    "unknown field nested 126": b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":%s}}'
    % (b"[" * 126 + b"]" * 126),
    "unknown field nested 500": b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":%s}}'
    % (b"[" * 500 + b"]" * 500),
    "entry as list": b'{"w":["F32",[2],[0,8]]}',
    "entry as short list": b'{"w":["F32",[2]]}',
    "dtype as object": b'{"w":{"dtype":{"F32":null},"shape":[2],"data_offsets":[0,8]}}',
    "dtype as object with a value": b'{"w":{"dtype":{"F32":1},"shape":[2],"data_offsets":[0,8]}}',
    "dtype as number": b'{"w":{"dtype":5,"shape":[2],"data_offsets":[0,8]}}',
    "shape of floats": b'{"w":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}',
    "shape in exponents": b'{"w":{"dtype":"F32","shape":[2e0],"data_offsets":[0,8]}}',
    "shape minus zero": b'{"w":{"dtype":"F32","shape":[-0],"data_offsets":[0,0]}}',
    "shape of text": b'{"w":{"dtype":"F32","shape":["2"],"data_offsets":[0,8]}}',
    "shape of bools": b'{"w":{"dtype":"U8","shape":[true],"data_offsets":[0,1]}}',
    "shape with a leading zero": b'{"w":{"dtype":"F32","shape":[02],"data_offsets":[0,8]}}',
    "shape null": b'{"w":{"dtype":"F32","shape":null,"data_offsets":[0,8]}}',
    "zero times huge": b'{"w":{"dtype":"F32","shape":[0,18446744073709551615,18446744073709551615],"data_offsets":[0,0]}}',
    "huge times zero": b'{"w":{"dtype":"F32","shape":[18446744073709551615,18446744073709551615,0],"data_offsets":[0,0]}}',
    "just above 64 bits": b'{"w":{"dtype":"F32","shape":[18446744073709551616,0],"data_offsets":[0,0]}}',
    "three offsets": b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8,8]}}',
    "one offset": b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0]}}',
    "scalar": b'{"w":{"dtype":"F64","shape":[],"data_offsets":[0,8]}}',
    "tensors called like fields": b'{"dtype":%s,"shape":%s,"data_offsets":%s}'
    % tuple(json.dumps(["F32", [0], [0, 0]]).encode() for _ in range(3)),
    "NaN": b'{"w":{"dtype":"F32","shape":[NaN],"data_offsets":[0,8]}}',
    "BOM": b'\xef\xbb\xbf{"w":%s}' % E1,
    "comment": b'{"w":%s}//' % E1,
    "empty": b"",
    "a string": b'"w"',
    "overlong UTF-8": b'{"\xc0\x80":%s}' % E1,
    "surrogate in UTF-8": b'{"\xed\xa0\x80":%s}' % E1,
}


@pytest.mark.parametrize("size", [0, 1, 8, 9])
@pytest.mark.parametrize("name", HEADERS)
def test_agrees_with_the_reference_on(name, size, tmp_path):
    data = safetensors_bytes(HEADERS[name], bytes(size))
    expected, found = by_reference(data), by_ckptctl(tmp_path, data)
    if name == "unknown field nested 126":
        assert expected is None
    assert found == expected


WARNED = {
    "space before": "leading-space", "null metadata": "null-metadata", "metadata key twice": "duplicate-metadata",
    "name twice": "duplicate-name", "name twice, escaped": "duplicate-name", "field unknown": "unknown-field",
    "entry as list": "entry-as-list", "dtype as object": "dtype-as-object",
}  # fmt: skip


@pytest.mark.parametrize("name", WARNED)
def test_warns_of_what_the_text_of_the_format_forbids(name, tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors_bytes(HEADERS[name], bytes(8)))
    assert [finding.slug for finding in read(path).findings] == [WARNED[name]]


@given(st.data())
def test_agrees_with_the_reference_on_changed_headers(tmp_path_factory, data):
    """Any change of bytes in a header: refused by both, or listed alike by both."""
    header = bytearray(
        json.dumps({"__metadata__": {"format": "pt"}, "a": entry(), "b.é": entry("BF16", (1, 3), 8, 14)}).encode()
    )
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(header) - 1))
        match data.draw(st.sampled_from(["flip", "set", "cut", "double"])):
            case "flip":
                header[at] ^= 1 << data.draw(st.integers(0, 7))
            case "set":
                header[at] = data.draw(st.sampled_from(b'{}[]",:0123456789-.eE\\ut \n\0\xff'))
            case "cut":
                del header[at : at + data.draw(st.integers(1, 4))]
            case "double":
                header[at:at] = header[at : at + data.draw(st.integers(1, 30))]
        if not header:
            break
    raw = safetensors_bytes(bytes(header), bytes(14))
    found = by_ckptctl(tmp_path_factory.mktemp("x"), raw)
    assert found == by_reference(raw)


def test_every_single_bit_of_a_header_flipped(tmp_path):
    good = (CORPUS / "safetensors" / "edge" / "zero_size.safetensors").read_bytes()
    end = 8 + struct.unpack("<Q", good[:8])[0]
    for at in range(8, end):
        for bit in range(8):
            changed = good[:at] + bytes([good[at] ^ 1 << bit]) + good[at + 1 :]
            assert by_ckptctl(tmp_path, changed) == by_reference(changed), (at, bit)


def test_says_where_it_was_cut_and_what_is_lost(tmp_path):
    path = tmp_path / "x.safetensors"
    good = safetensors_bytes({"a": entry(), "b": entry(begin=8, end=16), "c": entry(begin=16, end=24)}, bytes(24))
    path.write_bytes(good[:-10])
    with pytest.raises(CorruptError) as caught:
        read(path)
    assert f"cut at {len(good) - 10} of {len(good)} bytes: 2 of 3 tensors lost (the first is b)" in caught.value.message


def test_refuses_a_header_above_the_limit_of_the_format(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", 100_000_001) + b"\xff")
    with pytest.raises(LimitError, match="100000001"):
        read(path)


def test_keeps_the_order_of_the_header(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors_bytes({"b": entry(begin=8, end=16), "a": entry()}, bytes(16)))
    assert list(read(path).tensors) == ["b", "a"]


def bits(tensor) -> bytes:
    import torch

    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
