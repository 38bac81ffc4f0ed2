"""The command line, the timing and the output that benchmarks share."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

import cv2
import numpy as np

from driftlab.datasets.frames import Stream
from driftlab.platform.lab.read import Experiment


def options_of(parser: argparse.ArgumentParser, **quick: object) -> argparse.Namespace:
    """Read the options; `--quick` sets the smallest ones, which only show that a benchmark runs."""
    unknown = quick.keys() - {action.dest for action in parser._actions}
    assert not unknown, f"no options of this benchmark: {sorted(unknown)}"
    parser.add_argument("--quick", action="store_true", help="the smallest size: it only shows that this runs")
    options = parser.parse_args()
    if options.quick:
        vars(options).update(quick)
    del options.quick
    return options


def frames_options(parser: argparse.ArgumentParser, *, count: int, repeats: int) -> argparse.Namespace:
    """Read the number of frames and of repeats, and limit OpenCV to one thread."""
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument("--repeats", type=int, default=repeats)
    cv2.setNumThreads(1)
    return options_of(parser, count=2, repeats=1)


def report(line: Mapping[str, object]) -> None:
    """Print the result of a benchmark as one JSON line."""
    print(json.dumps(line), flush=True)


def seconds(call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the duration of a call; `clock=time.process_time` counts processor time."""
    start_s = clock()
    call()
    return clock() - start_s


def child_json(code: str, *arguments: str, env: Mapping[str, str] | None = None) -> dict[str, float]:
    """Run Python code in its own process and return the JSON of its last line."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def build_networks(experiment: Experiment) -> None:
    """Build the networks of an experiment, which measured processes then find in the cache."""
    from driftlab.platform.lab.builds import recipes_of
    from driftlab.platform.networks.training.artifacts import obtain_family

    for recipe in recipes_of(experiment).values():
        obtain_family(recipe)


def frames_s(stream: Stream, repeat: int, count: int, fps: float) -> float:
    """Return the processor time of `count` frames; every repeat draws other frames."""
    times_s = (np.arange(count) + repeat * count) / fps
    return seconds(lambda: stream.at(times_s), time.process_time)
