"""A small training by Lightning, with the hook: ``python lit.py RUN STEPS [UPLOAD]``."""

import sys

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

import ckptctl
from ckptctl.errors import CkptctlError
from ckptctl.training import Policy
from ckptctl.training.hooks.lightning import CkptctlCallback

run, steps, upload = sys.argv[1], int(sys.argv[2]), (sys.argv[3:] or [None])[0]


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)

    def training_step(self, batch, _):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


data = torch.utils.data.DataLoader(torch.randn(40, 8), batch_size=4)
saves = ModelCheckpoint(run, "{step}", save_top_k=-1, every_n_train_steps=3)
hook = CkptctlCallback(policy=Policy(last=3, best=0, anchor_every=0), upload_to=upload)
trainer = Trainer(max_steps=steps, max_epochs=-1, accelerator="cpu", logger=False, enable_progress_bar=False,
                  enable_model_summary=False, callbacks=[saves, hook])  # fmt: skip
try:
    newest = ckptctl.latest_good(run)
except CkptctlError:
    newest = None
print("resumes from", newest, flush=True)
trainer.fit(Model(), data, ckpt_path=newest, weights_only=False)
print("ended at", trainer.global_step, flush=True)
