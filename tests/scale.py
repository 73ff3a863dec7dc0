"""What 14 TB in 2,000 files ask of stores and machines, worked out with the very code that divides the work.

``python -m tests.docs_pages --write`` puts the tables into docs/scale.md. The rates are measured on one machine
(`RATES`), those of stores are what their makers state; everything else is counted.
"""

from __future__ import annotations

import random

from ckptctl.layouts._index import _HEADS
from ckptctl.storage.bucket_trash import _BATCH
from ckptctl.storage.share import Share
from ckptctl.storage.streams import AHEAD, STEP, WORKERS
from ckptctl.storage.upload import _MOST_PARTS, _PART

FILES, TOTAL = 2_000, 14 * 10**12
RATES = {"SHA-256, one process": 1.0e9, "a node's network": 3.1e9, "one connection to the store": 90e6}
"""Bytes in a second: measured here; 25 Gbit/s; as Amazon states for S3 (85 to 90 MB/s)."""
LATENCY, PROCESSES = 0.05, 8
SLOWEST = 1.3
"""The slowest of many machines takes so much longer than the mean, in our experience of shared clusters: an assumption."""


def sizes() -> list[int]:
    """2,000 files of uneven sizes that make 14 TB: weights, moments, and some small ones."""
    chosen = random.Random(14)
    raw = [chosen.lognormvariate(0, 0.5) for _ in range(FILES)]
    return [int(one * TOTAL / sum(raw)) for one in raw]


def stream_rate() -> float:
    """How fast one process reads an object: its steps under way, each a round trip and the time of its bytes."""
    step = LATENCY + STEP / RATES["one connection to the store"]
    return min((1 + AHEAD) * STEP / step, RATES["SHA-256, one process"])


def inspected() -> list[str]:
    """The table of `inspect`."""
    rounds, network = 1 + -(-FILES // WORKERS), RATES["a node's network"]
    rows = [
        ("requests", f"{FILES + 3:,}", "files + 3", "one for the listing, one for the index, one for a mark beside it"),
        ("bytes", f"{FILES * _HEADS / 1e9:.1f} GB", "files x 64 KiB", "the first of each file; a longer header is one more request"),
        ("time", f"{rounds * LATENCY + FILES * _HEADS / network:.1f} s",
         f"(1 + files / {WORKERS}) x round trip + bytes / network", f"the listing, then {WORKERS} requests at a time"),
    ]  # fmt: skip
    return _table(("", "2,000 files", "law", "because"), rows)


def divided() -> list[str]:
    """The table of `verify` and `consolidate` by nodes."""
    files, rows = sizes(), []
    for nodes in (1, 2, 4, 8, 16, 32, 64):
        count = nodes * PROCESSES
        owners = Share(0, count).owners(files, [str(number) for number in range(FILES)])
        loads = [0] * count
        for size, owner in zip(files, owners, strict=True):
            loads[owner] += size
        each = min(stream_rate(), RATES["a node's network"] / PROCESSES)
        verify = max(loads) / each
        merge = max(loads) / min(each, RATES["a node's network"] / PROCESSES / 2)
        rows.append((
            str(nodes), str(count), f"{max(loads) / (sum(loads) / count) - 1:.1%}", f"{sum(-(-s // STEP) for s in files):,}",
            _time(verify), _time(merge), _time(verify * SLOWEST),
        ))  # fmt: skip
    return _table(
        ("nodes", "workers", "most above mean", "requests", "verify", "consolidate", "verify, a slow node"), rows
    )


def parts() -> list[str]:
    """The table of uploads."""
    rows = []
    for size in (5e9, 7e9, 80e9, 500e9, 5e12):
        part = max(_PART, -(-int(size) // _MOST_PARTS))
        rows.append((f"{size / 1e9:,.0f} GB", f"{part / 1e6:,.1f} MB", f"{-(-int(size) // part):,}"))
    return _table(("an object of", "parts of", "parts"), rows)


def deleted() -> list[str]:
    """The table of `prune`: requests for each checkpoint that goes; each is one after another."""
    rows = []
    for objects in (1, 20, 2_000, 20_000):
        pages = -(-objects // _BATCH)
        requests = 4 + 7 * pages
        rows.append((f"{objects:,}", f"{requests:,}", f"{requests * LATENCY:.1f} s"))
    return _table(("objects", "requests", "time"), rows)


def scale_page(text: str) -> str:
    """The page, its tables made anew."""
    for name, rows in (("inspect", inspected()), ("nodes", divided()), ("parts", parts()), ("prune", deleted())):
        before, _, rest = text.partition(f"<!-- {name} -->\n")
        _, _, after = rest.partition("<!-- end -->")
        text = f"{before}<!-- {name} -->\n" + "\n".join(rows) + f"\n<!-- end -->{after}"
    return text


def _time(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    lines = [head, tuple("---" for _ in head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]
