"""What an independent reader found wrong with addresses and workers, each as it should be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import obstore
import pytest
from obstore import exceptions
from safetensors.numpy import load_file, save_file

import ckptctl as package
from ckptctl.errors import ChangedError, UsageError
from ckptctl.storage import address, open_file
from ckptctl.storage.remote import RemotePath
from tests.samples import CORPUS
from tests.storage.stores import bucket, served, start

SIZES = ("--max-shard-size", "2MB")


def source(path: Path, value: float = 1.0) -> Path:
    save_file({f"w{i}": np.full(400_000, value + i, np.float32) for i in range(4)}, path)
    return path


def put(store, key, path):
    obstore.put(store.store, key, path.read_bytes())


def test_several_objects_are_not_replaced_one_by_one(tmp_path, ckptctl):
    store = bucket("force")
    put(store, "src.safetensors", source(tmp_path / "x.safetensors"))
    words = ("convert", "s3://force/src.safetensors", "-o", "s3://force/out/m.safetensors", *SIZES)
    assert ckptctl(*words).status == 0
    before = {key: store.read(key) for key in store.keys}
    done = ckptctl(*words, "--force")
    assert (done.status, "are not replaced" in done.err) == (2, True)
    own = ckptctl("convert", "s3://force/out", "-o", "s3://force/out/m.safetensors", *SIZES, "--force")
    assert own.status == 2
    assert {key: store.read(key) for key in store.keys} == before


def test_a_source_that_breaks_off_leaves_no_object_of_several(tmp_path, ckptctl, monkeypatch):
    monkeypatch.setattr("ckptctl.storage.stores._FIRST_PAUSE", 0.001)

    def deny(name, arguments, options):
        span = options.get("options", {}).get("range", (0, 0))
        if name == "get" and arguments[0] == "src.safetensors" and span[0] > 3_000_000:
            raise exceptions.PermissionDeniedError("no")

    store = bucket("broken", deny)
    put(store, "src.safetensors", source(tmp_path / "x.safetensors"))
    assert ckptctl("convert", "s3://broken/src.safetensors", "-o", "s3://broken/o/m.safetensors", *SIZES).status == 2
    assert store.keys == {"src.safetensors"}


def test_who_may_not_look_does_not_overwrite(tmp_path, ckptctl):
    def deny(name, arguments, _):
        if name in ("head", "get") and arguments[0] == "y.safetensors":
            raise exceptions.PermissionDeniedError("no")

    store = bucket("blind", deny)
    obstore.put(store.store, "y.safetensors", b"PRECIOUS")
    done = ckptctl("convert", source(tmp_path / "x.safetensors"), "--dtype", "bf16", "-o", "s3://blind/y.safetensors")
    assert (done.status, "does not tell whether it exists" in done.err) == (2, True)
    assert store.read("y.safetensors") == b"PRECIOUS"


@pytest.mark.parametrize("force", [False, True])
def test_a_put_that_fails_leaves_the_digest_as_it_was(force, tmp_path, ckptctl, monkeypatch):
    monkeypatch.setattr("ckptctl.storage.stores._FIRST_PAUSE", 0.001)
    failing = []

    def fail(name, arguments, _):
        if failing and name == "put" and arguments[0] == "y.safetensors":
            raise exceptions.GenericError("status code: 503 Slow Down")

    store = bucket("put", fail)
    path = source(tmp_path / "x.safetensors")
    words = ("convert", path, "-o", "s3://put/y.safetensors", "--dtype", "bf16", *(("--force",) if force else ()))
    if force:
        assert ckptctl(*words).status == 0
    before = {key: store.read(key) for key in store.keys}
    failing.append(1)
    assert ckptctl(*words).status == 2
    assert {key: store.read(key) for key in store.keys} == before


def test_somebody_elses_digest_stays(tmp_path, ckptctl):
    store = bucket("digest")
    obstore.put(store.store, "y.safetensors.sha256", b"theirs")
    done = ckptctl("convert", source(tmp_path / "x.safetensors"), "--dtype", "bf16", "-o", "s3://digest/y.safetensors")
    assert (done.status, "exists already" in done.err) == (2, True)
    assert store.keys == {"y.safetensors.sha256"}


def test_continue_does_not_mix_two_sources(tmp_path, ckptctl):
    store = bucket("mix")
    for step in (100, 200):
        put(store, f"step_{step}/m.safetensors", source(tmp_path / "x.safetensors", step))
    target = tmp_path / "e" / "m.safetensors"
    assert ckptctl("convert", "s3://mix/step_100/m.safetensors", "-o", target, *SIZES, "--part", "1/2").status == 0
    assert ckptctl("convert", "s3://mix/step_200/m.safetensors", "-o", target, *SIZES, "--continue").status == 0
    assert ckptctl("diff", "s3://mix/step_200/m.safetensors", tmp_path / "e").status == 0


def test_workers_with_other_options_are_told_at_once(tmp_path, ckptctl, monkeypatch):
    path = source(tmp_path / "x.safetensors")
    words = ("convert", path, "-o", tmp_path / "e" / "m.safetensors", *SIZES)
    real = time.time
    monkeypatch.setattr(
        "ckptctl.rewrite.markers.time.time", lambda: real() + 100
    )  # it finishes while the first one waits
    assert ckptctl(*words, "--dtype", "bf16", "--part", "1/2").status == 0
    monkeypatch.setattr("ckptctl.rewrite.markers.time.time", real)
    done = ckptctl(*words, "--part", "0/2")
    assert (done.status, "another plan" in done.err) == (2, True)


def test_two_sources_for_one_target_are_refused_by_every_worker(tmp_path, ckptctl):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        source(tmp_path / name / "x.safetensors")
    for index in range(2):
        done = ckptctl("convert", tmp_path / "a" / "x.safetensors", tmp_path / "b" / "x.safetensors", "-o",
                       tmp_path / "out", "--dtype", "bf16", "--part", f"{index}/2")  # fmt: skip
        assert (done.status, "would both be written" in done.err) == (2, True)


def test_latest_good_is_no_work_for_parts(ckptctl):
    done = ckptctl("verify", "--latest-good", CORPUS / "transformers" / "trainer_run", "--part", "0/2")
    assert (done.status, "not worked out in parts" in done.err) == (2, True)


def test_verify_in_parts_knows_a_file_however_it_is_spelled(tmp_path, ckptctl, monkeypatch):
    path = source(tmp_path / "x.safetensors")
    assert ckptctl("convert", path, "-o", tmp_path / "m" / "m.safetensors", *SIZES).status == 0
    monkeypatch.chdir(tmp_path / "m")
    assert ckptctl("verify", tmp_path / "m", "--part", "1/3").status == 0
    assert ckptctl("verify", "../m", "--part", "2/3").status == 0
    assert ckptctl("verify", ".", "--part", "0/3").status == 0
    assert not list(tmp_path.rglob(".*"))


def test_what_was_found_of_a_file_that_has_changed_since_does_not_count(tmp_path, ckptctl, monkeypatch):
    path = source(tmp_path / "x.safetensors")
    assert ckptctl("convert", path, "-o", tmp_path / "m" / "m.safetensors", *SIZES).status == 0
    assert ckptctl("verify", tmp_path / "m", "--part", "1/2").status == 0
    for shard in (tmp_path / "m").glob("*.safetensors"):
        raw = bytearray(shard.read_bytes())
        raw[-1] ^= 1
        shard.write_bytes(raw)
    monkeypatch.setattr("ckptctl.checks.gather._PATIENCE", 0.5)
    assert ckptctl("verify", tmp_path / "m", "--part", "0/2").status == 2


def test_an_object_that_changes_on_a_server_without_tags_is_noticed(tmp_path):
    source(tmp_path / "x.safetensors")
    with served(tmp_path) as server:
        server.tags = False
        file = open_file(address(f"{server.url}/x.safetensors"))
        assert file.pread(10, 3_000_000)
        server.modified = "Thu, 02 Jan 2025 00:00:00 GMT"
        with pytest.raises(ChangedError):
            file.pread(10, 5_000_000)


def test_ctrl_c_ends_it_though_the_server_answers_nothing(tmp_path):
    source(tmp_path / "x.safetensors")
    with served(tmp_path) as server:
        server.stall = 20.0
        words = [sys.executable, "-m", "ckptctl", "verify", f"{server.url}/x.safetensors"]
        running = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(3)
        begin = time.monotonic()
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=15)
        assert running.returncode == 130
        assert time.monotonic() - begin < 8
        server.stall = 0.0


def test_a_sharded_model_on_the_hub(tmp_path, ckptctl, monkeypatch):
    model = tmp_path / "owner" / "model" / "main"
    model.parent.mkdir(parents=True)
    assert ckptctl("convert", source(tmp_path / "x.safetensors"), "-o", model / "model.safetensors", *SIZES).status == 0
    with served(tmp_path) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setattr("ckptctl.storage.stores._stores", {})
        start()
        assert "4 tensors" in ckptctl("inspect", "hf://owner/model").out
        assert ckptctl("verify", "hf://owner/model").status == 0
        assert ckptctl("diff", "hf://owner/model", tmp_path / "x.safetensors").status == 0
        assert ckptctl("convert", tmp_path / "x.safetensors", "-o", "hf://owner/model/y.pt").status == 2


def test_a_bucket_has_nothing_beside_it(tmp_path, ckptctl):
    store = bucket("root")
    assert ckptctl("convert", source(tmp_path / "x.safetensors"), "-o", "s3://root/m.safetensors", *SIZES).status == 0
    assert address("s3://root").parent == address("s3://root")
    with pytest.raises(UsageError, match="a whole bucket"):
        address("s3://root").with_name("x")
    assert ckptctl("consolidate", "s3://root").status == 0
    assert "root.safetensors" in store.keys
    assert ckptctl("consolidate", "s3://root", "-o", "s3://root/one.safetensors").status == 0
    assert {key for key in store.keys if "one" in key} == {"one.safetensors", "one.safetensors.sha256"}


def test_a_path_that_is_an_address_is_one(tmp_path, monkeypatch):
    store = bucket("paths")
    put(store, "x.safetensors", source(tmp_path / "x.safetensors"))
    monkeypatch.chdir(tmp_path)
    assert isinstance(address(Path("s3://paths/x.safetensors")), RemotePath)
    assert package.inspect(Path("s3://paths/x.safetensors")).tensors == 4
    assert package.open_checkpoint("s3://paths/x.safetensors").files
    package.convert(tmp_path / "x.safetensors", Path("s3://paths/y.pt"))
    assert "y.pt" in store.keys
    assert sorted(os.listdir(tmp_path)) == ["x.safetensors"]
    from ckptctl.training import save

    with pytest.raises(UsageError, match="saved to a disk"):
        save("s3://paths/z.safetensors", {})


@pytest.mark.parametrize(
    "text", ["https://user:SECRET@host/x.pt", "https://host/x.pt?X-Amz-Signature=SECRET", "s3://b/a/../x.pt"]
)
def test_addresses_that_are_not_taken(text, ckptctl):
    done = ckptctl("inspect", text, "--json")
    assert done.status == 2
    assert "SECRET" not in done.out + done.err
    assert "internal error" not in done.err


def test_no_digest_is_written_over_a_doubt(tmp_path, ckptctl):
    source(tmp_path / "x.safetensors")
    (tmp_path / "m").mkdir()
    assert ckptctl("convert", tmp_path / "x.safetensors", "-o", tmp_path / "m" / "m.safetensors", *SIZES).status == 0
    sidecar = next((tmp_path / "m").glob("*.sha256"))
    sidecar.write_text("0" * 64 + sidecar.read_text()[64:])
    assert ckptctl("verify", "--write", "--quick", tmp_path / "m").status == 1
    assert not (tmp_path / "m" / "SHA256SUMS").exists()
    assert load_file(tmp_path / "x.safetensors")


def test_the_hub_lists_page_after_page(tmp_path, ckptctl, monkeypatch):
    model = tmp_path / "owner" / "model" / "main"
    model.parent.mkdir(parents=True)
    assert ckptctl("convert", source(tmp_path / "x.safetensors"), "-o", model / "model.safetensors", *SIZES).status == 0
    monkeypatch.setattr("ckptctl.storage.hub._PAUSE", 0.0)
    with served(tmp_path, token="SECRET") as server, served(tmp_path) as other:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", "SECRET")
        monkeypatch.setattr("ckptctl.storage.stores._stores", {})
        server.page = 2
        start()
        assert ckptctl("verify", "hf://owner/model").status == 0
        assert sum("cursor" in path for _, path, _ in server.seen) > 1
        server.next = other.url
        start()
        done = ckptctl("inspect", "hf://owner/model")
        assert (done.status, "on another server" in done.err, other.seen) == (2, True, [])
        server.next, server.page = "", 0
        start()
        done = ckptctl("inspect", "hf://owner/model")
        assert (done.status, "does not end" in done.err) == (2, True)
    start()
    done = ckptctl("inspect", "hf://owner/model")
    assert (done.status, "cannot be reached" in done.err) == (2, True)


def test_digests_are_written_beside_objects_too(tmp_path, ckptctl):
    store = bucket("digests")
    source(tmp_path / "x.safetensors")
    store.fill(tmp_path)
    assert ckptctl("convert", "s3://digests/x.safetensors", "-o", "s3://digests/s/m.safetensors", *SIZES).status == 0
    store.delete([key for key in store.keys if key.startswith("s/") and key.endswith(".sha256")])
    for path in ("s3://digests/x.safetensors", "s3://digests/s"):
        assert ckptctl("verify", "--write", path).status == 0
        assert "digest verified" in ckptctl("verify", path).out
    assert {"x.safetensors.sha256", "s/SHA256SUMS"} <= store.keys
    with served(tmp_path) as server:
        done = ckptctl("verify", "--write", f"{server.url}/x.safetensors")
    assert (done.status, "no digests are written there" in done.err) == (2, True)
