"""Measure the speed of two workers relative to one process; prints one JSON line.

Each side runs the same cells in a separate process. The compared speed is that of cells while there is work
for all workers: from the end of the first wave of cells, during which Ray starts its processes, to the end of the last
but one, after which workers begin to run out of cells. `speedup_with_start` compares the total times, from the first
line of Python to the end of the last cell. `speedup_of_two_processes` is the speed of two independent processes, the
limit of the machine; `of_two_processes` is our share of it. `cpu` is the processor time of all processes of a run, from
the first line of Python to the end of the last cell, over that of one process. `cpu_after_start` is that of the
compared cells, without the start of Ray. `cpu_of_two_processes` and `cpu_of_two_after_start` are the same over the
average of two independent processes, as cores that share memory slow each other. Each repetition measures all three
sides, and a ratio is the median of those of the repetitions.

Example: python benchmarks/workers.py --experiment ams-table1 --set "seeds=[0,1]"
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from _shared import build_networks, child_json, options_of, report

from driftlab.platform.lab.cells import points_of
from driftlab.platform.lab.read import load, parse

CHILD = """
import json, sys, time, psutil
from driftlab.actors.backend import RayBackend
from driftlab.actors.cluster import ClusterConfig
from driftlab.platform.sim.inline import InlineBackend
from driftlab.platform.lab.progress import Progress
from driftlab.platform.lab.seal import run

class Watch(Progress):
    ends, cpu_s = [], {}
    def finished(self, cell, reason):
        assert not reason, (cell, reason)
        self.ends.append(time.time())
        if len(self.ends) in (wave, cells - wave, cells):
            this = psutil.Process()
            every = this, *this.children(recursive=True)
            self.cpu_s[len(self.ends)] = sum(sum(one.cpu_times()[:2]) for one in every)

watch, workers, wave, cells = Watch(), int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[6])
config = dict(workers=workers, placement=sys.argv[5])
open_backend = InlineBackend if workers == 0 else lambda: RayBackend(ClusterConfig(**config))
run(*json.loads(sys.argv[1]), out=sys.argv[2], open_backend=open_backend, progress=watch)
ends, cpu_s = watch.ends, watch.cpu_s
print(json.dumps({"work_s": ends[-1 - wave] - ends[wave - 1], "cpu_s": cpu_s[cells],
                  "work_cpu_s": cpu_s[cells - wave] - cpu_s[wave],
                  "whole_s": ends[-1] - psutil.Process().create_time()}))
"""


def document_of(cells: int, duration_s: float) -> dict[str, object]:
    """Return an experiment whose cells infer and train."""
    return {
        "name": "workers",
        "systems": ["ams"],
        "bounds": False,
        "seeds": list(range(cells)),
        "student": {"pretrain_steps": 20},
        "workloads": [{"name": "streets/driving_la", "duration_s": duration_s}],
    }


@dataclass(frozen=True)
class CellGrid:
    """An experiment by name or as a document, its overrides and cells, and how many of them run at once."""

    experiment: str | dict[str, object]
    cells: int
    wave: int
    overrides: Sequence[str] = ()


def measure(grid: CellGrid, workers: int, placement: str = "cells") -> dict[str, float]:
    asked = (json.dumps([grid.experiment, grid.overrides]), str(workers), str(grid.wave), placement, str(grid.cells))
    with tempfile.TemporaryDirectory() as folder:
        return child_json(CHILD, asked[0], f"{folder}/run", *asked[1:])


def side_by_side(grid: CellGrid, processes: int) -> dict[str, float]:
    """Return the average times of independent processes."""
    with ThreadPoolExecutor(processes) as pool:
        found = list(pool.map(lambda _: measure(grid, 0), range(processes)))
    return {name: statistics.mean(one[name] for one in found) for name in found[0]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiment", help="a built-in one instead of the grid")
    parser.add_argument("--set", action="append", default=[], dest="overrides", help="settings of --experiment")
    parser.add_argument("--cells", type=int, default=20)
    parser.add_argument("--duration-s", type=float, default=60.0)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--placement", choices=("cells", "nodes"), default="cells")
    options = options_of(parser, cells=5, duration_s=1.0, workers=1)
    workers = options.workers
    wave = 2 * workers
    document = document_of(options.cells, options.duration_s)
    grid = CellGrid(document, options.cells, wave)
    experiment = load(options.experiment, options.overrides) if options.experiment else parse(document)
    build_networks(experiment)
    if options.experiment:
        grid = CellGrid(options.experiment, len(points_of(experiment)), wave, options.overrides)
    rounds = [
        {
            "one": measure(grid, 0),
            "ours": measure(grid, workers, options.placement),
            "two": side_by_side(grid, workers),
        }
        for _ in range(options.repeats)
    ]

    def median(side: str, key: str) -> float:
        return statistics.median(sides[side][key] for sides in rounds)

    def ratio(key: str, over: str, under: str) -> float:
        return round(statistics.median(sides[over][key] / sides[under][key] for sides in rounds), 3)

    line = {
        "benchmark": "workers",
        "experiment": " ".join((options.experiment or "grid", *options.overrides)),
        "placement": options.placement,
        "cells": grid.cells - 2 * wave,
        "repeats": options.repeats,
        "one_process_s": round(median("one", "work_s"), 2),
        "one_process_cpu_s": round(median("one", "cpu_s"), 2),
        "two_workers_s": round(median("ours", "work_s"), 2),
        "speedup": ratio("work_s", "one", "ours"),
        "goal": 1.7,
        "speedup_with_start": ratio("whole_s", "one", "ours"),
        "speedup_of_two_processes": round(workers * ratio("work_s", "one", "two"), 3),
        "of_two_processes": round(ratio("work_s", "two", "ours") / workers, 3),
        "of_two_processes_goal": 0.95,
        "cpu": ratio("cpu_s", "ours", "one"),
        "cpu_goal": 1.1,
        "cpu_after_start": ratio("work_cpu_s", "ours", "one"),
        "cpu_of_two_processes": ratio("cpu_s", "ours", "two"),
        "cpu_of_two_after_start": ratio("work_cpu_s", "ours", "two"),
    }
    report(line)
