"""Measure channel surgery, by default on ResNet-50 of torchvision; prints one JSON line.

`groups_over_forward` compares finding the channel groups, once per architecture, with one forward pass over the same
image. The others are relative to `copy.deepcopy` of the network, the least cost of a function that returns a new
model: cutting to half the width, reordering every channel, expanding a half. Everything runs in turn in one process.
"""

from __future__ import annotations

import argparse
import copy
import statistics
from collections.abc import Callable

import torch
from _shared import options_of, report, seconds

from driftlab._torchvision import import_torchvision
from driftlab.platform.networks.pruning import surgery

SIDE = 224


def measure(network: str, repeats: int) -> dict[str, float]:
    """Return the median seconds of every step on a network of torchvision."""
    model, image = import_torchvision().models.get_model(network, weights=None).eval(), torch.randn(1, 3, SIDE, SIDE)
    found = surgery.groups(model, image)
    half = {name: range(0, size, 2) for name, size in found.sizes.items()}
    order = {name: range(size - 1, -1, -1) for name, size in found.sizes.items()}
    small = surgery.cut(model, found, half)

    def forward() -> None:
        with torch.inference_mode():
            model(image)

    steps: dict[str, Callable[[], object]] = {
        "forward": forward,
        "deepcopy": lambda: copy.deepcopy(model),
        "groups": lambda: surgery.groups(model, image),
        "cut": lambda: surgery.cut(model, found, half),
        "permute": lambda: surgery.permute(model, found, order),
        "expand": lambda: surgery.expand(small, model, found, half),
    }
    rounds = [{name: seconds(step) for name, step in steps.items()} for _ in range(repeats)]
    return {name: statistics.median(each[name] for each in rounds) for name in steps}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--network", default="resnet50")
    options = options_of(parser, repeats=1, network="squeezenet1_1")
    torch.set_num_threads(1)
    times = measure(options.network, options.repeats)
    line = {
        "benchmark": "surgery",
        "groups_over_forward": round(times["groups"] / times["forward"], 2),
        "groups_over_forward_goal": 25,
        "cut_over_deepcopy": round(times["cut"] / times["deepcopy"], 2),
        "cut_over_deepcopy_goal": 2,
        "permute_over_deepcopy": round(times["permute"] / times["deepcopy"], 2),
        "expand_over_deepcopy": round(times["expand"] / times["deepcopy"], 2),
        "ms": {name: round(1e3 * s, 1) for name, s in times.items()},
    }
    report(line)
