"""Measure how other programs slow the operators of a supernet.

The benchmark prints one JSON line: world/operator_loads.json. Each operator runs on 64 channels of 16 x 16 places:
alone, next to a program that computes, and next to one that copies memory. A round measures all of them in random
order, so that other disturbances are spread evenly. A time is the median over rounds of the processor time of the
thread, which leaves out the time when other programs have the core: it rises as they take caches and the bandwidth of
memory. `cpu` and `memory` are the rise, as a share, next to a program that computes or copies all the time. The load is
one process for at most `--seconds`. Only an administrator may set a clock: all operators take time in proportion to it.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from _shared import options_of, report
from torch import nn

from driftlab.platform.networks.operators import OPERATORS
from driftlab.platform.networks.paths import BASE

CHANNELS, SIDE = 64, 16
# Programs that print a line when their work begins. They do not import torch, which takes longer than a short load.
BEGIN = """
import sys, time, numpy as np
until_s = time.monotonic() + float(sys.argv[1])
"""
COMPUTE = """
values = np.ones(256)  # few values
print("works", flush=True)
while time.monotonic() < until_s:
    for _ in range(1000):
        values = values * 0.5 + 0.5
"""
COPY = """
source, target = np.ones(16_000_000), np.ones(16_000_000)  # more than caches hold
print("works", flush=True)
while time.monotonic() < until_s:
    np.copyto(target, source)
"""


@contextmanager
def loaded(program: str | None, seconds: float) -> Iterator[None]:
    """Run a program in parallel with the block, for at most some seconds."""
    if program is None:
        yield
        return
    command = [sys.executable, "-c", BEGIN + program, str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


def thread_s(block: nn.Module, x: torch.Tensor, calls: int) -> float:
    start_s = time.thread_time()
    for _ in range(calls):
        block(x)
    return (time.thread_time() - start_s) / calls


def measure(rounds: int, calls: int, seconds: float) -> dict[str, object]:
    torch.set_num_threads(1)
    rng, x = np.random.default_rng(0), torch.randn(1, CHANNELS, SIDE, SIDE)
    makers = {**OPERATORS, BASE: lambda inputs, outputs, stride: nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)}
    blocks = {name: make(CHANNELS, CHANNELS, 1).eval() for name, make in makers.items()}
    programs = {"alone": None, "cpu": COMPUTE, "memory": COPY}
    times: dict[str, dict[str, list[float]]] = {name: {load: [] for load in programs} for name in blocks}
    with torch.inference_mode():
        for _ in range(rounds):
            for load in rng.permutation(list(programs)).tolist():
                with loaded(programs[load], seconds):
                    for name in rng.permutation(list(blocks)).tolist():
                        times[name][load].append(thread_s(blocks[name], x, calls))
    medians = {name: {load: statistics.median(took) for load, took in own.items()} for name, own in times.items()}
    return {
        "benchmark": "operator_loads",
        "machine": f"{os.cpu_count()} shared cores, {platform.machine()}",
        "rounds": rounds,
        "operators": {
            name: {load: round(max(0.0, own[load] / own["alone"] - 1), 3) for load in ("cpu", "memory")}
            for name, own in medians.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=20.0, help="the longest time of one load")
    options = options_of(parser, rounds=1, calls=1, seconds=2.0)
    report(measure(options.rounds, options.calls, options.seconds))


if __name__ == "__main__":
    main()
