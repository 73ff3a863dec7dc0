"""The page on buckets does what it says, against a server that speaks S3."""

from __future__ import annotations

import logging
import os
import re
import shlex
import threading
import urllib.request

import boto3
import numpy as np
import obstore
import pytest
import torch
from moto.server import ThreadedMotoServer
from obstore.store import S3Store
from safetensors.numpy import save_file

from ckptctl.storage import address
from ckptctl.storage.directory import open_directory
from ckptctl.storage.remote import forget
from tests.console import ROOT
from tests.samples import CORPUS
from tests.storage.stores import start

PAGE = (ROOT / "docs" / "how-to" / "buckets.md").read_text()
LINES = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


@pytest.fixture
def s3(monkeypatch):
    """A server with an empty bucket called training; what it is asked for is counted in `calls`."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    for name, value in {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "SECRET", "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setattr("ckptctl.storage.stores._stores", {})
    urllib.request.urlopen(urllib.request.Request(f"{url}/moto-api/reset", method="POST")).close()
    urllib.request.urlopen(urllib.request.Request(f"{url}/training", method="PUT")).close()
    start()
    store = S3Store("training", client_options={"allow_http": True})
    yield store, url
    server.stop()


def filled(store, source, prefix):
    for path in source.rglob("*"):
        if path.is_file():
            obstore.put(store, f"{prefix}/{path.relative_to(source).as_posix()}", path.read_bytes())


def uploads(url):
    with urllib.request.urlopen(f"{url}/training?uploads") as answer:
        return answer.read().count(b"<Upload>")


def keys(store):
    return {one["path"] for batch in obstore.list(store) for one in batch}


def test_every_line_of_the_page_runs(s3, ckptctl, tmp_path, monkeypatch):
    store, url = s3
    step = CORPUS / "ckptctl" / "ranks_2" / "step_100"
    for number in (100, 200, 300):
        filled(store, step, f"run/step_{number}")
    torch.save({"w": torch.arange(10.0)}, tmp_path / "legacy.pt")
    obstore.put(store, "legacy.pt", (tmp_path / "legacy.pt").read_bytes())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "x").mkdir(parents=True)
    (tmp_path / "runs" / "x" / "step_100").symlink_to(step)
    assert len(LINES) == 10
    for line in LINES:
        done = ckptctl(*shlex.split(line)[1:])
        assert done.status == 0, (line, done.err)
        assert "SECRET" not in done.out + done.err
    assert {"legacy.safetensors", "legacy.safetensors.sha256", "export/model.safetensors"} <= keys(store)
    made = bytes(obstore.get(store, "legacy.safetensors").bytes())
    assert made == (tmp_path / "legacy.safetensors").read_bytes()
    assert uploads(url) == 0


def test_large_objects_go_in_parts_shards_before_their_index_and_nothing_is_replaced(s3, ckptctl, tmp_path):
    store, url = s3
    rng = np.random.default_rng(1)
    save_file({f"w{i}": rng.random(3_000_000, np.float32) for i in range(4)}, tmp_path / "x.safetensors")
    raw = (tmp_path / "x.safetensors").read_bytes()
    obstore.put(store, "x.safetensors", raw)
    assert ckptctl("convert", "s3://training/x.safetensors", "-o", "s3://training/y.pt").status == 0
    assert ckptctl("diff", "s3://training/y.pt", tmp_path / "x.safetensors").status == 0
    sharded = (
        "convert",
        "s3://training/x.safetensors",
        "-o",
        "s3://training/s/x.safetensors",
        "--max-shard-size",
        "20MB",
    )
    assert ckptctl(*sharded).status == 0
    assert ckptctl("verify", "s3://training/s").out.startswith(
        "✓ s3://training/s   whole · 4 tensors · digest verified"
    )
    again = ckptctl(*sharded)
    assert (again.status, "exists already" in again.err) == (2, True)
    forced = ckptctl(*sharded, "--force")
    assert (forced.status, "several objects are not replaced" in forced.err) == (2, True)
    assert ckptctl("convert", "s3://training/x.safetensors", "-o", "s3://training/y.pt", "--force").status == 0
    assert ckptctl("diff", "s3://training/s", "s3://training/y.pt").status == 0
    assert ckptctl("convert", "s3://training/y.pt", "-o", "s3://training/y.pt", "--force").status == 2
    assert uploads(url) == 0


def test_a_source_that_turns_out_damaged_leaves_nothing(s3, ckptctl, tmp_path):
    store, url = s3
    torch.save({f"w{i}": torch.rand(4_000_000) for i in range(3)}, tmp_path / "x.pt")
    raw = bytearray((tmp_path / "x.pt").read_bytes())
    raw[-10_000_000] ^= 1
    obstore.put(store, "x.pt", bytes(raw))
    done = ckptctl("convert", "s3://training/x.pt", "-o", "s3://training/x.safetensors")
    assert done.status == 2
    assert "CRC" in done.err
    assert keys(store) == {"x.pt"}
    assert uploads(url) == 0


def test_somebody_else_who_writes_the_same_object_meanwhile_is_not_overwritten(s3, ckptctl, tmp_path, monkeypatch):
    store, url = s3
    save_file({"w": np.zeros(9_000_000, np.float32)}, tmp_path / "x.safetensors")
    from ckptctl.storage import upload

    publish = upload.Upload.publish

    def late(self):
        obstore.put(store, "y.safetensors", b"theirs")
        forget()
        return publish(self)

    monkeypatch.setattr(upload.Upload, "publish", late)
    done = ckptctl("convert", tmp_path / "x.safetensors", "-o", "s3://training/y.safetensors")
    assert done.status == 2
    assert "exists already" in done.err
    assert bytes(obstore.get(store, "y.safetensors").bytes()) == b"theirs"
    assert keys(store) == {"y.safetensors"}
    assert uploads(url) == 0


def test_an_upload_does_not_hang_when_the_store_fails(s3, ckptctl, tmp_path, monkeypatch):
    store, _ = s3
    save_file({f"w{i}": np.zeros(9_000_000, np.float32) for i in range(6)}, tmp_path / "x.safetensors")
    before = threading.active_count()
    done = ckptctl("convert", tmp_path / "x.safetensors", "-o", "s3://nobucket/y.safetensors")
    assert done.status == 2
    assert "no such file" in done.err.lower()
    for number in range(3):  # no thread stays behind for an object, whether it was written or not
        assert ckptctl("convert", tmp_path / "x.safetensors", "-o", f"s3://training/{number}.pt").status == 0
        store.delete([f"{number}.pt", f"{number}.pt.sha256"])
    assert not [one for one in threading.enumerate() if one.name == "ckptctl-upload"]
    assert threading.active_count() <= before + 1
    assert not keys(store)
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == "SECRET"


def test_prune_against_a_server(s3, ckptctl, tmp_path):
    store, _ = s3
    for number in (100, 200, 300):
        torch.save({"step": number, "w": torch.ones(300)}, tmp_path / "x.pt")
        obstore.put(store, f"run/step_{number}.pt", (tmp_path / "x.pt").read_bytes())
    for name in [*map(str, range(1100)), "a b%c+d=é", "model.safetensors.index.json"]:
        obstore.put(store, f"run/checkpoint-100/{name}", b"x")
    before = keys(store)
    shown = ckptctl("prune", "s3://training/run", "--keep-last", "1", "--anchor-every", "0", "--dry-run")
    assert (shown.status, "keeps versions" in shown.out) == (0, False)
    assert keys(store) == before
    done = ckptctl("prune", "s3://training/run", "--keep-last", "1", "--anchor-every", "0", "--yes")
    assert (done.status, "deleted 2 of" in done.out) == (0, True), done.err
    assert keys(store) == {key for key in before if "step_" not in key or "300" in key}
    entry = ".ckptctl-trash-20200101T000000Z-checkpoint-100"
    with open_directory(address("s3://training/run")) as directory:  # more than go into one request
        directory.discard("checkpoint-100", entry, for_good=True)
        assert directory.remove(entry) == 1102
    assert keys(store) == {"run/step_300.pt"}


def test_a_bucket_that_keeps_versions_is_noted(s3, ckptctl, tmp_path):
    store, url = s3
    client = boto3.client("s3", endpoint_url=url)
    client.put_bucket_versioning(Bucket="training", VersioningConfiguration={"Status": "Enabled"})
    for number in (100, 200):
        torch.save({"step": number, "w": torch.ones(3)}, tmp_path / "x.pt")
        obstore.put(store, f"run/step_{number}.pt", (tmp_path / "x.pt").read_bytes())
    done = ckptctl("prune", "s3://training/run", "--keep-last", "1", "--anchor-every", "0", "--yes")
    assert (done.status, "note: the bucket keeps versions" in done.out) == (0, True)
    assert keys(store) == {"run/step_200.pt"}


def test_empty_objects_that_other_tools_create_for_directories(s3, ckptctl, tmp_path):
    store, url = s3
    client = boto3.client("s3", endpoint_url=url)
    for number in (100, 200, 300, 400):
        torch.save({"step": number, "w": torch.ones(300)}, tmp_path / "x.pt")
        for name in ("pytorch_model.bin", "optimizer.pt"):
            obstore.put(store, f"run/checkpoint-{number}/{name}", (tmp_path / "x.pt").read_bytes())
        client.put_object(Bucket="training", Key=f"run/checkpoint-{number}/", Body=b"")
    start()
    assert "4 checkpoints" in (shown := ckptctl("inspect", "s3://training/run").out)
    assert "not whole" not in shown
    rules = ("--keep-last", "9", "--anchor-every", "0", "--remove-incomplete", "1h", "--yes")
    assert ckptctl("prune", "s3://training/run", *rules).status == 0
    assert sum(key.endswith(".bin") for key in keys(store)) == 4
    done = ckptctl("prune", "s3://training/run", "--keep-last", "1", "--anchor-every", "0", "--yes")
    assert (done.status, done.err) == (0, "")
    assert {key for key in keys(store) if key.endswith((".bin", ".pt"))} == {
        "run/checkpoint-400/pytorch_model.bin", "run/checkpoint-400/optimizer.pt"
    }  # fmt: skip
