"""Small files that would cost much, or break a careless reader: each is answered in time, in memory and in words."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.samples import HERE, load

G = load(HERE / "hostile" / "generate.py")
MEGABYTE = 1 << 20
U, TUP, CALL, GLOBAL, INT = G._u, G._tup, G._call, G._g, G._i


def archive(path: Path, pickled: bytes, storages: dict[str, bytes] | None = None) -> Path:
    return G._zip(path / "x.pt", G._records(pickled, storages))


def dict_with(**items: bytes) -> bytes:
    """A pickle of the tensor ``w`` and of more items."""
    return G._pickle(("w", G._tensor()), *items.items())


def tower(levels: int, make: bytes = b"](%s%se") -> bytes:
    """A list that holds the same list twice, and so on: small in the file, endless when walked."""
    stream = b"]q\x00"
    for level in range(levels):
        get, put = b"h%c" % level, b"q%c" % (level + 1)
        stream += make % (get, get) + put
    return stream


SPARSE = GLOBAL("torch._utils", "_rebuild_sparse_tensor")
COO = CALL(GLOBAL("torch.serialization", "_get_layout"), U("torch.sparse_coo"))
FROM_TYPE = GLOBAL("torch._tensor", "_rebuild_from_type_v2")


def nested(times: int, opening: bytes, closing: bytes, core: bytes) -> bytes:
    return opening * times + core + closing * times


def meta_tensor(*shape: int) -> bytes:
    function = GLOBAL("torch._utils", "_rebuild_meta_tensor_no_storage")
    return CALL(function, GLOBAL("torch", "float32"), TUP(*map(INT, shape)), TUP(*map(INT, shape)), b"\x89")


def light(path):
    state = b"}(" + U("monitor") + tower(40) + U("best_model_score") + b"G" + struct.pack(">d", 0.5) + b"u"
    return archive(path, dict_with(callbacks=b"}(" + U("ModelCheckpoint{}") + state + b"u"))


def sparse_layout_tower(path):
    return archive(path, dict_with(x=CALL(SPARSE, tower(40), TUP())))


def sparse_of_sparse(path):
    core = TUP(G._tensor(), G._tensor(), TUP(INT(4)))
    stream = CALL(SPARSE, COO, core) + b"q\x01"
    for level in range(1, 30):
        again = b"h%c" % level
        stream += b"0" + CALL(SPARSE, COO, TUP(again, again, TUP(INT(4)))) + b"q%c" % (level + 1)
    return archive(path, dict_with(x=stream))


def values_tower(path):
    return archive(path, dict_with(x=tower(40)))


def call_tower(path):
    return archive(path, dict_with(x=tower(40, GLOBAL("mine", "f") + b"(%s%stR")))


def from_type_deep(path):
    opening, closing = FROM_TYPE + b"(" + FROM_TYPE + GLOBAL("torch", "Tensor") + b"(", b"tNtR"
    return archive(path, dict_with(x=nested(3000, opening, closing, G._tensor())))


def sizes(path):
    many = b"(" + INT(1) * 200_000 + b"tq\x00"
    calls = (CALL(GLOBAL("torch", "Size"), b"h\x00") + b"0") * 20_000
    return archive(path, dict_with(x=many + b"0" + calls + b"N"))


def huge_shape(path):
    return archive(path, dict_with(x=meta_tensor(*[2**63] * 60)))


def huge_view(path):
    view = G._tensor(numel=4, shape=(2**62,) * 40, stride=(0,) * 40)
    return archive(path, dict_with(x=view))


def negative_meta(path):
    return archive(path, dict_with(x=meta_tensor(-1)))


def numpy_shape(path):
    encoded = CALL(GLOBAL("_codecs", "encode"), U("b"), U("latin1"))
    array = CALL(GLOBAL("numpy._core.multiarray", "_reconstruct"), GLOBAL("numpy", "ndarray"), TUP(INT(0)), encoded)
    dtype = CALL(GLOBAL("numpy", "dtype"), U("f4"), b"\x89", b"\x88")
    shape = TUP(*[INT(2**2000)] * 20_000)
    return archive(path, dict_with(x=array + TUP(INT(1), shape, dtype, b"\x89", encoded) + b"b"))


def repeated_call(path):
    call = GLOBAL("mine", "f") + b"(" + G._tensor() + INT(1) * 100_000 + b"tRq\x00"
    return archive(path, dict_with(x=b"](" + call + b"h\x00" * 20_000 + b"e"))


def many_tokens(path):
    pairs = b"".join(b"]" + (b"h\x00" if i else G._tensor() + b"q\x00") for i in range(30_000))
    return archive(path, dict_with(x=b"}(" + pairs + b"u"))


def colliding_keys(path):
    prime = 2**61 - 1
    pairs = b"".join(TUP(INT(k * prime + 7)) + b"N" for k in range(30_000))
    return archive(path, dict_with(x=b"}(" + pairs + b"u"))


def many_builds(path):
    return archive(path, dict_with(x=GLOBAL("mine", "C") + b")\x81" + b"Nb" * 130_000))


def optimizer_repeated(path):
    inner = b"](" + INT(1) * 200_000 + b"eq\x00"
    return archive(path, dict_with(optimizer=b"](" + inner + b"h\x00" * 1000 + b"e"))


def many_dotted_keys(path):
    pairs = b"".join(
        U(f"layers.{i}.w")
        + b"}("
        + U("exp_avg")
        + (b"h\x00" if i else G._tensor() + b"q\x00")
        + U("step")
        + INT(1)
        + b"u"
        for i in range(15_000)
    )
    return archive(path, b"\x80\x02}(" + pairs + b"u.")


def long_name_of_states(path):
    target = path / "x.safetensors"
    target.write_bytes(G._good(("state." * 40_000 + "x", "ema_" * 16_000 + "\n", "step" * 16_000 + "\n")))
    return target


def long_keys(path):
    names = U("ema_" * 16_000 + "\n") + INT(1) + U("step" * 15_000 + "\n") + INT(1) + U("best_" * 10_000) + INT(1)
    return archive(path, b"\x80\x02}(" + U("w") + G._tensor() + names + b"u.")


def one_long_key(path):
    items = b"](" + G._tensor() + b"q\x00" + b"h\x00" * 40_000 + b"e"
    return archive(path, b"\x80\x02}(" + U("k" * 60_000) + items + b"u.")


def deep_long_keys(path):
    opening = b"}(" + U("k" * 60_000)
    return archive(path, b"\x80\x02" + nested(200, opening, b"u", G._tensor()) + b".")


def missing_shards(path):
    names = {f"t{i}": f"model-{i:05d}-of-40000.safetensors" for i in range(40_000)}
    return G._index(path, "x", {**names, "w": "good.safetensors"}, {"good.safetensors": G._good()})


def claimed_directory(path):
    target = path / "x.pt"
    size = 3 << 30
    with target.open("wb") as f:
        f.write(b"PK\x03\x04" + bytes(100))
        f.truncate(size)
        f.seek(size)
        f.write(struct.pack("<4s4HIIH", b"PK\x05\x06", 0, 0, 60_000, 60_000, size - 200, 200, 0))
    return target


def many_lists_in_a_header(path):
    target = path / "x.safetensors"
    target.write_bytes(
        G._st(b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":[' + b"[]," * 7_000_000 + b"0]}}", bytes(8))
    )
    return target


def long_dtype(path):
    target = path / "x.safetensors"
    target.write_bytes(G._st({"w": G._ti(dtype="F" * 10_000_000)}, bytes(8)))
    return target


def deep_dtype(path):
    target = path / "x.safetensors"
    target.write_bytes(
        G._st(b'{"w":{"dtype":' + b'[{"x":' * 60 + b"0" + b"}]" * 60 + b',"shape":[2],"data_offsets":[0,8]}}', bytes(8))
    )
    return target


def object_array_of_itself(path):
    encoded = CALL(GLOBAL("_codecs", "encode"), U("b"), U("latin1"))
    array = CALL(GLOBAL("numpy._core.multiarray", "_reconstruct"), GLOBAL("numpy", "ndarray"), TUP(INT(0)), encoded)
    dtype = CALL(GLOBAL("numpy", "dtype"), U("O8"), b"\x89", b"\x88")
    return archive(path, dict_with(x=array + TUP(INT(1), TUP(INT(1)), dtype, b"\x89", b"]q\x07h\x07a") + b"b"))


def calls_250_deep(path):
    return archive(path, dict_with(x=nested(250, GLOBAL("mine", "f") + b"(", b"tR", b"N")))


def jagged_without_values(path):
    jagged = GLOBAL("torch.nested._internal.nested_tensor", "_rebuild_njt")
    return archive(path, dict_with(x=CALL(jagged, b"}(" + U("values") + b"Nu")))


# name → (make, exit status, words to be found on stdout or stderr)
CASES = {
    make.__name__: (make, status, words)
    for make, status, words in [
        (light, 0, "best score 0.5"),
        (sparse_layout_tower, 2, "damaged pickle"),
        (sparse_of_sparse, 2, "an ordinary tensor is expected"),
        (values_tower, 0, "w"),
        (call_tower, 0, "mine.f"),
        (from_type_deep, 2, "which this version does not know"),
        (sizes, 0, "w"),
        (huge_shape, 2, "impossible shape"),
        (huge_view, 2, "impossible shape"),
        (negative_meta, 2, "impossible shape"),
        (numpy_shape, 2, "few integers"),
        (repeated_call, 0, "repeated too often"),
        (many_tokens, 0, "30,001 tensors"),
        (colliding_keys, 0, "w"),
        (many_builds, 0, "mine.C"),
        (optimizer_repeated, 0, "optimizer"),
        (many_dotted_keys, 0, "15,000 tensors"),
        (long_name_of_states, 0, "3 tensors"),
        (long_keys, 0, "1 tensor"),
        (one_long_key, 2, "names of"),
        (deep_long_keys, 2, "names something by"),
        (missing_shards, 0, "error: "),
        (claimed_directory, 2, "a zip archive"),
        (many_lists_in_a_header, 2, "more lists than its tensors can need"),
        (long_dtype, 2, "unknown dtype FFFF"),
        (deep_dtype, 2, "unknown dtype something that is no name"),
        (object_array_of_itself, 0, "it refers to itself"),
        (calls_250_deep, 0, "mine.f"),
        (jagged_without_values, 2, "no values"),
    ]
}


def run(*arguments: object) -> dict:
    command = [sys.executable, HERE / "measure.py", sys.executable, "-m", "ckptctl", "inspect", *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env, timeout=100)
    return json.loads(done.stdout)


@pytest.mark.parametrize("options", [(), ("--values", "--tensors", "--json")], ids=["plain", "all as json"])
@pytest.mark.parametrize("name", CASES)
def test_costs_little_and_is_answered(name, options, tmp_path):
    make, status, words = CASES[name]
    result = run(make(tmp_path), *options)
    told = result["out"] + result["err"]
    assert "Traceback" not in told
    assert "internal error" not in told
    assert result["status"] == status, result["err"][:500]
    assert result["cpu"] < 10
    assert result["seconds"] < 60  # it waits for nothing, however busy the machine is
    assert result["peak"] < (256 + 60) * MEGABYTE
    assert len(result["err"]) < 5000
    if not options:
        assert any(word in told for word in words.split("|")), told[:500]
        assert all(char.isprintable() or char == "\n" for char in told)


def test_a_name_with_control_characters_in_a_quantizer_is_refused(tmp_path):
    scheme = TUP(GLOBAL("x", "\x1b[31mEVIL\x07"), b"G" + struct.pack(">d", 0.1), INT(0))
    quantized = CALL(GLOBAL("torch._utils", "_rebuild_qtensor"), G._pid(numel=4, kind="FloatStorage"), INT(0), TUP(INT(4)),
                     TUP(INT(1)), scheme, b"\x89", b"N")  # fmt: skip
    result = run(archive(tmp_path, dict_with(x=quantized)), "--tensors")
    assert result["status"] == 2
    assert "\x1b" not in result["out"] + result["err"]


def test_two_globals_of_one_joined_name_are_told_apart(tmp_path):
    one, other = GLOBAL("torch", "_utils._rebuild_tensor_v2"), GLOBAL("torch._utils", "_rebuild_tensor_v2")
    for order in ((one, other), (other, one)):
        stream = b"\x80\x02}(" + U("w") + G._tensor() + U("x") + order[0] + b"0" + order[1] + b"u."
        result = run(archive(tmp_path, stream))
        assert "unsafe: " in result["out"]


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        "[[]]",
        "[[[], 1]]",
        '{"weight_map": [["a", "b"]]}',
        '{"weight_map": {"w": "s.safetensors"}, "metadata": [1]}',
    ],
)
def test_lists_where_an_index_has_objects(tmp_path, text):
    (tmp_path / "s.safetensors").write_bytes(G._good())
    (tmp_path / "model.safetensors.index.json").write_text(text)
    result = run(tmp_path)
    assert result["status"] == (0 if "metadata" in text else 2)
    assert "internal" not in result["err"]


def test_a_large_file_cut_in_its_data_says_which_tensors_are_lost(tmp_path):
    """The rest behind the pickle is longer than any pickle may be."""
    import torch

    with torch.serialization.skip_data():
        torch.save(
            {"a": torch.empty(320 << 20, dtype=torch.uint8), "b": torch.empty(320 << 20, dtype=torch.uint8)},
            tmp_path / "x.pt",
        )
    os.truncate(tmp_path / "x.pt", 400 << 20)
    result = run(tmp_path / "x.pt")
    assert "1 of 2 tensors lost (the first is b)" in result["err"]


@pytest.mark.parametrize("closed", ["1", "2"])
@pytest.mark.parametrize("arguments", ["x.pt", "x.pt --json", "nothing.pt", "nothing.pt --json"])
def test_a_closed_stream_is_no_traceback(tmp_path, closed, arguments):
    archive(tmp_path, dict_with())
    done = subprocess.run(
        ["/bin/sh", "-c", f"{sys.executable} -m ckptctl inspect {arguments} {closed}>&-"],
        capture_output=True, text=True, check=False, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(HERE.parent)},
    )  # fmt: skip
    assert done.returncode == (2 if "nothing" in arguments else 0)
    assert "Traceback" not in done.stdout + done.stderr
    assert "error" not in done.stdout


def test_a_full_stderr_does_not_change_the_exit_status(tmp_path):
    done = subprocess.run(["/bin/sh", "-c", f"{sys.executable} -m ckptctl inspect nothing.pt 2>/dev/full"],
                          check=False, cwd=HERE.parent)  # fmt: skip
    assert done.returncode == 2


def test_a_reader_of_json_that_stops_is_no_error(tmp_path):
    target = tmp_path / "x.safetensors"
    target.write_bytes(G._st({f"t{i}": G._ti(shape=(0,), end=0) for i in range(20_000)}))
    done = subprocess.run(
        ["/bin/bash", "-c", f"set -o pipefail; {sys.executable} -m ckptctl inspect --json --tensors {target} | head -c 100"],
        capture_output=True, text=True, check=False, cwd=HERE.parent,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
