"""Speed and memory of `diff`: ``python -m tests.bench diff``. Inputs lie in the page cache.

Rivals are whole processes; those that measure themselves have imported what they need already. ``GIGABYTES`` (2).
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench.common import compare, python

MAKE = """
import sys, torch
from safetensors.torch import save_file
root, count = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
state = {f"model.layers.{i}.mlp.weight": torch.randn(4096, 4096).to(torch.bfloat16) for i in range(count)}
for name in ("a", "same"):
    save_file(state, f"{root}/{name}.safetensors")
    torch.save(state, f"{root}/{name}.pt")
few = {name: one for name, one in list(state.items())[: max(count // 8, 1)]}
save_file(few, f"{root}/few.safetensors")
save_file({name: (one.float() * 1.001 + 1e-4).to(torch.bfloat16) for name, one in few.items()}, f"{root}/tuned.safetensors")
"""
LOAD_EQUAL = """
import sys{timing}, torch
from safetensors.torch import load_file
{start}a, b = load_file(sys.argv[1]), load_file(sys.argv[2])
assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
{end}"""
TORCH_EQUAL = """
import sys, torch
a, b = (torch.load(path, weights_only=True) for path in sys.argv[1:3])
assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
"""
MEASURES = """
import sys, torch
from safetensors.torch import load_file
a, b = load_file(sys.argv[1]), load_file(sys.argv[2])
for name in a:
    x, y = a[name], b[name]
    changed = int((x.view(torch.int16) != y.view(torch.int16)).sum())
    p, q = x.double().flatten(), y.double().flatten()
    d = (q - p).abs()
    worst = int(d.argmax())
    ordered = [torch.where(z.view(torch.int16) < 0, -(z.view(torch.int16).int() & 0x7FFF), z.view(torch.int16).int()) for z in (x, y)]
    print(name, changed, float(d.max()), float(d.mean()), float(d.norm() / p.norm()), float(p @ q / p.norm() / q.norm()), worst,
          float(p[worst]), float(q[worst]), int((ordered[0] - ordered[1]).abs().max()),
          int((torch.signbit(p) != torch.signbit(q)).sum()), int(torch.isnan(d).sum()))
"""
DIFF = "import sys; from ckptctl.cli.app import main; status = main(['diff', *sys.argv[1:]]); sys.exit(status == 2)"


def ours(*arguments: object) -> list[str]:
    """The program; that it finds differences is no failure here."""
    return python(DIFF, *arguments)


def many(path: Path, value: int) -> None:
    """A file of 100,000 small tensors."""
    header = {
        f"layers.{i}.w": {"dtype": "F32", "shape": [4], "data_offsets": [16 * i, 16 * i + 16]} for i in range(100_000)
    }
    raw = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + bytes([value]) * 1_600_000)


def main() -> None:
    """Equal and differing files, and many tensors."""
    count = 30 * int(os.environ.get("GIGABYTES", "2"))
    with tempfile.TemporaryDirectory(dir=os.environ.get("CKPTCTL_BENCH_DIR")) as made:
        root = Path(made)
        subprocess.run([sys.executable, "-c", MAKE, root, str(count)], check=True)
        one, same = root / "a.safetensors", root / "same.safetensors"
        timed = {
            "timing": ", time",
            "start": "start = time.perf_counter()\n",
            "end": "print(time.perf_counter() - start)\n",
        }
        compare(
            f"equal safetensors, {count} matrices of 33.6 MB in bf16",
            {
                "cmp": ["cmp", str(one), str(same)],
                "ckptctl diff": ours(one, same),
                "load_file twice + torch.equal": python(LOAD_EQUAL.format(timing="", start="", end=""), one, same),
                "the same without its imports": python(LOAD_EQUAL.format(**timed), one, same),
            },
        )
        compare(
            "equal .pt",
            {
                "torch.load twice + torch.equal": python(TORCH_EQUAL, root / "a.pt", root / "same.pt"),
                "ckptctl diff": ours(root / "a.pt", root / "same.pt"),
            },
            3,
        )
        compare(
            "every element differs, all measures, an eighth of it",
            {
                "load_file + torch": python(MEASURES, root / "few.safetensors", root / "tuned.safetensors"),
                "ckptctl diff": ours(root / "few.safetensors", root / "tuned.safetensors"),
            },
            3,
        )
        for path, value in (
            (root / "many.safetensors", 1),
            (root / "again.safetensors", 1),
            (root / "other.safetensors", 2),
        ):
            many(path, value)
        compare(
            "100,000 tensors against 100,000",
            {
                "equal": ours(root / "many.safetensors", root / "again.safetensors"),
                "all of them differ": ours(root / "many.safetensors", root / "other.safetensors"),
            },
            3,
        )
