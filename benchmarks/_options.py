"""What benchmarks share: their command line, and the time of frames."""

from __future__ import annotations

import argparse
import time

import cv2
import numpy as np

from driftlab.datasets.frames import Stream


def options_of(parser: argparse.ArgumentParser, **quick: object) -> argparse.Namespace:
    """Read the options; with `--quick` they are the smallest, which show that a benchmark runs and measure nothing."""
    unknown = quick.keys() - {action.dest for action in parser._actions}
    assert not unknown, f"no options of this benchmark: {sorted(unknown)}"
    parser.add_argument("--quick", action="store_true", help="the smallest size: it shows that this runs")
    options = parser.parse_args()
    if options.quick:
        vars(options).update(quick)
    del options.quick
    return options


def frames_options(parser: argparse.ArgumentParser, *, count: int, repeats: int) -> argparse.Namespace:
    """Read how many frames are drawn how often, by one thread."""
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument("--repeats", type=int, default=repeats)
    cv2.setNumThreads(1)
    return options_of(parser, count=2, repeats=1)


def frames_s(stream: Stream, repeat: int, count: int, fps: float) -> float:
    """Return the processor time of so many frames; every repeat draws other ones."""
    times_s = (np.arange(count) + repeat * count) / fps
    start_s = time.process_time()
    stream.at(times_s)
    return time.process_time() - start_s
