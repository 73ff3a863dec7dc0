"""What a closing review of addresses found: how much is transferred and held, who writes, what the environment says."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import obstore
import pytest
import torch
from safetensors.numpy import load_file, save_file

from ckptctl.errors import UnreadableError, UsageError
from ckptctl.ops.consolidate import consolidate
from ckptctl.ops.convert import Options, convert
from ckptctl.ops.inspect import inspect
from ckptctl.storage import address, remote_file, spans, stores
from ckptctl.storage import held as held_bytes
from ckptctl.storage.spans import merged
from ckptctl.storage.stores import transferred
from tests.storage.stores import bucket, served, start

MB = 1 << 20


@pytest.mark.parametrize("kind", ["zip", "legacy", "npz"])
@pytest.mark.parametrize(("count", "size", "most"), [(300, 15_000, 3 * MB), (40, 250_000, 3 * MB)])
def test_only_headers_are_transferred_whatever_lies_between(kind, count, size, most, tmp_path):
    path = tmp_path / ("m.npz" if kind == "npz" else "m.pt")
    if kind == "npz":
        np.savez(path, **{f"w{i}": np.zeros(size, "f4") for i in range(count)})
    else:
        torch.save(
            {f"w{i}": torch.zeros(size) for i in range(count)}, path, _use_new_zipfile_serialization=kind == "zip"
        )
    store = bucket("between")
    obstore.put(store.store, path.name, path.read_bytes())
    start()
    assert inspect(address(f"s3://between/{path.name}")).tensors == count
    assert transferred.nbytes < most < path.stat().st_size / 3


def test_gaps_are_closed_from_the_narrowest_on_and_no_more_than_so_many_bytes_of_them(monkeypatch):
    monkeypatch.setattr(spans, "_GAP", 100)
    monkeypatch.setattr(spans, "_BETWEEN", 60)
    assert merged([(0, 10), (20, 30), (131, 140)]) == [(0, 30), (131, 140)]
    assert merged([(0, 10), (60, 70), (80, 90), (100, 110)]) == [(0, 10), (60, 110)]
    assert merged([(0, 10), (40, 50), (80, 90), (120, 130)]) == [(0, 90), (120, 130)]
    assert merged([(0, 10), (5, 30), (30, 40)]) == [(0, 40)]


def test_what_is_held_of_many_shards_does_not_grow_with_them(tmp_path, monkeypatch):
    monkeypatch.setattr(held_bytes, "_MOST", 64 * MB)
    monkeypatch.setattr(held_bytes, "_LATELY", 0.0)
    save_file({f"w{i:02}": np.full(MB, i, np.float32) for i in range(40)}, tmp_path / "x.safetensors")
    convert(tmp_path / "x.safetensors", tmp_path / "s" / "m.safetensors", options=Options(max_shard_size=5 * MB))
    store = bucket("held")
    store.fill(tmp_path / "s", "m/")
    start()
    most, held = 0, []
    note = remote_file.RemoteFile._note

    def watched(self):
        nonlocal most
        note(self)
        held.append(self)
        readers = [reader for one in set(held) for reader in one._readers.values()]
        kept = sum(reader.nbytes for reader in readers)
        most = max(most, kept + sum(len(one._head) for one in set(held)))

    monkeypatch.setattr(remote_file.RemoteFile, "_note", watched)
    consolidate("s3://held/m", tmp_path / "whole.safetensors")
    assert len({one.path for one in held}) == 40
    assert most < 64 * MB
    found, source = (load_file(tmp_path / name) for name in ("whole.safetensors", "x.safetensors"))
    assert all(np.array_equal(found[name], array) for name, array in source.items())
    assert transferred.nbytes < 2.4 * (tmp_path / "x.safetensors").stat().st_size


def test_what_was_let_go_in_favour_of_others_is_asked_for_again(tmp_path, monkeypatch):
    """Many threads, each with an object of its own, and room for one at a time."""
    monkeypatch.setattr(held_bytes, "_MOST", 1)
    monkeypatch.setattr(held_bytes, "_LATELY", 0.0)
    store, rng = bucket("again"), np.random.default_rng(1)
    data = [rng.bytes(9 * MB) for _ in range(6)]
    for number, raw in enumerate(data):
        obstore.put(store.store, f"{number}", raw)
    start()
    files = [remote_file.RemoteFile(address(f"s3://again/{number}")) for number in range(6)]
    wrong = []

    def read(number):
        at, buffer = 0, memoryview(bytearray(300_000))
        while count := files[number].pread_into(buffer, at):
            if buffer[:count] != data[number][at : at + count]:
                wrong.append((number, at))
            at += count
        if at != len(data[number]):
            wrong.append((number, at))

    threads = [threading.Thread(target=read, args=(number,)) for number in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert wrong == []


def test_what_is_read_at_the_same_time_is_not_asked_for_twice():
    """Many objects side by side: each has fewer requests ahead of need, and none lets go of what another reads."""
    store, rng = bucket("many"), np.random.default_rng(1)
    for number in range(16):
        obstore.put(store.store, f"{number}", rng.bytes(13 * MB))
    start()
    files = [remote_file.RemoteFile(address(f"s3://many/{number}")) for number in range(16)]

    def read(file):
        at, buffer = 0, memoryview(bytearray(200_000))
        while count := file.pread_into(buffer, at):
            at += count

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(read, files))
    assert transferred.nbytes < 1.2 * 16 * 13 * MB


def test_the_digest_of_the_hub_counts(tmp_path, ckptctl, monkeypatch):
    model = tmp_path / "owner" / "model" / "main"
    model.mkdir(parents=True)
    save_file({"w": np.zeros(8)}, model / "model.safetensors")
    right = hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()
    with served(tmp_path) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        for where in ("hf://owner/model", "hf://owner/model/model.safetensors"):
            for digest, status, words in (
                (right, 0, "verified"),
                ("0" * 64, 1, "the store's own listing says 00000000"),
            ):
                monkeypatch.setattr("ckptctl.storage.stores._stores", {})
                server.digests = {"model.safetensors": digest}
                start()
                done = ckptctl("verify", where)
                assert (done.status, words in done.out) == (status, True), done.out


def test_a_model_that_is_not_there(tmp_path, ckptctl, monkeypatch):
    with served(tmp_path) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setattr("ckptctl.storage.stores._stores", {})
        start()
        done = ckptctl("inspect", "hf://owner/nothing")
    assert (done.status, "the Hub has no such model" in done.err) == (2, True)


def test_a_digest_that_a_killed_writer_left_is_taken_up(tmp_path, ckptctl, monkeypatch):
    save_file({"w": np.zeros(8)}, tmp_path / "x.safetensors")
    words = ("convert", tmp_path / "x.safetensors", "-o", "s3://left/y.safetensors", "--dtype", "bf16")
    store = bucket("left")
    assert ckptctl(*words).status == 0
    whole = {key: store.read(key) for key in store.keys}
    store.store.delete("y.safetensors")
    start()
    done = ckptctl(*words)
    assert (done.status, "y.safetensors.sha256: exists already, without its file" in done.err) == (2, True), done.err
    monkeypatch.setattr("ckptctl.rewrite.targets._ABANDONED", -1.0)
    start()
    assert ckptctl(*words).status == 0
    assert {key: store.read(key) for key in store.keys} == whole
    store.store.delete("y.safetensors")
    obstore.put(store.store, "y.safetensors.sha256", b"of something else")
    start()
    assert ckptctl(*words).status == 2
    assert store.read("y.safetensors.sha256") == b"of something else"
    assert store.keys == {"y.safetensors.sha256"}


def test_two_writers_of_one_object_without_digests(tmp_path, ckptctl):
    save_file({"w": np.zeros(8)}, tmp_path / "x.safetensors")
    words = ("convert", tmp_path / "x.safetensors", "-o", "s3://two/y.safetensors", "--dtype", "bf16", "--no-digest")
    second = []

    def meanwhile(name, arguments, _):
        if name == "put" and arguments[0] == ".y.safetensors.ckptctl-claim" and not second:
            second.append(None)
            second[0] = ckptctl(*words).status

    store = bucket("two", meanwhile)
    done = ckptctl(*words)
    assert sorted([done.status, second[0]]) == [0, 2], done.err
    assert store.keys == {"y.safetensors"}


@pytest.mark.parametrize("text", ["s3://KEY:SECRET@bucket/x", "gs://u:SECRET@b/x", "https://u:SECRET@host/x.pt"])
def test_a_secret_in_an_address_is_not_said(text, ckptctl):
    done = ckptctl("inspect", text)
    assert (done.status, "SECRET" in done.err) == (2, False)


def test_what_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_TOKEN", "abc\n")
    assert stores.hub_token() == "abc"
    monkeypatch.setenv("HF_TOKEN", "a\x01b")
    with pytest.raises(UsageError, match="no text for a header"):
        stores.hub_token()
    monkeypatch.setenv("HF_ENDPOINT", "nonsense")
    with pytest.raises(UsageError, match="HF_ENDPOINT"):
        stores.hub_endpoint()
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "mine")
    monkeypatch.setenv("AZURE_STORAGE_KEY", "a2V5")
    assert stores._azure() == {"account_name": "mine", "account_key": "a2V5"}
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "other")
    assert stores._azure() == {"account_key": "a2V5"}


def test_profiles_of_amazon(monkeypatch, tmp_path):
    pytest.importorskip("boto3")
    from ckptctl.storage import amazon

    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    (tmp_path / "config").write_text(
        "[default]\naws_access_key_id = a\naws_secret_access_key = b\nregion = eu-west-1\n"
        "endpoint_url = http://all.example\n"
        "[profile s3]\nservices = mine\naws_access_key_id = a\naws_secret_access_key = b\nregion = x\n"
        "[services mine]\ns3 =\n  endpoint_url = http://s3.example\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    assert amazon.credentials()["endpoint"] == "http://all.example"
    assert amazon.checksums("http://all.example") == {}
    assert amazon.checksums("") == {"checksum_algorithm": "SHA256"}
    monkeypatch.setenv("AWS_PROFILE", "s3")
    assert amazon.credentials()["endpoint"] == "http://s3.example"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://env.example")
    assert "endpoint" not in amazon.credentials()
    monkeypatch.setenv("AWS_PROFILE", "nosuch")
    with pytest.raises(UnreadableError, match="boto3 finds no keys: .*nosuch"):
        amazon.credentials()


def test_many_threads_import_the_client_at_once():
    """Fresh processes: what matters is who imports it first."""
    program = """
import sys, threading
from ckptctl.storage import stores
sys.setswitchinterval(1e-6)
wrong = []
def ask():
    try:
        stores.store_of("http", "127.0.0.1:9")
        stores._client_module("exceptions").GenericError
        import obstore
        obstore.get, obstore.list
    except Exception as error:
        wrong.append(repr(error))
threads = [threading.Thread(target=ask) for _ in range(48)]
[one.start() for one in threads]; [one.join() for one in threads]
print(json.dumps(wrong) if (json := __import__("json")) else "")
"""
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert json.loads(done.stdout) == []
