"""Random objects saved by torch, and what torch loads of them against what is listed: ``python -m tests.trials pickles``.

Objects are made of dicts, ordered dicts, lists, tuples, sets, modules, classes with every kind of state, parameters
and subclasses with attributes, arrays, keys that are no text, shared parts and circles. Found is: a tensor that torch
loads and `inspect` does not list (with all its values), one of the plain names of a state dict with other values than
torch has under it, and an object that is refused.
"""

from __future__ import annotations

import argparse
import collections
import random
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from ckptctl.formats import read
from ckptctl.storage import LocalFile
from ckptctl.tensors.gather import blocks

_DEPTH = 5


class Slotted:
    __slots__ = ("__dict__", "left", "right")


class Stated:
    """What it keeps is its own affair."""

    def __init__(self, state):
        self.kept = state

    def __getstate__(self):
        return self.kept

    def __setstate__(self, state):
        self.kept = state


class Filled(dict):
    pass


class Listed(list):
    pass


class Module(torch.nn.Module):
    pass


class Made:
    """A call, and what is then done to its result."""

    def __init__(self, *reduced):
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


class Objects:
    """Makes random objects; every tensor has values of its own."""

    def __init__(self, chosen: random.Random) -> None:
        self.chosen = chosen
        self.count = 0
        self.made: list[object] = []

    def tensor(self) -> torch.Tensor:
        self.count += 1
        made = torch.full((self.chosen.randrange(1, 4),), float(self.count))
        match self.chosen.randrange(6):
            case 0:
                made = torch.nn.Parameter(made)
            case 1:
                made.note = self.any(_DEPTH - 1)  # type: ignore[attr-defined]
        return made

    def key(self) -> object:
        chosen = self.chosen.randrange(12)
        if chosen == 0:
            return self.tensor()
        return {1: 3, 2: (1, "a"), 3: None, 4: 2**70, 5: b"k"}.get(chosen, self.chosen.choice("abcdefgh") * 2)

    def pairs(self, depth: int) -> list[tuple[object, object]]:
        return [(self.key(), self.any(depth)) for _ in range(self.chosen.randrange(4))]

    def items(self, depth: int) -> list[object]:
        return [self.any(depth) for _ in range(self.chosen.randrange(4))]

    def named(self, depth: int) -> dict[str, object]:
        return {f"{self.chosen.choice(('', '_'))}{name}": self.any(depth)
                for name in self.chosen.sample(("p", "q", "r", "s"), self.chosen.randrange(4))}  # fmt: skip

    def any(self, depth: int = 0) -> object:
        """Return an object, or one that stands elsewhere already."""
        if self.made and not self.chosen.randrange(8):
            return self.chosen.choice(self.made)
        if depth >= _DEPTH or not self.chosen.randrange(3):
            return self.chosen.choice((self.tensor, self.tensor, lambda: 7, lambda: "text", lambda: None))()
        made = self.chosen.choice(
            (self._dict, self._list, self._tuple, self._ordered, self._module, self._slotted, self._stated,
             self._filled, self._call, self._array)
        )(depth + 1)  # fmt: skip
        self.made.append(made)
        return made

    def _dict(self, depth: int) -> object:
        return dict(self.pairs(depth))

    def _list(self, depth: int) -> object:
        made = self.items(depth)
        if not self.chosen.randrange(10):
            made.append(made)
        return made

    def _tuple(self, depth: int) -> object:
        return tuple(self.items(depth))

    def _ordered(self, depth: int) -> object:
        made = collections.OrderedDict(self.pairs(depth))
        if not self.chosen.randrange(4):
            made._metadata = self.any(depth)  # type: ignore[attr-defined]
        return made

    def _module(self, depth: int) -> object:
        made = Module()
        for name in ("one", "two"):
            match self.chosen.randrange(5):
                case 0:
                    made.register_parameter(name, torch.nn.Parameter(self.tensor().detach()))
                case 1:
                    made.register_buffer(name, self.tensor().detach(), persistent=bool(self.chosen.randrange(2)))
                case 2:
                    made.add_module(name, self._module(depth + 1) if depth < _DEPTH else None)  # type: ignore[arg-type]
        made.__dict__.update(self.named(depth))
        return made

    def _slotted(self, depth: int) -> object:
        made = Slotted()
        if self.chosen.randrange(2):
            made.left = self.any(depth)
        made.__dict__.update(self.named(depth))
        return made

    def _stated(self, depth: int) -> object:
        return Stated(self.chosen.choice((self.any, self._tuple, self._dict, self._list))(depth))

    def _filled(self, depth: int) -> object:
        made = Filled(self.pairs(depth)) if self.chosen.randrange(2) else Listed(self.items(depth))
        made.__dict__.update(self.named(depth))
        return made

    def _call(self, depth: int) -> object:
        pairs = [pair for pair in self.pairs(depth) if not isinstance(pair[0], torch.Tensor)]
        return self.chosen.choice(
            (
                Made(collections.OrderedDict, ([list(pair) for pair in pairs],)),
                Made(collections.OrderedDict, (), None, None, iter(pairs + pairs[:1])),
                Made(collections.deque, (self.items(depth),)),
                Made(Listed, (), {"p": self.any(depth)}, iter(self.items(depth)), iter(())),
            )
        )

    def _array(self, depth: int) -> object:  # as the others
        self.count += 1
        return np.full(self.chosen.randrange(1, 4), float(self.count))


def contents(root: object) -> set[tuple[float, ...]]:
    """Return the values of every tensor that an object holds, wherever."""
    found, seen, todo = set[tuple[float, ...]](), dict[int, object](), [root]
    while todo:
        value = todo.pop()
        if id(value) in seen or isinstance(value, (str, bytes, int, float, type(None), type)):
            continue
        seen[id(value)] = value
        if isinstance(value, (torch.Tensor, np.ndarray)):
            found.add(tuple(np.asarray(value.detach() if isinstance(value, torch.Tensor) else value).tolist()))
        elif isinstance(value, dict):
            todo += [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple, set, frozenset, collections.deque)):
            todo += value
        todo.append(getattr(value, "__dict__", None))
        todo += [getattr(value, name, None) for name in ("left", "right")]
    return found


def problem(path: Path) -> str:
    """Say what is wrong with what is listed of a file, if anything is."""
    loaded = torch.load(path, weights_only=False)
    listed = {}
    for name, tensor in read(LocalFile(path).range()).tensors.items():
        kind = np.float64 if tensor.dtype.name == "F64" else np.float32
        listed[name] = tuple(np.frombuffer(b"".join(blocks(tensor, most=1 << 20)), kind).tolist())
    if lost := contents(loaded) - set(listed.values()):
        return f"not listed: {sorted(lost)[:3]}"
    for key, value in loaded.items() if isinstance(loaded, dict) else ():
        if isinstance(value, torch.Tensor) and isinstance(key, str) and listed.get(key) != tuple(value.tolist()):
            return f"{key} is {listed.get(key)}, torch has {value.tolist()}"
    return ""


def tried(place: Path, seed: int) -> str:
    """Save a random object, and say what is wrong with what is listed of it."""
    torch.save(Objects(random.Random(seed)).any(), place)
    try:
        return problem(place)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is found
        return f"{type(error).__name__}: {error}"


def main(*arguments: str) -> list[str]:
    """Try objects for some minutes."""
    parser = argparse.ArgumentParser(prog="python -m tests.trials pickles")
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    count, found, end = 0, list[str](), time.monotonic() + 60 * given.minutes
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory) / "m.pt"
        while time.monotonic() < end:
            if wrong := tried(place, given.seed + count):
                found.append(f"- seed {given.seed + count}: {wrong}")
            count += 1
    return [f"{count:,} objects, {len(found)} found.", "", *found] if found else [f"{count:,} objects, 0 found."]
