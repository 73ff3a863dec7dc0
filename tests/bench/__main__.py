"""All measurements, or those of the commands that are named: ``python -m tests.bench convert``."""

from __future__ import annotations

import sys

from tests.bench import consolidate, convert, diff, inspect, prune, verify

BENCHES = {
    "inspect": inspect,
    "convert": convert,
    "verify": verify,
    "prune": prune,
    "consolidate": consolidate,
    "diff": diff,
}

for name in sys.argv[1:] or BENCHES:
    BENCHES[name].main()
