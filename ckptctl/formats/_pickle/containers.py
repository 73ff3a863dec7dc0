"""Opcodes that make and fill lists, tuples, dicts and sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptctl.formats._pickle import limits
from ckptctl.formats._pickle.calls import call, marked
from ckptctl.formats._pickle.records import Call, Global, NodeToken
from ckptctl.formats._pickle.strings import PUSH_BYTES8
from ckptctl.formats._pickle.table import OPCODES, Handler, op

if TYPE_CHECKING:
    from ckptctl.formats._pickle.machine import Machine

_CHUNK = 512
PLAIN_KEYS = (str, int, float, bool, bytes, type(None))


def _fresh(kind: type[list[object] | dict[object, object]]) -> Handler:
    def push(machine: Machine, i: int) -> int:
        machine.stack.append(kind())
        return i + 1

    return push


def _tuple_of(count: int) -> Handler:
    def push(machine: Machine, i: int) -> int:
        items = tuple(machine.stack[-count:])
        if len(items) < count:
            raise IndexError
        machine.stack[-count:] = [items]
        return i + 1

    return push


@op(b"l")
def _list(machine: Machine, i: int) -> int:
    items = marked(machine)
    machine.stack.append(items)
    return i + 1


@op(b"d")
def _dict(machine: Machine, i: int) -> int:
    items = marked(machine)
    made: dict[object, object] = {}
    machine.stack.append(made)
    _put_pairs(machine, i, made, items)
    return i + 1


def _put_pairs(machine: Machine, i: int, target: object, items: list[object]) -> None:
    if len(items) % 2:
        raise machine.malformed("a dict has a key without a value", i)
    _count(machine, len(items))
    if isinstance(target, Call):
        target.pairs = target.pairs or []
        target.pairs.extend((plain_key(key), value) for key, value in zip(items[::2], items[1::2], strict=True))
        return
    if type(target) is not dict:
        raise machine.malformed("items are put into something that is no dict", i)
    for start in range(0, len(items), _CHUNK):
        part = items[start : start + _CHUNK]
        for key, value in zip(part[::2], part[1::2], strict=True):
            target[key if type(key) is str else plain_key(key)] = value
        if start:
            machine.clock.check()


def plain_key(key: object) -> object:
    """Return a dict key as it is if it is plain and small, else a token that equals nothing.

    What is hashed must not recurse, nor collide at the will of whoever made the file: Python salts
    the hashes of text and bytes only.
    """
    if type(key) in PLAIN_KEYS:
        return key if type(key) is not int or key.bit_length() <= 64 else NodeToken("large integer", key)
    if type(key) is tuple and len(key) <= 16 and all(_is_small(part) for part in key):
        return key
    name = str(key.fn) if isinstance(key, Call) and isinstance(key.fn, Global) else type(key).__name__.lower()
    return NodeToken(name, key)


def _is_small(part: object) -> bool:
    return type(part) in (str, bytes, bool, type(None)) or (type(part) is int and part.bit_length() <= 32)


def _put_items(machine: Machine, i: int, target: object, items: list[object]) -> None:
    _count(machine, len(items))
    if type(target) is list:
        target.extend(items)
    elif isinstance(target, Call):
        target.items = target.items or []
        target.items.extend(items)
    else:
        raise machine.malformed("items are put into something that is no list", i)


def _count(machine: Machine, count: int) -> None:
    machine.items += count
    if machine.items > limits.MAX_ITEMS:
        raise machine.limit(f"holds more than {limits.MAX_ITEMS} items")


@op(b"s")
def _setitem(machine: Machine, i: int) -> int:
    value, key = machine.stack.pop(), machine.stack.pop()
    _put_pairs(machine, i, machine.stack[-1], [key, value])
    return i + 1


@op(b"u")
def _setitems(machine: Machine, i: int) -> int:
    items = marked(machine)
    _put_pairs(machine, i, machine.stack[-1], items)
    return i + 1


@op(b"a")
def _append(machine: Machine, i: int) -> int:
    item = machine.stack.pop()
    _put_items(machine, i, machine.stack[-1], [item])
    return i + 1


@op(b"e")
@op(b"\x90")
def _extend(machine: Machine, i: int) -> int:
    items = marked(machine)
    _put_items(machine, i, machine.stack[-1], items)
    return i + 1


@op(b"\x96")
def _bytearray(machine: Machine, i: int) -> int:
    after = PUSH_BYTES8(machine, i)
    call(machine, "BYTEARRAY8", machine.global_("builtins", "bytearray", "BYTEARRAY8"), (machine.stack.pop(),))
    return after


@op(b"\x8f")
def _empty_set(machine: Machine, i: int) -> int:
    call(machine, "EMPTY_SET", machine.global_("builtins", "set", "EMPTY_SET"), ())
    return i + 1


@op(b"\x91")
def _frozenset(machine: Machine, i: int) -> int:
    items = marked(machine)
    call(machine, "FROZENSET", machine.global_("builtins", "frozenset", "FROZENSET"), (items,))
    return i + 1


OPCODES[ord("]")] = _fresh(list)
OPCODES[ord("}")] = _fresh(dict)
OPCODES[0x85] = _tuple_of(1)
OPCODES[0x86] = _tuple_of(2)
OPCODES[0x87] = _tuple_of(3)
