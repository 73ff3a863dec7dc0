"""Speed and memory of `verify`: ``python -m tests.bench verify``. Inputs lie in the page cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.bench.common import ckptctl, compare, python

MAKE = """
import hashlib, sys, torch
from safetensors.torch import save_file
state = {f"model.layers.{i}.mlp.weight": torch.randn(4096, 4096).to(torch.bfloat16) for i in range(int(sys.argv[2]))}
save_file(state, sys.argv[1] + "/m.safetensors")
torch.save(state, sys.argv[1] + "/m.pt")
for i in range(2):
    save_file(dict(list(state.items())[i::2]), f"{sys.argv[1]}/half{i}.safetensors")
"""
DIGEST = """
import hashlib, sys, time
start = time.perf_counter()
for path in sys.argv[1:]:
    with open(path, "rb") as file:
        hashlib.file_digest(file, "sha256").hexdigest()
print(time.perf_counter() - start)
"""
CRC = """
import sys, time, zlib
start = time.perf_counter()
buffer, crc = bytearray(1 << 20), 0
with open(sys.argv[1], "rb") as file:
    while count := file.readinto(buffer):
        crc = zlib.crc32(memoryview(buffer)[:count], crc)
print(time.perf_counter() - start)
"""
FINITE = """
import sys, time, torch
from safetensors.torch import load_file
start = time.perf_counter()
print(end="" if all(torch.isfinite(tensor).all() for tensor in load_file(sys.argv[1]).values()) else "")
print(time.perf_counter() - start)
"""
SHA256SUM = """
import subprocess, sys, time
start = time.perf_counter()
subprocess.run(["sha256sum", "-c", "SHA256SUMS"], check=True, cwd=sys.argv[1], stdout=subprocess.DEVNULL)
print(time.perf_counter() - start)
"""


def sums(directory: Path, names: list[str]) -> None:
    """Write a list of digests."""
    lines = [f"{hashlib.sha256((directory / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    (directory / "SHA256SUMS").write_text("".join(lines))


def main() -> None:
    """Digests of one file and of two, checksums, values, and a run."""
    has = "sha_ni" in Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else None
    print(f"the CPU has instructions for SHA: {has}")
    with tempfile.TemporaryDirectory(dir=os.environ.get("CKPTCTL_BENCH_DIR")) as name:
        directory = Path(name)
        subprocess.run(python(MAKE, directory, 30), check=True)
        one, pickle = directory / "m.safetensors", directory / "m.pt"
        halves = [directory / f"half{i}.safetensors" for i in range(2)]
        sums(directory, [one.name, *(half.name for half in halves)])
        compare("SHA-256 of 1 GB (target: 0.9 × file_digest)",
                {"hashlib.file_digest": python(DIGEST, one), "ckptctl verify": ckptctl("verify", one)})  # fmt: skip
        compare("SHA-256 of two files of 0.5 GB", {"hashlib.file_digest": python(DIGEST, *halves)}
                | {"ckptctl verify, one after the other": ckptctl("verify", *halves)})  # fmt: skip
        compare("CRC-32 of 1 GB (target: 0.8 × zlib.crc32)",
                {"zlib.crc32": python(CRC, pickle), "ckptctl verify": ckptctl("verify", pickle)})  # fmt: skip
        (directory / "SHA256SUMS").unlink()
        compare("values of 1 GB (target: faster)", {"load_file + torch.isfinite": python(FINITE, one)}
                | {"ckptctl verify --values": ckptctl("verify", "--values", one)})  # fmt: skip
        for path in (one, pickle):
            path.unlink()
        sharded = directory / "sharded"
        sharded.mkdir()
        index = {"weight_map": {}}
        for number, half in enumerate(halves):
            target = sharded / f"model-0000{number + 1}-of-00002.safetensors"
            shutil.move(half, target)
            index["weight_map"] |= dict.fromkeys(names_in(target), target.name)
        import json

        (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
        sums(sharded, [path.name for path in sorted(sharded.glob("*.safetensors"))])
        compare("two shards in parallel (target: 2 × sha256sum -c, where that lacks the CPU's instructions)",
                {"sha256sum -c": python(SHA256SUM, sharded), "ckptctl verify": ckptctl("verify", sharded)})  # fmt: skip


def names_in(path: Path) -> list[str]:
    from safetensors import safe_open

    with safe_open(path, "np") as opened:
        return list(opened.keys())
