"""Compare the measured latency of networks with that of a fitted predictor; prints one JSON line.

Kernels of random shapes are measured one by one, and whole paths of a branched network with some operators; the
predictor is fitted to both. Then it predicts paths with other operators. All of them are measured in turn, once per
round in random order. A time is the median over rounds, in processor seconds of one thread, so that disturbances by
other programs are spread evenly. `within` is the share of predictions with an error of at most ten percent; `kernels`
is the median error by kind of kernels that are left out of the fit.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from _kernels import Kernel, KernelModel, kernels_of
from _shared import options_of, report
from torch import nn

from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.branched import Branched, branch
from driftlab.platform.networks.chain import chain_of
from driftlab.platform.networks.paths import BASE, PathSpace

FITTED, OTHERS = ("svd", "dwsep", "fire", "shuffle"), ("ghost", "bneck", "asym", "mbconv")
HELD_OUT = 5  # every fifth kernel is left out of the fit
Call = tuple[nn.Module, tuple[torch.Tensor, ...]]


class _Function(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        return self.function(*given)


def picture(channels: int, side: int) -> torch.Tensor:
    return torch.randn(1, channels, side, side).to(memory_format=torch.channels_last)


def draw_convolution(rng: np.random.Generator) -> Call:
    """Draw a dense, depthwise or grouped convolution and its input."""
    kind, side = rng.integers(8), int(rng.choice([1, 4, 8, 16, 32]))
    inputs, outputs = (_channels(rng) for _ in range(2))
    stride = int(rng.choice([1, 1, 2]))
    if kind == 0:
        return nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False), (picture(inputs, side),)
    if kind == 1:
        groups = math.gcd(4, math.gcd(inputs, outputs))
        return nn.Conv2d(inputs, outputs, 1, groups=groups, bias=False), (picture(inputs, side),)
    size = [(3, 3), (1, 1), (1, 3), (3, 1)][rng.integers(4)]
    padding = size[0] // 2, size[1] // 2
    return nn.Conv2d(inputs, outputs, size, stride, padding, bias=False), (picture(inputs, side),)


def draw_other(rng: np.random.Generator) -> Call:
    """Draw a kernel of another kind and its inputs."""
    channels, side = 2 * math.ceil(_channels(rng) / 2), int(rng.choice([1, 4, 8, 16, 32]))
    x = picture(channels, side)
    calls: list[Call] = [
        (nn.BatchNorm2d(channels), (x,)),
        (_Function(torch.relu), (x,)),
        (_Function(torch.add), (x, picture(channels, side))),
        (_Function(torch.mul), (x, picture(channels, 1))),
        (_Function(nn.functional.hardsigmoid), (picture(channels, 1),)),
        (_Function(lambda a, b: torch.cat([a, b], dim=1)), (x, picture(_channels(rng), side))),
        (nn.AdaptiveAvgPool2d(1), (x,)),
        (nn.ChannelShuffle(2), (x,)),
        (nn.Linear(channels, 10), (torch.randn(1, channels),)),
    ]
    return calls[rng.integers(len(calls))]


def _channels(rng: np.random.Generator) -> int:
    """Draw a number of channels; those of most networks are multiples of eight."""
    drawn = int(2 ** rng.uniform(1, 7.2))
    return 8 * math.ceil(drawn / 8) if rng.random() < 0.5 else drawn


def draw_paths(branched: Branched, size: int, count: int) -> list[Call]:
    """Draw paths that have an operator in every stage."""
    rng, space, x = np.random.default_rng(1), branched.space, picture(3, size)
    numbers = [n for n in range(len(space)) if BASE not in space.name(space.decode(n))]
    chosen = rng.choice(numbers, min(count, len(numbers)), replace=False).tolist()
    return [(branched.network(space.decode(number)), (x,)) for number in chosen]


def branched_of(network: str, size: int, operators: tuple[str, ...]) -> Branched:
    chain = chain_of(build(network, 10, seed=0).eval(), torch.zeros(1, 3, size, size), 4)
    return branch(chain, PathSpace(((*operators, BASE),) * len(chain.stages)))


def medians_s(calls: Sequence[Call], rounds: int) -> list[float]:
    """Return the median processor time of each call over rounds in random order."""
    rng, spent = np.random.default_rng(2), np.zeros((rounds, len(calls)))
    for module, _ in calls:
        module.eval()
    with torch.inference_mode():
        for number in range(-1, rounds):  # the first one warms up
            for which in rng.permutation(len(calls)).tolist():
                module, given = calls[which]
                start = time.thread_time_ns()
                module(*given)
                spent[number, which] = time.thread_time_ns() - start
    medians: list[float] = (np.median(spent, axis=0) / 1e9).tolist()
    return medians


def error_of(predicted: Sequence[float], times_s: Sequence[float]) -> dict[str, object]:
    errors = np.abs(np.divide(predicted, times_s) - 1)
    return {
        "median_error": round(float(np.median(errors)), 4),
        "within": round(float((errors <= 0.1).mean()), 3),
        "latency_ms": [round(1e3 * pick(times_s), 3) for pick in (min, max)],
    }


def kernel_errors(kernels: Sequence[tuple[Kernel, float]]) -> dict[str, float]:
    """Return the median error of held-out kernels by kind."""
    model = KernelModel.fit([pair for number, pair in enumerate(kernels) if number % HELD_OUT])
    found: dict[str, list[float]] = {}
    for kernel, time_s in kernels[::HELD_OUT]:
        found.setdefault(kernel.kind, []).append(abs(model.kernel_s(kernel) / time_s - 1))
    return {kind: round(float(np.median(errors)), 3) for kind, errors in sorted(found.items())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="staged")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--kernels", type=int, default=1500)
    parser.add_argument("--paths", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=31)
    options = options_of(parser, network="tiny_staged", size=16, kernels=60, paths=3, rounds=2)
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    single = [(draw_convolution, draw_other)[number % 3 == 0](rng) for number in range(options.kernels)]
    drawn = [
        draw_paths(branched_of(options.network, options.size, names), options.size, options.paths)
        for names in (FITTED, OTHERS)
    ]
    calls = [*single, *drawn[0], *drawn[1]]
    measured = [(kernels_of(module, *given), time_s) for (module, given), time_s in
                zip(calls, medians_s(calls, options.rounds), strict=True)]  # fmt: skip
    kernels = [(found[0], time_s) for found, time_s in measured[: len(single)]]
    paths = measured[len(single) : len(single) + len(drawn[0])], measured[len(single) + len(drawn[0]) :]
    model = KernelModel.fit(kernels).fitted_to(paths[0])
    line: dict[str, object] = {"benchmark": "latency", "network": options.network}
    for name, rows in zip(("fitted", "others"), paths, strict=True):
        line[name] = error_of([model.predict(found) for found, _ in rows], [time_s for _, time_s in rows])
    line["factors"] = [round(each, 3) for each in model.factors]
    line["between_us"] = round(1e6 * model.between_s, 2)
    line["kernels"] = kernel_errors(kernels)
    report(line)


if __name__ == "__main__":
    main()
