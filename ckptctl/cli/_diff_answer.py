"""What `diff` prints: a verdict, then what differs; or one document; or nothing but the exit status."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptctl.cli._diff_text import show
from ckptctl.cli._errors import NO, OK, TROUBLE, mute
from ckptctl.cli._output import Printer, print_json, to_json
from ckptctl.cli._progress import Bar
from ckptctl.ops.diff import Options, open_both

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """How to show it: modules down to `depth`, `top` of each kind."""

    depth: int | None
    top: int
    all: bool
    json: bool
    brief: bool
    quiet: bool


def answer(a: Path, b: Path, options: Options, shown: Shown) -> int:
    """Compare two checkpoints, print what differs, and return the exit status."""
    both = open_both(a, b, options)
    with Bar(2 * both.nbytes, shown=not shown.quiet) as bar:
        report = both.report(lambda count: bar.advance(2 * count), depth=shown.depth)
    status = TROUBLE if report.unread else OK if report.equal else NO
    try:
        if shown.json and not shown.quiet:
            print_json({"schema": "ckptctl.diff/1", "diff": to_json(report)})
        elif not shown.quiet:
            show(Printer(), report, top=shown.top, everything=shown.all, brief=shown.brief)
        sys.stdout.flush()
    except BrokenPipeError:  # nobody reads on; the exit status still counts
        mute()
    return status
