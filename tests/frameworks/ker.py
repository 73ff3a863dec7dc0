"""A small training by Keras, with the hook: ``python ker.py RUN EPOCHS [UPLOAD]``."""

import os
import re
import sys

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import numpy as np

import ckptctl
from ckptctl.errors import CkptctlError
from ckptctl.training import Policy
from ckptctl.training.hooks.keras import CkptctlCallback

run, epochs, upload = sys.argv[1], int(sys.argv[2]), (sys.argv[3:] or [None])[0]
os.makedirs(run, exist_ok=True)
model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)])
model.compile("adam", "mse")
begin = 0
try:
    newest = str(ckptctl.latest_good(run))
    model = keras.models.load_model(newest)
    begin = int(re.search(r"([0-9]+)\.keras$", newest)[1])
except CkptctlError:
    newest = None
print("resumes from", newest, flush=True)
saves = keras.callbacks.ModelCheckpoint(os.path.join(run, "epoch_{epoch}.keras"))
hook = CkptctlCallback(run, policy=Policy(last=3, best=0, anchor_every=0), upload_to=upload)
model.fit(
    np.random.rand(64, 8), np.random.rand(64), epochs=epochs, initial_epoch=begin, verbose=0, callbacks=[saves, hook]
)
print("ended at", epochs, flush=True)
