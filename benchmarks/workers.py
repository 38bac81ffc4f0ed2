"""Measure how much faster two workers run a grid than one process; prints one JSON line.

Each side runs the same cells in a process of its own. What is compared is the time from the moment that the networks
are there to the end of the last cell; the start of Ray, which a grid pays once, is given beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile

CHILD = """
import json, sys, time, psutil
from driftlab.actors.backend import RayBackend
from driftlab.actors.cluster import ClusterConfig
from driftlab.platform.lab.inline import InlineBackend
from driftlab.platform.lab.progress import Progress
from driftlab.platform.lab.run import run

class Watch(Progress):
    def built(self, *what):
        self.ready = time.time()
    def finished(self, cell, reason):
        assert not reason, (cell, reason)
        self.end = time.time()

watch, workers = Watch(), int(sys.argv[3])
open_backend = InlineBackend if workers == 0 else lambda: RayBackend(ClusterConfig(workers=workers))
run(json.loads(sys.argv[1]), out=sys.argv[2], open_backend=open_backend, progress=watch)
print(json.dumps({"work_s": watch.end - watch.ready, "start_s": watch.ready - psutil.Process().create_time()}))
"""


def grid(cells: int, duration_s: float) -> dict[str, object]:
    """Describe cells that infer and train."""
    return {
        "name": "workers",
        "systems": ["ams"],
        "bounds": False,
        "seeds": list(range(cells)),
        "student": {"pretrain_steps": 20},
        "workloads": [{"name": "streets/driving_la", "duration_s": duration_s}],
    }


def measure(document: dict[str, object], workers: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", CHILD, json.dumps(document), f"{folder}/run", str(workers)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=16)
    parser.add_argument("--duration-s", type=float, default=120.0)
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    document = grid(options.cells, options.duration_s)
    measure(grid(1, 10.0), 0)  # builds the student, which both sides find from then on
    pairs = [(measure(document, 0), measure(document, 2)) for _ in range(options.repeats)]
    one, two = (statistics.median(pair[side]["work_s"] for pair in pairs) for side in (0, 1))
    start = statistics.median(pair[1]["start_s"] for pair in pairs)
    line = {
        "benchmark": "workers",
        "cells": options.cells,
        "one_process_s": round(one, 2),
        "two_workers_s": round(two, 2),
        "speedup": round(one / two, 3),
        "start_s": round(start, 2),
    }
    sys.stdout.write(json.dumps(line) + "\n")
