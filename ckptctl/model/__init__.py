"""The nouns: what a checkpoint, a tensor and a finding are, whatever wrote them."""

from __future__ import annotations

from ckptctl.model.checkpoint import (
    Base,
    Checkpoint,
    Component,
    Contents,
    Found,
    GlobalUse,
    Level,
    Part,
    Region,
)
from ckptctl.model.dtypes import DTYPES, DType, dtype_of_torch
from ckptctl.model.finding import Aspect, Finding, Severity
from ckptctl.model.modules import Module, module_tree
from ckptctl.model.tensors import Encoding, Piece, TensorInfo, contiguous_strides

__all__ = [
    "DTYPES",
    "Aspect",
    "Base",
    "Checkpoint",
    "Component",
    "Contents",
    "DType",
    "Encoding",
    "Finding",
    "Found",
    "GlobalUse",
    "Level",
    "Module",
    "Part",
    "Piece",
    "Region",
    "Severity",
    "TensorInfo",
    "contiguous_strides",
    "dtype_of_torch",
    "module_tree",
]
