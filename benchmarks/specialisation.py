"""Measure that street scenes reward specialisation and that it expires; prints one JSON line.

A tiny network learns from many random streets (generic), goes on learning on the first part of one scene
(specialised) and is scored on the rest of that scene and on the next one (expired).
"""

from __future__ import annotations

import argparse
import copy
import json
import sys

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from driftlab.datasets.catalogue import WORKLOADS, open_stream
from driftlab.datasets.frames import Frames, Stream
from driftlab.datasets.streets.presets import CLASSES

HEIGHT, WIDTH, FPS = 64, 96, 3.0
STREETS = tuple(name for name in WORKLOADS if name.startswith("streets/"))


class TinyNet(nn.Module):
    """About 24 k parameters: two strides, a wide view, one skip."""

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
    """Scale images to -1..1 and take the labels."""
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


def score(model: nn.Module, data: tuple[Tensor, Tensor]) -> tuple[float, list[float]]:
    """Give the mean IoU over the classes that occur, in percent, and the IoU of each class."""
    with torch.no_grad():
        guess = torch.cat([model(part).argmax(1) for part in data[0].split(32)])
    pairs = torch.bincount((data[1] * len(CLASSES) + guess).ravel(), minlength=len(CLASSES) ** 2)
    matrix = pairs.reshape(len(CLASSES), -1).double()
    hit, truth = matrix.diagonal(), matrix.sum(1)
    iou = 100 * hit / (truth + matrix.sum(0) - hit)
    return float(iou[truth > 0].mean()), [float(value) for value in torch.where(truth > 0, iou, torch.nan)]


def open_street(name: str, seed: int) -> Stream:
    return open_stream(name, seed=seed, height=HEIGHT, width=WIDTH, fps=FPS, duration_s=400.0)


def random_streets(count: int) -> tuple[Tensor, Tensor]:
    """Render frames of many worlds that are never scored."""
    rng = np.random.default_rng(0)
    parts = [
        tensors(open_street(STREETS[i % len(STREETS)], 1000 + i).at(rng.uniform(0, 400, 2))) for i in range(count // 2)
    ]
    return torch.cat([images for images, _ in parts]), torch.cat([labels for _, labels in parts])


def two_scenes(stream: Stream) -> tuple[Frames, Frames, Frames | None]:
    """Take the first scene's first and second half, and the scene after it where there is one."""
    changes_s = (*stream.changes_s(), stream.duration_s)
    if stream.name == "streets/drift":
        changes_s = (30.0, 60.0, 90.0)
        first, later = np.arange(0, 20, 1 / FPS), np.arange(60, 90, 1 / FPS)
    else:
        first = np.arange(0, min(changes_s[0], 60.0), 1 / FPS)[:-1]
        later = np.arange(changes_s[0] + 0.5, changes_s[1], 1 / FPS) if len(changes_s) > 1 else np.zeros(0)
    cut = len(first) * 2 // 3
    return stream.at(first[:cut]), stream.at(first[cut:]), stream.at(later) if len(later) else None


def measure(frames: int, steps: int, tune: int, seeds: int) -> dict[str, object]:
    torch.manual_seed(0)
    generic = train(TinyNet(), random_streets(frames), steps, 4e-3, 0)
    rows: dict[str, dict[str, float]] = {}
    for name in STREETS:
        found: list[tuple[float, ...]] = []
        for seed in range(seeds):
            seen, rest, later = two_scenes(open_street(name, seed))
            special = train(generic, tensors(seen), tune, 3e-3, seed)
            after = (score(generic, tensors(later))[0], score(special, tensors(later))[0]) if later else (np.nan,) * 2
            found.append((score(generic, tensors(rest))[0], score(special, tensors(rest))[0], *after))
        keys = ("generic", "specialised", "generic_next", "expired")
        rows[name] = dict(zip(keys, (round(value, 1) for value in np.mean(found, axis=0).tolist()), strict=True))
        sys.stderr.write(f"{name}: {rows[name]}\n")
    total = {key: round(float(np.nanmean([row[key] for row in rows.values()])), 1) for key in rows[STREETS[0]]}
    return {**total, "parameters": sum(p.numel() for p in generic.parameters()), "workloads": rows}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=480)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--tune", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=2)
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps(measure(**vars(parser.parse_args()))) + "\n")
