"""What a scene draws from (seed, scene number): its look, its place and who is in it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace

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
    Preset,
    Range,
)

Floats = npt.NDArray[np.float32]

# A material is a class and how far its colour strays from the colour the scene draws for that class.
MATERIALS = (
    (ROAD, 0.0),
    (ROAD, 0.25),
    (SIDEWALK, 0.0),
    (BUILDING, 0.0),
    (BUILDING, 0.08),
    (BUILDING, 0.12),
    (VEGETATION, 0.0),
    (VEGETATION, 0.07),
    (VEGETATION, 0.2),
    (SKY, 0.0),
    (TERRAIN, 0.0),
    (PERSON, 0.05),
    (PERSON, 0.12),
    (PERSON, 0.1),
    (PERSON, 0.12),
    (PERSON, 0.18),
    (CAR, 0.04),
    (CAR, 0.1),
    (CAR, 0.2),
    (CAR, 0.2),
)
(
    ROAD_BED,
    MARKING,
    PAVING,
    HOUSE,
    _,
    _,
    LEAVES,
    _,
    TRUNK,
    SKY_DOME,
    GRASS,
    COAT,
    _,
    TROUSERS,
    _,
    HEAD,
    BODY,
    _,
    GLASS,
    TYRE,
) = range(len(MATERIALS))
HOUSES, LEAF_KINDS, OUTFITS, BODIES = 3, 2, 2, 2
MATERIAL_CLASS = tuple(kind for kind, _ in MATERIALS)
TILE = 64  # texels along the side of a texture tile
TEXELS_PER_M = 8.0
LOTS_M = 320.0  # the street's houses repeat after this length


@dataclass(frozen=True, eq=False)
class Look:
    """Colours, light and weather; blended when a look moves on to the next."""

    colours: Floats  # [material, 3] in 0..1
    haze: Floats  # [3] colour of the far
    gain: float
    visibility_m: float
    noise: float
    sun: float  # the light's side, -1 left to 1 right


@dataclass(frozen=True)
class Lot:
    """A piece of the street's side."""

    start_m: float
    length_m: float
    height_m: float
    material: int
    green: bool


@dataclass(frozen=True)
class Thing:
    """A person, a car or a tree: where it is at time 0 and how it moves."""

    kind: int  # its class
    across_m: float
    along_m: float
    speed_mps: float
    size_m: float
    variant: int
    phase: float
    lead: bool = False  # keeps its distance to the camera
    pace_hz: float = 1.0
    window_m: float = 64.0  # leaving this length it comes in again at the other end


@dataclass(frozen=True, eq=False)
class Scene:
    """All that stays the same while a scene is shown."""

    look: Look
    tiles: Floats  # [class, TILE * TILE, 3] deviation from the mean colour
    horizon: float  # in frame heights from the top
    focal: float  # in frame heights
    road_m: float
    sidewalk_m: float
    terrain_m: tuple[float, float]  # left, right
    wall_m: float
    skyline: Floats  # [n] heights of the far skyline, in frame heights
    skyline_class: int
    lots: tuple[tuple[Lot, ...], tuple[Lot, ...]]  # left, right
    things: tuple[Thing, ...]
    phase: float


def draw_look(rng: np.random.Generator) -> Look:
    """Draw the same distribution of colours for every class, so that colour alone tells nothing."""
    grey = rng.uniform(0.15, 0.85, (len(CLASSES), 1))
    base = np.clip(grey + rng.normal(0, 0.13, (len(CLASSES), 3)), 0.08, 0.92)
    kinds, spread = np.array(MATERIAL_CLASS), np.array([stray for _, stray in MATERIALS])
    strays = rng.normal(0, 1, (len(MATERIALS), 1)) * 0.8 + rng.normal(0, 0.6, (len(MATERIALS), 3))
    return Look(
        colours=np.clip(base[kinds] + spread[:, None] * strays, 0.05, 0.95).astype(np.float32),
        haze=np.clip(rng.uniform(0.35, 0.85) + rng.normal(0, 0.05, 3), 0, 1).astype(np.float32),
        gain=float(rng.uniform(0.75, 1.1)),
        visibility_m=float(np.exp(rng.uniform(np.log(70), np.log(500)))),
        noise=float(rng.uniform(0.01, 0.03)),
        sun=float(rng.uniform(-1, 1)),
    )


def blend_looks(first: Look, second: Look, weight: float) -> Look:
    """Move from the first look (weight 0) to the second (weight 1)."""

    def mix(a: float, b: float) -> float:
        return (1 - weight) * a + weight * b

    share = np.float32(weight)
    return replace(
        first,
        colours=(1 - share) * first.colours + share * second.colours,
        haze=(1 - share) * first.haze + share * second.haze,
        gain=mix(first.gain, second.gain),
        visibility_m=mix(first.visibility_m, second.visibility_m),
        noise=mix(first.noise, second.noise),
        sun=mix(first.sun, second.sun),
    )


def draw_scene(preset: Preset, seed: int, scene: int, crowd: float) -> Scene:
    """Draw everything the scene with this number keeps, whenever it is shown."""
    key = zlib.crc32(preset.name.encode())
    rng = np.random.default_rng([seed, scene, key, 1])
    left, right = rng.uniform(*preset.terrain_m), rng.uniform(*preset.terrain_m)
    road, walk = rng.uniform(*preset.road_m), rng.uniform(*preset.sidewalk_m)
    return Scene(
        look=draw_look(np.random.default_rng([seed, scene, key, 2])),
        tiles=_draw_tiles(np.random.default_rng([seed, scene, key, 3])),
        horizon=float(rng.uniform(0.42, 0.52)),
        focal=float(rng.uniform(0.85, 1.1)),
        road_m=float(road),
        sidewalk_m=float(walk),
        terrain_m=(float(left), float(right)),
        wall_m=float(rng.uniform(*preset.wall_depth_m)),
        skyline=rng.uniform(0.0, 0.1, 24).astype(np.float32),
        skyline_class=BUILDING if rng.uniform() < preset.houses else VEGETATION,
        lots=(_draw_lots(preset, rng), _draw_lots(preset, rng)),
        things=_draw_things(preset, rng, crowd, (float(road), float(walk), float(min(left, right)))),
        phase=float(rng.uniform(0, 100)),
    )


def _draw_tiles(rng: np.random.Generator) -> Floats:
    """Draw one seamless smooth texture per class; houses get windows of a contrast of either sign."""
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


def _draw_lots(preset: Preset, rng: np.random.Generator) -> tuple[Lot, ...]:
    lots: list[Lot] = []
    start_m = 0.0
    while start_m < LOTS_M - 6:
        length_m = min(float(rng.uniform(7, 17)), LOTS_M - start_m)
        green = bool(rng.uniform() >= preset.houses)
        height_m = float(rng.uniform(2.0, 5.5) if green else rng.uniform(4.5, 14))
        material = (LEAVES + int(rng.integers(LEAF_KINDS))) if green else (HOUSE + int(rng.integers(HOUSES)))
        lots.append(Lot(start_m, length_m, height_m, material, green))
        start_m += length_m
    return tuple(lots)


def _draw_things(
    preset: Preset, rng: np.random.Generator, crowd: float, widths_m: tuple[float, float, float]
) -> tuple[Thing, ...]:
    def count(limits: Range) -> int:
        return round(crowd * int(rng.integers(int(limits[0]), int(limits[1]), endpoint=True)))

    place = _place_along if preset.view == "along" else _place_across
    things: list[Thing] = []
    for kind, limits in ((TREE, preset.trees), (CAR, preset.cars), (PERSON, preset.persons)):
        number = count(limits)
        things += [place(preset, rng, kind, (order, number), widths_m) for order in range(number)]
    return tuple(things)


TREE = VEGETATION


def _place_along(
    preset: Preset, rng: np.random.Generator, kind: int, order: tuple[int, int], widths_m: tuple[float, float, float]
) -> Thing:
    road, walk, terrain = widths_m
    side = float(rng.choice([-1, 1]))
    window_m = preset.person_depth_m[1] if kind == PERSON else 64.0
    along_m = window_m * (order[0] + float(rng.uniform(0, 0.8))) / order[1]
    phase, variant = float(rng.uniform(0, 6.28)), int(rng.integers(0, 64))
    if kind == TREE:
        across_m = side * (road + walk * 0.85 + terrain * float(rng.uniform(0.3, 0.9)))
        return Thing(kind, across_m, along_m, 0.0, float(rng.uniform(3.5, 7)), variant, phase)
    if kind == CAR:
        if order[0] == 0 and preset.lane < 1:
            return Thing(
                kind, road * preset.lane, float(rng.uniform(7, 11)), 0, rng.uniform(1.4, 1.7), variant, phase, True
            )
        parked = rng.uniform() < 0.6
        across_m = side * (road - 1.0) if parked else -road * float(rng.uniform(0.35, 0.5))
        speed_mps = 0.0 if parked else -float(rng.uniform(5, 10))
        return Thing(kind, across_m, along_m, speed_mps, float(rng.uniform(1.35, 1.8)), variant, phase)
    crossing = rng.uniform() < 0.15
    on_walk = road + walk * float(rng.uniform(0.15, 0.85)) if walk else road + terrain * float(rng.uniform(-0.4, 0.3))
    across_m = road * float(rng.uniform(-0.8, 0.8)) if crossing else side * on_walk
    speed_mps = float(rng.choice([-1, 1]) * rng.uniform(0.7, 1.5))
    return Thing(
        kind,
        across_m,
        along_m,
        speed_mps,
        rng.uniform(1.6, 1.9),
        variant,
        phase,
        window_m=window_m,
        pace_hz=rng.uniform(0.8, 1.1),
    )


def _place_across(
    preset: Preset, rng: np.random.Generator, kind: int, order: tuple[int, int], widths_m: tuple[float, float, float]
) -> Thing:
    """Across, a thing's place along is its depth and it moves sideways."""
    near, far = preset.person_depth_m
    side = float(rng.choice([-1, 1]))
    spread = (order[0] + float(rng.uniform(0.1, 0.9))) / order[1] - 0.5
    phase, variant = float(rng.uniform(0, 6.28)), int(rng.integers(0, 64))
    if kind == TREE:
        return Thing(kind, 24 * spread, float(rng.uniform(8.5, 11.5)), 0.0, rng.uniform(3.5, 6), variant, phase)
    if kind == CAR:
        return Thing(kind, 20 * spread, float(rng.uniform(7.5, 9)), 0.0, rng.uniform(1.4, 1.7), variant, phase)
    depth_m = near + (far - near) * (order[0] / max(1, order[1] - 1))
    passer = order[0] >= 2 and rng.uniform() < 0.4
    speed_mps = side * float(rng.uniform(0.6, 1.3)) if passer else 0.0
    across_m = float(rng.uniform(-0.55, 0.55)) * depth_m * 1.6
    if order[0] < 2:
        across_m = (order[0] - 0.5) * depth_m * float(rng.uniform(0.5, 1.1))
    return Thing(
        kind, across_m, depth_m, speed_mps, rng.uniform(1.6, 1.9), variant, phase, pace_hz=rng.uniform(0.4, 0.9)
    )
