"""The lines of files that hold digests, in all the forms that tools write."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckptctl.errors import CkptctlError
from ckptctl.storage import open_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_SUMS = 64 << 20
"""Bytes of the longest list of digests that is read."""
_COREUTILS = re.compile(r"(\\?)([0-9a-fA-F]{64})(?:[ \t]+\*?(.+))?")
_BSD = re.compile(r"SHA(?:2-)?256 ?\((.+)\) ?= ?([0-9a-fA-F]{64})")
_PREFIXED = re.compile(r"sha256:([0-9a-fA-F]{64})")
_ESCAPES = {"\\\\": "\\", "\\n": "\n", "\\r": "\r"}


def lines_of(source: Path, most: int) -> Iterator[tuple[str, str]]:
    """Yield digest and name (which may be empty) of each line that has the form of one."""
    try:
        file = open_file(source)
        raw = file.range().read() if file.size <= most else b""
        file.release()
    except CkptctlError:
        return  # it cannot be read: then there is no digest on record
    for line in raw.decode("utf-8", "surrogateescape").splitlines():
        found = _parsed(line.strip("\r\n\0\ufeff "))
        if found:
            yield found


def _parsed(text: str) -> tuple[str, str] | None:
    """Return digest and name of one line; None if it has none of the known forms."""
    found, bsd, prefixed = _COREUTILS.fullmatch(text), _BSD.fullmatch(text), _PREFIXED.fullmatch(text)
    if found:
        name = found[3] or ""
        return found[2].lower(), _unescaped(name) if found[1] else name
    if bsd:
        return bsd[2].lower(), bsd[1]
    return (prefixed[1].lower(), "") if prefixed else None


def is_readable(source: Path) -> bool:
    """Whether every line of a list of digests is understood, so that it may be written anew without a loss."""
    try:
        file = open_file(source)
        text = file.range().read().decode("utf-8", "surrogateescape") if file.size <= MAX_SUMS else "too long"
        file.release()
    except CkptctlError:
        return False
    lines = [line.strip("\r\n\0\ufeff ") for line in text.splitlines()]
    return all(_parsed(line) for line in lines if line)


def _unescaped(name: str) -> str:
    return re.sub(r"\\[\\nr]", lambda match: _ESCAPES[match[0]], name)
