"""The usual colour of each thing in a street, and how a city, a scene and a stray move it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from driftlab.datasets.streets.look import Look

Colours = npt.NDArray[np.float64]


class Ink(IntEnum):
    """A row of a scene's colours; a kind with several colours takes as many consecutive rows."""

    ROAD = 0
    LINE = 1
    PAVING = 2
    KERB = 3
    GRASS = 4
    SKY = 5
    TRUNK = 6
    GLASS = 7
    FRAME = 8
    TYRE = 9
    RED = 10
    WHITE = 11
    WARM = 12
    ROOF = 13  # 3
    HOUSE = 16  # 6
    SHOP = 22  # 4
    LEAVES = 26  # 4
    COAT = 30  # 14
    TROUSERS = 44  # 6
    SKIN = 50  # 5
    HAIR = 55  # 4
    BODY = 59  # 8
    END = 67


COUNTS = {
    Ink.ROOF: 3,
    Ink.HOUSE: 6,
    Ink.SHOP: 4,
    Ink.LEAVES: 4,
    Ink.COAT: 14,
    Ink.TROUSERS: 6,
    Ink.SKIN: 5,
    Ink.HAIR: 4,
    Ink.BODY: 8,
}
# Usual colours: red, green and blue in 0..1; the most usual kind stands first.
_ONE = {
    Ink.ROAD: (0.34, 0.34, 0.35),
    Ink.LINE: (0.80, 0.80, 0.77),
    Ink.PAVING: (0.58, 0.56, 0.53),
    Ink.KERB: (0.68, 0.67, 0.64),
    Ink.TRUNK: (0.28, 0.22, 0.17),
    Ink.GLASS: (0.19, 0.23, 0.27),
    Ink.FRAME: (0.80, 0.79, 0.76),
    Ink.TYRE: (0.07, 0.07, 0.07),
    Ink.RED: (0.70, 0.06, 0.05),
    Ink.WHITE: (0.93, 0.93, 0.88),
    Ink.WARM: (1.00, 0.78, 0.42),
}
_KINDS: dict[Ink, Colours] = {
    Ink.HOUSE: np.array(
        [
            (0.58, 0.34, 0.27),  # brick
            (0.76, 0.68, 0.54),  # beige plaster
            (0.64, 0.61, 0.57),  # grey stone
            (0.84, 0.81, 0.75),  # white render
            (0.70, 0.57, 0.41),  # sandstone
            (0.55, 0.56, 0.57),  # concrete
            (0.45, 0.30, 0.25),  # dark brick
            (0.83, 0.72, 0.47),  # yellow plaster
        ]
    ),
    Ink.ROOF: np.array([(0.33, 0.32, 0.34), (0.46, 0.27, 0.22), (0.40, 0.37, 0.34)]),
    Ink.SHOP: np.array(
        [(0.17, 0.20, 0.24), (0.42, 0.16, 0.15), (0.15, 0.29, 0.24), (0.62, 0.59, 0.53), (0.20, 0.26, 0.44)]
    ),
    Ink.COAT: np.array(
        [
            (0.09, 0.09, 0.11),
            (0.15, 0.19, 0.32),
            (0.44, 0.44, 0.46),
            (0.55, 0.46, 0.34),
            (0.62, 0.13, 0.14),
            (0.80, 0.79, 0.76),
            (0.21, 0.34, 0.26),
            (0.27, 0.42, 0.63),
            (0.84, 0.68, 0.22),
            (0.72, 0.42, 0.50),
        ]
    ),
    Ink.TROUSERS: np.array([(0.16, 0.20, 0.32), (0.09, 0.09, 0.10), (0.34, 0.34, 0.36), (0.48, 0.42, 0.33)]),
    Ink.HAIR: np.array([(0.10, 0.08, 0.07), (0.26, 0.17, 0.11), (0.55, 0.43, 0.26), (0.55, 0.54, 0.52)]),
    Ink.BODY: np.array(
        [
            (0.86, 0.86, 0.86),
            (0.10, 0.10, 0.11),
            (0.60, 0.61, 0.63),
            (0.33, 0.34, 0.36),
            (0.56, 0.10, 0.11),
            (0.13, 0.24, 0.48),
            (0.72, 0.66, 0.55),
        ]
    ),
}
SKIES: Colours = np.array([(0.42, 0.60, 0.87), (0.74, 0.77, 0.82), (0.56, 0.68, 0.86), (0.77, 0.70, 0.66)])
_HORIZONS: Colours = np.array([(0.80, 0.86, 0.93), (0.83, 0.85, 0.87), (0.87, 0.87, 0.88), (0.93, 0.83, 0.70)])
_LEAVES: Colours = np.array([(0.25, 0.37, 0.16), (0.20, 0.32, 0.15), (0.32, 0.42, 0.18), (0.22, 0.36, 0.20)])
_AUTUMN = (0.56, 0.38, 0.14)
_GRASS, _DRY = (0.33, 0.45, 0.19), (0.56, 0.50, 0.33)
_PALE, _DARK = np.array((0.82, 0.63, 0.52)), np.array((0.34, 0.23, 0.17))
# How far from its usual hue a colour may stray: grey things stay grey, however varied a world is.
_HUE_BOUND = {
    Ink.ROAD: 0.02,
    Ink.LINE: 0.03,
    Ink.PAVING: 0.04,
    Ink.KERB: 0.03,
    Ink.GLASS: 0.04,
    Ink.TYRE: 0.01,
}
_ANY_HUE = 0.09
_GREY_SCENE, _HUE_SCENE, _GREY_CITY, _HUE_CITY, _WHITE_BALANCE = 0.055, 0.02, 0.05, 0.02, 0.06
_FEWEST_KINDS = 0.4  # share of the kinds that a world of no variety has


@dataclass(frozen=True, eq=False)
class City:
    """Properties shared by all scenes of a stream: stones, season, sky and light."""

    shares: dict[Ink, Colours]  # of each kind of house, coat and so on
    skies: Colours
    autumn: float
    dry: float
    tint: Colours  # [3]
    gain: float
    strays: Colours  # [slot, 3]


def draw_city(rng: np.random.Generator, variety: float) -> City:
    """Draw the properties that all scenes of a stream share; less variety gives fewer kinds."""
    warm = float(rng.normal(0, _WHITE_BALANCE)) * variety
    tint = np.exp(np.array([warm, 0.0, -warm]) + 0.02 * variety * rng.normal(0, 1, 3))
    autumn = float(rng.uniform(0, 0.9) * (rng.uniform() < 0.25))
    return City(
        shares={slot: _draw_shares(rng, len(kinds), variety) for slot, kinds in _KINDS.items()},
        skies=_draw_shares(rng, len(SKIES), variety),
        autumn=min(1.0, variety) * autumn,
        dry=min(1.0, variety) * float(rng.uniform(0, 0.7)),
        tint=np.clip(tint, 0.85, 1.18),
        gain=float(1 + min(1.0, variety) * rng.uniform(-0.2, 0.1)),
        strays=_draw_strays(rng, variety, _GREY_CITY, _HUE_CITY),
    )


def _draw_shares(rng: np.random.Generator, kinds: int, variety: float) -> Colours:
    known = max(2, round(kinds * min(1.0, _FEWEST_KINDS + (1 - _FEWEST_KINDS) * variety)))
    return np.pad(rng.dirichlet(np.full(kinds, 0.8))[:known] + 0.05, (0, kinds - known))


def _draw_strays(rng: np.random.Generator, variety: float, grey: float, hue: float) -> Colours:
    rows = int(Ink.END)
    return variety * (rng.normal(0, grey, (rows, 1)) + rng.normal(0, hue, (rows, 3)))


def draw_look(city: City, rng: np.random.Generator, variety: float) -> Look:
    """Draw how one scene of a city looks."""
    sky = rng.choice(len(SKIES), p=city.skies / city.skies.sum())
    usual = _draw_usual(city, rng)
    usual[Ink.SKY] = SKIES[sky]
    strays = _bounded(city.strays + _draw_strays(rng, variety, _GREY_SCENE, _HUE_SCENE))
    strays[Ink.RED : Ink.WARM + 1] = 0
    strays[Ink.SKY] *= 0.6
    return Look(
        colours=np.clip((usual + strays) * city.tint, 0.02, 0.98).astype(np.float32),
        haze=np.clip(_HORIZONS[sky] * city.tint, 0, 1).astype(np.float32),
        gain=city.gain * float(np.exp(rng.normal(0, 0.08 * min(1.0, variety)))),
        visibility_m=float(np.exp(rng.uniform(np.log(140), np.log(600)))),
        sun=float(rng.uniform(0.25, 1) * rng.choice([-1, 1])),
    )


def _draw_usual(city: City, rng: np.random.Generator) -> Colours:
    """Draw which kind each row is of; the leaves have the city's season and its grass the city's rain."""
    usual = np.zeros((Ink.END, 3))
    for slot, colour in _ONE.items():
        usual[slot] = colour
    for slot, kinds in _KINDS.items():
        share = city.shares[slot] / city.shares[slot].sum()
        usual[slot : slot + COUNTS[slot]] = kinds[rng.choice(len(kinds), COUNTS[slot], p=share)]
    autumn = city.autumn * rng.uniform(0.4, 1.0, (4, 1))
    usual[Ink.LEAVES : Ink.LEAVES + 4] = (1 - autumn) * _LEAVES + autumn * np.array(_AUTUMN)
    usual[Ink.GRASS] = (1 - city.dry) * np.array(_GRASS) + city.dry * np.array(_DRY)
    usual[Ink.SKIN : Ink.SKIN + 5] = _DARK + np.sqrt(rng.uniform(0, 1, (5, 1))) * (_PALE - _DARK)
    return usual


def _bounded(strays: Colours) -> Colours:
    """Keep every colour near its usual hue; how light or dark it is stays free."""
    bounds = np.full((len(strays), 1), _ANY_HUE)
    for slot, bound in _HUE_BOUND.items():
        bounds[slot] = bound
    grey = strays.mean(axis=1, keepdims=True)
    return np.asarray(grey + np.clip(strays - grey, -bounds, bounds))
