"""Compare the training memory and time of stages with those of light networks; prints one JSON line.

Memory is the bytes that one step stores for the backward pass (each storage once), plus gradients and momentum of the
trained weights. Layers before a stage are frozen and store nothing. `stages_mb` should fall from stage to stage;
`saved` is the saving of the last stage relative to the light network with the largest memory. `exits` is the relative
increase in bytes of a network with 2, 3 and 4 exits over the same network with one.

`stages_h` and `light_h` are hours of training on one core with the paper's recipe, 120 epochs of 50 000 frames, from
the time of one step. A step of a stage includes the forward pass of the frozen layers before it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from _shared import options_of, report, seconds
from torch import nn

from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.branched import Branched, branch
from driftlab.platform.networks.chain import chain_of
from driftlab.platform.networks.cost_counter import stored_bytes
from driftlab.platform.networks.light import TRUNKS, build_like
from driftlab.platform.networks.paths import BASE, PathSpace

FRAMES = 120 * 50_000  # of the training of a network in the paper


class StageStep(nn.Module):
    """A stage with its exit, on the features before it."""

    def __init__(self, stage: nn.Module, head: nn.Module, images: torch.Tensor) -> None:
        super().__init__()
        self.stage, self.head, self.images = stage, head, images

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.stage(x), self.images)
        return logits


def training_bytes(module: nn.Module, x: torch.Tensor) -> int:
    """Count the bytes of a step: each activation once, and gradients and momentum of all weights."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        module.train()(x)
    return sum(kept.values()) + 2 * sum(each.numel() * each.itemsize for each in module.parameters())


def step_ms(module: nn.Module, x: torch.Tensor, repeats: int) -> float:
    """Return the median time of a forward and a backward pass, in processor milliseconds."""
    return median_ms(lambda: torch.autograd.backward(module.train()(x).square().mean()), repeats)


def median_ms(call: Callable[[], object], repeats: int) -> float:
    return 1e3 * statistics.median(seconds(call, time.thread_time) for _ in range(repeats))


def stages_of(branched: Branched, images: torch.Tensor) -> list[tuple[nn.Module, torch.Tensor, nn.Module]]:
    """List the module that each stage trains, its input, and the frozen layers; the first one trains the stem too."""
    with torch.no_grad():
        x, found, frozen = images, [], nn.Sequential()
        for which, (modules, head) in enumerate(zip(branched.stages, branched.heads, strict=True)):
            stage = nn.Sequential(branched.stem, modules[-1]) if which == 0 else modules[-1]
            found.append((StageStep(stage, head, images), x, frozen))
            frozen = nn.Sequential(*frozen, stage).eval()
            x = stage.eval()(x)
    return found


def exit_overheads(model: nn.Module, example: torch.Tensor) -> list[float]:
    """Return how many more bytes networks with 2, 3 and 4 exits hold than with their last exit alone."""
    found = []
    for exits in (2, 3, 4):
        chain = chain_of(model, example, exits)
        branched = branch(chain, PathSpace(((BASE,),) * len(chain.stages)))
        held = [stored_bytes(head) for head in branched.heads]
        single = sum(stored_bytes(module) for _, module in branched.parts()) - sum(held[:-1])
        found.append(round(sum(held[:-1]) / single, 4))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="staged")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=9)
    options = options_of(parser, network="tiny_staged", size=16, batch=8, repeats=1)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = build(options.network, options.classes, seed=0).eval()
    images = torch.randn(options.batch, 3, options.size, options.size)
    chain = chain_of(model, images[:1], 4)
    stages = stages_of(branch(chain, PathSpace(((BASE,),) * len(chain.stages))), images)
    light = {name: build_like(name, model, images[:1]) for name in TRUNKS}
    needs = [training_bytes(module, x) for module, x, _ in stages]
    theirs = {name: training_bytes(network, images) for name, network in light.items()}
    stages_ms = [step_ms(module, x, options.repeats) for module, x, _ in stages]
    with torch.no_grad():
        frozen_ms = [median_ms(lambda: before.eval()(images), options.repeats) for _, _, before in stages]  # noqa: B023
    hours = FRAMES / options.batch / 3.6e6  # of steps that take a millisecond
    line = {
        "benchmark": "training_memory",
        "network": options.network,
        "classes": options.classes,
        "batch": options.batch,
        "stages_mb": [round(need / 1e6, 2) for need in needs],
        "whole_mb": round(training_bytes(model, images) / 1e6, 2),
        "light_mb": {name: round(need / 1e6, 2) for name, need in theirs.items()},
        "saved": round(1 - needs[-1] / max(theirs.values()), 3),
        "stages_ms": [round(ms, 2) for ms in stages_ms],
        "whole_ms": round(step_ms(model, images, options.repeats), 2),
        "stages_h": [round(hours * (ms + before), 2) for ms, before in zip(stages_ms, frozen_ms, strict=True)],
        "light_h": {name: round(hours * step_ms(each, images, options.repeats), 2) for name, each in light.items()},
        "exits": exit_overheads(model, images[:1]),
    }
    report(line)


if __name__ == "__main__":
    main()
