"""Interpolation of feature maps."""

from __future__ import annotations

import torch
from torch.nn import functional as F


def resize(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Interpolate a map bilinearly to the height and width of another."""
    return F.interpolate(x, size=like.shape[-2:], mode="bilinear", align_corners=False)
