"""Constants of the common corruptions by severity, from Hendrycks and Dietterich (2019).

Images of 32 pixels use those of CIFAR-10-C, larger images those of ImageNet-C, whose lengths are for 224 pixels and are
scaled to the shorter side of the image.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

SMALL_PX, LARGE_PX = 32, 224
Row = tuple[float, ...]
Rows = tuple[Row, Row, Row, Row, Row]
_ELASTIC_PX = 244  # as published: the constants of ImageNet-C are multiples of 244


def _single(*values: float) -> Rows:
    first, second, third, fourth, fifth = ((value,) for value in values)
    return first, second, third, fourth, fifth


def _times(factor: float, *rows: Row) -> Rows:
    first, second, third, fourth, fifth = (tuple(factor * value for value in row) for row in rows)
    return first, second, third, fourth, fifth


_SMALL: Mapping[str, Rows] = MappingProxyType(
    {
        "gaussian_noise": _single(0.04, 0.06, 0.08, 0.09, 0.10),  # standard deviation
        "shot_noise": _single(500, 250, 100, 75, 50),  # photons at full light
        "impulse_noise": _single(0.01, 0.02, 0.03, 0.05, 0.07),  # share of the values
        "speckle_noise": _single(0.06, 0.1, 0.12, 0.16, 0.2),
        "gaussian_blur": _single(0.4, 0.6, 0.7, 0.8, 1.0),
        "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),  # blur, reach, times
        "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),  # radius, smoothing
        "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),  # radius, deviation
        "zoom_blur": ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),  # end, step
        "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),  # weight, decay of the fractal
        "frost": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),  # weights of image and ice
        "snow": (  # mean, deviation, size of flakes, threshold, radius and deviation of streaks, weight of the image
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
        "spatter": (  # mean, deviation, blur, threshold, strength of water or blur of mud, mud
            (0.62, 0.1, 0.7, 0.7, 0.5, 0),
            (0.65, 0.1, 0.8, 0.7, 0.5, 0),
            (0.65, 0.3, 1, 0.69, 0.5, 0),
            (0.65, 0.1, 0.7, 0.69, 0.6, 1),
            (0.65, 0.1, 0.5, 0.68, 0.6, 1),
        ),
        "contrast": _single(0.75, 0.5, 0.4, 0.3, 0.15),
        "brightness": _single(0.05, 0.1, 0.15, 0.2, 0.3),
        "saturate": ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),  # factor, addend
        "jpeg_compression": _single(80, 65, 58, 50, 40),  # quality
        "pixelate": _single(0.95, 0.9, 0.85, 0.75, 0.65),  # share of the side
        "elastic_transform": _times(  # reach, smoothness, jitter of the corners
            SMALL_PX, (0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)
        ),
    }
)
_LARGE: Mapping[str, Rows] = MappingProxyType(
    {
        "gaussian_noise": _single(0.08, 0.12, 0.18, 0.26, 0.38),
        "shot_noise": _single(60, 25, 12, 5, 3),
        "impulse_noise": _single(0.03, 0.06, 0.09, 0.17, 0.27),
        "speckle_noise": _single(0.15, 0.2, 0.35, 0.45, 0.6),
        "gaussian_blur": _single(1, 2, 3, 4, 6),
        "glass_blur": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
        "defocus_blur": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
        "motion_blur": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
        "zoom_blur": ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
        "fog": ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
        "frost": ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
        "snow": (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
        "spatter": (
            (0.65, 0.3, 4, 0.69, 0.6, 0),
            (0.65, 0.3, 3, 0.68, 0.6, 0),
            (0.65, 0.3, 2, 0.68, 0.5, 0),
            (0.65, 0.3, 1, 0.65, 1.5, 1),
            (0.67, 0.4, 1, 0.65, 1.5, 1),
        ),
        "contrast": _single(0.4, 0.3, 0.2, 0.1, 0.05),
        "brightness": _single(0.1, 0.2, 0.3, 0.4, 0.5),
        "saturate": ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
        "jpeg_compression": _single(25, 18, 15, 10, 7),
        "pixelate": _single(0.6, 0.5, 0.4, 0.3, 0.25),
        "elastic_transform": _times(
            _ELASTIC_PX, (2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)
        ),
    }
)
_LENGTHS: Mapping[str, tuple[int, ...]] = MappingProxyType(  # indices of the constants that are lengths in pixels
    {
        "gaussian_blur": (0,),
        "glass_blur": (0, 1),
        "defocus_blur": (0,),
        "motion_blur": (0, 1),
        "snow": (2, 4, 5),
        "spatter": (2, 4),
        "elastic_transform": (0, 1, 2),
    }
)
BACKGROUND = (0.2, 0.35, 0.5, 0.65, 0.8)  # weight of the cloud by severity; not from the paper


def constants_of(shift: str, severity: int, side: int) -> Row:
    """Return the constants of a corruption for images with a shorter side of `side` pixels."""
    if side <= SMALL_PX:
        return _SMALL[shift][severity - 1]
    lengths, factor = _LENGTHS.get(shift, ()), side / LARGE_PX
    row = _LARGE[shift][severity - 1]
    return tuple(value * factor if place in lengths else value for place, value in enumerate(row))
