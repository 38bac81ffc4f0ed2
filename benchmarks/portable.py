"""Compare the processor time of cells with and without `--portable`, by family; prints one JSON line.

Each side runs in its own process, one right after the other, in an order that changes from pair to pair; it builds
the networks, runs the cells of a family once to load all libraries, and then measures them. `ratio` is the median over
pairs of the time with the settings over the time without them, `build_ratio` that of building the networks.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile

from _shared import child_json, options_of, report

from driftlab.platform.sim.portable import SETTINGS, lacking

SIGNS = {"name": "domains:signs/town", "fps": 4.0, "height": 24, "width": 24, "params": {"domain_s": 10}}
APPS = {"apps": [{"name": "town"}, {"name": "motorway", "workload": "domains:signs/motorway", "pretrain_seed": 1}]}
STREETS = {"name": "streets/driving_la", "fps": 2.0}
CLASSIFIER = {"network": "tiny_classifier", "pretrain_steps": 50}
LEARNS = {
    "streaming": {"name": "on_device", "period_s": 5, "rate_fps": 2, "horizon_s": 10},
    "adaptation": {"name": "distill", "fraction": 1.0, "batch": 8, "step_choices": [10, 20]},
}
FAMILIES = {
    "streaming": (["ams", "just_in_time", "remote_tracking"], STREETS, {"network": "tiny", "pretrain_steps": 50}),
    "adaptation": (["tent", "sar", "cotta", "note"], SIGNS, CLASSIFIER),
    "scaling": (["nestdnn", "once_for_all", "adascale"], SIGNS, CLASSIFIER),
    "scheduling": ([{"name": name, **LEARNS} for name in ("joint", "ekya")], {**SIGNS, **APPS}, CLASSIFIER),
}
CHILD = """
import json, sys, tempfile, time
from driftlab.platform.sim.inline import InlineBackend
from driftlab.platform.lab.seal import run

times = []
with tempfile.TemporaryDirectory() as folder:
    for number in range(2):
        begun_s = time.process_time()
        assert not run(json.loads(sys.argv[1]), out=f"{folder}/{number}").failed
        times.append(time.process_time() - begun_s)
print(json.dumps({"build_s": times[0] - times[1], "cells_s": times[1]}))
"""


def document(family: str, duration_s: float, portable: bool) -> dict[str, object]:
    """Return an experiment with members of a family."""
    systems, workload, student = FAMILIES[family]
    return {
        "name": "portable",
        "systems": systems,
        "bounds": False,
        "snapshots": 0,
        "student": student,
        "server": {"label_s": 1e-6},
        "workloads": [{**workload, "duration_s": duration_s}],
        "compute": {"portable": portable},
    }


def measure(family: str, duration_s: float, portable: bool) -> dict[str, float]:
    plain = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    with tempfile.TemporaryDirectory() as cache:
        environment = {**plain, "OMP_NUM_THREADS": "1", **(SETTINGS if portable else {}), "DRIFTLAB_CACHE": cache}
        return child_json(CHILD, json.dumps(document(family, duration_s, portable)), env=environment)


def compare(family: str, duration_s: float, pairs: int) -> dict[str, float]:
    found: list[dict[bool, dict[str, float]]] = []
    for number in range(pairs):
        order = (False, True) if number % 2 == 0 else (True, False)
        found.append({portable: measure(family, duration_s, portable) for portable in order})

    def ratio(key: str) -> float:
        return round(statistics.median(one[True][key] / one[False][key] for one in found), 3)

    plain_s = statistics.median(one[False]["cells_s"] for one in found)
    return {"plain_s": round(plain_s, 2), "ratio": ratio("cells_s"), "build_ratio": ratio("build_s")}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", nargs="*", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--duration-s", type=float, default=40.0)
    parser.add_argument("--pairs", type=int, default=5)
    options = options_of(parser, family=["adaptation"], duration_s=2.0, pairs=1)
    if reason := lacking():
        sys.exit(f"nothing to compare: {reason}")
    line = {name: compare(name, options.duration_s, options.pairs) for name in options.family}
    report({"benchmark": "portable", "pairs": options.pairs, **line})
