"""Which tensor of A is which of B: by name, by name without wrappers, or by the same bytes under another name."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ckptctl.ops.diff.report import Renaming
from ckptctl.tensors.compare import same_bytes
from ckptctl.tensors.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ckptctl.model import TensorInfo
    from ckptctl.ops.diff.sides import Key

    Tensors = Mapping[Key, TensorInfo]

_WRAPPERS = frozenset({
    "module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module", "_wrapped_module",
})  # fmt: skip
"""Names that wrappers of modules add anywhere on the way to a parameter."""
_HEAD, _DEEP, _FEW, _ROUNDS, _MOST_EDITS = 1 << 16, 8, 2, 8, 50


@dataclass(frozen=True, slots=True)
class Pair:
    """A tensor of A and one of B; `renamed` if it has another name in its file."""

    key_a: Key
    key_b: Key
    a: TensorInfo
    b: TensorInfo
    renamed: bool = False


@dataclass(slots=True)
class Pairs:
    """What belongs together, and what is left on either side."""

    found: list[Pair]
    left_a: dict[Key, TensorInfo]
    left_b: dict[Key, TensorInfo]
    edits: Counter[tuple[str, str, bool]] = field(default_factory=Counter)
    examples: dict[tuple[str, str, bool], tuple[str, str]] = field(default_factory=dict)

    def take(self, a: Key, b: Key) -> None:
        """Put two together."""
        one, other = self.left_a.pop(a), self.left_b.pop(b)
        renamed = a != b and one.name != other.name
        self.found.append(Pair(a, b, one, other, renamed))
        if renamed:
            old, new = (a[1], b[1]) if a[1] != b[1] else (one.name, other.name)
            edit = _edit(old, new)
            self.edits[edit] += 1
            self.examples.setdefault(edit, (old, new))

    def renamings(self) -> tuple[Renaming, ...]:
        """Return what became of names, each kind of change once, the most frequent first."""
        return tuple(
            Renaming(old=old, new=new, front=front, count=count, example=self.examples[old, new, front])
            for (old, new, front), count in self.edits.most_common()
        )


def pair_by_name(a: Tensors, b: Tensors, *, stored: bool = True) -> Pairs:
    """Put together what has one name; then what has one but for its component, wrappers, or a path in front of it.

    With `stored`, names as they are in the files count too.
    """
    pairs = Pairs([Pair(key, key, a[key], b[key]) for key in a if key in b],
                  {key: one for key, one in a.items() if key not in b},
                  {key: one for key, one in b.items() if key not in a})  # fmt: skip
    for name_of in (*((_stored,) if stored else ()), _named, _unwrapped):
        _take_unique(pairs, name_of)
    for _ in range(_ROUNDS):
        if not (pairs.left_a and pairs.left_b and _take_below(pairs)):
            break
    return pairs


def _stored(key: Key, tensor: TensorInfo) -> str:  # noqa: ARG001  # each of these takes both
    return tensor.name


def _named(key: Key, tensor: TensorInfo) -> str:  # noqa: ARG001
    return key[1]


def _unwrapped(key: Key, tensor: TensorInfo) -> str:  # noqa: ARG001
    return ".".join(part for part in key[1].split(".") if part not in _WRAPPERS)


def _take_unique(pairs: Pairs, name_of: Callable[[Key, TensorInfo], str]) -> None:
    """Put together tensors of one shape that have one name only each, as `name_of` gives it."""
    sides: list[dict[str, list[Key]]] = [{}, {}]
    for names, left in zip(sides, (pairs.left_a, pairs.left_b), strict=True):
        for key, tensor in left.items():
            names.setdefault(name_of(key, tensor), []).append(key)
    for name, keys in sides[0].items():
        others = sides[1].get(name, [])
        if len(keys) == len(others) == 1 and pairs.left_a[keys[0]].shape == pairs.left_b[others[0]].shape:
            pairs.take(keys[0], others[0])


def _take_below(pairs: Pairs) -> bool:
    """Put together names that differ by a path in front, which most names below it do; return whether any are."""
    best: tuple[int, str, bool] = (0, "", False)
    for left, other, added in ((pairs.left_a, pairs.left_b, False), (pairs.left_b, pairs.left_a, True)):
        names = {name: one.shape for (_, name), one in other.items()}
        for prefix in _prefixes(left):
            below = [key for key in left if key[1].startswith(prefix)]
            fits = sum(names.get(key[1][len(prefix) :]) == left[key].shape for key in below)
            if fits >= _FEW and 2 * fits >= len(below):
                best = max(best, (fits, prefix, added))
    count, prefix, added = best
    if not count:
        return False
    longer, shorter = (pairs.left_b, pairs.left_a) if added else (pairs.left_a, pairs.left_b)
    short = {name: (component, name) for component, name in shorter}
    for key in [key for key in longer if key[1].startswith(prefix)]:
        other_key = short.get(key[1][len(prefix) :])
        if other_key in shorter and shorter[other_key].shape == longer[key].shape:
            pairs.take(*((other_key, key) if added else (key, other_key)))
    return True


def _prefixes(names: Iterable[Key]) -> list[str]:
    """Return the paths that the first names begin with, of each component."""
    found: dict[str, None] = {}
    for _, name in {component: (component, name) for component, name in names}.values():
        parts = name.split(".")[:-1][:_DEEP]
        found |= {".".join(parts[: depth + 1]) + ".": None for depth in range(len(parts))}
    return list(found)


def pair_by_bytes(pairs: Pairs, progress: Callable[[int], None]) -> None:
    """Put together what has the same bytes, type and shape under another name; reads what could be such a tensor."""
    kinds: list[dict[tuple[str, tuple[int, ...]], list[Key]]] = [{}, {}]
    for side, left in zip(kinds, (pairs.left_a, pairs.left_b), strict=True):
        for key, one in left.items():
            if one.layout == "strided" and one.whole:
                side.setdefault((one.dtype.name, one.shape), []).append(key)
    ambiguous: list[tuple[list[Key], list[Key]]] = []
    for kind in kinds[0].keys() & kinds[1].keys():
        by_head = [_by(_head, keys, left, progress) for keys, left in
                   zip((kinds[0][kind], kinds[1][kind]), (pairs.left_a, pairs.left_b), strict=True)]  # fmt: skip
        for head, keys in by_head[0].items():
            others = by_head[1].get(head, [])
            if len(keys) == len(others) == 1 and pairs.left_a[keys[0]].numel > 1:
                if same_bytes(pairs.left_a[keys[0]], pairs.left_b[others[0]], progress):
                    pairs.take(keys[0], others[0])
            elif others:
                ambiguous.append((keys, others))
    for keys, others in ambiguous:
        _take_alike(pairs, keys, others, progress)


def _take_alike(pairs: Pairs, keys: list[Key], others: list[Key], progress: Callable[[int], None]) -> None:
    """Among several of the same bytes go by what other names became, and then by their order."""
    edits = pairs.edits.most_common(_MOST_EDITS)
    by_digest = [_by(_digest, keys, pairs.left_a, progress), _by(_digest, others, pairs.left_b, progress)]
    for digest, same in by_digest[0].items():
        left = dict.fromkeys(by_digest[1].get(digest, ()))
        names = {key[1]: key for key in left}
        rest = []
        for key in same:
            renamed = (_renamed(key[1], edit) for edit, _ in edits)
            other = next((names[name] for name in renamed if name in names and names[name] in left), None)
            if other is None:
                rest.append(key)
                continue
            pairs.take(key, other)
            del left[other]
        if rest and pairs.left_a[rest[0]].numel > 1:
            for key, other in zip(rest, left, strict=False):
                pairs.take(key, other)


def _by(
    what: Callable[[TensorInfo, Callable[[int], None]], bytes],
    keys: Iterable[Key],
    tensors: Tensors,
    progress: Callable[[int], None],
) -> dict[bytes, list[Key]]:
    found: dict[bytes, list[Key]] = {}
    for key in keys:
        found.setdefault(what(tensors[key], progress), []).append(key)
    return found


def _head(tensor: TensorInfo, progress: Callable[[int], None]) -> bytes:
    stream = Stream(tensor)
    count = min(stream.ready(), _HEAD)
    progress(count)
    return hashlib.blake2b(stream.take(count), digest_size=16).digest()


def _digest(tensor: TensorInfo, progress: Callable[[int], None]) -> bytes:
    stream, digest = Stream(tensor), hashlib.blake2b(digest_size=32)
    while count := stream.ready():
        digest.update(stream.take(count))
        progress(count)
    return digest.digest()


def _edit(old: str, new: str) -> tuple[str, str, bool]:
    """Return the parts of two names that differ, and whether they stand in front."""
    a, b = old.split("."), new.split(".")
    end = 0
    while end < min(len(a), len(b)) and a[-1 - end] == b[-1 - end]:
        end += 1
    a, b = a[: len(a) - end], b[: len(b) - end]
    start = 0
    while start < min(len(a), len(b)) and a[start] == b[start]:
        start += 1
    return ".".join(a[start:]), ".".join(b[start:]), not start


def _renamed(name: str, edit: tuple[str, str, bool]) -> str:
    """Return what a name becomes by a change that other names went through."""
    old, new, front = edit
    if front:
        rest = name.removeprefix(f"{old}.") if old else name
        return (f"{new}.{rest}" if new else rest) if rest != name or not old else name
    return f".{name}.".replace(f".{old}.", f".{new}." if new else ".", 1).strip(".") if old else name
