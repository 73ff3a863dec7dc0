"""The options of `consolidate` that `convert` does not have."""

from __future__ import annotations

import enum
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ckptctl.cli._options import SELECT
from ckptctl.errors import UsageError
from ckptctl.storage import address, open_file

if TYPE_CHECKING:
    from ckptctl.model import Component
    from ckptctl.rewrite.cuts import Cuts

_SHARDS = "How the shards fit together"
_MAX_JSON = 256 << 20


class Only(enum.Enum):
    """What to take of a sharded checkpoint."""

    MODEL = "model"
    OPTIMIZER = "optimizer"
    ALL = "all"


class Weights(enum.Enum):
    """Which weights of DeepSpeed to take."""

    FP32 = "fp32"
    MODULE = "module"


Sharded = Annotated[
    Path,
    typer.Argument(
        parser=address, metavar="DIR", help="The directory of a sharded checkpoint, or the index of shards."
    ),
]
What = Annotated[
    Only,
    typer.Option(
        "--only", help="A component, the path to it cut off names; or all under their whole names.",
        rich_help_panel=SELECT,
    ),
]  # fmt: skip
Tag = Annotated[str, typer.Option("--tag", metavar="NAME", help="Which state of DeepSpeed.", rich_help_panel=_SHARDS)]
WhichWeights = Annotated[
    Weights,
    typer.Option(
        "--weights", help="Of DeepSpeed: those in fp32 that it trained, or the module's own.", rich_help_panel=_SHARDS
    ),
]
Like = Annotated[
    Path | None,
    typer.Option(
        "--like",
        parser=address,
        metavar="REFERENCE",
        help="A whole checkpoint, or JSON of name and shape: how parts fit together.",
        rich_help_panel=_SHARDS,
    ),
]
Split = Annotated[
    list[str] | None,
    typer.Option(
        "--split", metavar="GLOB=DIM", help="Along which dimension parts were cut. Repeatable.", rich_help_panel=_SHARDS
    ),
]
CopyFiles = Annotated[
    bool,
    typer.Option(
        "--copy-files", help="Take configuration, tokenizer and generation files along.", rich_help_panel=SELECT
    ),
]


def component(only: Only) -> Component | None:
    """Return which component is meant; None for all."""
    from ckptctl.model import Component

    return None if only is Only.ALL else Component(only.value)


def cuts_of(like: Path | None, split: list[str] | None) -> Cuts:
    """Return what was said of how tensors were cut.

    Raises
    ------
    UsageError
        A rule has another form, or the reference is no checkpoint and no object of shapes.
    """
    from ckptctl.rewrite.cuts import Cuts, parse_split

    shapes, ordered = _shapes(like) if like else ({}, True)
    return Cuts(shapes=shapes, rules=tuple(map(parse_split, split or ())), ordered=ordered)


def _shapes(like: Path) -> tuple[dict[str, tuple[int, ...]], bool]:
    """Return the shapes of a reference, and whether they are in the order of the model's parameters."""
    if like.suffix == ".json" and not like.name.endswith(".index.json") and like.is_file():
        return _of_json(like), True
    from ckptctl.layouts import open_checkpoint
    from ckptctl.model import Component

    checkpoint = open_checkpoint(like)
    parts = checkpoint.parts
    model = parts.get(Component.MODEL) or next(iter(parts.values()), None)
    if model is None:
        raise UsageError(f"--like {like}: it holds no tensors")
    prefix = f"{model.prefix}." if model.prefix else ""
    shapes = {name.removeprefix(prefix): tensor.shape for name, tensor in model.tensors.items()}
    return shapes, not any(one.format == "safetensors" for one in checkpoint.files)  # those are sorted by their writer


def _of_json(like: Path) -> dict[str, tuple[int, ...]]:
    wrong = UsageError(f"--like {like}: not an object of names and shapes", hint='such as {"wq": [8, 4]}')
    try:
        found = json.loads(open_file(like).range().read()) if like.stat().st_size <= _MAX_JSON else None
    except (ValueError, RecursionError):
        raise wrong from None
    if not isinstance(found, dict):
        raise wrong
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in found.items():
        if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
            raise wrong
        shapes[name] = tuple(shape)
    return shapes
