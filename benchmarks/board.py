"""The board of many runs: time to write the page, its size, and the time until Chromium has drawn it.

The runs are synthetic: hard links of one run folder, with other experiments and starts.

    python benchmarks/board.py --runs 500
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from _shared import options_of, report, seconds

from driftlab.platform.results.board.page import write_board

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "factories"))

from browser import CHROMIUM, chromium, visit
from results_factory import make_run

DRAWN = "document.querySelectorAll('#all tbody tr').length === {} && document.querySelector('#overlay .curve') !== null"
PAINTED = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
EXPERIMENTS = 12


def make_runs(folder: Path, count: int) -> None:
    """Make run folders of eight cells each."""
    first = make_run(folder / "run-0", workloads=("streets/interview",), seeds=(0, 1), snapshots=False)
    spec, info = (first / "spec.yaml").read_text(), json.loads((first / "run.json").read_text())
    for number in range(1, count):
        copy = folder / f"run-{number}"
        shutil.copytree(first / "tables", copy / "tables", copy_function=os.link)
        (copy / "spec.yaml").write_text(spec.replace("name: demo", f"name: experiment-{number % EXPERIMENTS}", 1))
        started = f"2026-01-{number % 28 + 1:02d}T{number % 24:02d}:00:00Z"
        (copy / "run.json").write_text(json.dumps({**info, "started": started}))


def opening_s(page: Path, count: int, repeats: int) -> float:
    """Return the median time from the request of the page until its table and its chart are painted."""
    times = []
    with chromium() as browser:
        visit(browser, "about:blank")
        for _ in range(repeats):
            start_s = time.perf_counter()
            seen = visit(browser, page)
            seen.page.wait_for_function(DRAWN.format(count))
            seen.page.evaluate(PAINTED)
            times.append(time.perf_counter() - start_s)
            assert not seen.faults, seen.faults
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=5)
    options = options_of(parser, runs=3, repeats=1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_runs(folder, options.runs)
        page = folder / "board.html"
        writing_s = seconds(lambda: write_board(folder))
        line = {"benchmark": "board", "runs": options.runs, "write_s": writing_s, "bytes": page.stat().st_size}
        if os.access(CHROMIUM, os.X_OK):
            line["open_s"] = opening_s(page, options.runs, options.repeats)
        report(line)


if __name__ == "__main__":
    main()
