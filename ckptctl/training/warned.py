"""Warnings of what happens to checkpoints in a training, as a terminal may show them: names are somebody else's."""

from __future__ import annotations

import sys
import warnings

from ckptctl.errors import printable


def warned(text: str, kind: type[Warning] = UserWarning, *, above: int = 1) -> None:
    """Warn whoever is so many calls `above` the caller."""
    warnings.warn(printable(text), kind, stacklevel=above + 2)


def warned_aside(text: str) -> None:
    """Warn from a thread, or a hook, which is to live on even where warnings are errors."""
    try:
        warned(text)
    except UserWarning:
        sys.stderr.write(f"ckptctl: {printable(text)}\n")
