"""What changed between two checkpoints: structure, values of tensors, plain values. Nothing is written."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ckptctl.errors import UsageError
from ckptctl.model import Component
from ckptctl.ops.diff.beside import byte_identical, metadata_differences, notes, rank_differences
from ckptctl.ops.diff.modules import roll_up
from ckptctl.ops.diff.options import Options
from ckptctl.ops.diff.pairing import Pairs, pair_by_bytes, pair_by_name
from ckptctl.ops.diff.report import DiffReport, Kind, ModuleDiff, Renaming, Side, TensorDiff, TensorLine, TieDiff
from ckptctl.ops.diff.sides import Opened, completed, open_side
from ckptctl.ops.diff.work import compare_all
from ckptctl.rewrite.trees import count_values
from ckptctl.storage import address
from ckptctl.values.compare import ValueDiff, value_differences

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from ckptctl.model import TensorInfo
    from ckptctl.ops.diff.sides import Key

__all__ = [
    "Comparison", "DiffReport", "Kind", "ModuleDiff", "Options", "Renaming", "Side", "TensorDiff", "TensorLine",
    "TieDiff", "ValueDiff", "diff", "open_both",
]  # fmt: skip


def diff(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    options: Options | None = None,
    depth: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> DiffReport:
    """Compare two checkpoints of whatever formats and layouts.

    Parameters
    ----------
    options
        What to compare, and what counts as equal.
    depth
        Down to how many names modules are told apart in the roll-up.
    progress
        Is told of every number of bytes read of each side.

    Raises
    ------
    CkptctlError
        One of them cannot be read, or is not whole; the class says which.
    """
    return open_both(address(a), address(b), options or Options()).report(progress, depth=depth)


def open_both(a: Path, b: Path, options: Options) -> Comparison:
    """Open both sides, and put together what belongs together by name. No tensor is read."""
    one, other = completed(open_side(a, options, first=True), open_side(b, options, first=False))
    _check_selected(one, other, options)
    same = not options.rename and a.samefile(b)
    pairs = pair_by_name(one.tensors, other.tensors, stored=not options.rename)
    return Comparison(a=one, b=other, options=options, pairs=pairs, same_file=same)


def _check_selected(a: Opened, b: Opened, options: Options) -> None:
    """Refuse a comparison of nothing, which would find all of it equal."""
    if a.tensors or b.tensors or any(a.values.values()) or any(b.values.values()):
        return
    if options.selects:
        raise UsageError("--include and --exclude leave no tensor of either side")
    if options.only:
        there = ", ".join({one.value: None for side in (a, b) for one in side.checkpoint.parts}) or "nothing"
        raise UsageError(f"neither side has a component {options.only.value}", hint=f"they have: {there}")


@dataclass(slots=True, kw_only=True)
class Comparison:
    """Two opened checkpoints, to be compared."""

    a: Opened
    b: Opened
    options: Options
    pairs: Pairs
    same_file: bool
    _read: int = field(default=0)

    @property
    def nbytes(self) -> int:
        """How many bytes of each side there are to read."""
        return 0 if self.same_file else sum(pair.a.nbytes for pair in self.pairs.found)

    def report(self, progress: Callable[[int], None] = lambda _: None, *, depth: int | None = None) -> DiffReport:
        """Compare them; raises a `CkptctlError` if a file was changed meanwhile."""

        def advance(count: int) -> None:
            self._read += count
            progress(count)

        values = list(self._values())
        metadata = self._metadata()
        ties = tuple(self._ties())
        beside = bool(values or metadata or any(tie.known for tie in ties))
        early = self.options.first and (beside or self._unpaired)
        if not early and not self.same_file:
            pair_by_bytes(self.pairs, advance)
        diffs, compared, complete = self._tensors(advance, stopped=early)
        equal = not (beside or self._unpaired or any(one.different or one.kind is Kind.UNREAD for one in diffs))
        return DiffReport(
            a=self.a.side(),
            b=self.b.side(),
            equal=equal,
            complete=complete,
            same_file=self.same_file,
            byte_identical=byte_identical(self.a.checkpoint, self.b.checkpoint)
            if equal and not self.same_file and self._all_bits(diffs)
            else None,
            compared=compared,
            unchanged=compared - sum(one.kind is not Kind.EQUAL for one in diffs),
            values_compared=sum(count_values(dict(one)) for one in self.b.values.values()),
            tensors=tuple(diffs),
            only_a=_lines(self.pairs.left_a, self.a),
            only_b=_lines(self.pairs.left_b, self.b),
            renamed=self.pairs.renamings(),
            ties=ties,
            values=tuple(values),
            metadata=metadata,
            modules=self._modules(diffs, depth),
            notes=self._notes(equal=equal),
            read=self._read,
        )

    def _all_bits(self, diffs: list[TensorDiff]) -> bool:
        """Whether every tensor of both sides was compared, and found equal bit for bit."""
        chosen = self.options.only or self.options.include or self.options.exclude
        return not chosen and all(one.kind is Kind.EQUAL for one in diffs)

    def _tensors(self, advance: Callable[[int], None], *, stopped: bool) -> tuple[list[TensorDiff], int, bool]:
        """Compare tensors; return those to speak of, how many were compared, and whether that was all."""
        diffs: list[TensorDiff] = []
        if stopped:
            return diffs, 0, False
        if self.same_file and not self.options.all:
            return diffs, len(self.pairs.found), True
        count = 0
        for one in compare_all(self.pairs.found, self.options, advance):
            count += 1
            if one is None:
                continue
            diffs.append(one)
            if self.options.first and one.different:
                return diffs, count, count == len(self.pairs.found)
        return diffs, count, True

    def _modules(self, diffs: list[TensorDiff], depth: int | None) -> tuple[ModuleDiff, ...]:
        return roll_up([one for one in diffs if one.values_changed], (pair.key_b for pair in self.pairs.found), depth)

    @property
    def _unpaired(self) -> bool:
        """Whether tensors are on one side only, or have other names."""
        return bool(self.pairs.left_a or self.pairs.left_b or self.pairs.edits)

    def _metadata(self) -> tuple[ValueDiff, ...]:
        if self.options.selects or self.options.only not in (None, Component.MODEL):
            return ()
        return tuple(metadata_differences(self.a.checkpoint, self.b.checkpoint))

    def _notes(self, *, equal: bool) -> tuple[str, ...]:
        doubts = dict.fromkeys((*self.a.doubts, *self.b.doubts))
        return (*doubts, *notes(self.a.checkpoint, self.b.checkpoint, self.options, equal=equal))

    def _values(self) -> Iterator[ValueDiff]:
        a, b = self.a.values, self.b.values
        for component in {**a, **b}:
            prefix = self.b.prefixes.get(component) or self.a.prefixes.get(component) or ""
            for found in value_differences(a.get(component, {}), b.get(component, {})):
                path = f"{prefix}.{found.path}" if prefix else found.path
                yield replace(found, path=path)
        for pair in self.pairs.found if self.a.attributes or self.b.attributes else ():
            one, other = self.a.attributes.get(pair.a.name, {}), self.b.attributes.get(pair.b.name, {})
            for found in value_differences(one, other):
                yield replace(found, path=f"{pair.key_b[1]}.{found.path}")
        if not self.options.selects and self.options.only is None:
            yield from rank_differences(self.a.checkpoint, self.b.checkpoint)

    def _ties(self) -> Iterator[TieDiff]:
        """Yield names that are tied on one side, and are there and apart on the other."""
        to_a = {pair.key_b: pair.key_a for pair in self.pairs.found}
        to_b = {pair.key_a: pair.key_b for pair in self.pairs.found}
        for here, across, there_side, made in ((self.a, to_b, self.b, False), (self.b, to_a, self.a, True)):
            group_of = {key: number for number, group in enumerate(there_side.ties) for key in group}
            for group in here.ties:
                there = [across[key] for key in group if key in across]
                if len({group_of.get(key, key) for key in there}) > 1:
                    names = tuple(key[1] for key in (group if made else there))
                    yield TieDiff(names=names, made=made, known=there_side.holds_ties)


def _lines(left: Mapping[Key, TensorInfo], side: Opened) -> tuple[TensorLine, ...]:
    tied = {key: group for group in side.ties for key in group}
    return tuple(
        TensorLine(
            name=name,
            component=component,
            dtype=one.dtype.name,
            shape=one.shape,
            nbytes=one.nbytes,
            tied=next((key[1] for key in tied.get((component, name), ()) if key not in left), ""),
        )
        for (component, name), one in left.items()
    )
