"""Run a small grid many times in one process; prints the growth of its resources as one JSON line.

After each run the benchmark counts file descriptors, temporary files (in a folder of this process alone) and entries
of /dev/shm, and reads the resident memory. The growth is the slope of a line through all runs but the first ones,
which load code.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from driftlab.platform.lab.seal import run

GRID: dict[str, Any] = {
    "name": "leaks",
    "systems": [
        "no_custom",
        {
            "name": "ams",
            "streaming": {"name": "ams", "interval_s": 2},
            "adaptation": {"name": "distill", "iterations": 1, "batch": 1},
        },
    ],
    "workloads": [{"name": "streets/running", "duration_s": 5, "fps": 1, "height": 32, "width": 48}],
    "bounds": False,
    "snapshots": 1,
    "student": {"network": "half", "pretrain_steps": 1},
}
GOALS = {"descriptors": 0.0, "temporary": 0.0, "shared": 0.0, "resident_kb": 100.0}  # per run, at most


def measured(runs: int, folder: Path) -> dict[str, list[float]]:
    """Run the grid several times; return the resources in use after each run.

    Temporary files go into a folder below the given one.
    """
    process, found = psutil.Process(), {name: list[float]() for name in GOALS}
    before, tempfile.tempdir = tempfile.tempdir, str(folder / "temporary")
    (folder / "temporary").mkdir()
    try:
        for number in range(runs):
            outcome = run(GRID, out=folder / f"run-{number}")
            assert outcome.failed == ()
            gc.collect()
            found["descriptors"].append(process.num_fds())
            found["temporary"].append(len(list((folder / "temporary").iterdir())))
            found["shared"].append(len(os.listdir("/dev/shm")))
            found["resident_kb"].append(process.memory_info().rss / 1024)
    finally:
        tempfile.tempdir = before
    return found


def slopes(found: Mapping[str, Sequence[float]], skipped: int) -> dict[str, float]:
    """Fit a line through all but the first runs."""
    return {
        name: round(float(np.polyfit(np.arange(len(values) - skipped), values[skipped:], 1)[0]), 3)
        for name, values in found.items()
    }


if __name__ == "__main__":
    from _shared import options_of, report  # a neighbour of this script; tests import this file as a module

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    options = options_of(parser, runs=2)
    with tempfile.TemporaryDirectory(prefix="driftlab-leaks-") as place:
        os.environ["DRIFTLAB_CACHE"] = f"{place}/networks"
        held = measured(options.runs, Path(place))
    rates = slopes(held, options.runs // 5)
    line = {"benchmark": "leaks", "runs": options.runs, "per_run": rates, "goals": GOALS}
    report({**line, "last": {name: round(values[-1], 1) for name, values in held.items()}})
