"""Bring the bytes of tensors into a file: moved as they are where that is all there is to do, else in blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptctl.storage.copy import Crc
from ckptctl.tensors.gather import blocks, opened, raw_ranges

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ckptctl.model import TensorInfo
    from ckptctl.rewrite.checksums import Checksums
    from ckptctl.rewrite.prepared import Item
    from ckptctl.rewrite.source_digests import SourceDigests
    from ckptctl.storage import ByteRange
    from ckptctl.storage.copy import Pump, Watching


_BLOCK = 2 << 20
"""What is put together at once stays in the cache until it is written."""


class Pouring:
    """Puts the bytes of named items into a pump, comparing checksums and digests of the source on the way.

    `overflows` collects how many numbers of a tensor became infinite by a cast.
    """

    def __init__(
        self,
        items: Mapping[str, Item],
        checksums: Checksums | None,
        digests: SourceDigests,
        overflows: dict[str, int],
    ) -> None:
        self._items, self._checksums, self._digests, self._overflows = items, checksums, digests, overflows

    def pour(self, name: str, pump: Pump, crc: Crc | None) -> None:
        """Put the bytes of one item into the pump."""
        item = self._items[name]
        if self._checksums:
            self._checksums.learn(item.source)
        self._poured(name, item, pump, crc)
        if self._checksums:
            self._checksums.forget(item.source)

    def _poured(self, name: str, item: Item, pump: Pump, crc: Crc | None) -> None:
        places = raw_ranges(item.source)
        if places is None or item.cast:
            recorded = self._checksums.exactly(places[0]) if self._checksums and places and len(places) == 1 else None
            if self._checksums and recorded is None:
                self._checksums.check_around(opened(item.source), self._sharing)
            read = Crc()
            single = places[0] if places and len(places) == 1 else None
            watching = self._watching(single, read if recorded else None) if single else ()
            self._worked_out(name, item, pump, crc, watching)
            if self._checksums and recorded:
                self._checksums.compare(recorded, read.value, self._sharing)
            if self._checksums:
                self._checksums.unpacked(item.source)
            return
        for index, place in enumerate(places):
            self._copied(place, pump, crc, fresh=not index)

    def _copied(self, place: ByteRange, pump: Pump, crc: Crc | None, *, fresh: bool) -> None:
        """Move bytes as they are; where their checksum is recorded, it is compared on the way.

        `crc` goes on over all places of a tensor, and is `fresh` at the first.
        """
        recorded = self._checksums.exactly(place) if self._checksums and (crc is None or fresh) else None
        if recorded is None:
            if self._checksums:
                self._checksums.check_at(place, self._sharing)
            pump.copy(place, *self._watching(place, crc))
            return
        seen = crc or Crc()
        pump.copy(place, *self._watching(place, seen))
        if self._checksums:
            self._checksums.compare(recorded, pump.settle(seen), self._sharing)

    def _watching(self, place: ByteRange, crc: Crc | None) -> tuple[Watching, ...]:
        return tuple(one for one in (crc, self._digests.watch(place)) if one)

    def _sharing(self) -> Mapping[str, TensorInfo]:
        return {name: item.source for name, item in self._items.items()}

    def _worked_out(self, name: str, item: Item, pump: Pump, crc: Crc | None, watching: tuple[Watching, ...]) -> None:
        """Put values in blocks into the pump; others are watching the blocks as they were before a cast."""
        for block in values(item):
            for one in watching:
                one.update(block)
            if item.cast:
                from ckptctl.tensors.cast import cast  # noqa: PLC0415  # NumPy, only where it is needed

                made, lost = cast(block, item.source.dtype, item.stored.dtype)
                if lost:
                    self._overflows[name] = self._overflows.get(name, 0) + lost
                pump.put(made, crc)
            else:
                pump.put(block, crc)


def values(item: Item) -> Iterator[memoryview]:
    """Yield the values of an item's source in order, in blocks."""
    if item.source.layout.startswith("sparse_"):
        from ckptctl.tensors.sparse import densified  # noqa: PLC0415

        return densified(item.source)
    return blocks(item.source, most=_BLOCK)


def small(item: Item) -> bytes:
    """Return all values of an item at once, for what lies inside a pickle."""
    return b"".join(bytes(block) for block in values(item))
