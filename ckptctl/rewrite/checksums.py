"""The checksums that sources record, and what is found when their bytes are read."""

from __future__ import annotations

import bisect
import threading
import zlib
from typing import TYPE_CHECKING

from ckptctl.errors import CorruptError
from ckptctl.formats import checksums_in, checksums_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ckptctl.formats import Checksum
    from ckptctl.model import Contents, TensorInfo
    from ckptctl.storage import ByteRange

_CHUNK = 1 << 22


class Checksums:
    """What files record of their own bytes; `verified` counts the records whose bytes have been compared."""

    def __init__(self, files: Iterable[Contents]) -> None:
        self._records: dict[int, list[Checksum]] = {}
        self._starts: dict[int, list[int]] = {}
        self._seen: set[tuple[int, int]] = set()
        self._packed: set[tuple[int, int]] = set()
        self.verified = 0
        self._lock = threading.Lock()
        for contents in files:
            every = checksums_of(contents)
            found = sorted((one for one in every if one.unpacked is None), key=lambda one: one.range.offset)
            number = id(contents.range.file)
            self._packed |= {(number, one.range.offset) for one in every if one.unpacked is not None}
            self._records[id(contents.range.file)] = found
            self._starts[id(contents.range.file)] = [one.range.offset for one in found]
            # Whoever described the file has compared the one of its pickle.
            self.verified += sum(one.what == "data.pkl" for one in found)

    def exactly(self, place: ByteRange) -> Checksum | None:
        """Return the checksum of just these bytes, if there is one that has not been looked at."""
        found = self._covering(place)
        fits = found and (found.range.offset, found.range.length) == (place.offset, place.length)
        return found if found and fits and not self._was_seen(found) else None

    def check_around(self, tensor: TensorInfo, sharing: Callable[[], Mapping[str, TensorInfo]]) -> None:
        """Read each record that a tensor's pieces lie in, and compare; each record once.

        `sharing` returns all tensors by name, to say which are damaged.

        Raises
        ------
        CorruptError
            The bytes are not those that were written.
        """
        for piece in (*tensor.pieces, *(piece for part in tensor.parts for piece in part.pieces)):
            self.check_at(piece.range, sharing)

    def check_at(self, place: ByteRange, sharing: Callable[[], Mapping[str, TensorInfo]]) -> None:
        """Read the record that some bytes lie in, and compare, if that has not been done.

        Raises
        ------
        CorruptError
            The bytes are not those that were written.
        """
        found = self._covering(place)
        if found and not self._was_seen(found):
            crc = 0
            for start in range(0, found.range.length, _CHUNK):
                crc = zlib.crc32(found.range.read(start, min(_CHUNK, found.range.length - start)), crc)
            self.compare(found, crc, sharing)

    def unpacked(self, tensor: TensorInfo) -> None:
        """Count the packed records that a tensor was read from: who unpacks to the end compares the checksum."""
        with self._lock:
            for piece in (*tensor.pieces, *(piece for part in tensor.parts for piece in part.pieces)):
                place = id(piece.range.file), piece.range.offset
                if piece.unpack and place in self._packed:
                    self._packed.discard(place)
                    self.verified += 1

    def learn(self, tensor: TensorInfo) -> None:
        """Take in what the whole files record in which a tensor's pieces lie, as in a distributed save."""
        for piece in tensor.pieces:
            if not piece.inner:
                continue
            number, found = id(piece.range.file), checksums_in(piece.range)
            with self._lock:
                for one in found:
                    at = bisect.bisect_right(self._starts.setdefault(number, []), one.range.offset)
                    self._starts[number].insert(at, one.range.offset)
                    self._records.setdefault(number, []).insert(at, one)

    def forget(self, tensor: TensorInfo) -> None:
        """Let go of what was learned of a tensor that is done with: there may be very many of those."""
        for piece in tensor.pieces:
            if not piece.inner:
                continue
            number, end = id(piece.range.file), piece.range.offset + piece.range.length
            with self._lock:
                starts = self._starts.get(number, [])
                done = slice(bisect.bisect_left(starts, piece.range.offset), bisect.bisect_left(starts, end))
                self._seen -= {(number, start) for start in starts[done]}
                del starts[done], self._records.get(number, [])[done]

    def compare(self, recorded: Checksum, crc: int, sharing: Callable[[], Mapping[str, TensorInfo]]) -> None:
        """Hold what was read against what is recorded, and name the tensors that lie there."""
        with self._lock:
            self._seen.add((id(recorded.range.file), recorded.range.offset))
            if crc == recorded.crc:
                self.verified += 1
                return
        end = recorded.range.offset + recorded.range.length
        hurt = [
            name
            for name, tensor in sharing().items()
            if any(
                p.range.file is recorded.range.file
                and p.range.offset < end
                and recorded.range.offset < p.range.offset + p.range.length
                for p in (*tensor.pieces, *(piece for part in tensor.parts for piece in part.pieces))
            )
        ]
        more = f" and {len(hurt) - 3} more" if len(hurt) > 3 else ""
        raise CorruptError(
            f"{recorded.range.file.path}: record {recorded.what} reads CRC {crc:08x}, recorded {recorded.crc:08x}: "
            f"damaged: {', '.join(hurt[:3])}{more}",
            hint="copy it again from where it was written, or take an older checkpoint; --no-check copies the damage",
        )

    def _covering(self, place: ByteRange) -> Checksum | None:
        with self._lock:
            return self._found(place)

    def _found(self, place: ByteRange) -> Checksum | None:
        starts = self._starts.get(id(place.file), [])
        index = bisect.bisect_right(starts, place.offset) - 1
        # Records without bytes may begin where another does.
        while index >= 0:
            found = self._records[id(place.file)][index]
            if place.offset + place.length <= found.range.offset + found.range.length:
                return found if found.range.length else None
            if found.range.length:
                return None
            index -= 1
        return None

    def _was_seen(self, found: Checksum) -> bool:
        return (id(found.range.file), found.range.offset) in self._seen
