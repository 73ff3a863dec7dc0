"""The opcodes of a pickle that are not in the machine's own loop, one small function each.

Each takes the machine and the index of its opcode in the window, and returns the index after it.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from ckptctl.formats._pickle import limits
from ckptctl.formats._pickle.records import Call, Global, PersistentId, Span, Token

if TYPE_CHECKING:
    from ckptctl.formats._pickle.machine import Machine

Handler = Callable[["Machine", int], int]

_CHUNK = 4096
_PLAIN_KEYS = (str, int, float, bool, bytes, type(None))


def _unknown(machine: Machine, i: int) -> int:
    raise machine.malformed(f"{machine.buffer[i]:#04x} is no opcode", i)


def _refused(machine: Machine, i: int) -> int:
    raise machine.malformed("it needs buffers from outside the file", i)


OPCODES: list[Handler] = [_unknown] * 256


def _op(code: bytes) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        OPCODES[code[0]] = handler
        return handler

    return register


# Literals ------------------------------------------------------------------------------------


def _constant(value: object) -> Handler:
    def push(machine: Machine, i: int) -> int:
        machine.stack.append(value)
        return i + 1

    return push


def _fresh(kind: type[list[object] | dict[object, object]]) -> Handler:
    def push(machine: Machine, i: int) -> int:
        machine.stack.append(kind())
        return i + 1

    return push


def _packed(form: str) -> Handler:
    packed = struct.Struct(form)

    def push(machine: Machine, i: int) -> int:
        machine.stack.append(packed.unpack_from(machine.buffer, i + 1)[0])
        return i + 1 + packed.size

    return push


def _line(machine: Machine, i: int) -> tuple[bytes, int]:
    """Return the text from index `i` up to a line end, and the index after it."""
    end = machine.buffer.find(b"\n", i, i + limits.MAX_LINE + 1)
    if end < 0:
        raise machine.malformed(f"a line of text has no end within {limits.MAX_LINE} bytes", i)
    return machine.buffer[i:end], end + 1


def _number(machine: Machine, i: int, text: bytes, kind: type[int | float]) -> float:
    if len(text) > limits.MAX_DIGITS:
        raise machine.malformed(f"a number of {len(text)} digits (limit {limits.MAX_DIGITS})", i)
    try:
        return kind(text)
    except ValueError:
        raise machine.malformed(f"{text[:20]!r} is no number", i) from None


@_op(b"I")
def _int(machine: Machine, i: int) -> int:
    text, after = _line(machine, i + 1)
    # Protocol 0 wrote False and True as these two.
    machine.stack.append(text == b"01" if text in (b"00", b"01") else _number(machine, i, text, int))
    return after


@_op(b"L")
def _long(machine: Machine, i: int) -> int:
    text, after = _line(machine, i + 1)
    machine.stack.append(_number(machine, i, text.removesuffix(b"L"), int))
    return after


@_op(b"F")
def _float(machine: Machine, i: int) -> int:
    text, after = _line(machine, i + 1)
    machine.stack.append(_number(machine, i, text, float))
    return after


def _sized_int(form: str) -> Handler:
    sized = struct.Struct(form)

    def push(machine: Machine, i: int) -> int:
        length: int = sized.unpack_from(machine.buffer, i + 1)[0]
        start = i + 1 + sized.size
        if not 0 <= length <= limits.MAX_INT_BYTES:
            raise machine.malformed(f"an integer of {length} bytes (limit {limits.MAX_INT_BYTES})", i)
        raw = machine.buffer[start : start + length]
        if len(raw) != length:
            raise machine.malformed("an integer is cut off", i)
        machine.stack.append(int.from_bytes(raw, "little", signed=True))
        return start + length

    return push


# Text and bytes ------------------------------------------------------------------------------


def _text(machine: Machine, i: int, raw: bytes) -> str:
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise machine.malformed("a string is not UTF-8", i) from None


def _text_or_bytes(machine: Machine, i: int, raw: bytes) -> str | bytes:
    """A Python 2 str: text if it can be."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _as_bytes(machine: Machine, i: int, raw: bytes) -> bytes:
    return raw


def _sized(form: str, make: Callable[[Machine, int, bytes], object], *, text: bool) -> Handler:
    """A length and that many bytes, pushed as what `make` makes of them, or left in the file if long."""
    sized = struct.Struct(form)
    most = limits.LONG_TEXT if text else limits.LONG_BYTES

    def push(machine: Machine, i: int) -> int:
        length: int = sized.unpack_from(machine.buffer, i + 1)[0]
        start = i + 1 + sized.size
        left = machine.source.length - machine.base - start
        if not 0 <= length <= left:
            raise machine.malformed(f"a string of {length} bytes where {left} are left", i)
        if length > most:
            machine.stack.append(Span(range=machine.source.sub(machine.base + start, length), text=text))
            return _skip(machine, start + length)
        raw = machine.buffer[start : start + length]
        if len(raw) < length:
            raw = machine.source.read(machine.base + start, length)
        machine.stack.append(make(machine, i, raw))
        return _skip(machine, start + length)

    return push


def _skip(machine: Machine, i: int) -> int:
    """Return index `i`, moving the window there first if it lies outside."""
    return i if i <= len(machine.buffer) else machine.refill(i)


_BYTES8 = _sized("<Q", _as_bytes, text=False)


@_op(b"\x96")
def _bytearray(machine: Machine, i: int) -> int:
    after = _BYTES8(machine, i)
    _call(machine, "BYTEARRAY8", machine.global_("builtins", "bytearray", "BYTEARRAY8"), (machine.stack.pop(),))
    return after


@_op(b"S")
def _string(machine: Machine, i: int) -> int:
    raw, after = _line(machine, i + 1)
    if len(raw) < 2 or raw[:1] != raw[-1:] or raw[:1] not in (b"'", b'"'):
        raise machine.malformed("a string lacks its quotes", i)
    try:
        decoded = codecs.escape_decode(raw[1:-1])[0]
    except ValueError:
        raise machine.malformed("a string has a bad escape", i) from None
    machine.stack.append(_text_or_bytes(machine, i, decoded))
    return after


@_op(b"V")
def _unicode(machine: Machine, i: int) -> int:
    raw, after = _line(machine, i + 1)
    try:
        machine.stack.append(raw.decode("raw-unicode-escape"))
    except UnicodeDecodeError:
        raise machine.malformed("a string has a bad escape", i) from None
    return after


# Stack and memo ------------------------------------------------------------------------------


@_op(b"0")
def _pop(machine: Machine, i: int) -> int:
    if machine.stack:
        machine.stack.pop()
    else:
        machine.stack = machine.metastack.pop()
    return i + 1


@_op(b"1")
def _pop_mark(machine: Machine, i: int) -> int:
    machine.stack = machine.metastack.pop()
    return i + 1


@_op(b"2")
def _dup(machine: Machine, i: int) -> int:
    machine.stack.append(machine.stack[-1])
    return i + 1


@_op(b"p")
def _put(machine: Machine, i: int) -> int:
    text, after = _line(machine, i + 1)
    machine.memo[int(_number(machine, i, text, int))] = machine.stack[-1]
    return after


@_op(b"g")
def _get(machine: Machine, i: int) -> int:
    text, after = _line(machine, i + 1)
    machine.stack.append(machine.memo[int(_number(machine, i, text, int))])
    return after


@_op(b"j")
def _long_get(machine: Machine, i: int) -> int:
    machine.stack.append(machine.memo[int.from_bytes(machine.buffer[i + 1 : i + 5], "little")])
    return i + 5


# Containers ----------------------------------------------------------------------------------


def _marked(machine: Machine) -> list[object]:
    """Take everything above the last mark off the stack."""
    items = machine.stack
    machine.stack = machine.metastack.pop()
    return items


def _tuple_of(count: int) -> Handler:
    def push(machine: Machine, i: int) -> int:
        items = tuple(machine.stack[-count:])
        if len(items) < count:
            raise IndexError
        machine.stack[-count:] = [items]
        return i + 1

    return push


@_op(b"l")
def _list(machine: Machine, i: int) -> int:
    items = _marked(machine)
    machine.stack.append(items)
    return i + 1


@_op(b"d")
def _dict(machine: Machine, i: int) -> int:
    items = _marked(machine)
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
            machine.check_clock()


def plain_key(key: object) -> object:
    """Return a dict key as it is if it is plain and small, else a token that equals nothing."""
    if type(key) in _PLAIN_KEYS:
        return key if type(key) is not int or key.bit_length() <= 64 else Token("large integer")
    if type(key) is tuple and len(key) <= 16 and all(type(part) in _PLAIN_KEYS for part in key):
        return key
    return Token(type(key).__name__.lower())


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


@_op(b"s")
def _setitem(machine: Machine, i: int) -> int:
    value, key = machine.stack.pop(), machine.stack.pop()
    _put_pairs(machine, i, machine.stack[-1], [key, value])
    return i + 1


@_op(b"u")
def _setitems(machine: Machine, i: int) -> int:
    items = _marked(machine)
    _put_pairs(machine, i, machine.stack[-1], items)
    return i + 1


@_op(b"a")
def _append(machine: Machine, i: int) -> int:
    item = machine.stack.pop()
    _put_items(machine, i, machine.stack[-1], [item])
    return i + 1


@_op(b"e")
@_op(b"\x90")
def _extend(machine: Machine, i: int) -> int:
    items = _marked(machine)
    _put_items(machine, i, machine.stack[-1], items)
    return i + 1


@_op(b"\x8f")
def _empty_set(machine: Machine, i: int) -> int:
    _call(machine, "EMPTY_SET", machine.global_("builtins", "set", "EMPTY_SET"), ())
    return i + 1


@_op(b"\x91")
def _frozenset(machine: Machine, i: int) -> int:
    items = _marked(machine)
    _call(machine, "FROZENSET", machine.global_("builtins", "frozenset", "FROZENSET"), (items,))
    return i + 1


# Globals and calls ---------------------------------------------------------------------------


def _call(machine: Machine, how: str, fn: object, args: object, kwargs: object = None) -> None:
    if type(args) is not tuple:
        raise machine.malformed("the arguments of a call are not a tuple", 0)
    if type(fn) is Global:
        fn.called += 1
    call = Call(how, fn, args, kwargs)
    machine.calls.append(call)
    machine.stack.append(call)


def _two_lines(machine: Machine, i: int) -> tuple[str, str, int]:
    module, after = _line(machine, i + 1)
    name, after = _line(machine, after)
    return _text(machine, i, module), _text(machine, i, name), after


@_op(b"c")
def _global(machine: Machine, i: int) -> int:
    module, name, after = _two_lines(machine, i)
    machine.stack.append(machine.global_(module, name, "GLOBAL"))
    return after


@_op(b"\x93")
def _stack_global(machine: Machine, i: int) -> int:
    name, module = machine.stack.pop(), machine.stack.pop()
    if type(name) is not str or type(module) is not str:
        raise machine.malformed("a global is named by something that is no text", i)
    machine.stack.append(machine.global_(module, name, "STACK_GLOBAL"))
    return i + 1


@_op(b"i")
def _inst(machine: Machine, i: int) -> int:
    module, name, after = _two_lines(machine, i)
    args = tuple(_marked(machine))
    _call(machine, "INST", machine.global_(module, name, "INST"), args)
    return after


@_op(b"o")
def _obj(machine: Machine, i: int) -> int:
    items = _marked(machine)
    _call(machine, "OBJ", items[0], tuple(items[1:]))
    return i + 1


@_op(b"\x81")
def _newobj(machine: Machine, i: int) -> int:
    args, cls = machine.stack.pop(), machine.stack.pop()
    _call(machine, "NEWOBJ", cls, args)
    return i + 1


@_op(b"\x92")
def _newobj_ex(machine: Machine, i: int) -> int:
    kwargs, args, cls = machine.stack.pop(), machine.stack.pop(), machine.stack.pop()
    _call(machine, "NEWOBJ_EX", cls, args, kwargs)
    return i + 1


@_op(b"b")
def _build(machine: Machine, i: int) -> int:
    state, target = machine.stack.pop(), machine.stack[-1]
    if not isinstance(target, Call):
        raise machine.malformed("a state is set on something that is no object", i)
    target.state = [*(target.state or ()), state]
    machine.calls.append(target)  # once more: its state is known only now
    return i + 1


@_op(b"R")
def _reduce(machine: Machine, i: int) -> int:
    args = machine.stack.pop()
    _call(machine, "REDUCE", machine.stack.pop(), args)
    return i + 1


@_op(b"Q")
def _binpersid(machine: Machine, i: int) -> int:
    machine.stack[-1] = PersistentId(machine.stack[-1])
    return i + 1


@_op(b"P")
def _persid(machine: Machine, i: int) -> int:
    text, after = _line(machine, i + 1)
    machine.stack.append(PersistentId(_text(machine, i, text)))
    return after


def _ext(form: str) -> Handler:
    packed = struct.Struct(form)

    def push(machine: Machine, i: int) -> int:
        machine.stack.append(machine.extension(packed.unpack_from(machine.buffer, i + 1)[0]))
        return i + 1 + packed.size

    return push


# Framing -------------------------------------------------------------------------------------


@_op(b"\x80")
def _proto(machine: Machine, i: int) -> int:
    if machine.buffer[i + 1] > 5:
        raise machine.malformed(f"protocol {machine.buffer[i + 1]} is unknown", i)
    return i + 2


@_op(b"\x95")
def _frame(machine: Machine, i: int) -> int:
    (length,) = struct.unpack_from("<Q", machine.buffer, i + 1)
    if length > machine.source.length - machine.base - i - 9:
        raise machine.malformed(f"a frame of {length} bytes reaches beyond the end", i)
    return i + 9


@_op(b".")
def _stop(machine: Machine, i: int) -> int:
    if len(machine.stack) != 1 or machine.metastack:
        raise machine.malformed("it stops with more or less than one value", i)
    machine.end = machine.base + i + 1
    return i + 1


OPCODES[ord("N")] = _constant(None)
OPCODES[0x88] = _constant(True)
OPCODES[0x89] = _constant(False)
OPCODES[ord(")")] = _constant(())
OPCODES[ord("]")] = _fresh(list)
OPCODES[ord("}")] = _fresh(dict)
OPCODES[ord("J")] = _packed("<i")
OPCODES[ord("M")] = _packed("<H")
OPCODES[ord("G")] = _packed(">d")
OPCODES[0x8A] = _sized_int("<B")
OPCODES[0x8B] = _sized_int("<i")
OPCODES[ord("X")] = _sized("<I", _text, text=True)
OPCODES[0x8C] = _sized("<B", _text, text=True)
OPCODES[0x8D] = _sized("<Q", _text, text=True)
OPCODES[ord("B")] = _sized("<I", _as_bytes, text=False)
OPCODES[ord("C")] = _sized("<B", _as_bytes, text=False)
OPCODES[0x8E] = _BYTES8
OPCODES[ord("T")] = _sized("<i", _text_or_bytes, text=False)
OPCODES[ord("U")] = _sized("<B", _text_or_bytes, text=False)
OPCODES[0x85] = _tuple_of(1)
OPCODES[0x86] = _tuple_of(2)
OPCODES[0x87] = _tuple_of(3)
OPCODES[0x82] = _ext("<B")
OPCODES[0x83] = _ext("<H")
OPCODES[0x84] = _ext("<i")
OPCODES[0x97] = OPCODES[0x98] = _refused
