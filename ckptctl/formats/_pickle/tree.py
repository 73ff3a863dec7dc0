"""From what a pickle recorded to named tensors and plain values, without recursion.

A tensor is named by the keys that lead to it. Structure that is shared is named once for each
place, within a budget; what refers to itself, or lies too deep, is left out and said so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptctl.formats._pickle import limits
from ckptctl.formats._pickle.frames import Frame, open_frame
from ckptctl.formats._pickle.records import Call, Ext, Global, PersistentId
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

    def __init__(self, context: Context, levels: dict[str, Level]) -> None:
        self.tensors: dict[str, TensorInfo] = {}
        self.elided: dict[str, None] = {}
        self._context = context
        self._levels = levels
        self._open: set[int] = set()
        self._closed: dict[int, tuple[object, bool]] = {}
        self._budget = limits.MAX_REPEATS
        self._named = 0

    def build(self, root: object) -> object:
        """Return the values under `root`."""
        frames = [Frame(None, "", [("", root)])]
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
            if type(child) in _ATOMS:
                frame.done.append(child)
                continue
            text = key if isinstance(key, str) else key_text(key)
            path = f"{frame.path}.{text}" if frame.path else text
            made = self._made(child, path, depth)
            if isinstance(made, Frame):
                return made
            frame.done.append(made)
        return None

    def _made(self, node: object, path: str, depth: int) -> object:
        """Return what a node becomes, or the frame in which it will."""
        if isinstance(node, Call) and isinstance(node.value, (Draft, bytes, Span, Described)):
            node = node.value
        if isinstance(node, Draft):
            return self._tensor(node, path)
        if isinstance(node, PersistentId):
            return self._tensor(of_storage(self._context.storage(node)), path)
        if isinstance(node, Global):
            return Described(type="type", level=self._levels.get(str(node), Level.KNOWN), args=(str(node),))
        if isinstance(node, Ext):
            return Described(type=f"copyreg.extension {node.code}", level=Level.DANGEROUS)
        return node if isinstance(node, _ATOMS) else self._enter(node, path, depth)

    def _enter(self, node: object, path: str, depth: int) -> object:
        number = id(node)
        if number in self._open:
            return self._elide("it refers to itself")
        if depth >= limits.MAX_DEPTH:
            return self._elide(f"nested deeper than {limits.MAX_DEPTH}")
        value, has_tensors = self._closed.get(number, (None, True))
        if not has_tensors:
            return value
        frame = open_frame(node, path, self._levels)
        if number in self._closed:
            self._budget -= 1 + frame.size
            if self._budget < 0:
                self._named += 1
                self._elide("repeated too often to be named at each place")
                return value
        frame.named = self._named
        self._open.add(number)
        return frame

    def _tensor(self, draft: Draft, path: str) -> TensorRef:
        name = path or _ROOT
        if name in self.tensors:
            number = 2
            while f"{name}#{number}" in self.tensors:
                number += 1
            name = f"{name}#{number}"
        self._named += 1
        self.tensors[name] = draft.named(name)
        # Attributes of a tensor are kept where they are plain; what else hangs on it is not listed.
        state = draft.state if isinstance(draft.state, dict) else {}
        plain = {key: value for key, value in state.items() if isinstance(value, _ATOMS)}
        return TensorRef(name=name, type=draft.type, requires_grad=draft.requires_grad, state=plain or None)

    def _elide(self, why: str) -> Elided:
        self.elided[why] = None
        return Elided(why)
