"""Random choices of a city scene: place, look, finish of each house, clothes of people."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from driftlab.datasets.city.palette import COUNTS, City, Ink, draw_look
from driftlab.datasets.city.textures import WALLS, Swatch, Textures, draw_textures
from driftlab.datasets.streets.look import Look, Material
from driftlab.datasets.streets.presets import CAR, PERSON, VEGETATION, StreetPreset
from driftlab.datasets.streets.scene import LandLot, Place, draw_place, scene_rng
from driftlab.datasets.streets.things import SceneObject

PASSERS = 3  # passers close to the camera, for each unit of the parameter
_LOW_M = 8.5  # houses below this height have a pitched roof
_CROSSINGS_M = (45.0, 90.0)
_FAST_MPS = 6.0  # a faster camera is a car's: people pass on the sidewalk and not on the road


class SurfaceFinish(NamedTuple):
    """Material of a surface: the material determines its class, the slot its colour."""

    material: int
    slot: int
    tile: int


@dataclass(frozen=True)
class Facade:
    """How one lot looks from the street."""

    wall: SurfaceFinish
    roof: SurfaceFinish
    shop: SurfaceFinish | None
    pitched: bool


@dataclass(frozen=True)
class StreetFigure:
    """A thing with the colours that are its own; a passer is there while there are that many."""

    thing: SceneObject
    finishes: tuple[SurfaceFinish, ...]
    passer: int = -1  # its number among the passers; -1: always there


@dataclass(frozen=True, eq=False)
class CityScene:
    """All that stays the same while a scene is shown."""

    place: Place
    look: Look
    textures: Textures = field(repr=False)
    fronts: tuple[tuple[Facade, ...], tuple[Facade, ...]]  # left, right: one for each lot
    figures: tuple[StreetFigure, ...]
    crossings_m: tuple[float, float]  # the first zebra crossing, and how far apart they are
    paved: bool  # whether the way is a street with kerbs and markings, not a path


@dataclass(frozen=True)
class Drawing:
    """Arguments of a scene besides its number."""

    preset: StreetPreset
    seed: int
    city: City
    variety: float
    crowd: float
    passers: float
    photos: float


def draw_scene(drawing: Drawing, number: int) -> CityScene:
    """Draw everything the scene with this number keeps, whenever it is shown."""
    preset = drawing.preset
    place = draw_place(preset, drawing.seed, number, drawing.crowd)
    rngs = [scene_rng(preset, drawing.seed, number, part) for part in (21, 22, 23, 24)]
    passers = _draw_passers(preset, rngs[3], math.ceil(PASSERS * drawing.passers), place.road_m)
    return CityScene(
        place=place,
        look=draw_look(drawing.city, rngs[0], drawing.variety),
        textures=draw_textures(rngs[1], drawing.photos),
        fronts=(_draw_fronts(place.lots[0], rngs[2]), _draw_fronts(place.lots[1], rngs[2])),
        figures=(
            *(StreetFigure(thing, finishes) for thing, finishes in _dressed(place.things, rngs[2])),
            *(StreetFigure(thing, own, rank) for rank, (thing, own) in enumerate(_dressed(passers, rngs[3]))),
        ),
        crossings_m=(float(rngs[2].uniform(5, 60)), float(rngs[2].uniform(*_CROSSINGS_M))),
        paved=place.road_m > 3 or not any(place.terrain_m),
    )


def _draw_fronts(lots: tuple[LandLot, ...], rng: np.random.Generator) -> tuple[Facade, ...]:
    return tuple(_draw_front(lot, rng) for lot in lots)


def _draw_front(lot: LandLot, rng: np.random.Generator) -> Facade:
    if lot.green:
        leaves = SurfaceFinish(Material.LEAVES, _one_of(Ink.LEAVES, rng), Swatch.LEAVES)
        return Facade(leaves, leaves, None, False)
    wall = SurfaceFinish(Material.HOUSE, _one_of(Ink.HOUSE, rng), Swatch.WALL + int(rng.integers(WALLS)))
    roof = SurfaceFinish(Material.HOUSE_2, _one_of(Ink.ROOF, rng), Swatch.PLAIN)
    shop = SurfaceFinish(Material.HOUSE_3, _one_of(Ink.SHOP, rng), Swatch.SHOP)
    return Facade(wall, roof, shop if rng.uniform() < 0.55 else None, lot.height_m < _LOW_M)


def _one_of(slot: Ink, rng: np.random.Generator) -> int:
    return slot + int(rng.integers(COUNTS[slot]))


_OWN = {
    PERSON: (
        (Material.TROUSERS, Ink.TROUSERS, Swatch.CLOTH),
        (Material.COAT, Ink.COAT, Swatch.CLOTH),
        (Material.HEAD, Ink.SKIN, Swatch.PLAIN),
        (Material.HEAD, Ink.HAIR, Swatch.PLAIN),
    ),
    CAR: ((Material.BODY, Ink.BODY, Swatch.PLAIN),),
    VEGETATION: ((Material.LEAVES, Ink.LEAVES, Swatch.LEAVES),),
}


def _dressed(
    things: Sequence[SceneObject], rng: np.random.Generator
) -> Iterator[tuple[SceneObject, tuple[SurfaceFinish, ...]]]:
    """Give every object colours, in the order of its painter; no colour is used twice while one is left."""
    ranks = {slot: rng.permutation(count) for slot, count in COUNTS.items()}
    for number, thing in enumerate(things):
        yield (
            thing,
            tuple(
                SurfaceFinish(material, slot + int(ranks[slot][number % COUNTS[slot]]), tile)
                for material, slot, tile in _OWN[thing.kind]
            ),
        )


def _draw_passers(preset: StreetPreset, rng: np.random.Generator, count: int, road_m: float) -> list[SceneObject]:
    """Send people past close before the camera, evenly apart: towards it, or through its view."""
    things = []
    driven = max(speed for _, speed in preset.speed_mps) > _FAST_MPS
    for number in range(count):
        size_m, variant = float(rng.uniform(1.6, 1.9)), int(rng.integers(64))
        phase, speed = float(rng.uniform(0, 2 * np.pi)), float(rng.uniform(0.7, 1.6))
        apart = (number + float(rng.uniform(0, 0.7))) / count
        side = float(rng.choice([-1, 1]))
        if preset.view == "along":
            across = road_m + 0.5 if driven else road_m * preset.lane + side * float(rng.uniform(0.35, 1.1))
            things.append(SceneObject(PERSON, across, 14 * apart, size_m, variant, phase, -speed, 14.0, 0.9))
        else:
            depth_m = float(rng.uniform(1.6, 2.8))
            window_m = 3.2 * depth_m + 8
            place = (window_m * (apart - 0.5), depth_m)
            things.append(SceneObject(PERSON, *place, size_m, variant, phase, side * speed, window_m, 0.9))
    return things
