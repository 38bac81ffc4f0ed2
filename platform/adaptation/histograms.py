"""Soft histograms of the units of a network, and how far two of them are apart."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

BINS = 10


def soft_counts(values: torch.Tensor, low: torch.Tensor, ranges: torch.Tensor, temperature: float) -> torch.Tensor:
    """Count values [n, units] softly in eight bins over the range of each unit and two beyond it, [units, 10]."""
    import torch

    places = torch.linspace(0, 1, BINS - 1, device=values.device, dtype=values.dtype)
    edges = (low / ranges)[:, None] + places
    shift = torch.cat([torch.zeros_like(edges[:, :1]), -edges.cumsum(dim=1)], dim=1)
    steps = torch.arange(1, BINS + 1, device=values.device, dtype=values.dtype)
    return (((values / ranges)[..., None] * steps + shift) / temperature).softmax(dim=-1).sum(dim=0)


def instability(source: torch.Tensor, now: torch.Tensor) -> torch.Tensor:
    """Return the population stability index of each unit: the divergence both ways, in logarithms of base 10."""
    return divergence(source, now) + divergence(now, source)


def divergence(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return (first * ((first + 1e-8) / (second + 1e-8)).log()).sum(dim=-1) / math.log(BINS)
