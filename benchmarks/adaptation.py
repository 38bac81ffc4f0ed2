"""Measure one adaptation of each label-free member per 100 samples against bare PyTorch; prints one JSON line.

The bare loop makes the same forward and backward passes over batches of the same sizes, with a plain step of gradient
descent and nothing else. `fifth_of_filters` is the time of ElasticDNN's steps with a fifth of each layer's filters
over that with all of them. Times are of the processor, on one thread: what else runs on the machine counts little.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from _options import options_of
from torch import nn

from driftlab.platform.adaptation.base import Adaptation, Batch, Phase
from driftlab.platform.adaptation.stream import entropies
from driftlab.platform.core.catalogue import FAMILIES, Member, member_class
from driftlab.platform.core.records import Passes
from driftlab.platform.networks.predict import to_input
from driftlab.platform.networks.zoo import build
from driftlab.platform.tasks.tasks import CLASSIFICATION

CLASSES, SAMPLES, STEPS = 10, 100, 50


def batch_of(size: int) -> Batch:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (SAMPLES, size, size, 3), dtype=np.uint8)
    return Batch(images, None, rng, CLASSIFICATION)


def adapt_seconds(member: Adaptation, model: nn.Module, size: int) -> tuple[float, Passes]:
    """Time one phase of a member on a copy of a network."""
    twin, batch = copy.deepcopy(model), batch_of(size)
    state = member.prepare(twin)
    start_s = time.process_time()
    done = member.adapt(twin, state, batch, Phase(STEPS))
    assert done.work is not None
    return time.process_time() - start_s, done.work


def bare_seconds(model: nn.Module, passes: Passes, size: int) -> float:
    """Time the same passes without the member: forward alone, or with a step on what it trained."""
    twin, images = copy.deepcopy(model), batch_of(size).images
    for name, parameter in twin.named_parameters():
        owner = name.rpartition(".")[0]
        parameter.requires_grad_(passes.trained is None or owner in passes.trained)
    learning = [parameter for parameter in twin.parameters() if parameter.requires_grad]
    twin.train()
    backward = list(passes.backward)
    start_s = time.process_time()
    for frames in reversed(passes.forward):
        inputs = to_input(images[np.arange(frames) % SAMPLES])
        if backward and backward[-1] == frames:
            backward.pop()
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


def medians(first: Callable[[], float], second: Callable[[], float], repeats: int) -> tuple[float, float]:
    """Return the median times of two, measured in turns after one run of each to warm up."""
    first(), second()
    pairs = [(first(), second()) for _ in range(repeats)]
    one, other = zip(*pairs, strict=True)
    return statistics.median(one), statistics.median(other)


def measure(network: str, size: int, repeats: int) -> dict[str, object]:
    torch.manual_seed(0)
    model = build(network, CLASSES, seed=0).eval()
    ratios = {}
    for name in FAMILIES["adaptation"]:
        if member_class("adaptation", name).labels == "none" and name not in ("frozen", "elasticdnn_cua"):
            member = Member("adaptation", name).make()
            _, passes = adapt_seconds(member, model, size)
            ours_s, bare_s = medians(
                lambda member=member: adapt_seconds(member, model, size)[0],
                lambda passes=passes: bare_seconds(model, passes, size),
                repeats,
            )
            ratios[name] = round(ours_s / bare_s, 3)
            sys.stderr.write(f"{name}: {ours_s:.3f} s, bare {bare_s:.3f} s\n")
    part, whole = (
        Member("adaptation", "elasticdnn", (("select", how), ("share", share))).make()
        for how, share in (("topfrac", 0.2), ("all", 1.0))
    )
    fifth_s, all_s = medians(
        lambda: adapt_seconds(part, model, size)[0], lambda: adapt_seconds(whole, model, size)[0], repeats
    )
    return {
        "benchmark": "adaptation",
        "unit": "times the bare loop",
        **ratios,
        "fifth_of_filters": round(fifth_s / all_s, 3),
        "network": network,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="wide_residual")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    torch.set_num_threads(1)
    quick = {"network": "tiny_classifier", "size": 16, "repeats": 1}
    sys.stdout.write(json.dumps(measure(**vars(options_of(parser, **quick)))) + "\n")
