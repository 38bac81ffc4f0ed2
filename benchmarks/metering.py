"""Measure the processor time that counting and audits add to a member's calls; prints JSON lines.

`counting` is the time of a counted call over that of a bare one, `audit` that of an audited call, and `expected` the
mean of both by their shares. `cell` is the time of a whole cell over that of the same cell in which nothing is counted.
Times are of the processor, on one thread, in turns; ratios are medians.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from _shared import options_of, report

from driftlab.platform.adaptation.base import Batch, Phase
from driftlab.platform.adaptation.tent import Tent
from driftlab.platform.core.records import ModelCost, Passes
from driftlab.platform.lab.seal import run
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.networks.taps import tap
from driftlab.platform.networks.tasks.tasks import CLASSIFICATION
from driftlab.platform.sim.nodes.metering import AUDITED, Call, CallMeter, Verb

STREAM = Phase(on_stream=True)
SIZES = {"tiny_classifier": 32, "wide_residual": 32, "resnet18": 64}  # of frames


def times(name: str, verb: str, frames: int, calls: int) -> dict[str, list[float]]:
    """Return the seconds of bare, counted and audited calls of Tent, in turns."""
    size, member = SIZES[name], Tent()
    model = build(name, 10, seed=0).eval()
    cost = count_cost(model, size, size)
    tapped = build(name, 10, seed=0).eval()
    tap(tapped, cost)
    rng = np.random.default_rng(0)
    batch = Batch(rng.integers(0, 256, (frames, size, size, 3), dtype=np.uint8), None, rng, CLASSIFICATION)
    states = {"bare": member.prepare(model), "tapped": member.prepare(tapped)}
    meter, found = CallMeter(0, {}), {"bare": [], "counting": [], "audit": []}

    def use(network: Any, which: str) -> Any:
        if verb == "adapt":
            return member.adapt(network, states[which], batch, STREAM)
        return member.predict(network, states[which], batch)

    def metered() -> bool:
        with meter.call(verb, cost, frames) as call:  # type: ignore[arg-type]
            done = use(tapped, "tapped")
        meter.charge(call, done.passes or Passes((frames,)), learned=verb == "adapt")
        return call.operators is not None

    for turn in range(calls):
        started = time.process_time()
        use(model, "bare")
        found["bare"].append(time.process_time() - started)
        if turn % 4 == 3:
            meter._due.add(verb)  # type: ignore[arg-type]  # audit the next call
        started = time.process_time()
        audited = metered()
        found["audit" if audited else "counting"].append(time.process_time() - started)
    return found


def cell_of(network: str, duration_s: float) -> dict[str, Any]:
    """Return an experiment of one cell, in which Tent learns on a stream of signs."""
    return {
        "name": "metering",
        "bounds": False,
        "snapshots": 0,
        "student": {"network": network, "pretrain_steps": 2, "pretrain_batch": 4},
        "systems": [{"name": "tent", "adaptation": {"name": "tent", "stream_batch": 32}}],
        "workloads": [
            {
                "name": "domains:signs/depot",
                "duration_s": duration_s,
                "fps": 10,
                "height": SIZES[network],
                "width": SIZES[network],
                "params": {"domain_s": 5},
            }
        ],
    }


@contextmanager
def uncounted() -> Iterator[None]:
    """Run cells without hooks, counts and audits."""

    @contextmanager
    def call(self: CallMeter, verb: Verb, cost: ModelCost, frames: int) -> Iterator[Call]:
        yield Call(verb, frames, cost)

    def charge(self: CallMeter, call: Call, passes: Passes, *, learned: bool = False) -> Passes:
        return passes

    with ExitStack() as stack:
        for node in ("application", "learner"):
            stack.enter_context(patch(f"driftlab.platform.sim.nodes.{node}.tap", lambda *given: None))
        stack.enter_context(patch.object(CallMeter, "call", call))
        stack.enter_context(patch.object(CallMeter, "charge", charge))
        yield


def cell_ratio(network: str, duration_s: float, runs: int) -> float:
    """Return the processor time of a cell over that of one without counts, as a median of runs in turns."""

    def seconds(name: str) -> float:
        started = time.process_time()
        run(cell_of(network, duration_s), out=Path(folder) / name)
        return time.process_time() - started

    with tempfile.TemporaryDirectory() as folder:
        seconds("networks are built")
        ratios = []
        for turn in range(runs):
            counted = seconds(f"counted-{turn}")
            with uncounted():
                ratios.append(counted / seconds(f"uncounted-{turn}"))
    return statistics.median(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--runs", type=int, default=5, help="of a cell")
    parser.add_argument("--seconds", type=float, default=60, help="of a cell's stream")
    parser.add_argument("--networks", default=",".join(SIZES))
    options = options_of(parser, calls=8, runs=1, seconds=7, networks="tiny_classifier")
    torch.set_num_threads(1)
    for name in options.networks.split(","):
        for verb, frames in (("predict", 1), ("adapt", 32)):
            found = {which: statistics.median(one) for which, one in times(name, verb, frames, options.calls).items()}
            counting, audit = (found[which] / found["bare"] for which in ("counting", "audit"))
            expected = counting + (audit - counting) / AUDITED
            line = {"bare_ms": 1e3 * found["bare"], "counting": counting, "audit": audit, "expected": expected}
            rounded = {which: round(value, 3) for which, value in line.items()}
            report({"benchmark": "metering", "network": name, "call": verb, "frames": frames, **rounded})
        cell = cell_ratio(name, options.seconds, options.runs)
        report({"benchmark": "metering", "network": name, "cell": round(cell, 3)})


if __name__ == "__main__":
    main()
