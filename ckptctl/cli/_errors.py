"""The one funnel for errors: every exception ends here as a line, a hint and an exit status."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable

from ckptctl.cli._text import escape
from ckptctl.errors import CkptctlError

OK, NO, TROUBLE, INTERRUPTED = 0, 1, 2, 130
_LIMIT = 1000
_DEBUG = "CKPTCTL_DEBUG"


def guarded(call: Callable[[], int | None], *, as_json: bool) -> int:
    """Run something and return its exit status; whatever it raises is shown and becomes one."""
    return guarded_each([call], as_json=as_json)


def guarded_each(calls: Iterable[Callable[[], int | None]], *, as_json: bool) -> int:
    """Run one thing after another, going on after a failure; return the worst exit status."""
    worst = OK
    try:
        for call in calls:
            worst = max(worst, _status(call, as_json=as_json))
    except KeyboardInterrupt:
        _show("interrupted", "interrupted", None, as_json=as_json)
        return INTERRUPTED
    except BrokenPipeError:
        mute()
    return worst


def mute() -> None:
    """The reader of the output has seen enough: nothing more may be written, not even at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _status(call: Callable[[], int | None], *, as_json: bool) -> int:
    try:
        return call() or OK
    except CkptctlError as error:
        _show(error.slug, error.message, error.hint, as_json=as_json)
    except MemoryError:
        _show("no-memory", "out of memory", None, as_json=as_json)
    except BrokenPipeError:
        raise
    except OSError as error:
        _show("os-error", f"{error.filename or 'input or output'}: {error.strerror or error}", None, as_json=as_json)
    except Exception as error:  # noqa: BLE001  # the last line of defence: a traceback helps nobody but us
        _unexpected(error, as_json=as_json)
    return TROUBLE


def _unexpected(error: Exception, *, as_json: bool) -> None:
    # Typer's usage errors derive from a class that it vendors privately; this method tells them apart.
    describe = getattr(error, "format_message", None)
    if describe:
        context = getattr(error, "ctx", None)
        message = describe() or "which command? They are listed above"
        _show("usage", message, f"{context.command_path if context else 'ckptctl'} --help", as_json=as_json)
        return
    if os.environ.get(_DEBUG):
        traceback.print_exc()
    what = f"internal error: {type(error).__name__}: {error}"
    _show("internal", what, f"please report it, with what {_DEBUG}=1 prints", as_json=as_json)


def _show(slug: str, message: str, hint: str | None, *, as_json: bool) -> None:
    message = " ".join(message.splitlines())
    message = message if len(message) <= _LIMIT else message[: _LIMIT - 1] + "…"
    if as_json:
        document = {"error": {"slug": slug, "message": message, "hint": hint}}
        lines = [json.dumps(document, ensure_ascii=True)]
    else:
        lines = [f"ckptctl: {escape(message, limit=_LIMIT)}"]
        lines += [f"  hint: {escape(hint, limit=_LIMIT)}"] if hint else []
    # Where nobody can be told, the exit status still tells.
    with contextlib.suppress(OSError):
        print(*lines, sep="\n", file=sys.stderr, flush=True)
