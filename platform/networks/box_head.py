"""Networks that answer with boxes: the mark of such a network, its head, the exit of its kind, and how sure it is."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from driftlab.platform.networks.tasks.boxes import SIDES, STRIDE

RARE = -4.0  # bias of centres at the beginning: most places are the centre of nothing
MIN_LIKELY = 0.1  # peaks below count for nothing


class TellsBoxes:
    """Mark of a network whose output map tells the centres of boxes by class, and the distances of their sides."""


class BoxHead(nn.Module):
    """Tell the centres and sides of `finer` times `finer` places at each place of a coarser feature map.

    Interpolating an answer would blur centres, of which only the peaks are reported.
    """

    def __init__(self, channels: int, outputs: int, finer: int) -> None:
        super().__init__()
        self.answer, self.spread = nn.Conv2d(channels, outputs * finer**2, 1), nn.PixelShuffle(finer)
        if self.answer.bias is not None:
            nn.init.constant_(self.answer.bias[: (outputs - SIDES) * finer**2], RARE)

    def forward(self, x: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        """Answer in the grid of the lab's detectors; sides that the features do not divide are interpolated."""
        output: torch.Tensor = self.spread(self.answer(x))
        height, width = images.shape[-2:]
        size = (math.ceil(height / STRIDE), math.ceil(width / STRIDE))
        if output.shape[-2:] != size:
            output = F.interpolate(output, size=size, mode="bilinear", align_corners=False)
        return output


def count_finer(places: int, features: int) -> int:
    """Return how many places of an answer a place of the features covers along a side, by their numbers."""
    return max(1, round(places / features))


def box_confidence(output: torch.Tensor) -> torch.Tensor:
    """Return how sure a map is of each frame: the mean, over possible centres, of how sure it is of each.

    Of a centre it is as sure as of its being there or not, whichever is likelier. A frame without possible centres
    counts as sure.
    """
    likely = output[:, :-SIDES].sigmoid()
    peak = (likely == F.max_pool2d(likely, 3, stride=1, padding=1)) & (likely > MIN_LIKELY)
    sure = (torch.maximum(likely, 1 - likely) * peak).flatten(1).sum(dim=1)
    count = peak.flatten(1).sum(dim=1)
    return torch.where(count > 0, sure / count.clamp(min=1), 1.0)
