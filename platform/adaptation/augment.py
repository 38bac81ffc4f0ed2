"""Random views of frames: colours, noise, blur and affine transforms."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    import torch

Views = Literal["none", "colour", "all", "mirrored"]
SLOPE = 4.0  # of an input of a network over the brightness 0 to 1 of a pixel (`networks/predict.to_input`)


def augment(inputs: torch.Tensor, rng: np.random.Generator, views: Views) -> torch.Tensor:
    """Return a random view of each input: `colour`, `all` with a transform, `mirrored` with a flip too."""
    if views == "none":
        return inputs
    pictures = _coloured((inputs / SLOPE).add_(0.5).clamp_(0, 1), rng)
    if views != "colour":
        pictures = _blurred(_moved(pictures, rng, mirrors=views == "mirrored"), rng)
    noise = rng.normal(0.0, 0.005, tuple(pictures.shape))
    return (pictures + _like(noise, pictures)).clamp_(0, 1).sub_(0.5).mul_(SLOPE)


def _coloured(pictures: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Change brightness, contrast, saturation, hue and gamma of each picture."""
    import torch

    def draw(low: float, high: float) -> torch.Tensor:
        return _like(rng.uniform(low, high, (len(pictures), 1, 1, 1)), pictures)

    grey = _like(np.array([0.299, 0.587, 0.114]), pictures).view(1, 3, 1, 1)
    pictures = (pictures * draw(0.6, 1.4)).clamp_(0, 1)
    mean = (pictures * grey).sum(dim=1, keepdim=True).mean(dim=(2, 3), keepdim=True)
    pictures = torch.lerp(mean.expand_as(pictures), pictures, draw(0.7, 1.3)).clamp_(0, 1)
    level = (pictures * grey).sum(dim=1, keepdim=True)
    pictures = torch.lerp(level.expand_as(pictures), pictures, draw(0.5, 1.5)).clamp_(0, 1)
    pictures = torch.einsum("nij,njhw->nihw", _hue_turns(draw(-0.06, 0.06).flatten()), pictures).clamp_(1e-8, 1)
    return pictures.pow_(draw(0.7, 1.3))


def _hue_turns(turns: torch.Tensor) -> torch.Tensor:
    """Return rotations of colours around the grey axis, [n, 3, 3], by parts of a full turn."""
    import torch

    angle = 2 * math.pi * turns
    same, next_, last = (angle.cos() + (1 - angle.cos()) / 3, *((1 - angle.cos()) / 3 + side for side in _sides(angle)))
    rows = [same, next_, last, last, same, next_, next_, last, same]
    return torch.stack(rows, dim=1).view(-1, 3, 3)


def _sides(angle: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    side = angle.sin() / math.sqrt(3)
    return -side, side


def _moved(pictures: torch.Tensor, rng: np.random.Generator, *, mirrors: bool) -> torch.Tensor:
    """Rotate by up to 15 degrees, shift by up to a sixteenth, scale by up to a tenth; extend borders."""
    from torch.nn import functional as F

    count = len(pictures)
    angle = rng.uniform(-math.pi / 12, math.pi / 12, count)
    scale, shift = rng.uniform(0.9, 1.1, count), rng.uniform(-0.125, 0.125, (count, 2))  # the picture is 2 wide
    flip = np.where(rng.random(count) < 0.5, -1.0, 1.0) if mirrors else np.ones(count)
    high, wide = pictures.shape[2:]
    sine, cosine = np.sin(angle) / scale, np.cos(angle) / scale
    ahead = [flip * cosine, -sine * high / wide, shift[:, 0]]
    down = [flip * sine * wide / high, cosine, shift[:, 1]]
    maps = _like(np.stack([np.stack(ahead, axis=1), np.stack(down, axis=1)], axis=1), pictures)
    grid = F.affine_grid(maps, list(pictures.shape), align_corners=False)
    return F.grid_sample(pictures, grid, padding_mode="border", align_corners=False)


def _blurred(pictures: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Blur each picture by a Gaussian of five pixels."""
    from torch.nn import functional as F

    width = rng.uniform(0.001, 0.5, len(pictures))
    weights = np.exp(-0.5 * (np.arange(-2, 3)[None] / width[:, None]) ** 2)
    line = _like(weights / weights.sum(axis=1, keepdims=True), pictures)
    planes = pictures.transpose(0, 1)  # one image per channel, so that each has another kernel
    for kernel, pad in ((line[:, None, None, :], (2, 2, 0, 0)), (line[:, None, :, None], (0, 0, 2, 2))):
        planes = F.conv2d(F.pad(planes, pad, mode="replicate"), kernel, groups=len(pictures))
    return planes.transpose(0, 1)


def _like(values: np.ndarray, pictures: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.tensor(values, dtype=pictures.dtype, device=pictures.device)
