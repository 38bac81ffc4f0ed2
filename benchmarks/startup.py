"""Measure the time from process start to the first finished window against bare Ray; one JSON line.

A window is finished when a device has captured it and its model has processed it. Bare Ray is `ray.init` and one actor
that has imported torch. Both run in turn in separate processes; medians are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile

from _shared import build_networks, child_json, options_of, report

from driftlab.platform.lab.read import parse

BARE = """
import json, sys, tempfile, time, psutil, ray
with tempfile.TemporaryDirectory(prefix="dl") as folder:
    ray.init(address="local", num_cpus=int(sys.argv[1]), include_dashboard=False, object_store_memory=2**30,
             log_to_driver=False, logging_level="ERROR", _temp_dir=folder)
    @ray.remote
    class Actor:
        def ready(self):
            import torch
            return torch.__version__
    ray.get(Actor.remote().ready.remote())
    print(json.dumps({"s": time.time() - psutil.Process().create_time()}))
    ray.shutdown()
"""
OURS = """
import json, sys, time, psutil
from driftlab.actors.backend import RayBackend
from driftlab.actors.cluster import ClusterConfig
from driftlab.platform.lab.progress import Progress
from driftlab.platform.lab.seal import run

class FirstWindow(Progress):
    def __init__(self):
        self.steps = 0
    def advanced(self, work_s):
        self.steps += 1
        if self.steps == 2:  # a window is reported when the model begins with it: the second means the first is done
            print(json.dumps({"s": time.time() - psutil.Process().create_time()}))

open_backend = lambda: RayBackend(ClusterConfig(workers=int(sys.argv[2]), placement=sys.argv[3]))
run(json.loads(sys.argv[4]), out=sys.argv[1], open_backend=open_backend, progress=FirstWindow())
"""


def document_of(duration_s: float) -> dict[str, object]:
    """Return the experiment whose first window is measured."""
    return {
        "name": "startup",
        "systems": ["no_custom"],
        "bounds": False,
        "student": {"pretrain_steps": 20},
        "workloads": [{"name": "streets/driving_la", "duration_s": duration_s}],
    }


def bare_s(workers: int) -> float:
    return child_json(BARE, str(workers))["s"]


def ours_s(workers: int, placement: str, document: dict[str, object]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return child_json(OURS, f"{folder}/run", str(workers), placement, json.dumps(document))["s"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--duration-s", type=float, default=30.0)
    parser.add_argument("--placement", choices=("cells", "nodes"), default="nodes")
    options = options_of(parser, repeats=1, workers=1, placement="cells", duration_s=20.0)
    document = document_of(options.duration_s)
    build_networks(parse(document))
    ours = options.workers, options.placement, document
    pairs = [(bare_s(options.workers), ours_s(*ours)) for _ in range(options.repeats)]
    bare, first = (statistics.median(side) for side in zip(*pairs, strict=True))
    line = {
        "benchmark": "startup",
        "bare_s": round(bare, 2),
        "first_window_s": round(first, 2),
        "ratio": round(first / bare, 3),
        "goal": 1.3,
    }
    report(line)
