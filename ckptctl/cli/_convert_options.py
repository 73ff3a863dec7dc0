"""The options of `convert`."""

from __future__ import annotations

import enum
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ckptctl.cli._options import OUTPUT, SELECT
from ckptctl.errors import UsageError
from ckptctl.storage import address

_CHANGE, _SAFETY = "What to change", "How to write"
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


class Only(enum.Enum):
    """Components, or all of them."""

    MODEL = "model"
    OPTIMIZER = "optimizer"
    SCHEDULER = "scheduler"
    RNG = "rng"
    TRAINER = "trainer"
    DATA = "data"
    OTHER = "other"
    ALL = "all"


class Dtype(enum.Enum):
    """Types that floating tensors can be cast to."""

    BF16 = "bf16"
    F16 = "f16"
    F32 = "f32"


Sources = Annotated[
    list[Path], typer.Argument(parser=address, metavar="SRC...", help="Files, indexes or directories; globs too.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", parser=address, metavar="DST",
        help="File or directory to write; its suffix decides the format.",
        rich_help_panel=_SAFETY,
    ),
]  # fmt: skip
OnlyOrAll = Annotated[
    Only | None,
    typer.Option(
        "--only", help="One component, its prefix cut off; or all of a directory's members.", show_choices=True,
        rich_help_panel=SELECT,
    ),
]  # fmt: skip
StripPrefix = Annotated[
    list[str] | None,
    typer.Option(
        "--strip-prefix", metavar="PREFIX", help="Cut off names, however nested. Repeatable.", rich_help_panel=_CHANGE
    ),
]
Rename = Annotated[
    list[str] | None,
    typer.Option(
        "--rename", metavar="REGEX=REPL", help="Substitute in names, in order. Repeatable.", rich_help_panel=_CHANGE
    ),
]
Untie = Annotated[bool, typer.Option("--untie", help="Write tied tensors as copies.", rich_help_panel=_CHANGE)]
CastTo = Annotated[
    Dtype | None, typer.Option("--dtype", help="Cast floating tensors of the model.", rich_help_panel=_CHANGE)
]
CastAll = Annotated[bool, typer.Option("--cast-all", help="Cast the optimizer too.", rich_help_panel=_CHANGE)]
AllowOverflow = Annotated[
    bool, typer.Option("--allow-overflow", help="Let numbers become infinite.", rich_help_panel=_CHANGE)
]
Densify = Annotated[
    bool, typer.Option("--densify", help="Write sparse tensors as dense ones.", rich_help_panel=_CHANGE)
]
DropForeign = Annotated[
    bool, typer.Option("--drop-foreign", help="Leave out what cannot be kept, naming it.", rich_help_panel=_CHANGE)
]
Plain = Annotated[
    bool, typer.Option("--plain", help="Turn objects into tensors and plain values.", rich_help_panel=_CHANGE)
]
MaxShardSize = Annotated[
    str | None,
    typer.Option(
        "--max-shard-size", metavar="SIZE", help="Write shards and an index, e.g. 5GB.", rich_help_panel=_SAFETY
    ),
]
NoDigest = Annotated[bool, typer.Option("--no-digest", help="Write no .sha256 beside.", rich_help_panel=_SAFETY)]
NoCheck = Annotated[
    bool,
    typer.Option("--no-check", help="Copy without looking at the bytes; implies --no-digest.", rich_help_panel=_SAFETY),
]
Workers = Annotated[
    int,
    typer.Option(
        "--workers", metavar="N", min=1, max=64, help="Threads that write one file.", rich_help_panel="How to write"
    ),
]
Part = Annotated[
    str | None,
    typer.Option(
        "--part", metavar="I/N", help="Be one worker of several; auto: as the launcher says.", rich_help_panel=_SAFETY
    ),
]
Continue = Annotated[
    bool, typer.Option("--continue", help="Take up files that an earlier attempt finished.", rich_help_panel=_SAFETY)
]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.", rich_help_panel=_SAFETY)]
DryRun = Annotated[
    bool, typer.Option("--dry-run", "-n", help="Say what would be written; write nothing.", rich_help_panel=OUTPUT)
]


def worker(part: str | None, *, resume: bool) -> dict[str, Any]:
    """Return which worker of several this is, as fields of the options of a rewrite."""
    if part is None and not resume:
        return {}
    from ckptctl.storage.share import Share, parse_share

    return {"share": parse_share(part) if part is not None else Share(0, 1), "resume": resume}


def told(share: Any) -> bool:
    """Whether this worker only says on stderr what it did: the first one answers for all."""
    if share is None or not share.index:
        return False
    sys.stderr.write(f"ckptctl: part {share.index} of {share.count} is done\n")
    return True


def selected(only: Only | None, include: list[str] | None, exclude: list[str] | None) -> dict[str, Any]:
    """Return which tensors to take, as fields of the options of a rewrite."""
    from ckptctl.model import Component

    one = Component(only.value) if only and only is not Only.ALL else None
    return {"only": one, "include": tuple(include or ()), "exclude": tuple(exclude or ())}


def changed(  # noqa: PLR0917  # as many as there are options
    strip_prefix: list[str] | None,
    rename: list[str] | None,
    dtype: Dtype | None,
    cast_all: bool,
    allow_overflow: bool,
    untie: bool,
) -> dict[str, Any]:
    """Return what to change about names and numbers."""
    from ckptctl.model import DTYPES
    from ckptctl.rewrite.names import parse_rename

    if (cast_all or allow_overflow) and not dtype:
        raise UsageError("--cast-all and --allow-overflow say how to cast: they need --dtype")
    if "" in (strip_prefix or ()):
        raise UsageError("--strip-prefix: there is no prefix to strip")
    return {
        "strip_prefix": tuple(strip_prefix or ()),
        "rename": tuple(map(parse_rename, rename or ())),
        "dtype": DTYPES[dtype.name] if dtype else None,
        "cast_all": cast_all,
        "allow_overflow": allow_overflow,
        "untie": untie,
    }


def kept(densify: bool, drop_foreign: bool, plain: bool) -> dict[str, Any]:
    """Return what to do with what cannot be kept as it is."""
    return {"densify": densify, "drop_foreign": drop_foreign, "plain": plain}


def manner(max_shard_size: str | None, no_digest: bool, no_check: bool, force: bool) -> dict[str, Any]:
    """Return how to write."""
    size = parse_size(max_shard_size) if max_shard_size else None
    return {"max_shard_size": size, "digest": not (no_digest or no_check), "check": not no_check, "force": force}


def parse_size(text: str) -> int:
    """Read a size such as ``5GB``, ``500 MB`` or ``2GiB``, in bytes; at least one.

    Raises
    ------
    UsageError
        It is no size.
    """
    found = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([kmgt]?i?)b?", text.strip().lower())
    size = int(float(found[1]) * _UNITS[found[2]]) if found and found[2] in _UNITS else 0
    if size < 1:
        raise UsageError(f"{text}: not a size", hint="such as 5GB, 500MB or 2GiB")
    return size
