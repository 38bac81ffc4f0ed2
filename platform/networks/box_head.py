"""Detection outputs: the marker class of networks that predict boxes, their head and their confidence."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from driftlab.platform.networks.tasks.boxes import SIDES, STRIDE

RARE = -4.0  # initial bias of centres: most places are no centre
MIN_LIKELY = 0.1  # lower peaks are ignored


class BoxOutput:
    """Marker of a network whose output map holds box centres per class and the distances of the sides."""


class BoxHead(nn.Module):
    """Predict centres and sides of `finer` times `finer` places at each place of a coarser feature map.

    Interpolation would blur the centres, of which only the peaks are decoded.
    """

    def __init__(self, channels: int, outputs: int, finer: int) -> None:
        super().__init__()
        self.answer, self.spread = nn.Conv2d(channels, outputs * finer**2, 1), nn.PixelShuffle(finer)
        if self.answer.bias is not None:
            nn.init.constant_(self.answer.bias[: (outputs - SIDES) * finer**2], RARE)

    def forward(self, x: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        """Return the output in the grid of all detectors; interpolated if the features do not divide its size."""
        output: torch.Tensor = self.spread(self.answer(x))
        height, width = images.shape[-2:]
        size = (math.ceil(height / STRIDE), math.ceil(width / STRIDE))
        if output.shape[-2:] != size:
            output = F.interpolate(output, size=size, mode="bilinear", align_corners=False)
        return output


def count_finer(places: int, features: int) -> int:
    """Return the number of output places per feature place along a side."""
    return max(1, round(places / features))


def box_confidence(output: torch.Tensor) -> torch.Tensor:
    """Return the confidence of a map per frame: the mean over possible centres of max(p, 1 - p).

    The confidence of a frame without possible centres is 1.
    """
    likely = output[:, :-SIDES].sigmoid()
    peak = (likely == F.max_pool2d(likely, 3, stride=1, padding=1)) & (likely > MIN_LIKELY)
    total = (torch.maximum(likely, 1 - likely) * peak).flatten(1).sum(dim=1)
    count = peak.flatten(1).sum(dim=1)
    return torch.where(count > 0, total / count.clamp(min=1), 1.0)
