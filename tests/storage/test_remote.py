"""Over a bucket, all is as it is on disk; and no more is transferred than has to be."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import obstore
import pytest
from obstore import exceptions
from safetensors.numpy import save_file

from ckptctl.errors import ChangedError, CkptctlError, UsageError
from ckptctl.ops.consolidate import Options as Merging
from ckptctl.ops.consolidate import Wanted, consolidate
from ckptctl.ops.convert import Options, convert
from ckptctl.ops.diff import diff
from ckptctl.ops.inspect import inspect
from ckptctl.ops.verify import verify
from ckptctl.storage import address, open_file
from ckptctl.storage.remote import RemotePath
from ckptctl.storage.stores import transferred
from tests.samples import CORPUS
from tests.storage.stores import bucket, served, start

GROUPS = sorted(path.name for path in CORPUS.iterdir() if path.is_dir())


@pytest.fixture(scope="module")
def corpus():
    store = bucket("corpus")
    store.fill(CORPUS)
    return store


def said(call, path, root, *more):
    """What a call says of a path, or how it fails, with the place left out."""
    try:
        text = repr(call(path, *more))
    except CkptctlError as error:
        text = f"{type(error).__name__} {error.message} {error.hint}"
    return re.sub(r"seconds=[0-9.e-]+", "", text.replace(root, "ROOT").replace("RemotePath(", "PosixPath("))


def compared(path, other):
    return diff(path, other).equal


def made(path, target):
    convert(path, target, options=Options(force=True))
    return hashlib.sha256(target.read_bytes()).hexdigest()


def merged(path, target):
    consolidate(path, target, wanted=Wanted(), options=Merging(force=True))
    return hashlib.sha256(target.read_bytes()).hexdigest()


@pytest.mark.parametrize("group", GROUPS)
def test_every_command_says_of_a_bucket_what_it_says_of_a_disk(group, corpus, tmp_path):
    """The conformance of formats and layouts: each file and directory of the corpus, read in both places."""
    target = tmp_path / "x.safetensors"
    for local in [path for path in (CORPUS / group).rglob("*") if not path.is_symlink()]:
        remote = address(f"s3://corpus/{local.relative_to(CORPUS).as_posix()}")
        for ask, *more in ((inspect,), (verify,), (compared, local), (merged, target)):
            assert said(ask, remote, "s3://corpus", *more) == said(ask, local, str(CORPUS), *more)
        if local.suffix in (".pt", ".bin", ".safetensors"):
            assert said(made, remote, "s3://corpus", target) == said(made, local, str(CORPUS), target)


@pytest.mark.parametrize(
    ("text", "scheme", "bucket_", "key"),
    [
        ("s3://b/run/step_1", "s3", "b", "run/step_1"),
        ("S3://b/x", "s3", "b", "x"),
        ("gs://b/x.pt", "gs", "b", "x.pt"),
        ("az://c/x", "az", "c", "x"),
        ("https://host:8080/a%20b/x.safetensors", "https", "host:8080", "a b/x.safetensors"),
        ("hf://owner/model/x.safetensors", "hf", "", "owner/model/resolve/main/x.safetensors"),
        ("hf://owner/model@v1/sub/x.bin", "hf", "", "owner/model/resolve/v1/sub/x.bin"),
    ],
)
def test_addresses(text, scheme, bucket_, key):
    path = address(text)
    assert (path.scheme, path.bucket, path.key) == (scheme, bucket_, key)
    assert str(path) == text.replace("S3:", "s3:")
    assert isinstance(path.parent, RemotePath)
    assert str(path.parent / path.name) == str(path)
    assert str(path.with_name("y.pt")).endswith("/y.pt")
    assert path.suffix == Path(text).suffix
    assert not path.is_symlink()


def test_what_is_no_address_is_a_path():
    assert address("runs/x") == Path("runs/x")
    assert address("file:///tmp/a%20b") == Path("/tmp/a b")
    assert address("C:/x") == Path("C:/x")
    for wrong in ("s3://", "hf://owner"):
        with pytest.raises(UsageError, match="an address has"):
            address(wrong)


def put(store, key, tensors):
    path = Path(os.environ["TMPDIR_FOR_TESTS"]) / "x.safetensors"
    save_file(tensors, path)
    obstore.put(store.store, key, path.read_bytes())


@pytest.fixture(autouse=True)
def _place(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR_FOR_TESTS", str(tmp_path))


def test_a_safetensors_file_costs_one_request_of_a_megabyte():
    store = bucket("one")
    put(store, "big.safetensors", {f"w{i}": np.zeros(1 << 20, np.float32) for i in range(8)})
    start()
    assert inspect(address("s3://one/big.safetensors")).tensors
    gets = [call for call in store.calls if call[0] != "head"]
    assert len(gets) == 1
    assert transferred.nbytes == 1 << 20


def test_a_header_that_is_longer_costs_two():
    store = bucket("long")
    put(store, "many.safetensors", {f"{'a' * 90}{i}": np.zeros(1 << 10, np.uint8) for i in range(20_000)})
    header = int.from_bytes(store.read("many.safetensors")[:8], "little")
    start()
    store.calls.clear()
    assert inspect(address("s3://long/many.safetensors")).tensors == 20_000
    assert [call[0] for call in store.calls if call[0] != "head"] == ["get", "get"]
    assert header < transferred.nbytes < header + (2 << 20)


def test_160_shards_take_two_round_trips(tmp_path):
    """The listing; then the index, all headers and the question for a mark, none of which waits for another."""
    state = {f"layer.{i}.weight": np.zeros(64, np.float32) for i in range(160)}
    save_file(state, tmp_path / "x.safetensors")
    convert(tmp_path / "x.safetensors", tmp_path / "s" / "m.safetensors", options=Options(max_shard_size=256))
    together = threading.Barrier(160 + 2)

    def asked(name, *_):
        if name != "list_with_delimiter":
            together.wait(60)  # lets nobody through before all have come

    store = bucket("shards", asked)
    store.fill(tmp_path / "s", "m/")
    start()
    assert inspect(address("s3://shards/m")).tensors == 160
    assert transferred.requests == 160 + 3


def test_a_distributed_checkpoint_is_looked_at_without_its_data():
    store = bucket("dcp")
    source = CORPUS / "dcp" / "dcp_fsdp2_4ranks"
    store.fill(source, "d/")
    for path in source.glob("*.distcp"):
        obstore.put(store.store, f"d/{path.name}", path.read_bytes() + bytes(32 << 20))
    start()
    inspect(address("s3://dcp/d"))
    assert transferred.nbytes < 4 * (1 << 20) + (1 << 18)


def test_verify_streams_and_finds_a_flipped_bit(tmp_path):
    store = bucket("bits")
    rng = np.random.default_rng(1)
    save_file({"w": rng.random(10_000_000, np.float32)}, tmp_path / "x.safetensors")
    raw = bytearray((tmp_path / "x.safetensors").read_bytes())
    digest = hashlib.sha256(raw).hexdigest()
    obstore.put(store.store, "x.safetensors.sha256", f"{digest}  x.safetensors\n".encode())
    obstore.put(store.store, "x.safetensors", bytes(raw))
    start()
    assert verify(address("s3://bits/x.safetensors")).judgement.value == "good"
    assert transferred.nbytes < 1.2 * len(raw)
    raw[-5_000_000] ^= 1
    obstore.put(store.store, "x.safetensors", bytes(raw))
    start()
    assert verify(address("s3://bits/x.safetensors")).judgement.value == "wrong"


def test_a_store_that_stumbles_is_asked_again(monkeypatch):
    monkeypatch.setattr("ckptctl.storage.stores._FIRST_PAUSE", 0.001)
    failures = iter([500, 503])

    def stumble(name, *_):
        status = next(failures, None) if name == "get" else None
        if status:
            raise exceptions.GenericError(
                f"Generic S3 error: status code: {status} Internal: x https://b/?X-Amz-Signature=SECRET"
            )

    store = bucket("stumbling", stumble)
    put(store, "x.safetensors", {"w": np.zeros(4)})
    assert inspect(address("s3://stumbling/x.safetensors")).tensors
    assert transferred.requests == 4


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (exceptions.GenericError("status code: 500 Internal Server Error: https://b/?X-Amz-Signature=SECRET"), "answers 500"),
        (exceptions.GenericError("Generic S3 error: x http://u:SECRET@h/x - HTTP error: connection refused"), "cannot be reached"),
        (exceptions.GenericError("odd http://h/?sig=SECRET"), "cannot be asked"),
        (exceptions.UnauthenticatedError("SECRET"), "permission denied"),
        (exceptions.PermissionDeniedError("SECRET"), "permission denied"),
    ],
)  # fmt: skip
def test_what_a_store_refuses_is_said_plainly_and_no_secret_with_it(error, words, monkeypatch, ckptctl):
    monkeypatch.setattr("ckptctl.storage.stores._FIRST_PAUSE", 0.001)

    def refuse(*_):
        raise error

    bucket("refusing", refuse)
    done = ckptctl("inspect", "s3://refusing/x.safetensors")
    assert done.status == 2
    assert words in done.err
    assert "SECRET" not in done.err + done.out
    assert done.err.startswith("ckptctl: s3://refusing/x.safetensors")


def test_an_object_that_is_replaced_meanwhile_is_noticed():
    store = bucket("changing")
    put(store, "x.safetensors", {"w": np.zeros(1 << 20)})
    file = open_file(address("s3://changing/x.safetensors"))
    put(store, "x.safetensors", {"w": np.ones(1 << 20)})
    with pytest.raises(ChangedError, match="changed while it was being read"):
        file.pread(100, 4 << 20)
    with pytest.raises(ChangedError):
        file.again()


def test_reading_here_and_there_and_straight_through_gives_the_bytes():
    store = bucket("bytes")
    raw = np.random.default_rng(2).bytes(30 << 20)
    obstore.put(store.store, "x", raw)
    obstore.put(store.store, "empty", b"")
    chosen = np.random.default_rng(3)
    file = open_file(address("s3://bytes/x"))
    spans = [(int(chosen.integers(0, len(raw))), int(chosen.integers(0, 200_000))) for _ in range(60)]
    file.expect(spans[:30])
    for at, length in spans:
        assert file.pread(length, at) == raw[at : at + length]
    buffer, at, step = bytearray(1 << 20), 0, 700_001
    while count := file.pread_into(memoryview(buffer)[:step], at):
        assert buffer[:count] == raw[at : at + count]
        at += count
    assert at == len(raw)
    file.release()
    assert open_file(address("s3://bytes/empty")).size == 0


def test_a_web_server_with_ranges(tmp_path, ckptctl):
    save_file({f"w{i}": np.zeros(1 << 19) for i in range(4)}, tmp_path / "a b.safetensors")
    with served(tmp_path) as server:
        done = ckptctl("inspect", f"{server.url}/a%20b.safetensors", "--brief")
        assert done.status == 0, done.err
        assert "digest verified" not in ckptctl("verify", f"{server.url}/a%20b.safetensors").out
        digest = hashlib.sha256((tmp_path / "a b.safetensors").read_bytes()).hexdigest()
        (tmp_path / "a b.safetensors.sha256").write_text(f"{digest}  a b.safetensors\n")
        assert "digest verified" in ckptctl("verify", f"{server.url}/a%20b.safetensors").out
        assert ckptctl("diff", f"{server.url}/a%20b.safetensors", tmp_path / "a b.safetensors").status == 0
        missing = ckptctl("inspect", f"{server.url}/none.safetensors")
        assert (missing.status, "no such file" in missing.err) == (2, True)
    asked = [headers for command, path, headers in server.seen if command == "GET" and "none" not in path]
    assert asked
    assert all("range" in map(str.lower, headers) for headers in asked)
    gone = ckptctl("inspect", f"{server.url}/a%20b.safetensors")
    assert gone.status == 2
    assert "cannot be" in gone.err


def test_a_server_that_cuts_stalls_and_fails_is_asked_again(tmp_path, ckptctl):
    rng = np.random.default_rng(3)
    save_file({"w": rng.random(4_000_000, np.float32)}, tmp_path / "x.safetensors")
    digest = hashlib.sha256((tmp_path / "x.safetensors").read_bytes()).hexdigest()
    (tmp_path / "x.safetensors.sha256").write_text(f"{digest}  x.safetensors\n")
    with served(tmp_path) as server:
        server.trouble = iter(["", "cut", "slow", "", "cut", "cut"])
        server.errors = 2
        done = ckptctl("verify", f"{server.url}/x.safetensors")
        assert done.status == 0, done.err
        assert "digest verified" in done.out
    assert sum(command == "GET" for command, _, _ in server.seen) > 7


def test_the_hub(tmp_path, ckptctl, monkeypatch):
    model = tmp_path / "owner" / "model"
    for revision in ("main", "v2"):
        (model / revision).mkdir(parents=True)
        save_file({"w": np.zeros(8 if revision == "main" else 4)}, model / revision / "model.safetensors")
    with served(tmp_path, token="SECRET") as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", "SECRET")
        monkeypatch.setattr("ckptctl.storage.stores._stores", {})
        assert "8 parameters" in ckptctl("inspect", "hf://owner/model/model.safetensors").out
        assert "4 parameters" in ckptctl("inspect", "hf://owner/model@v2/model.safetensors").out
        assert "8 parameters" in ckptctl("inspect", "hf://owner/model").out
        monkeypatch.setenv("HF_TOKEN", "wrong")
        monkeypatch.setattr("ckptctl.storage.stores._stores", {})
        start()
        done = ckptctl("inspect", "hf://owner/model/model.safetensors")
        assert done.status == 2
        assert "permission denied" in done.err or "answers 401" in done.err
        assert "SECRET" not in done.err


def test_json_says_what_was_transferred(ckptctl):
    import json

    store = bucket("told")
    put(store, "x.safetensors", {"w": np.zeros(4)})
    document = json.loads(ckptctl("inspect", "--json", "s3://told/x.safetensors").out)
    assert document["transferred"] == {"requests": 2, "bytes": len(store.read("x.safetensors"))}
    start()
    assert "transferred" not in json.loads(ckptctl("inspect", "--json", CORPUS / "torch_save" / "train_dict.pt").out)


def test_without_the_client_one_line_names_the_extra(tmp_path):
    code = """
import sys
class Refuse:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] == "obstore":
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
from ckptctl.cli.app import main
sys.exit(main(["inspect", "s3://b/x.safetensors"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "ckptctl: obstore is not installed\n  hint: pip install 'ckptctl[cloud]'\n"


def test_the_first_bytes_of_many_files_are_not_held(tmp_path):
    """Of 200 shards at most those that wait to be read: their first megabytes are given back."""
    from ckptctl.storage import opening

    state = {f"layer.{i}.weight": np.zeros(300_000, np.float32) for i in range(200)}
    save_file(state, tmp_path / "x.safetensors")
    convert(tmp_path / "x.safetensors", tmp_path / "s" / "m.safetensors", options=Options(max_shard_size=1_300_000))
    store = bucket("held")
    store.fill(tmp_path / "s", "m/")
    start()
    from ckptctl.layouts import open_checkpoint

    checkpoint = open_checkpoint(address("s3://held/m"))
    assert len(checkpoint.files) == 200
    assert sum(len(one.range.file._head) for one in checkpoint.files) == 0
    assert not opening._ahead._opened
    assert not opening._ahead._held
    assert transferred.requests <= 204
