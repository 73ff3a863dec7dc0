"""The options of `prune`."""

from __future__ import annotations

import enum
import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from ckptctl.errors import UsageError
from ckptctl.retention import AnchorMode, Mode, Policy
from ckptctl.storage import address

_RULES, _HOW, _TRASH = "What to keep (rules are united)", "How to go about it", "Trash"
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_PART = re.compile(r"([0-9]{1,9})(s|min|m|h|d|w)")
_STEPS = re.compile(r"[0-9]{1,18}(?:,[0-9]{1,18})*")
_LONGEST = 100 * 365 * 86400
_LEAST_AGE = timedelta(hours=1)

_DIRECTORY = "CKPTCTL_DIR"


class Verification(enum.Enum):
    """What a checkpoint must pass."""

    STRUCTURE = "structure"
    BYTES = "bytes"


Runs = Annotated[
    list[Path] | None,
    typer.Argument(
        parser=address,
        metavar="RUN...",
        help="Directories of checkpoints, or of such directories. Default: CKPTCTL_DIR, else here.",
    ),
]


def _count(flag: str, text: str, panel: str = _RULES) -> object:
    return typer.Option(flag, metavar="N", min=0, help=text, rich_help_panel=panel)


KeepLast = Annotated[int | None, _count("--keep-last", "The N whole ones of the highest steps. Default: 3.")]
KeepBest = Annotated[int | None, _count("--keep-best", "The N best by a metric. Default: 2.")]
Metric = Annotated[
    str, typer.Option("--metric", metavar="NAME", help="The metric of --keep-best.", rich_help_panel=_RULES)
]
Better = Annotated[
    Mode | None, typer.Option("--mode", help="Whether the metric is better low or high.", rich_help_panel=_RULES)
]
AnchorEvery = Annotated[
    int | None,
    typer.Option(
        "--anchor-every",
        metavar="STEPS",
        min=0,
        help="One for each multiple of so many steps. Default: 50000.",
        rich_help_panel=_RULES,
    ),
]
Anchor = Annotated[
    AnchorMode | None,
    typer.Option(
        "--anchor-mode", help="Which one: the first from there on, exactly there, or closest.", rich_help_panel=_RULES
    ),
]
KeepWithin = Annotated[
    str,
    typer.Option(
        "--keep-within", metavar="AGE", help="All so long before the newest one: 24h, 7d.", rich_help_panel=_RULES
    ),
]
KeepEvery = Annotated[
    str,
    typer.Option("--keep-every", metavar="TIME", help="One for each such time: 6h.", rich_help_panel=_RULES),
]
KeepStep = Annotated[
    list[str] | None,
    typer.Option("--keep-step", metavar="STEP,...", help="Exactly these steps.", rich_help_panel=_RULES),
]
Keep = Annotated[
    list[str] | None,
    typer.Option("--keep", metavar="GLOB", help="Those whose name matches. Repeatable.", rich_help_panel=_RULES),
]
RemoveIncomplete = Annotated[
    str,
    typer.Option(
        "--remove-incomplete",
        metavar="AGE",
        help="Also delete what is not whole and older than this, 1h at least.",
        rich_help_panel=_HOW,
    ),
]
Verified = Annotated[
    Verification,
    typer.Option(
        "--verify",
        help="What the newest one must pass to be the one that always stays.",
        rich_help_panel=_HOW,
    ),
]
MaxDelete = Annotated[int | None, _count("--max-delete", "Delete nothing if it would be more than N.", _HOW)]
DryRun = Annotated[
    bool, typer.Option("-n", "--dry-run", help="Say what would be deleted; delete nothing.", rich_help_panel=_HOW)
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.", rich_help_panel=_HOW)]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for another prune to end.", rich_help_panel=_HOW)]
NoLock = Annotated[
    bool, typer.Option("--no-lock", help="Go on where the file system has no locks.", rich_help_panel=_HOW)
]
TrashFor = Annotated[
    str,
    typer.Option(
        "--trash-for", metavar="AGE", help="Delete for good only by a prune after this time.", rich_help_panel=_TRASH
    ),
]
Restore = Annotated[
    str | None, typer.Option("--restore", metavar="NAME", help="Bring one back from the trash.", rich_help_panel=_TRASH)
]


def duration(text: str, option: str) -> timedelta:
    """Return a time such as ``24h``, ``7d`` or ``1d12h``; ``0`` is none.

    Raises
    ------
    UsageError
        It is no time.
    """
    parts = _PART.findall(text)
    if text == "0":
        return timedelta(0)
    if not text or "".join(number + unit for number, unit in parts) != text:
        raise UsageError(f"{option} {text[:40]!r} is no time", hint="write 30min, 24h, 7d, 2w or 1d12h")
    seconds = sum(int(number) * _UNITS[unit] for number, unit in parts)
    if seconds > _LONGEST:
        raise UsageError(f"{option} {text[:40]!r} is too long a time")
    return timedelta(seconds=seconds)


def policy_of(  # noqa: PLR0917  # one for each rule
    keep_last: int | None,
    keep_best: int | None,
    metric: str,
    mode: Mode | None,
    anchor_every: int | None,
    anchor_mode: AnchorMode | None,
    keep_within: str,
    keep_every: str,
    keep_step: list[str] | None,
    keep: list[str] | None,
    remove_incomplete: str,
) -> Policy:
    """Return the rules that were given, each that was not with its default.

    Raises
    ------
    UsageError
        They make no sense, or keep nothing.
    """
    default = Policy()
    policy = Policy(
        last=_or(keep_last, default.last),
        best=_or(keep_best, default.best),
        metric=metric,
        mode=mode,
        anchor_every=_or(anchor_every, default.anchor_every),
        anchor_mode=anchor_mode or default.anchor_mode,
        within=duration(keep_within, "--keep-within") or None if keep_within else None,
        every=duration(keep_every, "--keep-every") or None if keep_every else None,
        steps=frozenset(step for text in keep_step or () for step in _steps(text)),
        globs=tuple(keep or ()),
        remove_incomplete=duration(remove_incomplete, "--remove-incomplete") if remove_incomplete else None,
    )
    _check(policy, anchored=anchor_mode is not None)
    return policy


def _check(policy: Policy, *, anchored: bool) -> None:
    if policy.keeps_nothing:
        raise UsageError("every rule is off: nothing would be kept", hint="leave out a rule to have its default")
    if not policy.best and (policy.metric or policy.mode):
        raise UsageError("--metric and --mode say what --keep-best keeps, and that is off")
    if anchored and not policy.anchor_every:
        raise UsageError("--anchor-mode says which anchors are kept, and --anchor-every is off")
    if policy.remove_incomplete is not None and policy.remove_incomplete < _LEAST_AGE:
        raise UsageError("--remove-incomplete takes 1h at least: a save may be going on")
    if any(not glob for glob in policy.globs):
        raise UsageError("--keep takes a pattern, not an empty one")


def _or(given: int | None, default: int) -> int:
    return default if given is None else given


def _steps(text: str) -> list[int]:
    if not _STEPS.fullmatch(text):
        raise UsageError(f"--keep-step {text[:40]!r} is no list of steps", hint="write 1000,2000")
    return [int(step) for step in text.split(",")]


def directories(given: list[Path] | None) -> list[Path]:
    """Return the directories to prune: those that were given, else the one of the environment, else this one."""
    return given or [address(os.environ.get(_DIRECTORY) or ".")]


def check_restore(name: str, *, dry_run: bool) -> None:
    """Make sure that something is to be restored.

    Raises
    ------
    UsageError
        It has no name, or only a dry run was asked for.
    """
    if not name:
        raise UsageError("--restore takes the name of a checkpoint")
    if dry_run:
        raise UsageError("--restore changes something, --dry-run does not", hint="--json --dry-run lists the trash")
