"""Archives of NumPy arrays, real ones against what NumPy loads, and hostile ones made on the spot."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zipfile
import zlib

import numpy as np
import pytest

from ckptctl.errors import CkptctlError, CorruptError, LimitError, UnsafePickleError, UnsupportedError
from ckptctl.formats import npz
from ckptctl.storage import LocalFile
from ckptctl.tensors.gather import blocks
from tests.samples import CORPUS, read, values_of

FILES = CORPUS / "numpy"
BOTH = pytest.mark.parametrize("save", [np.savez, np.savez_compressed])


def values(tensor, **options):
    return b"".join(bytes(block) for block in blocks(tensor, **options))


def saved(path, *, save=np.savez, **arrays):
    save(path, **arrays)
    return path


def npy(
    text="{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", body=bytes(8), *, version=(1, 0), length=None
):
    """One array from the text of its header."""
    raw = text if isinstance(text, bytes) else text.encode()
    raw = raw.ljust((len(raw) + 64) // 64 * 64 - 1) + b"\n"
    form = "<H" if version[0] == 1 else "<I"
    return b"\x93NUMPY" + bytes(version) + struct.pack(form, len(raw) if length is None else length) + raw + body


def archive(path, members, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as file:
        for name, data in members.items():
            file.writestr(zipfile.ZipInfo(name), data, method)
    return path


def deflated(path, packed, plain, *, size=None):
    """An archive of one record whose packed bytes are these, whatever they unpack to."""
    size, crc, name = len(plain) if size is None else size, zlib.crc32(plain), b"w.npy"
    shared = (0, 8, 0, 33, crc, len(packed), size, len(name), 0)
    local = struct.pack("<4s5HIIIHH", b"PK\3\4", 20, *shared) + name
    entry = struct.pack("<4s6HIII5HII", b"PK\1\2", 20, 20, *shared, 0, 0, 0, 0, 0) + name
    end = struct.pack("<4s4HIIH", b"PK\5\6", 0, 0, 1, 1, len(entry), len(local) + len(packed), 0)
    path.write_bytes(local + packed + entry + end)
    return path


def pack(data):
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize("name", ["arrays.npz", "compressed.npz"])
def test_holds_the_values_that_numpy_wrote(name):
    found = read(FILES / name).tensors
    with np.load(FILES / name) as truth:
        assert list(found) == truth.files
        for key, tensor in found.items():
            assert values(tensor) == truth[key].tobytes()
            assert tensor.shape == truth[key].shape
            assert name == "compressed.npz" or values_of(tensor) == truth[key].tobytes()


@BOTH
@pytest.mark.parametrize("most", [64, 1 << 20])
def test_views_and_orders_are_read_right(save, most, tmp_path):
    base = np.arange(2 * 3 * 4 * 5, dtype="<i4").reshape(2, 3, 4, 5)
    arrays = {
        "c": base, "f": np.asfortranarray(base), "column": np.asfortranarray(base[:, :1, 0, 0]), "t": base.T,
        "step": base[:, ::2], "scalar": np.float64(7), "empty": np.zeros((3, 0, 2), order="F"), "row": base[0, 0, 0],
    }  # fmt: skip
    found = read(saved(tmp_path / "x.npz", save=save, **arrays)).tensors
    assert {name: values(tensor, most=most) for name, tensor in found.items()} == {
        name: array.tobytes() for name, array in arrays.items()
    }


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_header_is_read(version, tmp_path):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.arange(5), version=version)
    (tensor,) = read(archive(tmp_path / "x.npz", {"w.npy": stream.getvalue()})).tensors.values()
    assert (tensor.name, tensor.dtype.name, values(tensor)) == ("w", "I64", np.arange(5).tobytes())


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}",
        "{'shape': (1, 2L), 'fortran_order': True, 'descr': '<f4'}",
        "{'descr':'<f4','fortran_order':False,'shape':(2,),}",
    ],
)
def test_headers_of_other_writers_are_read(text, tmp_path):
    assert read(archive(tmp_path / "x.npz", {"w.npy": npy(text)})).tensors["w"].nbytes == 8


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.ones(3, ">f4"), "record w.npy is big-endian"),
        (np.ones(3, [("a", "<f4"), ("b", "<i4")]), "record w.npy is a structured array"),
        (np.array(["a", "bc"]), "record w.npy holds text"),
        (np.array([b"a", b"bc"]), "record w.npy holds text"),
        (np.ones(3, "V2"), "record w.npy holds opaque bytes"),
        (np.ones(3, "M8[s]"), "record w.npy holds dates"),
        (np.ones(3, "m8[s]"), "record w.npy holds spans of time"),
        (np.ones(3, "longdouble"), "record w.npy is of the dtype '<f16'"),
    ],
)
@BOTH
def test_arrays_of_something_else_than_numbers_are_named(save, array, words, tmp_path):
    with pytest.raises(UnsupportedError, match=words):
        read(saved(tmp_path / "x.npz", save=save, w=array))


@BOTH
def test_an_array_of_objects_is_named_as_unsafe_and_not_unpickled(save, tmp_path, ckptctl):
    class Mark:
        def __reduce__(self):
            return (open, (str(tmp_path / "marker"), "w"))

    path = saved(tmp_path / "x.npz", save=save, b=np.ones(3), w=np.array([Mark()], object))
    with pytest.raises(UnsafePickleError, match=r"record w\.npy holds Python objects: a pickle"):
        read(path)
    assert ckptctl("inspect", path).status == 2
    assert ckptctl("verify", path).status == 1
    assert ckptctl("convert", path, "-o", tmp_path / "x.safetensors").status == 2
    assert [file.name for file in tmp_path.iterdir()] == ["x.npz"]


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (b"", CorruptError, "does not begin as a NumPy array does"),
        (b"\x93NUMPX" + npy()[6:], CorruptError, "does not begin as a NumPy array does"),
        (npy()[:9], CorruptError, "breaks off in its header"),
        (npy()[:40], CorruptError, "breaks off in its header"),
        (npy(length=200, body=b""), CorruptError, "breaks off in its header"),
        (npy(version=(4, 0)), UnsupportedError, "version 4.0"),
        (npy(version=(1, 1)), UnsupportedError, "version 1.1"),
        (npy(version=(2, 0), length=1 << 31), LimitError, "header of 2147483648 bytes"),
        (npy(b"\xff", version=(3, 0)), CorruptError, "not UTF-8"),
        (npy(body=bytes(7)), CorruptError, "has 81 bytes, its header and its values .2. of F32 are 82"),
        (npy(body=bytes(9)), CorruptError, "has 83 bytes"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807, 9), }"), CorruptError, "overflows"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 9223372036854775807), }"), CorruptError, "overflows"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1," * 65 + ")}"), CorruptError, "65 dimensions"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }"), CorruptError, "not one of NumPy"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2), }"), CorruptError, "not one of NumPy"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1+1,), }"), CorruptError, "not one of NumPy"),
        (npy("{'descr': '<f4', 'fortran_order': 0, 'shape': (2,), }"), CorruptError, "not one of NumPy"),
        (npy("{'descr': '<f4', 'fortran_order': False, }"), CorruptError, "not one of NumPy"),
        (npy("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,), }"), CorruptError, "not one of NumPy"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'more': (2,), }"), CorruptError, "not one of NumPy"),
        (npy("{'descr': __import__('os'), 'fortran_order': False, 'shape': (2,), }"), CorruptError, "not one of NumPy"),
        (npy("{'descr': (2,), 'fortran_order': False, 'shape': (2,), }"), UnsupportedError, "structured"),
        (npy("{'descr': True, 'fortran_order': False, 'shape': (2,), }"), CorruptError, "not one of NumPy"),
        (npy("{'descr': 'f4', 'fortran_order': False, 'shape': (2,), }"), CorruptError, "a dtype that NumPy does not write"),
        (npy("{'descr': '<?!', 'fortran_order': False, 'shape': (2,), }"), CorruptError, "a dtype that NumPy does not write"),
        (npy("{" * 60000), CorruptError, "not one of NumPy"),
        (npy("{'descr': '" + "\x1b[31m" * 99 + "', 'fortran_order': False, 'shape': (2,), }"), CorruptError, "dtype"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)  # fmt: skip
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_broken_header_is_refused_in_one_line(data, error, words, method, tmp_path):
    path = archive(tmp_path / "x.npz", {"good.npy": npy(), "w.npy": data}, method)
    with pytest.raises(error, match=words) as caught:
        read(path)
    assert caught.value.message.startswith(f"{path}: ")
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < len(str(path)) + 250


def test_names_may_differ_in_case_only_and_not_be_the_same(tmp_path):
    assert list(read(saved(tmp_path / "x.npz", W=np.ones(2), w=np.zeros(3))).tensors) == ["W", "w"]
    data = (tmp_path / "x.npz").read_bytes()
    (tmp_path / "x.npz").write_bytes(data.replace(b"W.npy", b"w.npy"))
    with pytest.raises(CorruptError, match=r"two records are called w\.npy"):
        read(tmp_path / "x.npz")


def test_names_that_lead_upwards_are_refused(tmp_path):
    with pytest.raises(CorruptError, match="no name of a record"):
        read(archive(tmp_path / "x.npz", {"good.npy": npy(), "a/../w.npy": npy()}))


@pytest.mark.parametrize("name", ["/a/b", "a//b", "./a", "a\\b", "a b", "é"])
def test_every_name_that_numpy_writes_and_reads_is_read(name, tmp_path):
    path = saved(tmp_path / "x.npz", **{name: np.ones(2)})
    assert np.load(path)[name].tolist() == [1, 1]
    assert list(read(path).tensors) == [name]


def test_records_that_are_no_arrays_or_packed_otherwise_are_refused(tmp_path):
    with pytest.raises(UnsupportedError, match="record readme is no array"):
        read(archive(tmp_path / "x.npz", {"w.npy": npy(), "readme": b"x"}))
    with pytest.raises(UnsupportedError, match="compressed by method 12"):
        read(archive(tmp_path / "x.npz", {"w.npy": npy()}, zipfile.ZIP_BZIP2))


def test_overlapping_records_are_refused(tmp_path):
    path = saved(tmp_path / "x.npz", a=np.ones(2), b=np.ones(2))
    data = bytearray(path.read_bytes())
    second = data.index(b"PK\1\2", data.index(b"PK\1\2") + 1)
    data[second + 42 : second + 46] = bytes(4)  # the second entry begins where the first does
    path.write_bytes(data)
    with pytest.raises(CorruptError, match="bytes lie between record"):
        read(path)


@BOTH
def test_every_flipped_bit_outside_the_data_is_refused_or_harmless(save, tmp_path):
    """A listing is given only if it says the same, or else what NumPy reads, too."""
    path = saved(tmp_path / "x.npz", save=save, a=np.ones((2, 3), "f4"), b=np.arange(4))
    data = path.read_bytes()
    places = [at for r in npz.account(read(path)) if r.kind != "data" for at in range(r.offset, r.offset + r.length)]
    for at in places:
        for bit in (0, 3, 5):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
            try:
                found = read(path).tensors
            except CkptctlError as error:
                assert "\n" not in error.message
            else:
                with np.load(path) as arrays:
                    there = {name: (arrays[name].shape, arrays[name].nbytes) for name in arrays.files}
                assert {name: (tensor.shape, tensor.nbytes) for name, tensor in found.items()} == there


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda raw: (pack(raw) + b"x", raw, None), "goes on for 1 byte after its end"),
        (lambda raw: (pack(raw)[:-9], raw, None), "unpacks to|cannot be unpacked|breaks off"),
        (lambda raw: (pack(raw + b"x"), raw, None), "unpacks to more than"),
        (lambda raw: (pack(raw[:-1]), raw, None), "unpacks to 81 bytes, not 82"),
        (lambda raw: (pack(raw[:-1] + b"x"), raw, None), "reads CRC"),
        (lambda raw: (pack(raw[:78]), raw, None), "unpacks to 78 bytes, not 82"),
        (lambda raw: (b"\xff" * 40, raw, None), "cannot be unpacked"),
        (lambda raw: (pack(raw), raw, 1 << 31), "unpack to 2147483648, which none do"),
    ],
)
def test_a_damaged_compressed_record_is_refused_when_it_is_read(change, words, tmp_path, ckptctl):
    path = deflated(tmp_path / "x.npz", *change(npy())[:2], size=change(npy())[2])
    with pytest.raises(CorruptError, match=words):
        values(read(path).tensors["w"])
    done = ckptctl("convert", path, "-o", tmp_path / "x.safetensors")
    assert done.status == 2
    assert [file.name for file in tmp_path.iterdir()] == ["x.npz"]


def test_the_good_record_made_by_hand_is_read(tmp_path):
    assert values(read(deflated(tmp_path / "x.npz", pack(npy()), npy())).tensors["w"]) == bytes(8)


def test_a_large_compressed_array_is_unpacked_a_part_at_a_time(tmp_path):
    path = saved(tmp_path / "x.npz", save=np.savez_compressed, w=np.zeros((3, 1 << 23), "f4"), s=np.ones(3))
    tracemalloc.start()
    found = read(path).tensors["w"]
    assert sum(len(block) for block in blocks(found, most=1 << 20)) == 3 << 25
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 24 << 20


def test_parts_are_unpacked_in_any_order(tmp_path):
    array = np.random.default_rng(1).integers(0, 9, 3_000_000)
    pieces = read(saved(tmp_path / "x.npz", save=np.savez_compressed, w=array)).tensors["w"].pieces
    assert len(pieces) == 6
    for at in (3, 0, 5, 4, 5, 1):
        (start,), (count,) = pieces[at].offsets, pieces[at].shape
        assert pieces[at].unpack() == array[start : start + count].tobytes()


def test_a_large_compressed_array_by_columns_is_refused(tmp_path, monkeypatch):
    path = saved(tmp_path / "x.npz", save=np.savez_compressed, w=np.asfortranarray(np.ones((3, 4))))
    monkeypatch.setattr(npz, "_BAND", 5)
    with pytest.raises(LimitError, match="its 96 bytes would have to be unpacked more than 16 times"):
        values(read(path).tensors["w"])


@pytest.mark.parametrize("shape", [(7, 5), (3, 4, 5), (2, 3, 4, 5), (50, 2), (2, 50), (1, 3, 4)])
@pytest.mark.parametrize(("band", "run"), [(40, 16), (64, 100), (1000, 1 << 20), (100_000, 8)])
def test_arrays_by_columns_are_turned_in_bands(shape, band, run, tmp_path, monkeypatch):
    monkeypatch.setattr(npz, "_BAND", band)
    monkeypatch.setattr(npz, "_RUN", run)
    monkeypatch.setattr(npz, "_MAX_PASSES", 100)
    array = np.asfortranarray(np.arange(np.prod(shape), dtype="i2").reshape(shape))
    found = read(saved(tmp_path / "x.npz", save=np.savez_compressed, w=array)).tensors["w"]
    assert values(found) == array.tobytes("C")


def test_the_names_of_records_of_torch_and_keras_do_not_mislead(tmp_path):
    found = read(saved(tmp_path / "x.npz", **{"data.pkl": np.ones(2), "config.json": np.ones(2), "data/0": np.ones(2)}))
    assert (found.format, list(found.tensors)) == ("npz", ["data.pkl", "config.json", "data/0"])


def test_every_truncation_of_a_compressed_archive_is_refused_and_every_byte_accounted_for(tmp_path):
    data = (FILES / "compressed.npz").read_bytes()
    cut = tmp_path / "x.npz"
    for length in range(len(data)):
        cut.write_bytes(data[:length])
        with pytest.raises(CkptctlError):
            read(cut)
    regions = npz.account(read(FILES / "compressed.npz"))
    assert [r.offset for r in regions[1:]] == [r.offset + r.length for r in regions[:-1]]
    assert (regions[0].offset, regions[-1].offset + regions[-1].length) == (0, len(data))


def test_a_compressed_archive_is_read_inside_a_larger_file(tmp_path):
    data = (FILES / "compressed.npz").read_bytes()
    (tmp_path / "outer").write_bytes(b"before" + data + b"after")
    found = npz.read(LocalFile(tmp_path / "outer").range().sub(6, len(data))).tensors
    assert {n: values(t) for n, t in found.items()} == {
        n: values(t) for n, t in read(FILES / "arrays.npz").tensors.items()
    }


@BOTH
def test_verify_finds_a_flipped_byte_by_its_crc(save, tmp_path, ckptctl):
    path = saved(tmp_path / "x.npz", save=save, a=np.arange(300), b=np.arange(300))
    assert "2 CRCs verified" in ckptctl("verify", path).out
    data = bytearray(path.read_bytes())
    data[data.index(b"b.npy") + 300] ^= 1
    path.write_bytes(data)
    done = ckptctl("verify", path)
    assert done.status == 1
    assert "record b.npy" in done.out
    assert "damaged: b (1 of 2 tensors)" in done.out


@pytest.mark.parametrize("name", ["arrays.npz", "compressed.npz"])
def test_is_converted_and_compared_bit_for_bit(name, tmp_path, ckptctl):
    out = tmp_path / "x.safetensors"
    assert ckptctl("convert", FILES / name, "-o", out).status == 0
    assert ckptctl("diff", FILES / name, out).status == 0
    assert ckptctl("diff", out, FILES / "arrays.expected.safetensors").status == 0


def test_conversion_counts_the_checksums_that_unpacking_compares(tmp_path, ckptctl):
    path = saved(tmp_path / "x.npz", save=np.savez_compressed, a=np.ones((3, 4)), b=np.asfortranarray(np.ones((5, 6))))
    done = ckptctl("convert", path, "-o", tmp_path / "x.safetensors")
    assert (done.status, "bytes checked against 2 recorded CRCs" in " ".join(done.out.split())) == (0, True), done.out
