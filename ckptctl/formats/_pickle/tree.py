"""From what a pickle recorded to named tensors and plain values, without recursion.

A tensor is named by the keys that lead to it. Structure that is shared is named once for each
place, within a budget; what refers to itself, or lies too deep, is left out and said so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckptctl.errors import LimitError
from ckptctl.formats._pickle import limits
from ckptctl.formats._pickle.frames import Frame, Levels, ModuleFrame, TensorFrame, open_frame, resolved_key, size_of
from ckptctl.formats._pickle.records import Call, Ext, Global, NodeToken, PersistentId
from ckptctl.formats._pickle.storages import Draft
from ckptctl.formats._pickle.torch_objects import of_storage
from ckptctl.model import Level, TensorInfo
from ckptctl.values import Described, Elided, Span, TensorRef, key_text

if TYPE_CHECKING:
    from ckptctl.formats._pickle.interpret import Context

_ATOMS = (type(None), bool, int, float, str, bytes, Span, Described)
_ROOT = "tensor"


class Tree:
    """Builds values and tensors; afterwards `tensors` has them by name, `elided` what was left out."""

    def __init__(self, context: Context, levels: Levels) -> None:
        self.tensors: dict[str, TensorInfo] = {}
        self.elided: dict[str, None] = {}
        self._context = context
        self._levels = levels
        self._open: set[int] = set()
        self._closed: dict[int, tuple[object, bool]] = {}
        self._listed: set[int] = set()
        self._aside: list[tuple[str | None, str, object, dict[object, object]]] = []
        self._new_only = False
        self._budget = limits.MAX_REPEATS
        self._named = 0
        self._letters = 0
        self._again: dict[str, int] = {}

    def build(self, root: object) -> object:
        """Return the values under `root`; `tensors` has all that the pickle makes, `elided` says what no name leads to.

        What is in the keys of a dict, or in what a module keeps for itself, is listed last, where it is not somewhere
        else as well.
        """
        values = self._walk([Frame(None, None, [(None, root)])])
        self._new_only = True
        for path, key, node, state in self._aside:  # which grows, if there is more in them
            before = self._named
            made = self._walk([Frame(None, None, ()), Frame(None, path, [(key, node)])])
            if self._named > before:
                state[key] = made[0] if isinstance(made, list) else made
        return values

    def lost(self, calls: list[Call]) -> int:
        """Return how many tensors are made that neither have a name nor are part of another one."""
        made = (id(call.value) for call in calls if isinstance(call.value, Draft))
        return len({number for number in made if number not in self._listed and number not in self._context.used})

    def _walk(self, frames: list[Frame]) -> object:
        """Rebuild what is left in the frames, the last one inside the others; return the value of the first."""
        while True:
            frame = frames[-1]
            inner = self._advance(frame, len(frames))
            if inner:
                frames.append(inner)
                continue
            frames.pop()
            if not frames:
                return frame.done[0]
            value = frame.close()
            self._open.discard(id(frame.node))
            self._closed[id(frame.node)] = (value, self._named > frame.named)
            frames[-1].done.append(value)

    def _advance(self, frame: Frame, depth: int) -> Frame | None:
        """Go on with a container up to the next one inside it, which is returned, or to its end."""
        for key, child in frame.children:
            frame.keys.append(key)
            if type(key) is NodeToken:
                self._aside.append((frame.path, str(key), key.node, {}))
            if type(child) in _ATOMS:
                frame.done.append(child)
                continue
            made = self._made(child, self._path(frame.path, key, depth), depth)
            if isinstance(made, Frame):
                return made
            frame.done.append(made)
        return None

    def _path(self, path: str | None, key: object, depth: int) -> str | None:
        if depth == 1:
            return None
        text = key if isinstance(key, str) else key_text(resolved_key(key))
        full = text if path is None else f"{path}.{text}"
        if len(full) > limits.MAX_PATH:
            raise self._limit(f"names something by {len(full)} characters")
        return full

    def _made(self, node: object, path: str | None, depth: int) -> object:
        """Return what a node becomes, or the frame in which it will."""
        if isinstance(node, Call) and isinstance(node.value, (Draft, bytes, Span, Described)):
            node = node.value
        if isinstance(node, Draft):
            return self._tensor(node, path, depth)
        if isinstance(node, PersistentId):
            return self._tensor(of_storage(self._context.storage(node)), path, depth)
        if isinstance(node, Global):
            return Described(type="type", level=self._levels.get(node.pair, Level.KNOWN), args=(str(node),))
        if isinstance(node, Ext):
            return Described(type=f"copyreg.extension {node.code}", level=Level.DANGEROUS)
        return node if isinstance(node, _ATOMS) else self._enter(node, path, depth)

    def _enter(self, node: object, path: str | None, depth: int) -> object:
        number = id(node)
        if number in self._open:
            return self._elide("it refers to itself")
        if depth >= limits.MAX_DEPTH:
            return self._elide(f"nested deeper than {limits.MAX_DEPTH}")
        if self._is_known(number, size_of(node)):
            return self._closed[number][0]
        return self._opened(open_frame(node, path, self._levels), number)

    def _is_known(self, number: int, size: int) -> bool:
        """Whether what became of a node before will do: it holds no tensors, or naming them again costs too much."""
        if number not in self._closed:
            return False
        return not self._closed[number][1] or self._new_only or not self._afford(1 + size)

    def _opened(self, frame: Frame, number: int) -> Frame:
        self._context.clock.check()
        if isinstance(frame, ModuleFrame):
            self._aside += [(frame.path, str(key), node, frame.state) for key, node in frame.private]
        frame.named = self._named
        self._open.add(number)
        return frame

    def _afford(self, cost: int) -> bool:
        """Pay for naming a shared structure once more, if the budget allows."""
        self._budget -= cost
        if self._budget >= 0:
            return True
        self._named += 1
        self._elide("repeated too often to be named at each place")
        return False

    def _tensor(self, draft: Draft, path: str | None, depth: int) -> object:
        if self._new_only and id(draft) in self._listed:
            return None
        self._listed.add(id(draft))
        name = self._unique(_ROOT if path is None else path)
        self._named += 1
        self._letters += len(name)
        if self._letters > limits.MAX_NAMES + 1000 * len(self.tensors):
            raise self._limit(f"has names of {self._letters} characters in all")
        self.tensors[name] = draft.named(name)
        ref = TensorRef(name=name, type=draft.type, requires_grad=draft.requires_grad)
        attributes = _attributes(draft.state)
        if not attributes:
            return ref
        number = id(draft)
        if number in self._open or depth >= limits.MAX_DEPTH:
            return self._elide("it refers to itself" if number in self._open else "nested too deep")
        if self._is_known(number, len(attributes)):
            return replace(ref, state=_state_of(self._closed[number][0]))
        return self._opened(TensorFrame(draft, ref, attributes.items()), number)

    def _unique(self, name: str) -> str:
        """Tell apart two tensors to which the same keys lead."""
        found = name
        while found in self.tensors:
            self._again[name] = number = self._again.get(name, 1) + 1
            found = f"{name}#{number}"
        return found

    def _elide(self, why: str) -> Elided:
        self.elided[why] = None
        return Elided(why)

    def _limit(self, what: str) -> LimitError:
        return LimitError(f"{self._context.source.file.path}: the pickle {what}")


def _attributes(state: object) -> dict[object, object]:
    """Return the attributes in a state: a dict, or the pair of one and of slots; else the state, as one."""
    holder = Call("", None, ())
    holder.state = [state]
    return {"state": state} if holder.other_states() else holder.attributes()


def _state_of(value: object) -> object:
    return value.state if isinstance(value, TensorRef) else None
