"""Speed and memory of `consolidate`: ``python -m tests.bench consolidate``. Inputs lie in the page cache, outputs are flushed.

``LAYERS`` (64) matrices of 33.6 MB. Where ``CKPTCTL_BENCH_RIVALS`` names a Python that has deepspeed and accelerate, their
scripts are rivals too, as whole processes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.bench.common import ckptctl, compare, python

MAKE = """
import os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp, torch.multiprocessing as mp
from torch.distributed.checkpoint import HuggingFaceStorageWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
out, layers, world = sys.argv[1], int(sys.argv[2]), 2

def work(rank):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29533", RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (world,))
    def state(dim):
        torch.manual_seed(0)
        return {f"layers.{i}.w": distribute_tensor(torch.randn(4096, 4096).to(torch.bfloat16), mesh, [Shard(dim)])
                for i in range(layers)}
    dcp.save({"model": state(0)}, checkpoint_id=out + "/rows")
    dcp.save({"model": state(1)}, checkpoint_id=out + "/columns")
    writer = HuggingFaceStorageWriter(path=out + "/hf", save_distributed=True, fqn_to_index_mapping={f"layers.{i}.w": 1 for i in range(layers)})
    dcp.save(state(0), storage_writer=writer)
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(work, nprocs=world)
"""
STOCK = """
import os, sys, time, torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
start = time.perf_counter()
dcp_to_torch_save(sys.argv[1], sys.argv[2] + ".pt")
save_file(torch.load(sys.argv[2] + ".pt", weights_only=False)["model"], sys.argv[2])
fd = os.open(sys.argv[2], os.O_RDWR)
os.fsync(fd)
print(time.perf_counter() - start)
"""
HF = """
import os, sys, time, torch
from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files
os.makedirs(sys.argv[2], exist_ok=True)
start = time.perf_counter()
consolidate_safetensors_files(sys.argv[1], sys.argv[2], {f"layers.{i}.w": 1 for i in range(int(sys.argv[3]))}, num_threads=2)
for name in os.listdir(sys.argv[2]):
    fd = os.open(os.path.join(sys.argv[2], name), os.O_RDWR)
    os.fsync(fd)
print(time.perf_counter() - start)
"""
ZERO = """
import os, sys, torch
from collections import OrderedDict
out, layers, world = sys.argv[1] + "/zero", int(sys.argv[2]) // 4, 2
os.makedirs(out + "/global_step10")
open(out + "/latest", "w").write("global_step10")
shapes = OrderedDict((f"layers.{i}.w", torch.Size([4096, 4096])) for i in range(layers))
each = layers * 4096 * 4096 // world
torch.manual_seed(0)
module = OrderedDict((name, torch.zeros(1).to(torch.bfloat16).expand(shape).clone()) for name, shape in shapes.items())
torch.save({"module": module, "buffer_names": [], "param_shapes": [shapes], "frozen_param_shapes": None, "shared_params": {},
            "frozen_param_fragments": None, "ds_version": "0.19.8", "dp_world_size": world, "mp_world_size": 1, "global_steps": 10,
            "ds_config": {"zero_optimization": {"stage": 2}}}, out + "/global_step10/mp_rank_00_model_states.pt")
for rank in range(world):
    flat = torch.randn(each)
    moments = {"step": torch.tensor(10.0), "exp_avg": torch.zeros(each), "exp_avg_sq": torch.zeros(each)}
    state = {"zero_stage": 2, "partition_count": [world], "single_partition_of_fp32_groups": [flat],
             "base_optimizer_state": {"state": {0: moments}, "param_groups": []}, "group_paddings": [0]}
    torch.save({"optimizer_state_dict": state, "ds_version": "0.19.8"},
               f"{out}/global_step10/bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
"""
ZERO_TO_FP32 = """
import os, sys, time
from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_fp32_state_dict as convert
start = time.perf_counter()
convert(sys.argv[1], sys.argv[2], safe_serialization=True, max_shard_size="100GB")
for name in os.listdir(sys.argv[2]):
    fd = os.open(os.path.join(sys.argv[2], name), os.O_RDWR)
    os.fsync(fd)
print(time.perf_counter() - start)
"""
MERGE_WEIGHTS = """
import os, sys, time
from accelerate.utils import merge_fsdp_weights
start = time.perf_counter()
merge_fsdp_weights(sys.argv[1], sys.argv[2], safe_serialization=True)
for name in os.listdir(sys.argv[2]):
    fd = os.open(os.path.join(sys.argv[2], name), os.O_RDWR)
    os.fsync(fd)
print(time.perf_counter() - start)
"""
COPY = """
import os, subprocess, sys, time
start = time.perf_counter()
for name in os.listdir(sys.argv[1]):
    subprocess.run(["cp", os.path.join(sys.argv[1], name), sys.argv[2] + name], check=True)
    fd = os.open(sys.argv[2] + name, os.O_RDWR)
    os.fsync(fd)
print(time.perf_counter() - start)
"""


def main() -> None:
    """Row shards, column shards, and torch's own safetensors shards."""
    layers = int(os.environ.get("LAYERS", "64"))
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        (root / "make.py").write_text(MAKE)
        subprocess.run([sys.executable, root / "make.py", root, str(layers)], check=True)
        target = root / "out"

        def clean() -> None:
            for path in root.glob(f"{target.name}*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

        for kind in ("rows", "columns"):
            ours = ckptctl("consolidate", root / kind, "-o", f"{target}.safetensors")
            compare(
                f"consolidate: {layers} matrices of 33.6 MB in bf16, two ranks, cut along {kind}",
                {
                    "dcp_to_torch_save + save_file + flush": python(STOCK, root / kind, f"{target}.safetensors"),
                    "ckptctl consolidate": ours,
                    "ckptctl consolidate --no-digest": [*ours, "--no-digest"],
                    "ckptctl consolidate --no-check": [*ours, "--no-check"],
                    "ckptctl consolidate --workers 2": [*ours, "--workers", "2"],
                    "cp and flush of the shards": python(COPY, root / kind, target),
                },
                3,
                clean,
            )
        ours = ckptctl("consolidate", root / "hf", "-o", f"{target}.safetensors")
        compare(
            "the same as safetensors shards",
            {
                "torch consolidate_safetensors_files": python(HF, root / "hf", f"{target}-hf", layers),
                "ckptctl consolidate": ours,
                "ckptctl consolidate --no-digest": [*ours, "--no-digest"],
            },
            3,
            clean,
        )
        rivals = os.environ.get("CKPTCTL_BENCH_RIVALS")
        if rivals:
            _scripts_of_frameworks(root, target, rivals, layers, clean)


def _scripts_of_frameworks(root: Path, target: Path, rivals: str, layers: int, clean: Callable[[], None]) -> None:
    ours = ckptctl("consolidate", root / "rows", "-o", f"{target}.safetensors")
    compare(
        "row shards, against accelerate",
        {
            "accelerate merge_fsdp_weights": [rivals, "-c", MERGE_WEIGHTS, str(root / "rows"), f"{target}-merged"],
            "ckptctl consolidate": ours,
        },
        3,
        clean,
    )
    subprocess.run([rivals, "-c", ZERO, root, str(layers)], check=True)
    ours = ckptctl("consolidate", root / "zero", "-o", f"{target}.safetensors")
    whole = ZERO_TO_FP32.replace("print(time.perf_counter() - start)", "")
    compare(
        "DeepSpeed ZeRO-2, two ranks, with moments",
        {
            "zero_to_fp32": [rivals, "-c", ZERO_TO_FP32, str(root / "zero"), f"{target}-zero"],
            "zero_to_fp32 with its imports": [rivals, "-c", whole, str(root / "zero"), f"{target}-zero"],
            "ckptctl consolidate": ours,
            "ckptctl consolidate --no-digest": [*ours, "--no-digest"],
        },
        3,
        clean,
    )
