"""Measure the triplet response residual in closed form against its definition; prints one JSON line.

NestDNN names the cost of its ranking as a limitation, since triplets grow with the cube of the pictures. In closed form
the time should grow like the number of pictures: `growth` is the time for eight times as many pictures over eight times
the time. `over_forward` compares ranking all groups with one forward pass over the same pictures, and `over_definition`
the sum over all triplets with the closed form, for `--few` feature maps. Everything runs in turn on one core.
"""

from __future__ import annotations

import argparse
import itertools

import numpy as np
import torch
from _shared import options_of, report, seconds

from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.predict import to_input
from driftlab.platform.networks.pruning.ranking import rank, sum_by_class, triplet_response_residual
from driftlab.platform.networks.pruning.surgery import groups

SIDE, CLASSES, MORE = 24, 8, 8


def all_triplets(maps: torch.Tensor, labels: np.ndarray) -> torch.Tensor:
    """Return the mean of Eq. 1 over all triplets of maps."""
    far = (maps[:, None] - maps[None]).square().sum(dim=3)
    total, count = torch.zeros(maps.shape[1], dtype=maps.dtype), 0
    for anchor, positive in itertools.permutations(range(len(maps)), 2):
        if labels[anchor] == labels[positive]:
            negative = np.flatnonzero(labels != labels[anchor])
            total += (far[anchor, negative] - far[anchor, positive]).sum(dim=0)
            count += len(negative)
    return total / count


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=int, default=500)
    parser.add_argument("--few", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    options = options_of(parser, pictures=16, few=16, repeats=1)
    torch.set_num_threads(1)
    rng, model = np.random.default_rng(0), build("tiny_classifier", CLASSES, seed=0).eval()
    images = rng.integers(0, 256, (MORE * options.pictures, SIDE, SIDE, 3), dtype=np.uint8)
    labels = np.arange(len(images)) % CLASSES
    found = groups(model, to_input(images[:1]))

    def ranking_s(count: int) -> float:
        some = {"images": images[:count], "labels": labels[:count], "rng": rng}
        return min(seconds(lambda: rank(model, found, "trr", **some)) for _ in range(options.repeats))

    maps, few = torch.from_numpy(rng.normal(size=(options.few, 16, 36))), labels[: options.few]
    closed_s = min(
        seconds(lambda: triplet_response_residual(sum_by_class(maps, few, CLASSES))) for _ in range(options.repeats + 1)
    )
    with torch.inference_mode():
        forward_s = seconds(lambda: model(to_input(images)))
    some_s, all_s = ranking_s(options.pictures), ranking_s(len(images))
    report(
        {
            "benchmark": "ranking",
            "growth": round(all_s / some_s / MORE, 2),
            "growth_goal": 1.2,
            "over_forward": round(all_s / forward_s, 2),
            "over_definition": round(seconds(lambda: all_triplets(maps, few)) / closed_s, 1),
        }
    )
