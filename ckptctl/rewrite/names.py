"""New names for tensors: prefixes cut off, patterns replaced, no two alike."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckptctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from ckptctl.rewrite.options import Options


def parse_rename(text: str, *, option: str = "--rename") -> tuple[re.Pattern[str], str]:
    """Read ``REGEX=REPL``, divided at the last ``=``; `option` is called so in what is said of it.

    Raises
    ------
    UsageError
        It has no ``=``, or is no regular expression, or refers to a group that is not there.
    """
    pattern, mark, replacement = text.rpartition("=")
    if not mark or not pattern:
        raise UsageError(f"{option} {text}: not of the form REGEX=REPL")
    try:
        compiled = re.compile(pattern)
        re.compile(f"(?:{pattern})|").sub(replacement, "")
    except re.error as error:
        raise UsageError(f"{option} {text}: {error}") from None
    except IndexError:
        raise UsageError(f"{option} {text}: the replacement names a group that is not there") from None
    return compiled, replacement


def new_names(path: Path, names: Iterable[str], options: Options, *, prefix: str = "") -> dict[str, str]:
    """Return the new name of each tensor; `prefix` is the path that leads to the component.

    Raises
    ------
    UsageError
        Two tensors would have one name, or one would have none.
    """
    found: dict[str, str] = {}
    holder: dict[str, str] = {}
    for name in names:
        cut = name.removeprefix(f"{prefix}.") if prefix else name
        new = _stripped(cut, options.strip_prefix)
        for pattern, replacement in options.rename:
            new = pattern.sub(replacement, new)
        if not new and name:
            raise UsageError(f"{path}: {name} would have an empty name")
        other = holder.setdefault(new, name)
        if other != name:
            raise UsageError(f"{path}: {other} and {name} would both be called {new}")
        found[name] = new
    return found


def _stripped(name: str, prefixes: Sequence[str]) -> str:
    """Cut prefixes off, in whatever order they are nested."""
    while True:
        prefix = next((one for one in prefixes if one and name.startswith(one)), None)
        if prefix is None:
            return name
        name = name.removeprefix(prefix)


def without_match(names: Iterable[str], options: Options, *, prefix: str = "") -> tuple[str, ...]:
    """Return the prefixes to strip that no name begins with at any stage: most likely misspelt."""
    left = set(options.strip_prefix)
    for name in names:
        cut = name.removeprefix(f"{prefix}.") if prefix else name
        while left or cut:
            used = next((one for one in options.strip_prefix if one and cut.startswith(one)), None)
            if used is None:
                break
            left.discard(used)
            cut = cut.removeprefix(used)
    return tuple(one for one in options.strip_prefix if one in left)
