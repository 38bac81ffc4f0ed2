"""The shifts by name, without the code that renders them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

SEVERITIES = (1, 2, 3, 4, 5)
ANGLES = (10, 20, 30, 45, 60)  # degrees of a rotation by severity
SHARES = (0.6, 0.5, 0.4, 0.3, 0.2)  # share of the images of each class in a subpopulation, by severity


@dataclass(frozen=True)
class Shift:
    """A distribution shift with up to five severities."""

    name: str
    group: str
    summary: str
    graded: bool = True  # False: the same at all severities
    turns: bool = False  # True: label maps and boxes rotate with the image
    picks: bool = False  # True: selects images of a labelled set instead of changing them


_SHIFTS = (
    Shift("clean", "none", "unchanged images", graded=False),
    Shift("gaussian_noise", "noise", "additive Gaussian noise"),
    Shift("shot_noise", "noise", "Poisson noise of photon counts"),
    Shift("impulse_noise", "noise", "single values set to 0 or 1"),
    Shift("defocus_blur", "blur", "blur with a disc"),
    Shift("glass_blur", "blur", "near pixels exchanged, as through frosted glass"),
    Shift("motion_blur", "blur", "blur along a line"),
    Shift("zoom_blur", "blur", "mean of several enlargements"),
    Shift("snow", "weather", "falling flakes in grey light"),
    Shift("frost", "weather", "rendered ice crystals on the lens"),
    Shift("fog", "weather", "a bright fractal cloud"),
    Shift("brightness", "weather", "higher brightness"),
    Shift("contrast", "digital", "lower contrast"),
    Shift("elastic_transform", "digital", "affine map and smooth random displacements"),
    Shift("pixelate", "digital", "reduced resolution"),
    Shift("jpeg_compression", "digital", "JPEG artefacts"),
    Shift("speckle_noise", "extra", "noise proportional to brightness"),
    Shift("gaussian_blur", "extra", "blur with a Gaussian"),
    Shift("spatter", "extra", "drops of water or mud on the lens"),
    Shift("saturate", "extra", "lower or higher saturation"),
    Shift("rotation", "own", f"rotation by {ANGLES[0]} to {ANGLES[-1]} degrees, with label maps and boxes", turns=True),
    Shift("inversion", "own", "inverted colours", graded=False),
    Shift("background", "own", "absolute difference from a coloured fractal cloud"),
    Shift("subpopulation", "own", "only the darkest images of each class", picks=True),
)
SHIFTS: Mapping[str, Shift] = MappingProxyType({shift.name: shift for shift in _SHIFTS})
SET_PREFIX = "set:"  # prefix of a shift that is another labelled set


def shift_of(name: str) -> Shift:
    """Return a shift by name; `set:NAME`, another labelled set, is one too."""
    if name.startswith(SET_PREFIX):
        return Shift(name, "set", "images of another set, for classes in both sets", graded=False, picks=True)
    return SHIFTS[name]


def unfit_for_training(shifts: Iterable[str]) -> list[str]:
    """List the names that are no shift of single frames with the labels as they are."""
    return [name for name in shifts if name not in SHIFTS or SHIFTS[name].picks or SHIFTS[name].turns]


THIRTY = (  # 30 domains at three severities each
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
