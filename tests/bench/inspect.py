"""Speed and memory of `inspect` as ratios against named rivals, measured in one run: ``nox -s bench -- inspect``.

Every figure is the median of several whole processes, run in turn so that the noise of the machine falls on
all alike. Peak memory is that of the child, measured from a small parent.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import struct
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.bench.common import MB, ckptctl, measured, python

HERE = Path(__file__).parent
TRAINER = HERE.parent / "corpus" / "data" / "transformers" / "trainer_run" / "checkpoint-40"
SMALL = HERE.parent / "corpus" / "data" / "torch_save" / "train_dict.pt"

IDLE = "import typer, rich.table, rich.tree"
TORCH_LOAD = (
    "import sys, torch; d = torch.load(sys.argv[1], mmap=True, weights_only=True)\n"
    "print(len([(name, tensor.shape, tensor.dtype) for name, tensor in d.items()]))"
)
SAFE_OPEN = """
import sys
from pathlib import Path
from safetensors import safe_open
paths = [Path(sys.argv[1])] if Path(sys.argv[1]).is_file() else sorted(Path(sys.argv[1]).glob("*.safetensors"))
listed = []
for path in paths:
    with safe_open(path, "np") as f:
        for name in f.keys():
            part = f.get_slice(name)
            listed.append((name, part.get_dtype(), part.get_shape()))
print(len(listed))
"""


OPEN_EACH = """
import json, sys
from pathlib import Path
from safetensors import safe_open
for path in sorted(Path(sys.argv[1]).iterdir()):
    with safe_open(path / "model.safetensors", "np") as f:
        count = len(f.keys())
    state = json.loads((path / "trainer_state.json").read_bytes())
    print(path.name, state["global_step"], count)
"""


def inspect(path: Path) -> list[str]:
    return ckptctl("inspect", path)


def compare(title: str, commands: dict[str, list[str]], *, times: int, target: str) -> None:
    """Run all commands in turn and print the medians, with ratios to the first."""
    runs: dict[str, list[tuple[float, int]]] = {name: [] for name in commands}
    for command in commands.values():
        measured(command)
    for _ in range(times):
        for name, command in commands.items():
            runs[name].append(measured(command)[:2])
    seconds = {name: statistics.median(run[0] for run in found) for name, found in runs.items()}
    peaks = {name: max(run[1] for run in found) for name, found in runs.items()}
    first = next(iter(commands))
    print(f"\n{title} (target: {target})")
    for name in commands:
        ratio = seconds[name] / seconds[first]
        print(f"  {name:34} {seconds[name]:7.3f} s   {ratio:5.2f} ×   {peaks[name] / MB:6.0f} MB")


def header(count: int, shape: tuple[int, int], name: Callable[[int], str]) -> tuple[bytes, int]:
    """A safetensors header for `count` BF16 tensors, and the bytes that they take."""
    entries, at, size = {}, 0, shape[0] * shape[1] * 2
    for index in range(count):
        entries[name(index)] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(entries).encode()
    raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw, at


def sparse(path: Path, head: bytes, size: int) -> Path:
    path.write_bytes(head)
    os.truncate(path, len(head) + size)
    return path


def sharded(directory: Path, shards: int, each: int) -> Path:
    directory.mkdir()
    weight_map, total = {}, 0
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        names = [f"model.layers.{shard}.experts.{i}.w.weight" for i in range(each)]
        head, size = header(each, (64, 64), names.__getitem__)
        sparse(directory / file, head, size)
        weight_map |= dict.fromkeys(names, file)
        total += size
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def run(directory: Path, count: int) -> Path:
    """A run of the Hugging Face Trainer whose history grows with its steps, up to a thousand rows."""
    history = []
    for step in range(100, 100 * count + 1, 100):
        target = directory / f"checkpoint-{step}"
        target.mkdir(parents=True)
        for path in TRAINER.iterdir():
            if path.name != "trainer_state.json":
                shutil.copyfile(path, target / path.name)
        history.append({"epoch": step / 1000, "eval_loss": 1 / step, "step": step})
        state = {"best_metric": None, "epoch": step / 1000, "global_step": step, "log_history": history[-1000:]}
        (target / "trainer_state.json").write_text(json.dumps(state, indent=2))
    return directory


def main() -> None:
    """Make the inputs and print all comparisons."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        compare("a small .pt file", {"import typer and rich": python(IDLE), "ckptctl inspect": inspect(SMALL)},
                times=15, target="1.6 × the imports")  # fmt: skip

        large = sparse(
            directory / "large.safetensors",
            *header(800, (7812, 8000), lambda i: f"model.layers.{i // 10}.mlp.{i % 10}.weight"),
        )
        compare("a sparse safetensors file of 100 GB",
                {"import typer and rich": python(IDLE), "ckptctl inspect": inspect(large), "safe_open, listed": python(SAFE_OPEN, large)},
                times=9, target="the same, below 60 MB")  # fmt: skip

        shards = sharded(directory / "sharded", 160, 625)
        compare("160 shards, 100,000 tensors", {"safe_open, listed": python(SAFE_OPEN, shards), "ckptctl inspect": inspect(shards)},
                times=5, target="below 4 s and 250 MB")  # fmt: skip

        weights = directory / "weights.pt"
        subprocess.run(
            python("import sys, torch; torch.save({f'model.layers.{i // 20}.block.{i % 20}.weight': torch.ones(4, 4) for i in range(20_000)}, sys.argv[1])", weights),
            check=True,
        )  # fmt: skip
        compare("a .pt file of 20,000 tensors",
                {"torch.load(mmap, weights_only), listed": python(TORCH_LOAD, weights), "ckptctl inspect": inspect(weights)},
                times=5, target="below 1.2 s")  # fmt: skip

        for count, target in ((200, "below 1 s"), (2_000, "ten times that of 200"), (10_000, "below 30 s")):
            made = run(directory / f"run{count}", count)
            compare(f"a run of {count:,} directories",
                    {"safe_open and json of each": python(OPEN_EACH, made), "ckptctl inspect": inspect(made)},
                    times=1 if count > 1000 else 5, target=target)  # fmt: skip


if __name__ == "__main__":
    main()
