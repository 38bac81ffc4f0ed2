"""Compare learners that train as one batch with sequential ones; prints a JSON line per case.

`ratio` is the time of a phase one after another over that of the batch: above 1 the batch is faster. Both run in turn
in one process, on the same samples. Servers train together on a GPU only (`--device cuda`).
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import numpy as np
import torch
from _shared import options_of, report, seconds

from driftlab.determinism import make_deterministic
from driftlab.platform.adaptation.base import Batch, Phase
from driftlab.platform.adaptation.distill import Distill
from driftlab.platform.field.together import adapt_together
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.named import task_of

CLASSES, FRAMES = 8, 16


def samples(seed: int, network: str, height: int, width: int) -> Batch:
    """Draw frames and labels."""
    rng, task = np.random.default_rng(seed), task_of(network)
    images = rng.integers(0, 256, (FRAMES, height, width, 3), dtype=np.uint8)
    labels = task.blank(FRAMES, height, width)
    labels[...] = rng.integers(0, CLASSES, labels.shape)
    return Batch(images, labels, rng, task)


def compare(count: int, options: argparse.Namespace) -> dict[str, float]:
    """Measure a phase of so many learners in both ways; return medians and their ratio."""
    member = Distill(iterations=options.iterations)
    models = [build(options.network, CLASSES, seed=seed).to(options.device) for seed in range(count)]
    states, phases = [member.prepare(model) for model in models], [Phase()] * count
    batches = [samples(seed, options.network, options.height, options.width) for seed in range(count)]

    def alone() -> None:
        for given in zip(models, states, batches, phases, strict=True):
            member.adapt(*given)

    def joint() -> None:
        adapt_together([member] * count, models, states, batches, phases)

    alone()
    joint()
    rounds = [(waited_s(alone, options.device), waited_s(joint, options.device)) for _ in range(options.repeats)]
    alone_s, joint_s = (statistics.median(column) for column in zip(*rounds, strict=True))
    return {"alone_s": round(alone_s, 4), "joint_s": round(joint_s, 4), "ratio": round(alone_s / joint_s, 3)}


def waited_s(call: Callable[[], None], device: str) -> float:
    """Return the duration of a call to the end of its work on the device."""

    def whole() -> None:
        call()
        if device != "cpu":
            torch.cuda.synchronize()

    return seconds(whole)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--network", default="tiny")
    parser.add_argument("--counts", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--height", type=int, default=64)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    options = options_of(parser, counts=[2], height=16, width=24, iterations=2, repeats=1)
    make_deterministic(options.device)
    torch.set_num_threads(1)
    for count in options.counts:
        line = {"benchmark": "together", "device": options.device, "network": options.network, "learners": count}
        report({**line, **compare(count, options)})


if __name__ == "__main__":
    main()
