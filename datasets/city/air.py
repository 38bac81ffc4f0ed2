"""Effects of weather and night on colours, air and image."""

from __future__ import annotations

import math
from collections.abc import Mapping

import cv2
import numpy as np

from driftlab.datasets.city.palette import COUNTS, Ink
from driftlab.datasets.city.render import Light
from driftlab.datasets.streets.look import Floats, Look

_FOG, _OVERCAST, _WHITE = (
    np.array(c, np.float32) for c in ((0.74, 0.75, 0.76), (0.60, 0.62, 0.65), (0.90, 0.91, 0.94))
)
_FOG_M, _RAIN_M, _SNOW_M = 9.0, 70.0, 35.0
_NIGHT, _LAMP = np.array((0.20, 0.22, 0.30), np.float32), np.array((1.0, 0.78, 0.48), np.float32)
_LAMPLIGHT = 0.8  # of daylight, below a lamp
_SHINING = (Ink.RED, Ink.WHITE, Ink.WARM)
_SNOWED = {
    Ink.GRASS: 0.95,
    Ink.ROOF: 0.9,
    Ink.KERB: 0.85,
    Ink.PAVING: 0.8,
    Ink.LEAVES: 0.5,
    Ink.ROAD: 0.45,
    Ink.LINE: 0.4,
    Ink.BODY: 0.25,
    Ink.TRUNK: 0.15,
}
_WETTED = {
    Ink.ROAD: 0.5,
    Ink.PAVING: 0.4,
    Ink.KERB: 0.4,
    Ink.GRASS: 0.2,
    Ink.TRUNK: 0.2,
    Ink.HOUSE: 0.15,
}


def _by_slot(shares: Mapping[Ink, float]) -> Floats:
    column = np.zeros((Ink.END, 1), np.float32)
    for slot, share in shares.items():
        column[slot : slot + COUNTS.get(slot, 1)] = share
    return column


_SNOW_COVER, _WETNESS = _by_slot(_SNOWED), _by_slot(_WETTED)


def light_of(look: Look, now: Mapping[str, float], brightness: float) -> Light:
    """Weather and light a scene's colours."""
    rain, fog, snow, night = (now[name] for name in ("rain", "fog", "snow", "night"))
    overcast = 1 - (1 - 0.95 * fog) * (1 - 0.85 * rain) * (1 - 0.85 * snow)
    colours = look.colours
    if rain:
        colours = colours * (1 - np.float32(rain) * _WETNESS)
    if snow:
        colours = colours + np.float32(snow) * _SNOW_COVER * (_WHITE - colours)
    haze = look.haze + np.float32(fog) * (_FOG - look.haze)
    haze = haze + np.float32(max(rain, 0.7 * snow)) * (_OVERCAST - haze)
    ambient = np.float32(255 * look.gain * brightness * (1 - 0.12 * rain)) * (1 - np.float32(night) * (1 - _NIGHT))
    lit = ambient * colours
    if night:
        lit[list(_SHINING)] = 255 * colours[list(_SHINING)]
    return Light(
        colours=lit,
        haze=ambient * haze * np.float32(1 - 0.55 * night),
        visibility_m=_visibility(look.visibility_m, ((fog, _FOG_M), (rain, _RAIN_M), (snow, _SNOW_M))),
        overcast=overcast,
        shadows=now["shadows"] * (1 - 0.8 * overcast) * (1 - night),
        lamps=_LAMP * np.float32(_LAMPLIGHT * night / (1 - 0.76 * night)) if night else None,
        lit_windows=night > 0.3,
    )


def _visibility(clear_m: float, veils: tuple[tuple[float, float], ...]) -> float:
    """Return the visibility under the densest veil: at severity 1 the veil's visibility."""
    return math.exp(min(math.log(clear_m) + share * (math.log(own_m) - math.log(clear_m)) for share, own_m in veils))


def let_fall(picture: Floats, rain: float, snow: float, rng: np.random.Generator) -> None:
    """Draw streaks of rain and flakes of snow over the picture."""
    height, width = picture.shape[:2]
    veil = np.zeros((height, width), np.float32)
    if rain:
        slant, length = rng.uniform(-0.25, 0.25), 0.10 * height
        for column, row, share in rng.random((round(rain * 110), 3)):
            start = (round(column * width * 16), round(row * height * 16))
            reach = length * (0.4 + share)
            stop = (start[0] + round(16 * slant * reach), start[1] + round(16 * reach))
            cv2.line(veil, start, stop, 0.12 + 0.25 * share, 1, cv2.LINE_8, 4)
    if snow:
        for column, row, share in rng.random((round(snow * 130), 3)):
            centre = (round(column * width * 16), round(row * height * 16))
            cv2.circle(
                veil, centre, round(16 * (0.004 + 0.012 * share**3) * height), 0.35 + 0.5 * share, -1, cv2.LINE_8, 4
            )
    white = 40 + 0.75 * float(picture.mean())
    picture += veil[..., None] * (np.float32(min(255.0, 1.6 * white)) - picture)
