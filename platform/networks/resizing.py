"""Maps of one resolution brought to that of another."""

from __future__ import annotations

import torch
from torch.nn import functional as F


def resize(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Interpolate a map to the height and width of another one."""
    return F.interpolate(x, size=like.shape[-2:], mode="bilinear", align_corners=False)
