"""Compare frame rates of several applications on a real core with their plan; prints one JSON line.

Three applications share a tenth of a core, in one process and in real time. Then one of them gets priority, and a
fourth arrives. `furthest` is the largest relative difference from the planned rate, over applications and phases, and
`frames` the fewest frames that it counts.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from _shared import options_of, report
from field.sharing import rates_of, run_phases

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--phase-s", type=float, default=10.0)
    parser.add_argument("--capacity", type=float, default=0.1)
    options = options_of(parser, phase_s=0.5)
    with tempfile.TemporaryDirectory() as folder:
        made = run_phases(Path(folder) / "run", options.phase_s, 30.0, options.capacity, "wide_classifier")
        found = [
            (processed[app] / planned[app] - 1, processed[app] * options.phase_s)
            for planned, processed in rates_of(made, options.phase_s)
            for app in planned
        ]
    report(
        {
            "benchmark": "shared_device",
            "furthest": round(max(abs(difference) for difference, _ in found), 3),
            "furthest_goal": 0.1,
            "frames": round(min(frames for _, frames in found)),
        }
    )
