"""Measure the gain of specialisation on street scenes and its expiry; prints one JSON line.

A tiny network trains on many random streets (generic), then on the first part of one scene
(specialised), and is scored on the rest of that scene and on the next one (expired).
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from _shared import options_of, report
from torch import Tensor, nn
from torch.nn import functional

from driftlab.datasets.catalogue import WORKLOADS, open_stream
from driftlab.datasets.frames import Frames, Stream, frame_times
from driftlab.datasets.streets.presets import CLASSES

HEIGHT, WIDTH, FPS = 64, 96, 3.0
STREETS = tuple(name for name in WORKLOADS if name.startswith("streets/"))


class TinyNet(nn.Module):
    """About 24 k parameters: two strides, a large receptive field, one skip connection."""

    def __init__(self) -> None:
        super().__init__()

        def block(inputs: int, outputs: int, stride: int = 1, dilation: int = 1) -> nn.Sequential:
            conv = nn.Conv2d(inputs, outputs, 3, stride, dilation, dilation, bias=False)
            return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU())

        self.fine = block(3, 16, stride=2)
        self.coarse = nn.Sequential(block(16, 32, stride=2), block(32, 32), block(32, 32, dilation=4))
        self.skip = nn.Conv2d(16, 32, 1)
        self.head = nn.Conv2d(32, len(CLASSES), 1)

    def forward(self, images: Tensor) -> Tensor:
        fine = self.fine(images)
        coarse = functional.interpolate(self.coarse(fine), fine.shape[-2:], mode="bilinear", align_corners=False)
        scores = self.head(functional.relu(coarse + self.skip(fine)))
        return functional.interpolate(scores, images.shape[-2:], mode="bilinear", align_corners=False)


def tensors(frames: Frames) -> tuple[Tensor, Tensor]:
    """Scale images to -1..1 and return them with their labels."""
    assert frames.labels is not None
    images = torch.from_numpy(frames.images).permute(0, 3, 1, 2).float() / 127.5 - 1
    return images, torch.from_numpy(frames.labels).long()


def train(model: nn.Module, data: tuple[Tensor, Tensor], steps: int, rate: float, seed: int) -> nn.Module:
    """Return a trained copy."""
    model, (images, labels) = copy.deepcopy(model).train(), data
    optimiser = torch.optim.Adam(model.parameters(), rate)
    rng = np.random.default_rng(seed)
    for step in range(steps):
        if step == steps * 3 // 4:
            optimiser.param_groups[0]["lr"] = rate / 4
        rows = torch.from_numpy(rng.integers(0, len(images), 8))
        batch, truth = images[rows], labels[rows]
        if rng.uniform() < 0.5:
            batch, truth = batch.flip(-1), truth.flip(-1)
        optimiser.zero_grad()
        functional.cross_entropy(model(batch), truth).backward()
        optimiser.step()
    return model.eval()


def score(model: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    """Return the mean IoU over the classes that occur, in percent."""
    with torch.no_grad():
        guess = torch.cat([model(part).argmax(1) for part in data[0].split(32)])
    pairs = torch.bincount((data[1] * len(CLASSES) + guess).ravel(), minlength=len(CLASSES) ** 2)
    matrix = pairs.reshape(len(CLASSES), -1).double()
    hit, truth = matrix.diagonal(), matrix.sum(1)
    iou = 100 * hit / (truth + matrix.sum(0) - hit)
    return float(iou[truth > 0].mean())


def open_street(name: str, seed: int) -> Stream:
    return open_stream(name, seed=seed, height=HEIGHT, width=WIDTH, fps=FPS, duration_s=400.0)


def random_streets(count: int, streets: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Render frames of many streets that are never scored."""
    rng = np.random.default_rng(0)
    parts = [
        tensors(open_street(streets[i % len(streets)], 1000 + i).at(rng.uniform(0, 400, 2))) for i in range(count // 2)
    ]
    return torch.cat([images for images, _ in parts]), torch.cat([labels for _, labels in parts])


def two_scenes(stream: Stream) -> tuple[Frames, Frames, Frames | None]:
    """Return the first two thirds of the first scene, its rest, and the scene after it where there is one."""
    first_stop_s, next_stop_s = 60.0, 60.0
    changes_s = stream.changes_s()
    if changes_s:
        first_stop_s, next_stop_s = min(changes_s[0], 60.0), changes_s[1]
    if stream.name == "streets/drift":  # no cut: the look of a minute later replaces the next scene
        first_stop_s, changes_s, next_stop_s = 20.0, (60.0,), 80.0
    first = frame_times(stream, 0.0, first_stop_s)
    cut = len(first) * 2 // 3
    later = stream.at(frame_times(stream, changes_s[0] + 0.5, next_stop_s)) if changes_s else None
    return stream.at(first[:cut]), stream.at(first[cut:]), later


def measure_street(generic: nn.Module, name: str, seed: int, tune: int) -> dict[str, float]:
    """Score the generic and the specialised network on the scene's rest and on the next scene."""
    seen, rest, later = two_scenes(open_street(name, seed))
    special = train(generic, tensors(seen), tune, 2e-3, seed)
    scores = {"generic": score(generic, tensors(rest)), "specialised": score(special, tensors(rest))}
    if later is not None:
        scores |= {"generic_next": score(generic, tensors(later)), "expired": score(special, tensors(later))}
    return scores


def mean_scores(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Average every score over the rows that have it."""
    keys = ("generic", "specialised", "generic_next", "expired")
    known = {key: [row[key] for row in rows if key in row] for key in keys}
    return {key: round(statistics.mean(values), 1) for key, values in known.items() if values}


def measure(frames: int, steps: int, tune: int, seeds: int, streets: int) -> dict[str, object]:
    torch.manual_seed(0)
    generic = train(TinyNet(), random_streets(frames, STREETS[:streets]), steps, 4e-3, 0)
    rows: dict[str, dict[str, float]] = {}
    for name in STREETS[:streets]:
        rows[name] = mean_scores([measure_street(generic, name, seed, tune) for seed in range(seeds)])
        sys.stderr.write(f"{name}: {rows[name]}\n")
    parameters = sum(weights.numel() for weights in generic.parameters())
    return {
        "benchmark": "specialisation",
        "unit": "mIoU %",
        **mean_scores(list(rows.values())),
        "parameters": parameters,
        "workloads": rows,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--tune", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--streets", type=int, default=len(STREETS), help="number of streets")
    torch.set_num_threads(1)
    options = options_of(parser, frames=4, steps=1, tune=1, seeds=1, streets=1)
    report(measure(**vars(options)))
