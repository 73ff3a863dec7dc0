"""What a user would do instead, as small programs that print the time of their calls; and the files to do it with."""

from __future__ import annotations

from pathlib import Path

from tests.bench.consolidate import ZERO
from tests.bench.inspect import run

__all__ = ["ZERO", "runs"]

MAKE = """
import os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp, torch.multiprocessing as mp
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
root, count = sys.argv[1], int(sys.argv[2])

def state():
    torch.manual_seed(0)
    return {f"model.layers.{i}.mlp.weight": torch.randn(4096, 4096).to(torch.bfloat16) for i in range(count)}

def rank(number):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29541", RANK=str(number), WORLD_SIZE="2")
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    dcp.save({"model": {name: distribute_tensor(one, mesh, [Shard(0)]) for name, one in state().items()}}, checkpoint_id=root + "/rows")
    dist.destroy_process_group()

if __name__ == "__main__":
    every = state()
    save_file(every, root + "/a.safetensors")
    save_file(every, root + "/b.safetensors")
    torch.save(every, root + "/m.pt")
    os.mkdir(root + "/shards")
    names, index = list(every), {}
    for shard in range(2):
        name = f"model-0000{shard + 1}-of-00002.safetensors"
        save_file({one: every[one] for one in names[shard::2]}, root + "/shards/" + name)
        index.update({one: name for one in names[shard::2]})
    import json
    json.dump({"weight_map": index}, open(root + "/shards/model.safetensors.index.json", "w"))
    del every
    mp.spawn(rank, nprocs=2)
"""
MANY = """
import sys, torch
from safetensors.torch import save_file
root, count = sys.argv[1], int(sys.argv[2])
state = {f"model.layers.{i // 10}.block.{i % 10}.weight": torch.full((2, 2), float(i)) for i in range(count)}
for name in "ab":
    save_file(state, f"{root}/{name}.safetensors")
torch.save(state, root + "/m.pt")
"""
_TIMED = """
import os, sys, time
{imports}
start = time.perf_counter()
{calls}
print(time.perf_counter() - start)
"""
_FLUSH = """
for path in ([{path}] if os.path.isfile({path}) else [os.path.join({path}, name) for name in os.listdir({path})]):
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
"""


def _timed(imports: str, calls: str, flushed: str = "") -> str:
    return _TIMED.format(imports=imports, calls=calls + (_FLUSH.format(path=flushed) if flushed else ""))


_SAFE = "import torch\nfrom safetensors.torch import load_file, save_file"
SAFE_OPEN = _timed(
    "from safetensors import safe_open",
    "with safe_open(sys.argv[1], 'np') as f:\n"
    "    listed = [(n, f.get_slice(n).get_dtype(), f.get_slice(n).get_shape()) for n in f.keys()]",
)
TORCH_LIST = _timed(
    "import torch",
    "d = torch.load(sys.argv[1], mmap=True, weights_only=True)\nlisted = [(n, t.shape, t.dtype) for n, t in d.items()]",
)
TESTZIP = _timed("import zipfile", "assert zipfile.ZipFile(sys.argv[1]).testzip() is None")
FINITE = _timed(_SAFE, "assert all(torch.isfinite(t).all() for t in load_file(sys.argv[1]).values())")
CONVERT = _timed(_SAFE, "save_file(torch.load(sys.argv[1], weights_only=True), sys.argv[2])", "sys.argv[2]")
PTLOADER = _timed(
    "import ptloader\nfrom safetensors.numpy import save_file",
    "save_file({n: t for n, t in ptloader.load(sys.argv[1]).items()}, sys.argv[2])",
    "sys.argv[2]",
)
COPY = _timed("import subprocess", "subprocess.run(['cp', *sys.argv[1:3]], check=True)", "sys.argv[2]")
DCP = _timed(
    f"{_SAFE}\nfrom torch.distributed.checkpoint.format_utils import dcp_to_torch_save",
    "dcp_to_torch_save(sys.argv[1], sys.argv[2] + '.pt')\n"
    "save_file(torch.load(sys.argv[2] + '.pt', weights_only=False)['model'], sys.argv[2])",
    "sys.argv[2]",
)
MERGE = _timed(
    "from accelerate.utils import merge_fsdp_weights",
    "merge_fsdp_weights(sys.argv[1], sys.argv[2], safe_serialization=True)",
    "sys.argv[2]",
)
ZERO_TO_FP32 = _timed(
    "from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_fp32_state_dict as convert",
    "convert(sys.argv[1], sys.argv[2], safe_serialization=True, max_shard_size='100GB')",
    "sys.argv[2]",
)
SHARDS = _timed(
    f"{_SAFE}\nimport glob",
    "every = {}\nfor path in sorted(glob.glob(sys.argv[1] + '/*.safetensors')):\n    every |= load_file(path)\n"
    "save_file(every, sys.argv[2])",
    "sys.argv[2]",
)
EQUAL = _timed(
    _SAFE,
    "a, b = load_file(sys.argv[1]), load_file(sys.argv[2])\nassert a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)",
)
DIFFAI = _timed("import diffai", "diffai.diff_paths(sys.argv[1], sys.argv[2])")
TORCH_SAVE = _timed(
    f"{_SAFE}\nimport hashlib\nstate = {{n: t.clone() for n, t in load_file(sys.argv[1]).items()}}",
    "torch.save(state, sys.argv[2])\nwith open(sys.argv[2], 'rb+') as file:\n    os.fsync(file.fileno())\n"
    "    hashlib.file_digest(file, 'sha256')",
)
OUR_SAVE = _timed(
    f"{_SAFE}\nfrom ckptctl.training import save\nstate = {{n: t.clone() for n, t in load_file(sys.argv[1]).items()}}",
    "save(sys.argv[2], state)",
)
OUR_LOAD = _timed("import torch\nfrom ckptctl.training import load", "load(sys.argv[1])")
LOAD_FILE = _timed(_SAFE, "state = {n: t.clone() for n, t in load_file(sys.argv[1]).items()}")
RUN = _timed(
    "import json\nfrom pathlib import Path\nfrom safetensors import safe_open",
    "for path in sorted(Path(sys.argv[1]).iterdir()):\n"
    "    with safe_open(path / 'model.safetensors', 'np') as f:\n        count = len(f.keys())\n"
    "    step = json.loads((path / 'trainer_state.json').read_bytes())['global_step']",
)


def runs(root: Path, count: int) -> None:
    """A run of so many checkpoints of the Trainer."""
    run(root / "run", count)
