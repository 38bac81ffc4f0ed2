"""Compare the latency of networks on this machine with what a predictor fitted to other operators says; one JSON line.

Kernels of random shapes are measured one by one, then whole paths of a branched network with some operators. The
predictor is asked for paths with the other operators, none of which it was fitted to. A time is the least of many
repeats by one thread, in processor seconds: other programs disturb it less. `within` is the share of predictions
within ten percent.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time

import numpy as np
import torch
from _kernels import KernelModel
from _options import options_of
from torch import nn

from driftlab.platform.core.records import LayerCost, ModelCost
from driftlab.platform.networks.account import count_cost
from driftlab.platform.networks.branched import Branched, branch
from driftlab.platform.networks.chain import chain_of
from driftlab.platform.networks.paths import BASE, PathSpace
from driftlab.platform.networks.zoo import build

FITTED, OTHERS = ("svd", "dwsep", "fire", "shuffle"), ("ghost", "bneck", "asym", "mbconv")


def least_s(module: nn.Module, x: torch.Tensor, repeats: int) -> float:
    """Return the least processor time of a call."""
    spent = []
    with torch.inference_mode():
        for _ in range(repeats + 2):
            start = time.thread_time_ns()
            module(x)
            spent.append(time.thread_time_ns() - start)
    return min(spent[2:]) / 1e9


def draw_kernel(rng: np.random.Generator) -> tuple[nn.Module, tuple[int, int, int]]:
    """Draw a layer and the shape of its input: channels, height and width."""
    kind, side = rng.integers(10), int(rng.choice([1, 4, 8, 16, 32]))
    inputs, outputs = (int(2 ** rng.uniform(1, 7.2)) for _ in range(2))
    even = inputs + inputs % 2
    simple = (nn.BatchNorm2d(even), nn.ReLU(), nn.Identity(), nn.AdaptiveAvgPool2d(1), nn.ChannelShuffle(2))
    stride = int(rng.choice([1, 1, 2]))
    if kind <= 2:
        size = [(3, 3), (1, 1), (1, 3), (3, 1)][rng.integers(4)]
        conv = nn.Conv2d(inputs, outputs, size, stride, (size[0] // 2, size[1] // 2), bias=False)
        return conv, (inputs, side, side)
    if kind == 3:
        return nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False), (inputs, side, side)
    if kind == 9:
        groups = math.gcd(4, math.gcd(inputs, outputs))
        return nn.Conv2d(inputs, outputs, 1, groups=groups, bias=False), (inputs, side, side)
    return simple[int(kind) - 4], (even, side, side)


def measure_kernels(count: int, repeats: int) -> list[tuple[LayerCost, float]]:
    rng, found = np.random.default_rng(0), []
    for _ in range(count):
        module, shape = draw_kernel(rng)
        x = torch.randn(1, *shape).to(memory_format=torch.channels_last)
        found.append((_cost(module, x), least_s(module.eval(), x, repeats)))
    return found


def _cost(module: nn.Module, x: torch.Tensor) -> LayerCost:
    """Count a layer on its own input."""
    with torch.no_grad():
        made = module.eval()(x)
    parameters = sum(each.numel() for each in module.parameters())
    macs = 0
    if isinstance(module, nn.Conv2d):
        macs = made.numel() * module.weight[0].numel()
    kind = type(module).__name__
    return LayerCost("kernel", kind, macs, parameters, 4 * x.numel(), 4 * made.numel(), 4 * parameters)


def networks(branched: Branched, size: int, count: int, repeats: int) -> list[tuple[ModelCost, float]]:
    """Measure paths at random that have an operator."""
    rng, space, found = np.random.default_rng(1), branched.space, []
    x = torch.randn(1, 3, size, size).to(memory_format=torch.channels_last)
    numbers = [n for n in range(len(space)) if BASE not in space.name(space.decode(n))]
    for number in rng.choice(numbers, min(count, len(numbers)), replace=False).tolist():
        network = branched.network(space.decode(number))
        found.append((count_cost(network, size, size), least_s(network, x, repeats)))
    return found


def branched_of(network: str, size: int, operators: tuple[str, ...]) -> Branched:
    chain = chain_of(build(network, 10, seed=0).eval(), torch.zeros(1, 3, size, size), 4)
    return branch(chain, PathSpace(((*operators, BASE),) * len(chain.stages)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="staged")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--kernels", type=int, default=600)
    parser.add_argument("--paths", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=40)
    options = options_of(parser, network="tiny_staged", size=16, kernels=60, paths=3, repeats=2)
    torch.set_num_threads(1)
    model = KernelModel.fit(measure_kernels(options.kernels, options.repeats))
    fitted, others = (
        networks(branched_of(options.network, options.size, names), options.size, options.paths, options.repeats)
        for names in (FITTED, OTHERS)
    )
    model = model.fitted_to(fitted)
    line: dict[str, object] = {"benchmark": "latency", "network": options.network, "factor": round(model.factor, 3)}
    for name, rows in (("fitted", fitted), ("others", others)):
        errors = np.array([abs(model.predict(cost) / time_s - 1) for cost, time_s in rows])
        line[name] = {
            "median_error": round(float(np.median(errors)), 4),
            "within": round(float((errors <= 0.1).mean()), 3),
            "latency_ms": [round(1e3 * pick(time_s for _, time_s in rows), 3) for pick in (min, max)],
        }
    line["layer_us"] = round(1e6 * model.layer_s, 2)
    sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
