"""Measure the step on flat vectors against `torch.optim.Adam(foreach=True)`; prints one JSON line.

Both run in turn in one process, on the parameters of the same networks with the same gradients. `ratio` compares the
optimiser step alone, at fraction 1 and at 5 %; `iteration` compares a whole iteration of the small network: forward,
backward, clearing gradients, step.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import numpy as np
import torch
from _shared import options_of, report, seconds
from torch.nn import functional

from driftlab.platform.adaptation import masks
from driftlab.platform.networks import vector
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.training.descent import Adam, Descent

NETWORKS = ("tiny", "teacher", "deeplabv3_mobilenet")
RATE = 1e-3
Step = Callable[[], None]


def compare(steps: dict[str, Step], repeats: int) -> dict[str, float]:
    """Run the steps in turn and return each one's median ratio to the first."""
    for step in steps.values():
        step()
    rounds = [{name: seconds(step) for name, step in steps.items()} for _ in range(repeats)]
    first = next(iter(steps))
    return {name: round(statistics.median(r[name] / r[first] for r in rounds), 3) for name in steps if name != first}


def flat_descent(weights: torch.Tensor, fraction: float) -> Descent:
    zeros = np.zeros(len(weights), dtype=np.float32)
    walk = Descent(Adam(RATE), weights, (zeros, zeros), 0)
    walk.restrict(masks.uniform(len(weights), masks.budget(fraction, len(weights)), np.random.default_rng(0)))
    return walk


def step_ratios(network: str, repeats: int) -> dict[str, float]:
    """Compare the optimiser step alone."""
    theirs = [p for p in build(network, 8, seed=0).parameters() if p.requires_grad]
    for parameter in theirs:
        parameter.grad = torch.randn_like(parameter)
    adam = torch.optim.Adam(theirs, lr=RATE, foreach=True)
    weights = torch.cat([p.detach().reshape(-1) for p in theirs])
    gradient = torch.cat([p.grad.reshape(-1) for p in theirs if p.grad is not None])
    full, sparse = flat_descent(weights, 1.0), flat_descent(weights.clone(), 0.05)
    steps: dict[str, Step] = {
        "torch": adam.step,
        "full": lambda: full.step(gradient),
        "five_percent": lambda: sparse.step(gradient),
    }
    return compare(steps, repeats)


def iteration_ratios(repeats: int) -> dict[str, float]:
    """Compare a full iteration of the small network."""
    images, labels = torch.randn(4, 3, 64, 128), torch.randint(8, (4, 64, 128))
    theirs, ours = build("tiny", 8, seed=0).eval(), build("tiny", 8, seed=0).eval()
    adam = torch.optim.Adam(theirs.parameters(), lr=RATE, foreach=True)

    def torch_iteration() -> None:
        adam.zero_grad()
        torch.autograd.backward(functional.cross_entropy(theirs(images), labels))
        adam.step()

    with vector.bind_vector(ours) as flat:
        walk = flat_descent(flat.weights, 0.05)

        def flat_iteration() -> None:
            flat.gradients.zero_()
            torch.autograd.backward(functional.cross_entropy(ours(images), labels))
            walk.step(flat.gradients)

        return compare({"torch": torch_iteration, "five_percent": flat_iteration}, repeats)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=41)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    options = options_of(parser, repeats=1, networks=["tiny"])
    torch.set_num_threads(1)
    ratios = {network: step_ratios(network, options.repeats) for network in options.networks}
    line = {
        "benchmark": "optimiser",
        "ratio": max(max(ratio.values()) for ratio in ratios.values()),
        "goal": 1.10,
        "networks": ratios,
        "iteration": iteration_ratios(options.repeats),
    }
    report(line)
