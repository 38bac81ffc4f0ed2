"""Measure channels-last input against contiguous input for networks of the zoo; prints one JSON line.

`forward` and `training` are the time with channels-last input as a multiple of the time with contiguous input: below 1,
channels-last is faster. Both run in turn in one process on one thread; each figure is the median over rounds. Networks
for which channels-last is slower by a tenth or more are listed in `CONTIGUOUS` of `networks/memory_format.py`.
`ratio` is the worst ratio of a forward pass in the chosen format to one in the other format.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial

import torch
from _shared import options_of, report, seconds
from torch import nn

from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.memory_format import CONTIGUOUS
from driftlab.platform.networks.tasks.tasks import SEGMENTATION
from driftlab.platform.networks.zoo import ZOO

NETWORKS = (
    "tiny", "teacher", "tiny_classifier", "wide_classifier", "tiny_residual", "deep_classifier", "tiny_staged",
    "tiny_detector", "tiny_mobile", "mobilenet_v2", "deeplabv3_mobilenet_v2", *sorted(CONTIGUOUS),
)  # fmt: skip
FORMATS = {"last": torch.channels_last, "contiguous": torch.contiguous_format}


def step(model: nn.Module, images: torch.Tensor, *, trains: bool) -> None:
    with torch.set_grad_enabled(trains):
        outputs = model(images)
        if trains:
            torch.autograd.backward(outputs.square().mean())


def ratio(name: str, repeats: int, batch: int, *, trains: bool) -> float:
    """Return the median ratio of channels-last to contiguous."""
    model = build(name, 8, seed=0).train(trains)
    model._forward_pre_hooks.clear()  # which would convert the input to the format of the zoo
    height, width = (64, 96) if ZOO[name].task is SEGMENTATION else (32, 32)
    frames = torch.randn(batch, 3, height, width)
    images = {which: frames.to(memory_format=form) for which, form in FORMATS.items()}
    rounds = [
        {which: seconds(partial(step, model, frames, trains=trains)) for which, frames in images.items()}
        for _ in range(repeats + 1)
    ]
    return round(statistics.median(one["last"] / one["contiguous"] for one in rounds[1:]), 2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    options = options_of(parser, repeats=1, batch=2, networks=["tiny"])
    torch.set_num_threads(1)
    found = {
        name: {
            kind: ratio(name, options.repeats, options.batch, trains=kind == "training")
            for kind in ("forward", "training")
        }
        for name in options.networks
    }
    chosen = {name: one["forward"] if name not in CONTIGUOUS else 1 / one["forward"] for name, one in found.items()}
    line = {"benchmark": "memory_format", "ratio": round(max(chosen.values()), 2), "goal": 1.0, "networks": found}
    report(line)
