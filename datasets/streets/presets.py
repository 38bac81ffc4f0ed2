"""The street workloads as data: how each world looks and moves, and how fast it changes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from driftlab.datasets.script import Visit

Range = tuple[float, float]
CLASSES = ("road", "sidewalk", "building", "vegetation", "sky", "person", "car", "terrain")
ROAD, SIDEWALK, BUILDING, VEGETATION, SKY, PERSON, CAR, TERRAIN = range(len(CLASSES))


@dataclass(frozen=True)
class StreetPreset:
    """One kind of street video; lengths are drawn per scene from the ranges."""

    name: str
    summary: str
    view: Literal["along", "across"]  # down the street, or from one side to the other
    visits: tuple[Visit, ...]
    fresh: int  # scene numbers added for the next round of visits; fewer than the round has means recurrences
    speed_mps: tuple[tuple[float, float], ...]  # (time in s, camera speed), linear between, repeated
    camera_height_m: float
    lane: float  # the camera's place across the street, in half road widths from its middle
    road_m: Range  # half the width of the road
    sidewalk_m: Range
    terrain_m: Range  # from the sidewalk to the houses
    houses: float  # share of the lots with a house; the others are green
    persons: Range
    cars: Range
    trees: Range
    person_depth_m: Range
    wall_depth_m: Range = (12.0, 18.0)  # across: distance of the houses
    liveliness: float = 1.0  # amplitude of limbs and bodies
    shake: float = 0.004  # standard deviation of the camera's jitter, in frame heights
    bob: float = 0.0  # amplitude of the stride, in frame heights
    light_swing: float = 0.08  # slow change of the light inside a scene
    drift_s: float = 0.0  # time in which the look blends into another one; 0 keeps it
    yaw: float = 0.03  # slow turning of the camera, in frame widths


_PRESETS = (
    StreetPreset(
        name="interview",
        summary="Two people talk before a fixed camera; one scene for ever, only light and passers-by change.",
        view="across",
        visits=((0, math.inf),),
        fresh=0,
        speed_mps=((0.0, 0.0), (60.0, 0.0)),
        camera_height_m=1.5,
        lane=0.0,
        road_m=(0.0, 0.0),
        sidewalk_m=(0.0, 0.0),
        terrain_m=(10.0, 14.0),
        houses=0.6,
        persons=(3, 4),
        cars=(2, 2),
        trees=(3, 5),
        person_depth_m=(2.6, 5.0),
        liveliness=0.4,
        shake=0.001,
        yaw=0.004,
    ),
    StreetPreset(
        name="dance",
        summary="Dancers on a square before a phone on a stand; the place changes every minute and a half.",
        view="across",
        visits=((0, 90.0), (1, 60.0), (0, 90.0)),
        fresh=1,
        speed_mps=((0.0, 0.0), (60.0, 0.0)),
        camera_height_m=1.4,
        lane=0.0,
        road_m=(0.0, 0.0),
        sidewalk_m=(14.0, 18.0),
        terrain_m=(0.0, 0.0),
        houses=0.7,
        persons=(5, 7),
        cars=(0, 0),
        trees=(2, 4),
        person_depth_m=(3.0, 7.0),
        liveliness=2.0,
        shake=0.003,
        yaw=0.01,
    ),
    StreetPreset(
        name="street_comedian",
        summary="A crowd around a comedian, hand-held camera; people always move, the corner changes every 45 s.",
        view="across",
        visits=((0, 50.0), (1, 40.0), (0, 30.0), (2, 45.0)),
        fresh=2,
        speed_mps=((0.0, 0.0), (60.0, 0.0)),
        camera_height_m=1.6,
        lane=0.0,
        road_m=(3.0, 4.0),
        sidewalk_m=(6.0, 8.0),
        terrain_m=(0.0, 0.0),
        houses=0.8,
        persons=(9, 12),
        cars=(0, 0),
        trees=(1, 3),
        person_depth_m=(3.0, 8.0),
        liveliness=1.4,
        shake=0.008,
        yaw=0.05,
    ),
    StreetPreset(
        name="walking_paris",
        summary="A walk along wide streets; a new street about every 25 s, some of them twice.",
        view="along",
        visits=((0, 26.0), (1, 22.0), (2, 28.0), (1, 18.0)),
        fresh=2,
        speed_mps=((0.0, 1.4), (9.0, 1.5), (14.0, 0.7), (21.0, 1.4)),
        camera_height_m=1.65,
        lane=1.15,
        road_m=(3.5, 4.5),
        sidewalk_m=(2.5, 4.0),
        terrain_m=(0.0, 0.0),
        houses=0.8,
        persons=(6, 9),
        cars=(4, 6),
        trees=(5, 8),
        person_depth_m=(2.5, 20.0),
        shake=0.006,
        bob=0.012,
        yaw=0.05,
    ),
    StreetPreset(
        name="walking_ny",
        summary="A fast walk through crowds between high houses; a new block about every 16 s, few of them twice.",
        view="along",
        visits=((0, 17.0), (1, 14.0), (2, 18.0), (0, 12.0), (3, 16.0)),
        fresh=4,
        speed_mps=((0.0, 1.7), (8.0, 1.7), (9.0, 0.0), (12.0, 0.0), (13.0, 1.7), (24.0, 1.5)),
        camera_height_m=1.65,
        lane=1.3,
        road_m=(4.0, 5.5),
        sidewalk_m=(3.0, 4.5),
        terrain_m=(0.0, 0.0),
        houses=0.92,
        persons=(10, 14),
        cars=(5, 8),
        trees=(2, 4),
        person_depth_m=(2.5, 18.0),
        shake=0.01,
        bob=0.016,
        yaw=0.08,
    ),
    StreetPreset(
        name="driving_la",
        summary="A drive with stops at lights; a new district about every 14 s of driving, still views while it waits.",
        view="along",
        visits=((0, 16.0), (1, 13.0), (2, 15.0), (0, 10.0), (3, 14.0), (1, 12.0)),
        fresh=3,
        speed_mps=((0.0, 0.0), (4.0, 11.0), (17.0, 12.0), (21.0, 0.0), (30.0, 0.0)),
        camera_height_m=1.35,
        lane=0.42,
        road_m=(4.0, 5.5),
        sidewalk_m=(3.0, 5.5),
        terrain_m=(0.0, 0.0),
        houses=0.6,
        persons=(4, 7),
        cars=(5, 8),
        trees=(6, 10),
        person_depth_m=(4.0, 18.0),
        shake=0.004,
        yaw=0.04,
    ),
    StreetPreset(
        name="running",
        summary="A run along park paths with a head camera; a new path about every 9 s and hard shaking.",
        view="along",
        visits=((0, 10.0), (1, 8.0), (2, 9.0), (3, 8.0), (1, 7.0), (4, 10.0)),
        fresh=4,
        speed_mps=((0.0, 3.2), (11.0, 3.6), (17.0, 2.6), (25.0, 3.2)),
        camera_height_m=1.7,
        lane=0.2,
        road_m=(1.6, 2.6),
        sidewalk_m=(0.0, 0.0),
        terrain_m=(3.0, 7.0),
        houses=0.0,
        persons=(4, 7),
        cars=(0, 0),
        trees=(8, 12),
        person_depth_m=(3.0, 18.0),
        liveliness=1.5,
        shake=0.014,
        bob=0.03,
        yaw=0.06,
    ),
    StreetPreset(
        name="drift",
        summary="One street whose light, weather and colours move on steadily, to a new look every 60 s; no cuts.",
        view="along",
        visits=((0, math.inf),),
        fresh=0,
        speed_mps=((0.0, 1.0), (20.0, 1.4), (40.0, 1.0)),
        camera_height_m=1.6,
        lane=0.6,
        road_m=(4.0, 5.0),
        sidewalk_m=(3.0, 5.0),
        terrain_m=(0.0, 0.0),
        houses=0.7,
        persons=(5, 8),
        cars=(4, 6),
        trees=(4, 7),
        person_depth_m=(3.0, 22.0),
        shake=0.003,
        bob=0.006,
        light_swing=0.2,
        drift_s=60.0,
    ),
)
PRESETS: Mapping[str, StreetPreset] = MappingProxyType({preset.name: preset for preset in _PRESETS})
