"""Disturb runs of every built-in grid, resume each, and compare its tables with an undisturbed run.

Runs in one process are forked, so that they start at once; their faults are kills of the driver, damaged files, full
disks, wrong clocks and pauses. With `--ray` the runs are on Ray, and actors, raylet, control store and driver are
killed or stopped. With `--searches` searches are disturbed instead: each has ten kills of its driver, its raylet or a
trial. The output lists the faults and the first difference; the last line is JSON. The exit code is 1 if a table
differs, or if files or processes are left behind. Then, and after a failed run on Ray, the folder of the run and Ray's
logs are copied to the folder `--keep`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.faults import grids
from benchmarks.faults.inflict import Inflicted, child, ended, leftovers
from benchmarks.faults.on_ray import Say, disturb_on_ray, log_of
from benchmarks.faults.searches import disturbed_search
from driftlab.platform.lab.progress import Progress
from driftlab.platform.lab.seal import create_run, execute, resume
from driftlab.platform.results.tables.diff import differences
from driftlab.platform.results.tables.read import open_run
from driftlab.platform.sim.inline import InlineBackend
from driftlab.platform.tune.samplers import SAMPLERS

FAULTS_PER_RUN, RAY_RUNS = 8, 2


def undisturbed(spec: grids.Experiment, folder: Path) -> float:
    """Run a grid in a child process; return the duration of its cells.

    The modules that it imported are imported here too, so that the next children start faster.
    """
    imported = folder / "imported.json"

    def act() -> None:
        _runner(spec, folder / "reference")()
        seconds = sum(open_run(folder / "reference").table("runs")["host_seconds"].to_pylist())
        imported.write_text(json.dumps([seconds, sorted(sys.modules)]))

    if ended(child(act, folder / "reference.log"), 900) != 0:
        raise RuntimeError(f"{spec.name} does not run undisturbed: {(folder / 'reference.log').read_text()[-2000:]}")
    seconds, names = json.loads(imported.read_text())
    for name in names:
        if name.partition(".")[0] in ("driftlab", "scipy", "pyarrow", "pandas", "cv2", "av", "PIL", "yaml", "simpy"):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    return float(seconds)


def _runner(spec: grids.Experiment, folder: Path) -> Callable[[], object]:
    """Return a function that starts a run, or resumes it if there is one."""

    def go() -> None:
        if (folder / "spec.yaml").exists():
            outcome = resume(folder)
        else:
            with create_run(spec, folder) as directory:
                outcome = execute(spec, directory, InlineBackend, Progress())
        if outcome.failed:
            raise RuntimeError(f"failed cells: {outcome.failed}")

    return go


def disturbed(spec: grids.Experiment, folder: Path, dice: random.Random, span_s: float | None, say: Say) -> list[str]:
    """Disturb a run several times, let it end, and return its differences from the reference.

    Without a span the run is on Ray.
    """
    run, log = folder / "disturbed", folder / "disturbed.log"
    go = _runner(spec, run)
    if span_s is None:
        for number in range(RAY_RUNS):
            logs = folder / f"ray-{number}"
            if wrong := list(disturb_on_ray(spec, run, logs, dice, say)):
                return [*wrong, log_of(run).read_text(encoding="utf-8", errors="replace")[-1500:]]
    else:
        inflicted = Inflicted(dice, run, go, span_s, log)
        for _ in range(FAULTS_PER_RUN):
            say(inflicted.any_fault())
    code = ended(child(go, log))
    if code != 0:
        return [f"it cannot be resumed (exit code {code}): {log.read_text(encoding='utf-8')[-1500:]}"]
    found = folder / "differences.json"
    compare = child(lambda: _compare(folder / "reference", run, found), log)
    if ended(compare) != 0:
        return [f"it cannot be compared: {log.read_text(encoding='utf-8')[-1500:]}"]
    return [*json.loads(found.read_text()), *leftovers(run)]


def _compare(first: Path, second: Path, found: Path) -> None:
    found.write_text(json.dumps(list(differences(first, second))))


@dataclass
class Campaign:
    """The grids of one seed, and the counts of their faults."""

    seed: int
    on_ray: bool
    kept: Path  # folder for copies of broken and failed runs
    searches: bool = False
    faults: Counter[str] = field(default_factory=Counter)
    failed: int = 0  # runs that failed with a message and could be resumed
    broken: int = 0

    def say(self, line: str) -> None:
        """Print a line; count it if it names a fault or a failed run."""
        kind = line.partition(":")[0]
        if kind.startswith("  "):
            self.faults[kind.strip()] += 1
        self.failed += kind == "failed"
        print(line, flush=True)

    def disturb(self, number: int, name: str, place: Path) -> None:
        """Disturb a grid or a search, and copy its folder if it broke or failed."""
        dice, failed = random.Random(f"{self.seed}/{number}"), self.failed
        with tempfile.TemporaryDirectory(dir=place, ignore_cleanup_errors=True) as folder:
            found = (self._search if self.searches else self._grid)(number, name, Path(folder), dice)
            if found:
                self.broken += 1
                print(f"DIFFERENCE {found[0]}\n{found[-1]}", flush=True)
            if found or self.failed > failed:
                kept = self.kept / f"{self.seed}-{number}"
                shutil.copytree(folder, kept, symlinks=True, dirs_exist_ok=True)
                print(f"kept in {kept}", flush=True)

    def _grid(self, number: int, name: str, folder: Path, dice: random.Random) -> list[str]:
        spec = grids.small(name, dice)
        span_s = undisturbed(spec, folder)
        self.say(f"{number}: {spec.name}, {span_s:.1f} s undisturbed")
        return disturbed(spec, folder, dice, None if self.on_ray else span_s, self.say)

    def _search(self, number: int, name: str, folder: Path, dice: random.Random) -> list[str]:
        self.say(f"{number}: a search by {name}")
        return disturbed_search(name, folder, dice, self.say)

    def summary(self) -> dict[str, object]:
        """Return the totals of the campaign."""
        counted = {"faults": self.faults.total(), "kinds": dict(sorted(self.faults.items()))}
        ends = {"failed": self.failed, "broken": self.broken}
        return {"benchmark": "faults", "seed": self.seed, "ray": self.on_ray, **counted, **ends}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--faults", type=int, default=10**9, help="end after this number of faults")
    parser.add_argument("--grid", help="this built-in grid only")
    parser.add_argument("--searches", action="store_true", help="kill searches on Ray instead, one per searcher")
    parser.add_argument("--ray", action="store_true", help="run on Ray and kill its parts, which takes longer")
    parser.add_argument("--keep", type=Path, default=Path("faults-kept"), help="folder for broken and failed runs")
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    campaign = Campaign(options.seed, options.ray or options.searches, options.keep, options.searches)
    known = list(SAMPLERS) if options.searches else grids.names()
    order = random.Random(options.seed).sample(known, len(known))
    with tempfile.TemporaryDirectory(prefix="driftlab-faults-", ignore_cleanup_errors=True) as place:
        os.environ["DRIFTLAB_CACHE"] = f"{place}/networks"
        for number, name in enumerate(itertools.cycle([options.grid] if options.grid else order)):
            if time.monotonic() > deadline or campaign.faults.total() >= options.faults:
                break
            campaign.disturb(number, name, Path(place))
    print(json.dumps(campaign.summary()))
    return 1 if campaign.broken else 0


if __name__ == "__main__":
    sys.exit(main())
