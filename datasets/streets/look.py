"""The look of a scene: materials, colours, light, weather and textures."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any, TypeVar

import cv2
import numpy as np
import numpy.typing as npt

from driftlab.datasets.streets.presets import (
    BUILDING,
    CAR,
    CLASSES,
    PERSON,
    ROAD,
    SIDEWALK,
    SKY,
    TERRAIN,
    VEGETATION,
)

Floats = npt.NDArray[np.float32]


class Material(IntEnum):
    """The material of a surface; variants of a kind are neighbours, so that a variant is a number to add."""

    ROAD_BED = 0
    MARKING = 1
    PAVING = 2
    HOUSE = 3
    HOUSE_2 = 4
    HOUSE_3 = 5
    LEAVES = 6
    LEAVES_2 = 7
    TRUNK = 8
    SKY = 9
    GRASS = 10
    COAT = 11
    COAT_2 = 12
    TROUSERS = 13
    TROUSERS_2 = 14
    HEAD = 15
    BODY = 16
    BODY_2 = 17
    GLASS = 18
    TYRE = 19


# The class of each material, and the deviation of its colour from the one that the scene draws for that class.
_CLASS_AND_STRAY: dict[Material, tuple[int, float]] = {
    Material.ROAD_BED: (ROAD, 0.0),
    Material.MARKING: (ROAD, 0.25),
    Material.PAVING: (SIDEWALK, 0.0),
    Material.HOUSE: (BUILDING, 0.0),
    Material.HOUSE_2: (BUILDING, 0.08),
    Material.HOUSE_3: (BUILDING, 0.12),
    Material.LEAVES: (VEGETATION, 0.0),
    Material.LEAVES_2: (VEGETATION, 0.07),
    Material.TRUNK: (VEGETATION, 0.2),
    Material.SKY: (SKY, 0.0),
    Material.GRASS: (TERRAIN, 0.0),
    Material.COAT: (PERSON, 0.05),
    Material.COAT_2: (PERSON, 0.12),
    Material.TROUSERS: (PERSON, 0.1),
    Material.TROUSERS_2: (PERSON, 0.12),
    Material.HEAD: (PERSON, 0.18),
    Material.BODY: (CAR, 0.04),
    Material.BODY_2: (CAR, 0.1),
    Material.GLASS: (CAR, 0.2),
    Material.TYRE: (CAR, 0.2),
}
MATERIAL_CLASS = tuple(_CLASS_AND_STRAY[material][0] for material in Material)
TILE = 64  # texels along the side of a texture tile
TEXELS_PER_M = 8.0


@dataclass(frozen=True, eq=False)
class Look:
    """Colours and light of a scene; blended while a look moves on to the next."""

    colours: Floats  # [row, 3] in 0..1
    haze: Floats  # [3] colour of distant surfaces
    gain: float
    visibility_m: float
    sun: float  # direction of the light, -1 left to 1 right


AnyLook = TypeVar("AnyLook", bound=Look)


@dataclass(frozen=True, eq=False)
class StreetLook(Look):
    """A look with a colour for each material, and the noise of the sensor."""

    noise: float


def draw_look(rng: np.random.Generator) -> StreetLook:
    """Draw colours from one distribution for all classes, so that colour does not identify a class."""
    grey = rng.uniform(0.15, 0.85, (len(CLASSES), 1))
    base = np.clip(grey + rng.normal(0, 0.13, (len(CLASSES), 3)), 0.08, 0.92)
    kinds, spread = np.array([_CLASS_AND_STRAY[material] for material in Material]).T
    strays = 0.8 * rng.normal(0, 1, (len(Material), 1)) + rng.normal(0, 0.6, (len(Material), 3))
    return StreetLook(
        colours=np.clip(base[kinds.astype(np.intp)] + spread[:, None] * strays, 0.05, 0.95).astype(np.float32),
        haze=np.clip(rng.uniform(0.35, 0.85) + rng.normal(0, 0.05, 3), 0, 1).astype(np.float32),
        gain=float(rng.uniform(0.75, 1.1)),
        visibility_m=float(np.exp(rng.uniform(np.log(70), np.log(500)))),
        noise=float(rng.uniform(0.01, 0.03)),
        sun=float(rng.uniform(-1, 1)),
    )


def blend_appearance(first: AnyLook, second: AnyLook, weight: float) -> AnyLook:
    """Blend every field of the first look (weight 0) into that of the second (weight 1)."""

    def blend(a: Any, b: Any) -> Any:
        share = np.float32(weight) if isinstance(a, np.ndarray) else weight
        return (1 - share) * a + share * b

    names = [field.name for field in fields(first)]
    return replace(first, **{name: blend(getattr(first, name), getattr(second, name)) for name in names})


def draw_tiles(rng: np.random.Generator) -> Floats:
    """Draw one seamless smooth texture per class; houses get windows, darker or lighter than their wall."""
    tiles = np.empty((len(CLASSES), TILE, TILE, 3), np.float32)
    for kind in range(len(CLASSES)):
        cells = int(rng.choice([8, 12, 16, 24, 32]))
        tone, tint = rng.normal(0, 1, (cells, cells, 1)), rng.normal(0, 0.4, (cells, cells, 3))
        ring = np.pad(tone + tint, ((2, 2), (2, 2), (0, 0)), mode="wrap").astype(np.float32)
        side = TILE * (cells + 4) // cells
        edge = (side - TILE) // 2
        smooth = cv2.resize(ring, (side, side), interpolation=cv2.INTER_LINEAR)
        tiles[kind] = smooth[edge : edge + TILE, edge : edge + TILE] * rng.uniform(0.03, 0.1)
    panes = np.zeros((TILE, TILE, 1), np.float32)
    panes[6:22, 6:20] = panes[6:22, 38:52] = panes[38:54, 6:20] = panes[38:54, 38:52] = 1
    tiles[BUILDING] += panes * np.float32(rng.choice([-1, 1]) * rng.uniform(0.05, 0.25))
    return tiles.reshape(len(CLASSES), TILE * TILE, 3)
