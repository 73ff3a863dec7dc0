"""Which numbers are close to each other, by their types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptctl.tensors.numbers import real

if TYPE_CHECKING:
    from ckptctl.model import DType

_RTOL = {"F64": 1e-7, "F32": 1.3e-6, "F16": 1e-3, "BF16": 1.6e-2, "F8_E4M3": 0.125, "F8_E4M3FNUZ": 0.125,
         "F8_E5M2": 0.25, "F8_E5M2FNUZ": 0.25}  # fmt: skip
_ATOL = {"F64": 1e-7}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Two numbers are close if they differ by at most ``atol + rtol * abs(a)``.

    None stands for what suits the types: for F64, F32, F16 and BF16 as ``torch.testing.assert_close`` has it, for those
    of 8 bits one step of the mantissa; 0 for all others. Of two types, that of the coarser one.
    """

    rtol: float | None = None
    atol: float | None = None

    def of(self, one: DType, other: DType) -> tuple[float, float]:
        """Return rtol and atol for two types."""
        names = [name for name in (real(one), real(other)) if name in _RTOL]
        rtol = max((_RTOL[name] for name in names), default=0.0) if self.rtol is None else self.rtol
        atol = max((_ATOL.get(name, 1e-5) for name in names), default=0.0) if self.atol is None else self.atol
        return rtol, atol
