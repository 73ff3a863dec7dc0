"""How the names of files that hold weights end: what is taken for one where only names are looked at."""

from __future__ import annotations

ENDINGS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".h5", ".hdf5", ".keras", ".npz", ".pkl", ".pickle", ".tar")
"""Whether a file is a checkpoint of a run, which `prune` may delete, is another question: see `runs`."""
