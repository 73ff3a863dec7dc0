"""``trainer_state.json`` of the Hugging Face Trainer: step, epoch, best checkpoint and the history of metrics.

The history is cumulative: at every save it is longer, so that only the newest is worth reading whole.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from ckptctl.layouts._members import read_json
from ckptctl.storage import open_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptctl.layouts._layout import Scan

NAME = "trainer_state.json"
_SHORT, _HEAD, _TAIL = 1 << 16, 1 << 13, 64
_FIELD = re.compile(rb'^ {0,2}"(\w+)": ([-+.0-9eE]+|null|"(?:[^"\\]|\\.)*"),?$', re.MULTILINE)
_HISTORY = re.compile(rb'^ {0,2}"log_history": \[', re.MULTILINE)


def read_trainer_state(seen: Scan) -> Mapping[str, object]:
    """Return the fields of the state; at a glance of a long one, those before its history. Empty if malformed."""
    if NAME not in seen.names or not seen.glance:
        return read_json(seen, NAME)
    file = open_file(seen.path / NAME)
    head = file.range().head(_HEAD)
    tail = file.range().read(max(file.size - _TAIL, 0), min(_TAIL, file.size))
    size = file.size
    file.release()
    history = _HISTORY.search(head)
    if size <= _SHORT or not history:
        return read_json(seen, NAME)
    if not tail.rstrip().endswith(b"\n}"):
        return {}
    try:
        return {found[1].decode(): json.loads(found[2]) for found in _FIELD.finditer(head, 0, history.start())}
    except ValueError:
        return read_json(seen, NAME)
