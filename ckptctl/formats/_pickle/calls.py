"""Opcodes that name globals, and those that would call them; the stack, the memo, the frame."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from ckptctl.formats._pickle.literals import line, number
from ckptctl.formats._pickle.records import Call, Global, PersistentId
from ckptctl.formats._pickle.strings import as_text
from ckptctl.formats._pickle.table import OPCODES, Handler, op

if TYPE_CHECKING:
    from ckptctl.formats._pickle.machine import Machine


def marked(machine: Machine) -> list[object]:
    """Take everything above the last mark off the stack."""
    items = machine.stack
    machine.stack = machine.metastack.pop()
    return items


def call(machine: Machine, how: str, fn: object, args: object, kwargs: object = None) -> None:
    """Record a call and push it."""
    if type(args) is not tuple:
        raise machine.malformed("the arguments of a call are not a tuple", 0)
    if type(fn) is Global:
        fn.called += 1
    made = Call(how, fn, args, kwargs)
    machine.calls.append(made)
    machine.stack.append(made)


def _two_lines(machine: Machine, i: int) -> tuple[str, str, int]:
    module, after = line(machine, i + 1)
    name, after = line(machine, after)
    return as_text(machine, i, module), as_text(machine, i, name), after


@op(b"c")
def _global(machine: Machine, i: int) -> int:
    module, name, after = _two_lines(machine, i)
    machine.stack.append(machine.global_(module, name, "GLOBAL"))
    return after


@op(b"\x93")
def _stack_global(machine: Machine, i: int) -> int:
    name, module = machine.stack.pop(), machine.stack.pop()
    if type(name) is not str or type(module) is not str:
        raise machine.malformed("a global is named by something that is no text", i)
    machine.stack.append(machine.global_(module, name, "STACK_GLOBAL"))
    return i + 1


@op(b"i")
def _inst(machine: Machine, i: int) -> int:
    module, name, after = _two_lines(machine, i)
    args = tuple(marked(machine))
    call(machine, "INST", machine.global_(module, name, "INST"), args)
    return after


@op(b"o")
def _obj(machine: Machine, i: int) -> int:
    items = marked(machine)
    call(machine, "OBJ", items[0], tuple(items[1:]))
    return i + 1


@op(b"\x81")
def _newobj(machine: Machine, i: int) -> int:
    args, cls = machine.stack.pop(), machine.stack.pop()
    call(machine, "NEWOBJ", cls, args)
    return i + 1


@op(b"\x92")
def _newobj_ex(machine: Machine, i: int) -> int:
    kwargs, args, cls = machine.stack.pop(), machine.stack.pop(), machine.stack.pop()
    call(machine, "NEWOBJ_EX", cls, args, kwargs)
    return i + 1


@op(b"b")
def _build(machine: Machine, i: int) -> int:
    state, target = machine.stack.pop(), machine.stack[-1]
    if not isinstance(target, Call):
        raise machine.malformed("a state is set on something that is no object", i)
    if target.state is None:
        target.state = []
    target.state.append(state)
    machine.calls.append(target)  # once more: its state is known only now
    return i + 1


@op(b"R")
def _reduce(machine: Machine, i: int) -> int:
    args = machine.stack.pop()
    call(machine, "REDUCE", machine.stack.pop(), args)
    return i + 1


@op(b"Q")
def _binpersid(machine: Machine, i: int) -> int:
    value = machine.stack[-1]
    match value:
        case ("module", Global() as cls, *_):
            # Old files of whole modules bring the source text of each class along: only the class counts.
            machine.stack[-1] = cls
        case _:
            machine.stack[-1] = found = PersistentId(value)
            machine.storages.append(found)
    return i + 1


@op(b"P")
def _persid(machine: Machine, i: int) -> int:
    text, after = line(machine, i + 1)
    machine.stack.append(PersistentId(as_text(machine, i, text)))
    return after


def _ext(form: str) -> Handler:
    packed = struct.Struct(form)

    def push(machine: Machine, i: int) -> int:
        code: int = packed.unpack_from(machine.buffer, i + 1)[0]
        if code <= 0:
            raise machine.malformed(f"extension code {code}", i)
        machine.stack.append(machine.extension(code))
        return i + 1 + packed.size

    return push


@op(b"0")
def _pop(machine: Machine, i: int) -> int:
    if machine.stack:
        machine.stack.pop()
    else:
        machine.stack = machine.metastack.pop()
    return i + 1


@op(b"1")
def _pop_mark(machine: Machine, i: int) -> int:
    machine.stack = machine.metastack.pop()
    return i + 1


@op(b"2")
def _dup(machine: Machine, i: int) -> int:
    machine.stack.append(machine.stack[-1])
    return i + 1


@op(b"p")
def _put(machine: Machine, i: int) -> int:
    text, after = line(machine, i + 1)
    machine.put(int(number(machine, i, text, int)), machine.stack[-1])
    return after


@op(b"g")
def _get(machine: Machine, i: int) -> int:
    text, after = line(machine, i + 1)
    machine.stack.append(machine.get(int(number(machine, i, text, int))))
    return after


@op(b"j")
def _long_get(machine: Machine, i: int) -> int:
    machine.stack.append(machine.get(int.from_bytes(machine.buffer[i + 1 : i + 5], "little")))
    return i + 5


@op(b"\x80")
def _proto(machine: Machine, i: int) -> int:
    if machine.buffer[i + 1] > 5:
        raise machine.malformed(f"protocol {machine.buffer[i + 1]} is unknown", i)
    return i + 2


@op(b"\x95")
def _frame(machine: Machine, i: int) -> int:
    (length,) = struct.unpack_from("<Q", machine.buffer, i + 1)
    if length > machine.source.length - machine.base - i - 9:
        raise machine.malformed(f"a frame of {length} bytes reaches beyond the end", i)
    return i + 9


@op(b".")
def _stop(machine: Machine, i: int) -> int:
    if len(machine.stack) != 1 or machine.metastack:
        raise machine.malformed("it stops with more or less than one value", i)
    machine.end = machine.base + i + 1
    return i + 1


def _refused(machine: Machine, i: int) -> int:
    raise machine.malformed("it needs buffers from outside the file", i)


OPCODES[0x82] = _ext("<B")
OPCODES[0x83] = _ext("<H")
OPCODES[0x84] = _ext("<i")
OPCODES[0x97] = OPCODES[0x98] = _refused
