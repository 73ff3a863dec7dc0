"""A file for each rank and a manifest, written by ckptctl.training from FSDP2 on gloo.

    python gen_ckptctl.py OUT
"""
import warnings

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

from ckptctl.training import TrainingState, save
from common import TinyNet, fresh, output_dir, run_ranks, save_truth, seed, train_steps

warnings.filterwarnings("ignore")


def sharded(rank, world, out, replace):
    dist.init_process_group("gloo")
    seed()
    model = TinyNet()
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train_steps(model, optimizer)
    state = TrainingState(model=model, optimizer=optimizer, step=100)
    seed(rank)
    for _ in range(1 + replace):
        save(out / "step_100", state.capture())
    full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        save_truth(full, f"{out}.expected.safetensors")
    dist.destroy_process_group()


def main():
    out = output_dir(__doc__)
    for world, replace in ((2, False), (4, True)):
        case = fresh(out / f"ranks_{world}")
        run_ranks(sharded, world, case, replace)


if __name__ == "__main__":
    main()
