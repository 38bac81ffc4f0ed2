"""Distances between two sets of features."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

KERNELS = 5


def mean_discrepancy(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the squared maximum mean discrepancy under a sum of five Gaussians whose widths double."""
    import torch

    both = torch.cat([source, target])
    away = (both[:, None] - both[None]).square().sum(dim=2)
    count = len(both)
    width = (away.detach().sum() / (count**2 - count) / 2 ** (KERNELS // 2)).clamp_min(1e-30)
    alike = sum(((-away / (width * 2**step)).exp() for step in range(KERNELS)), torch.zeros_like(away))
    first = len(source)
    same = alike[:first, :first].mean() + alike[first:, first:].mean()
    return same - alike[:first, first:].mean() - alike[first:, :first].mean()


def covariance_distance(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the squared distance of the covariances over four times the squared number of features (CORAL)."""
    return (source.T.cov() - target.T.cov()).square().sum() / (4 * source.shape[1] ** 2)
