"""The contents of a scene from (seed, scene number): its look, its place and its things."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from driftlab.datasets.streets.look import Floats, Material, StreetLook, draw_look, draw_tiles
from driftlab.datasets.streets.presets import StreetPreset
from driftlab.datasets.streets.things import SceneObject, draw_things

LOTS_M = 320.0  # the street's houses repeat after this length


@dataclass(frozen=True)
class LandLot:
    """A piece of land at the side of the street."""

    start_m: float
    length_m: float
    height_m: float
    material: int
    green: bool


@dataclass(frozen=True, eq=False)
class Place:
    """The geometry of a scene and its objects, without their appearance."""

    horizon: float  # in frame heights from the top
    focal: float  # in frame heights
    road_m: float
    sidewalk_m: float
    terrain_m: tuple[float, float]  # left, right
    wall_m: float
    skyline: Floats  # [n] heights of the far skyline, in frame heights
    built_up: bool  # the skyline shows houses (True) or trees (False)
    lots: tuple[tuple[LandLot, ...], tuple[LandLot, ...]]  # left, right
    things: tuple[SceneObject, ...]
    phase: float


@dataclass(frozen=True, eq=False)
class Scene(Place):
    """All that stays the same while a scene is shown."""

    look: StreetLook
    tiles: Floats  # [class, TILE * TILE, 3] deviation from the mean colour


def scene_rng(preset: StreetPreset, seed: int, scene: int, part: int) -> np.random.Generator:
    """Make the generator of one part of a scene; parts do not disturb each other."""
    return np.random.default_rng([seed, scene, zlib.crc32(preset.name.encode()), part])


def draw_scene(preset: StreetPreset, seed: int, scene: int, crowd: float) -> Scene:
    """Draw everything the scene with this number keeps, whenever it is shown."""
    return Scene(
        **vars(draw_place(preset, seed, scene, crowd)),
        look=draw_look(scene_rng(preset, seed, scene, 2)),
        tiles=draw_tiles(scene_rng(preset, seed, scene, 3)),
    )


def draw_place(preset: StreetPreset, seed: int, scene: int, crowd: float) -> Place:
    """Draw the shape of a scene: its street, houses and things."""
    rng = scene_rng(preset, seed, scene, 1)
    left, right = rng.uniform(*preset.terrain_m), rng.uniform(*preset.terrain_m)
    road, walk = rng.uniform(*preset.road_m), rng.uniform(*preset.sidewalk_m)
    return Place(
        horizon=float(rng.uniform(0.42, 0.52)),
        focal=float(rng.uniform(0.85, 1.1)),
        road_m=float(road),
        sidewalk_m=float(walk),
        terrain_m=(float(left), float(right)),
        wall_m=float(rng.uniform(*preset.wall_depth_m)),
        skyline=rng.uniform(0.0, 0.1, 24).astype(np.float32),
        built_up=bool(rng.uniform() < preset.houses),
        lots=(_draw_lots(preset, rng), _draw_lots(preset, rng)),
        things=draw_things(preset, rng, crowd, (float(road), float(walk), float(min(left, right)))),
        phase=float(rng.uniform(0, 100)),
    )


def _draw_lots(preset: StreetPreset, rng: np.random.Generator) -> tuple[LandLot, ...]:
    lots: list[LandLot] = []
    start_m = 0.0
    while start_m < LOTS_M - 6:
        length_m = min(float(rng.uniform(7, 17)), LOTS_M - start_m)
        green = bool(rng.uniform() >= preset.houses)
        height_m = float(rng.uniform(2.0, 5.5) if green else rng.uniform(4.5, 14))
        material = Material.LEAVES + int(rng.integers(2)) if green else Material.HOUSE + int(rng.integers(3))
        lots.append(LandLot(start_m, length_m, height_m, material, green))
        start_m += length_m
    return tuple(lots)
