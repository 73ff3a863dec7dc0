"""All measurements, or those of the commands that are named: ``python -m tests.bench convert``."""

from __future__ import annotations

import sys

from tests.bench import consolidate, convert, diff, inspect, prune, table, training, verify

BENCHES = {
    one.__name__.rpartition(".")[2]: one
    for one in (inspect, convert, verify, prune, consolidate, diff, training, table)
}

for name in [one for one in sys.argv[1:] if one in BENCHES] or [one for one in BENCHES if one != "table"]:
    BENCHES[name].main()
