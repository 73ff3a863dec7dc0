"""Strict JSON, as the reference implementation of safetensors reads it (serde_json).

Python's own decoder keeps the last of equal keys, takes NaN, Infinity, ``-0`` and lone surrogates,
and gives up on long numbers and deep nesting in ways of its own. Here equal keys are kept apart
and the rest is refused, whatever the version of Python.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable

from ckptctl.errors import CorruptError

MAX_DEPTH = 127
_SPACE = " \t\n\r"
_U64_DIGITS = 20
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class Pairs(list[tuple[str, object]]):
    """The members of a JSON object, in order, equal keys and all."""


class Number(str):
    """The text of a number that is no unsigned 64-bit integer."""

    __slots__ = ()


Hook = Callable[[list[tuple[str, object]]], object]


def parse(raw: bytes, *, where: str, hook: Hook = Pairs) -> object:
    """Parse exactly one JSON value with white space around it; `hook` gets the members of objects.

    Raises
    ------
    CorruptError
        It is not one; `where` begins the message.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise CorruptError(f"{where} is not UTF-8 (at byte {error.start})") from None
    _check_surrogates(text, where)
    decoder = json.JSONDecoder(
        object_pairs_hook=hook, parse_int=_integer, parse_float=_number, parse_constant=_constant
    )
    start = len(text) - len(text.lstrip(_SPACE))
    try:
        value, end = decoder.raw_decode(text, start)
    except RecursionError:
        raise CorruptError(f"{where} is nested too deeply") from None
    except ValueError as error:
        at = getattr(error, "pos", None)
        raise CorruptError(f"{where} is not valid JSON" + (f" (at character {at})" if at is not None else "")) from None
    if text[end:].strip(_SPACE):
        raise CorruptError(f"{where} goes on after its end (at character {end})")
    return value


def depth(value: object) -> int:
    """Return how many lists and objects are nested in a parsed value, itself included."""
    deepest, todo = 0, [(value, 1)]
    while todo:
        value, level = todo.pop()
        if isinstance(value, Pairs):
            inside = [inner for _, inner in value]
        elif isinstance(value, (list, tuple)):
            inside = list(value)
        else:
            continue
        deepest = max(deepest, level)
        todo += [(inner, level + 1) for inner in inside]
    return deepest


def _integer(text: str) -> int | Number:
    return _number(text) if len(text) > _U64_DIGITS or text[0] == "-" else int(text)


def _number(text: str) -> Number:
    if math.isinf(float(text)):
        raise ValueError(text)
    return Number(text)


def _constant(text: str) -> object:
    raise ValueError(text)


def _check_surrogates(text: str, where: str) -> None:
    """Refuse half a surrogate pair; Python lets it pass and then cannot print it."""
    if not _SURROGATE.search(text):
        return
    awaited = -1
    for match in _ESCAPE.finditer(text):
        code = int(match[1][1:], 16) if match[1][0] == "u" and len(match[1]) == 5 else 0
        low = 0xDC00 <= code < 0xE000
        if low != (match.start() == awaited) or (awaited >= 0 and match.start() > awaited):
            raise CorruptError(f"{where} holds half a surrogate pair (at character {match.start()})")
        awaited = match.end() if 0xD800 <= code < 0xDC00 else -1
    if awaited >= 0:
        raise CorruptError(f"{where} holds half a surrogate pair at its end")
