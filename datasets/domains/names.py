"""The shifts by name, without the code that draws them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

SEVERITIES = (1, 2, 3, 4, 5)
ANGLES = (10, 20, 30, 45, 60)  # degrees of a rotation by severity
SHARES = (0.6, 0.5, 0.4, 0.3, 0.2)  # of the pictures of each class in a sub-population, by severity


@dataclass(frozen=True)
class Shift:
    """A change of pictures in five severities."""

    name: str
    group: str
    summary: str
    graded: bool = True  # whether severities differ
    turns: bool = False  # whether truth turns with the picture
    picks: bool = False  # whether it chooses among pictures instead of changing them, which needs a labelled set


_SHIFTS = (
    Shift("clean", "none", "the pictures as they are", graded=False),
    Shift("gaussian_noise", "noise", "additive noise of equal strength everywhere"),
    Shift("shot_noise", "noise", "the noise of counted photons"),
    Shift("impulse_noise", "noise", "single values at their least or most"),
    Shift("defocus_blur", "blur", "a disc instead of a point"),
    Shift("glass_blur", "blur", "near pixels exchanged, as behind frosted glass"),
    Shift("motion_blur", "blur", "a streak instead of a point"),
    Shift("zoom_blur", "blur", "the mean of several enlargements"),
    Shift("snow", "weather", "falling flakes under a grey light"),
    Shift("frost", "weather", "drawn crystals of ice on the lens"),
    Shift("fog", "weather", "a bright fractal cloud before the picture"),
    Shift("brightness", "weather", "more light"),
    Shift("contrast", "digital", "values nearer to the mean of their channel"),
    Shift("elastic_transform", "digital", "stretched and bent"),
    Shift("pixelate", "digital", "few large pixels"),
    Shift("jpeg_compression", "digital", "packed by JPEG"),
    Shift("speckle_noise", "extra", "noise in proportion to the light"),
    Shift("gaussian_blur", "extra", "a soft spot instead of a point"),
    Shift("spatter", "extra", "drops of water or mud on the lens"),
    Shift("saturate", "extra", "paler or stronger colours"),
    Shift("rotation", "own", f"turned by {ANGLES[0]} to {ANGLES[-1]} degrees, with its truth", turns=True),
    Shift("inversion", "own", "light becomes dark and dark light", graded=False),
    Shift("background", "own", "the difference from a coloured cloud, which fills what was dark"),
    Shift("subpopulation", "own", "of each class its darkest pictures alone", picks=True),
)
SHIFTS: Mapping[str, Shift] = MappingProxyType({shift.name: shift for shift in _SHIFTS})
THIRTY = (  # with three severities each, thirty domains
    "gaussian_noise",
    "impulse_noise",
    "defocus_blur",
    "motion_blur",
    "frost",
    "fog",
    "contrast",
    "pixelate",
    "rotation",
    "background",
)
