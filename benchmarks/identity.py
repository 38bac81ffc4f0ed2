"""Compare the tables of cells that run in several modes; prints a JSON line per family and mode.

* `cells`: two workers (see `--workers`), each of which computes whole cells
* `nodes`: two workers with an actor for each kind of node
* `raylets`: the same on two simulated computers
* `killed`: the driver is killed after half the cells of each family, alternately whole cells and separate nodes, and
  resumes the family in the other mode

`differing` counts the tables that differ in any bit from those of one process, without columns of the host; the goal is
0. Each mode is a separate process with an empty cache, so it also builds the networks. Ray starts once for each mode,
and once more for each kill. The cells are some of each file in `tests/golden/definitions`, so that states on devices,
servers, learners and teachers occur; with `--every` all members of all families.

Example: python benchmarks/identity.py --families fleet streaming --modes killed
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from _shared import options_of, report
from devices import SharedBackend, StrictProgress
from scaling import cluster_of

from driftlab.actors.backend import RayBackend
from driftlab.actors.cluster import ClusterConfig
from driftlab.platform.lab.read import Choice, load
from driftlab.platform.lab.seal import create_run, execute, resume
from driftlab.platform.results.tables.diff import table_differences
from driftlab.platform.results.tables.read import open_run
from driftlab.platform.results.tables.schema import TABLES, host_columns
from driftlab.platform.sim.inline import InlineBackend
from driftlab.platform.sim.session import Backend

DEFINITIONS = Path(__file__).resolve().parents[1] / "tests/golden/definitions"
INLINE, KILLED = "inline", "killed"
MODES = ("cells", "nodes", "raylets", KILLED)
FAMILIES: Mapping[str, Choice] = {
    "streaming": Choice(("remote_tracking", "just_in_time", "ams", "oracle"), ("streets/driving_la",), (0,)),
    "adaptation": Choice(("cotta", "rotta", "elasticdnn+ams")),
    "domains": Choice(("tent-episodes", "elasticdnn+tent"), ("detected",)),
    "scaling": Choice(("nested", "adascale-ar", "early_exit", "enas")),
    "paths": Choice(("adascale+elasticdnn", "expected")),
    "sharing": Choice(("nestdnn", "mcdnn"), ("live",)),
    "learners": Choice(("optimum", "no_custom")),
    "tasks": Choice(("ams", "onda"), ("boxes",)),
    "together": Choice(("ams+nested", "ams+adascale")),
    "fleet": Choice(("ams", "ams+joint")),
}


class KillProgress(StrictProgress):
    """Kills this process after half the cells of a grid."""

    def begins(self, cells: int, kept: int, work_s: float) -> None:
        self.left = max(1, cells // 2)

    def finished(self, cell: str, reason: str) -> None:
        super().finished(cell, reason)
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def opener_of(mode: str, kills: int, workers: int) -> Iterator[Callable[[], Backend]]:
    """Yield a function that returns the backend of a mode; on Ray the same one for every run."""
    if mode == INLINE:
        yield InlineBackend
    elif mode == "raylets":
        with cluster_of(2, workers) as backend:
            yield lambda: backend
    else:
        separate = mode == "nodes" or (mode == KILLED and kills % 2)
        backend = SharedBackend(ClusterConfig(workers=workers, placement="nodes" if separate else "cells"))
        yield lambda: backend
        RayBackend.close(backend)


def run_all(mode: str, folder: Path, options: argparse.Namespace) -> None:
    """Run the cells of the families, or resume those that were killed before."""
    kills = sum((folder / family).exists() for family in options.families)
    with opener_of(mode, kills, options.workers) as open_backend:
        for family in options.families:
            out = folder / family
            if out.exists():
                resume(out, open_backend=open_backend, progress=StrictProgress())
                continue
            spec = load(str(DEFINITIONS / f"{family}.yaml"), choice=None if options.every else FAMILIES[family])
            with create_run(spec, out) as directory:
                execute(spec, directory, open_backend, KillProgress() if mode == KILLED else StrictProgress())


def in_process(mode: str, folder: Path, options: argparse.Namespace) -> int:
    """Run all cells in a separate process, which starts again after each kill; return the number of kills."""
    given = ["--workers", str(options.workers), *(["--every"] if options.every else [])]
    command = [sys.executable, __file__, "--in-process", mode, str(folder), *given, "--families", *options.families]
    environment = {**os.environ, "DRIFTLAB_CACHE": str(folder / "cache")}
    kills = 0
    while code := subprocess.run(command, env=environment, check=False).returncode:
        if code != -signal.SIGKILL or mode != KILLED:
            raise SystemExit(f"The cells of '{mode}' ended with code {code}; the error is above.")
        kills += 1
    return kills


def differing(ours: Path, theirs: Path) -> list[str]:
    """Name the tables in which two runs differ, apart from the columns of the host."""
    runs = [open_run(ours), open_run(theirs)]
    tables = {name: [run.table(name).drop_columns(list(host_columns(name))) for run in runs] for name in TABLES}
    return [name for name, pair in tables.items() if next(table_differences(*pair), None)]


def compare(options: argparse.Namespace, folder: Path) -> int:
    """Run every mode, and report its differences from one process; return their number."""
    total = 0
    in_process(INLINE, folder / INLINE, options)
    for mode in options.modes:
        started_s = time.perf_counter()
        kills = in_process(mode, folder / mode, options)
        seconds = time.perf_counter() - started_s
        assert kills == (len(options.families) if mode == KILLED else 0), f"{kills} kills"
        for family in options.families:
            ours, theirs = folder / INLINE / family, folder / mode / family
            found = differing(ours, theirs)
            line = {
                "benchmark": "identity",
                "family": family,
                "mode": mode,
                "cells": len(open_run(ours).table("runs")),
                "rows": sum(len(open_run(ours).table(name)) for name in TABLES),
                "differing": len(found),
                "goal": 0,
                "seconds_of_all_families": round(seconds, 1),
            }
            report(line | ({"tables": found} if found else {}))
            total += len(found)
    return total


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="*", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--modes", nargs="*", choices=MODES, default=list(MODES))
    parser.add_argument("--every", action="store_true", help="all members and workloads of the families")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--in-process", nargs=2, metavar=("MODE", "FOLDER"), help=argparse.SUPPRESS)
    options = options_of(parser, families=["tasks"], modes=["cells"], workers=1)
    if options.in_process:
        mode, folder = options.in_process
        run_all(mode, Path(folder), options)
    else:
        with tempfile.TemporaryDirectory() as folder:
            sys.exit(1 if compare(options, Path(folder)) else 0)
