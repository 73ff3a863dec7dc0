"""Pieces of a file that lie near each other, asked for as one."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_GAP, _BETWEEN = 16 << 10, 32 << 20
"""Pieces that lie no farther apart are asked for in one, as long as no more bytes in all lie between them. With so many
requests under way, one more costs no more time than these bytes."""


def merged(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join spans, in their order, across the narrowest gaps between them."""
    gaps = sorted(at - before for (_, before), (at, _) in pairwise(spans) if 0 < at - before <= _GAP)
    narrow = next((gap for gap, total in zip(gaps, accumulate(gaps), strict=True) if total > _BETWEEN), _GAP + 1)
    joined, left = [spans[0]], _BETWEEN - sum(gap for gap in gaps if gap < narrow)
    for at, end in spans[1:]:
        gap = at - joined[-1][1]
        if gap < narrow or gap == narrow <= left:
            left -= gap if gap == narrow else 0
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((at, end))
    return joined
