"""Speed of planning a prune: ``python -m tests.bench prune``. Nothing is deleted but in the last row."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from tests.bench.common import MB, ckptctl, measured

CORPUS = Path(__file__).parent.parent / "corpus" / "data"
HF = CORPUS / "transformers" / "trainer_run" / "checkpoint-10"
COUNTS = (200, 1_000, 10_000)


def directories(root: Path, count: int) -> None:
    """Make checkpoints of the Hugging Face Trainer; what does not differ is linked."""
    for number in range(1, count + 1):
        target = root / f"checkpoint-{10 * number}"
        target.mkdir(parents=True)
        for source in HF.iterdir():
            if source.name != "trainer_state.json":
                (target / source.name).hardlink_to(root.parent / "hf" / source.name)
        state = json.loads((HF / "trainer_state.json").read_text())
        log = [{"step": 10 * number, "eval_loss": 1 / number}]
        (target / "trainer_state.json").write_text(json.dumps(state | {"global_step": 10 * number, "log_history": log}))


def files(root: Path, count: int) -> None:
    """Make safetensors files of ten tensors."""
    root.mkdir()
    header = json.dumps(
        {f"layers.{i}.w": {"dtype": "F32", "shape": [4], "data_offsets": [16 * i, 16 * i + 16]} for i in range(10)}
    ).encode()
    data = len(header).to_bytes(8, "little") + header + bytes(160)
    for number in range(1, count + 1):
        (root / f"step_{10 * number}.safetensors").write_bytes(data)


def show(title: str, root: Path, *options: str) -> None:
    """Measure one command and print a line."""
    seconds, peak, _ = measured([*ckptctl("prune"), str(root), "--keep-last", "3", *options])
    print(f"  {title:44} {seconds:7.2f} s   {peak / MB:6.0f} MB")


def main() -> None:
    """Plan runs of different sizes, and carry out the last."""
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        shutil.copytree(HF, root / "hf")
        print("\nprune: a plan, whole command")
        for count in COUNTS:
            directories(root / f"d{count}", count)
            show(f"{count:,} directories of the Trainer", root / f"d{count}", "--dry-run", "--brief")
        for count in (1_000, 10_000, 100_000):
            files(root / f"f{count}", count)
            show(f"{count:,} files of 10 tensors", root / f"f{count}", "--dry-run", "--brief")
        show("1,000 directories, carried out", root / "d1000", "--brief")
        show("10,000 files, carried out", root / "f10000", "--brief")
