"""Every error a user can meet: one class for each kind, a slug for machines, a hint for people."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


class CkptctlError(Exception):
    """The root of every error that this package raises on purpose.

    Parameters
    ----------
    message
        ``path: what is wrong (seen, expected)``.
    hint
        The next thing to do, if there is one.
    kind
        A finer word than the slug of the class for what is wrong, such as ``truncated``: findings are called by it.
    """

    slug = "error"

    def __init__(self, message: str, *, hint: str | None = None, kind: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.kind = kind

    def __str__(self) -> str:
        """Return the message as a terminal may show it: names of files are somebody else's."""
        return printable(self.message)


class UsageError(CkptctlError):
    """What was asked makes no sense, such as a pattern that is no regular expression."""

    slug = "usage"


class UnreadableError(CkptctlError):
    """There is no such file, or it may not be read, or it is not a regular file."""

    slug = "unreadable"


class ChangedError(CkptctlError):
    """The file was changed by somebody else while it was being read."""

    slug = "changed"


class UnknownFormatError(CkptctlError):
    """The content is not a checkpoint; the message says what it is, as far as can be told."""

    slug = "unknown-format"


class UnsupportedError(CkptctlError):
    """A known format, or a form of one, that is named and not read."""

    slug = "unsupported"


class MissingExtraError(CkptctlError):
    """A package is needed that the plain installation leaves out; the message names what to install."""

    slug = "missing-extra"


class CorruptError(CkptctlError):
    """The content breaks a rule of its own format: cut, overwritten, or never valid."""

    slug = "corrupt"


class MissingBaseError(CorruptError):
    """What a delta leaves out is in a file beside it, its base, and that is not there or cannot be read."""

    slug = "missing-base"


class LimitError(CkptctlError):
    """The content asks for more depth, time or memory than any real checkpoint needs."""

    slug = "limit"


class UnsafePickleError(CkptctlError):
    """A pickle that would run code when loaded: one that breaks off, or one that is to be converted."""

    slug = "unsafe-pickle"


class ExistsError(CkptctlError):
    """There is something already where a file is to be written."""

    slug = "exists"


class PolicyError(CkptctlError):
    """What was asked to keep would lose what must not be lost, or says too little: nothing was deleted."""

    slug = "policy"


class LockedError(CkptctlError):
    """Somebody else is writing the same file at this moment."""

    slug = "locked"


class NoSpaceError(CkptctlError):
    """There is not enough room for what is to be written; nothing was."""

    slug = "no-space"


class OverflowRefusedError(CkptctlError):
    """A cast would turn numbers into infinity."""

    slug = "overflow"


@contextlib.contextmanager
def about(path: Path) -> Iterator[None]:
    """Begin the message of an error met meanwhile with a path, unless it names that already."""
    try:
        yield
    except CkptctlError as error:
        if str(path) in error.message:
            raise
        raise type(error)(f"{path}: {error.message}", hint=error.hint, kind=error.kind) from None


def printable(text: str) -> str:
    """Return text so that a terminal shows it and does nothing else: no control, no marks that turn it round."""
    return text if text.isprintable() else "".join(char if char.isprintable() else _coded(char) for char in text)


def _coded(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def counted(amount: int, noun: str) -> str:
    """Return an amount with its noun: ``1 tensor``, ``2 tensors``."""
    return f"{amount} {noun}" if amount == 1 else f"{amount} {noun}s"


def listed(names: Sequence[str], most: int = 4) -> str:
    """Return the first names, and how many more there are: ``a, b and 3 more``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
