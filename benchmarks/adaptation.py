"""Measure one adaptation of each label-free member against bare PyTorch; prints one JSON line.

An adaptation is one phase over 100 samples. The bare loop makes the forward and backward passes that hooks on the
network counted in a phase, over batches of the same sizes, through the network as prepared by the member, with a
plain step of gradient descent and nothing else. The member's statement does not count. A member without passes has no
ratio. `fifth_of_filters` compares ElasticDNN's phase with a fifth of each layer's filters to the phase with all
filters, on small and wide networks: `median` and `least` are ratios of times, `charged` is the ratio in the cost
model. Both sides run in turn on one thread; times are processor times, and ratios are medians over the turns. `least`
is the ratio of the least times, which other programs disturb least.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from _shared import options_of, report
from torch import nn

from driftlab.platform.adaptation.base import EMPTY_PACK, Adaptation, Batch, Phase
from driftlab.platform.adaptation.objectives import entropies
from driftlab.platform.core.records import Passes, Weights
from driftlab.platform.core.registry import FAMILIES, Member, member_class, parameters
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.networks.predict import to_input
from driftlab.platform.networks.tasks.tasks import CLASSIFICATION
from driftlab.platform.networks.training.training_loop import DataSplits, LabelledFrames
from driftlab.platform.world.cost import task_cost
from driftlab.platform.world.hardware import HARDWARE

Params = tuple[tuple[str, Any], ...]
CLASSES, SAMPLES = 10, 100


def batch_of(size: int) -> Batch:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (SAMPLES, size, size, 3), dtype=np.uint8)
    return Batch(images, None, rng, CLASSIFICATION)


def pack_of(member: Adaptation, model: nn.Module, size: int) -> Weights:
    """Return the summary of source data for a member that needs one."""
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (2 * SAMPLES, size, size, 3), dtype=np.uint8)
    frames = LabelledFrames(images, rng.integers(0, CLASSES, len(images)).astype(np.uint8))
    return member.summarise_source(copy.deepcopy(model), DataSplits(CLASSIFICATION, CLASSES, frames, frames, frames))


def adapt_seconds(
    member: Adaptation, model: nn.Module, size: int, steps: int, pack: Weights = EMPTY_PACK
) -> tuple[float, Passes]:
    """Time one phase of a member on a copy of a network."""
    twin, batch = copy.deepcopy(model), batch_of(size)
    state = member.prepare(twin, pack)
    start_s = time.process_time()
    done = member.adapt(twin, state, batch, Phase(steps))
    assert done.passes is not None
    return time.process_time() - start_s, done.passes


@dataclass
class Counted:
    """The passes of a phase in their order, and the parameters whose gradients were computed."""

    frames: list[int] = field(default_factory=list)
    backward: set[int] = field(default_factory=set)  # of these passes, by place
    learned: set[str] = field(default_factory=set)


def count_passes(member: Adaptation, model: nn.Module, size: int, steps: int, pack: Weights) -> Counted:
    """Run one phase of a member on a copy of a network, and count its passes by hooks."""
    twin, batch, found = copy.deepcopy(model), batch_of(size), Counted()
    state = member.prepare(twin, pack)

    def ran(_: nn.Module, given: tuple[Any, ...], outputs: torch.Tensor) -> None:
        place = len(found.frames)
        found.frames.append(len(given[0]))
        if outputs.requires_grad:
            outputs.register_hook(lambda _: found.backward.add(place))

    twin.register_forward_hook(ran)
    for name, parameter in twin.named_parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: found.learned.add(name))
    member.adapt(twin, state, batch, Phase(steps))
    return found


def bare_seconds(model: nn.Module, passes: Counted, size: int) -> float:
    """Time the same passes without the member: forward alone, or with a step on the trained parameters."""
    twin, images = copy.deepcopy(model), batch_of(size).images
    for name, parameter in twin.named_parameters():
        parameter.requires_grad_(name in passes.learned)
    learning = [parameter for parameter in twin.parameters() if parameter.requires_grad]
    twin.train()
    start_s = time.process_time()
    for place, frames in enumerate(passes.frames):
        inputs = to_input(images[np.arange(frames) % SAMPLES])
        if place in passes.backward and learning:
            entropies(twin(inputs)).mean().backward()
            with torch.no_grad():
                for parameter in learning:
                    if parameter.grad is not None:
                        parameter.sub_(parameter.grad, alpha=1e-6)
                        parameter.grad = None
        else:
            with torch.no_grad():
                twin(inputs)
    return time.process_time() - start_s


def in_turns(first: Callable[[], float], second: Callable[[], float], repeats: int) -> list[tuple[float, float]]:
    """Return the times of two functions that run in turn, after one run of each to warm up."""
    first(), second()
    return [(first(), second()) for _ in range(repeats)]


def over_bare(name: str, model: nn.Module, size: int, steps: int, repeats: int, params: Params = ()) -> float | None:
    """Return the time of one phase of a member over that of its passes alone; None without passes."""
    member = Member("adaptation", name, params).make()
    pack, prepared = pack_of(member, model, size), copy.deepcopy(model)
    member.prepare(prepared, pack)
    passes = count_passes(member, model, size, steps, pack)
    if not passes.frames:
        return None
    pairs = in_turns(
        lambda: adapt_seconds(member, model, size, steps, pack)[0],
        lambda: bare_seconds(prepared, passes, size),
        repeats,
    )
    ratio = statistics.median(ours_s / bare_s for ours_s, bare_s in pairs)
    sys.stderr.write(f"{name} {dict(params) or ''}: {ratio:.3f} times {min(bare_s for _, bare_s in pairs):.3f} s\n")
    return round(ratio, 3)


def fifth_of_filters(network: str, size: int, steps: int, repeats: int) -> dict[str, float]:
    """Return the ratios of time and charge of a phase with a fifth of the filters to one with all."""
    model = build(network, CLASSES, seed=0).eval()
    fifth, whole = (
        Member("adaptation", "elasticdnn", (("select", how), ("share", share), ("batch", 32))).make()
        for how, share in (("topfrac", 0.2), ("all", 1.0))
    )
    cost, hardware = count_cost(model, size, size), HARDWARE["raspberry-pi-4"]
    charged = [
        task_cost(cost, hardware, adapt_seconds(one, model, size, steps)[1]).isolated_s for one in (fifth, whole)
    ]
    pairs = in_turns(*(lambda one=one: adapt_seconds(one, model, size, steps)[0] for one in (fifth, whole)), repeats)
    median = statistics.median(one / other for one, other in pairs)
    least = min(one for one, _ in pairs) / min(other for _, other in pairs)
    return {"median": round(median, 3), "least": round(least, 3), "charged": round(charged[0] / charged[1], 3)}


def measure(network: str, size: int, steps: int, repeats: int, members: str, wide: str) -> dict[str, object]:
    torch.manual_seed(0)
    model = build(network, CLASSES, seed=0).eval()
    chosen = members.split(",") if members else [*FAMILIES["adaptation"]]
    learners = [
        name
        for name in chosen
        if name and member_class("adaptation", name).labels == "none" and name not in ("frozen", "elasticdnn_cua")
    ]
    ratios = {name: over_bare(name, model, size, steps, repeats) for name in learners}
    for name in learners:
        if "views" in parameters(member_class("adaptation", name)):
            ratios[f"{name} without views"] = over_bare(name, model, size, steps, repeats, (("views", "none"),))
    networks = [(name, int(side)) for name, _, side in (one.partition("@") for one in wide.split(","))]
    return {
        "benchmark": "adaptation",
        "unit": "times the bare loop",
        **ratios,
        "fifth_of_filters": {
            f"{name} at {side}": fifth_of_filters(name, side, steps, repeats) for name, side in networks
        },
        "network": network,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="wide_residual")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=50, help="steps of a phase")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--members", default="", help="NAME,...: members to compare with bare loops; all by default")
    parser.add_argument("--wide", default="tiny_classifier@32,wide_residual@32,resnet18@64", help="NETWORK@SIZE,...")
    torch.set_num_threads(1)
    quick = {"network": "tiny_classifier", "size": 16, "steps": 5, "repeats": 1, "wide": "tiny_classifier@16"}
    quick["members"] = "tent,elasticdnn"
    report(measure(**vars(options_of(parser, **quick))))
