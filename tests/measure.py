"""Run a command from a small process and print its exit status, time, time of the processor and peak memory as JSON.

``ru_maxrss`` of a child begins with its parent's peak, so the parent must be as small as this.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

if __name__ == "__main__":
    start = time.perf_counter()
    process = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate()
    seconds = time.perf_counter() - start
    import resource

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    json.dump(
        {
            "status": process.returncode,
            "seconds": seconds,
            "cpu": used.ru_utime + used.ru_stime,
            "peak": peak,
            "out": os.fsdecode(out),
            "err": os.fsdecode(err),
        },
        sys.stdout,
    )
