"""All opcodes of pickle protocols 0 to 5: importing this fills the table."""

from __future__ import annotations

from ckptctl.formats._pickle import calls, containers, literals, strings
from ckptctl.formats._pickle.table import OPCODES

__all__ = ["OPCODES", "calls", "containers", "literals", "strings"]
