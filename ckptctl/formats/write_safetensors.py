"""Write a safetensors file, byte for byte as the reference library does (https://github.com/huggingface/safetensors).

Tensors are sorted by dtype, the widest first, then by name; metadata is sorted, so that the same input gives the
same file.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ckptctl.errors import LimitError, UnsupportedError
from ckptctl.model import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ckptctl.formats._format import Stored
    from ckptctl.storage.copy import Crc, Pump

MAX_HEADER = 100_000_000
_METADATA = "__metadata__"
_RANK = {name: rank for rank, name in enumerate(DTYPES)}


class SafetensorsWriter:
    """A safetensors file about to be written; `nbytes` is its size.

    Raises
    ------
    UnsupportedError
        A dtype or a name that the format cannot hold.
    LimitError
        The header would be longer than readers take.
    """

    def __init__(self, tensors: Mapping[str, Stored], metadata: Mapping[str, str]) -> None:
        self._sizes = {name: stored.nbytes for name, stored in tensors.items()}
        self.order = sorted(tensors, key=lambda name: (-_RANK[tensors[name].dtype.name], name))
        self._header = _header({name: tensors[name] for name in self.order}, metadata)
        self.nbytes = len(self._header) + sum(stored.nbytes for stored in tensors.values())

    def shares(self, count: int) -> list[tuple[int, list[str]]]:
        """Divide the tensors among so many writers of one file: where each begins, in bytes, and with which names.

        The first one begins where the header ends; `head` is what comes before.
        """
        total = self.nbytes - len(self._header)
        found: list[tuple[int, list[str]]] = []
        at = 0
        for name in self.order:
            if not found or at * count >= total * len(found):
                found.append((len(self._header) + at, []))
            found[-1][1].append(name)
            at += self._sizes[name]
        return found

    @property
    def head(self) -> bytes:
        """What stands before the tensors."""
        return self._header

    def write(self, pump: Pump, pour: Callable[[str, Pump, Crc | None], None]) -> None:
        """Write the header, then each tensor, for which `pour` puts its bytes into the pump. Only once."""
        pump.put(self._header)
        self._header = b""  # it can be as large as all that is known of the tensors
        for name in self.order:
            pour(name, pump, None)


def _header(tensors: Mapping[str, Stored], metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, object] = {_METADATA: dict(sorted(metadata.items()))} if metadata else {}
    at = 0
    for name, stored in tensors.items():
        if not stored.dtype.storable:
            raise UnsupportedError(f"{name}: safetensors has no dtype {stored.dtype}")
        if name == _METADATA:
            raise UnsupportedError(f"a tensor is called {name}, which safetensors keeps for itself")
        end = at + stored.nbytes
        entries[name] = {"dtype": stored.dtype.name, "shape": stored.shape, "data_offsets": (at, end)}
        at = end
    try:
        raw = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        raise UnsupportedError("a name holds half a surrogate pair, which safetensors cannot hold") from None
    raw += b" " * (-len(raw) % 8)
    if len(raw) > MAX_HEADER:
        raise LimitError(
            f"the header would be {len(raw)} bytes long (limit {MAX_HEADER})",
            hint="--only model takes the weights alone, --max-shard-size makes several files",
        )
    return len(raw).to_bytes(8, "little") + raw
