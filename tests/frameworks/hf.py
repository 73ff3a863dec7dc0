"""A small training by the Trainer of Hugging Face, with the hook: ``python hf.py RUN STEPS [UPLOAD]``."""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import ckptctl
from ckptctl.errors import CkptctlError
from ckptctl.training import Policy
from ckptctl.training.hooks.transformers import CkptctlCallback

run, steps, upload = sys.argv[1], int(sys.argv[2]), (sys.argv[3:] or [None])[0]
torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
)
data = [{"input_ids": torch.randint(0, 64, (8,)), "labels": torch.randint(0, 64, (8,))} for _ in range(64)]
hook = CkptctlCallback(policy=Policy(last=3, best=0, anchor_every=0), upload_to=upload)
trainer = Trainer(
    model=model, train_dataset=data, callbacks=[hook],
    args=TrainingArguments(run, max_steps=steps, save_steps=2, per_device_train_batch_size=4, report_to=[],
                           disable_tqdm=True, logging_strategy="no", use_cpu=True),
)  # fmt: skip
try:
    newest = ckptctl.latest_good(run)
except CkptctlError:
    newest = None
print("resumes from", newest, flush=True)
trainer.train(resume_from_checkpoint=newest)
print("ended at", trainer.state.global_step, flush=True)
