"""The things in a scene: persons, cars and trees, with their positions and motion."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from driftlab.datasets.streets.presets import CAR, PERSON, VEGETATION, StreetPreset

_STREET_M = 64.0  # cars and trees are drawn for this length of the street


@dataclass(frozen=True)
class SceneObject:
    """A person, a car or a tree: its position at time 0 and its motion."""

    kind: int  # its class
    across_m: float
    along_m: float  # down the street; its depth where the view is across
    size_m: float  # its height
    variant: int
    phase: float
    speed_mps: float = 0.0  # along the street
    window_m: float = _STREET_M  # a thing that leaves this length enters again at the other end
    stride_hz: float = 1.0
    leads: bool = False  # keeps its distance to the camera


@dataclass(frozen=True)
class _Slot:
    """The random numbers and dimensions from which one thing is drawn."""

    preset: StreetPreset
    rng: np.random.Generator
    number: int  # among the things of its kind
    count: int
    road_m: float
    sidewalk_m: float
    terrain_m: float

    def draw(self, low: float, high: float) -> float:
        return float(self.rng.uniform(low, high))

    def sign(self) -> float:
        return float(self.rng.choice([-1, 1]))

    def spread(self, jitter: float) -> float:
        """Spread the things of a kind evenly over 0..1, with jitter."""
        return (self.number + self.draw(0, jitter)) / self.count

    def thing(self, kind: int, place_m: tuple[float, float], size_m: tuple[float, float]) -> SceneObject:
        variant, phase = int(self.rng.integers(0, 64)), self.draw(0, 2 * np.pi)
        return SceneObject(kind, *place_m, self.draw(*size_m), variant, phase)


def draw_things(
    preset: StreetPreset, rng: np.random.Generator, crowd: float, widths_m: tuple[float, float, float]
) -> tuple[SceneObject, ...]:
    """Draw a scene's things; the widths are half the road's, the sidewalk's and the terrain's."""
    things: list[SceneObject] = []
    for kind, limits in ((VEGETATION, preset.trees), (CAR, preset.cars), (PERSON, preset.persons)):
        count = round(crowd * int(rng.integers(int(limits[0]), int(limits[1]), endpoint=True)))
        place = _PLACERS[preset.view, kind]
        things += [place(_Slot(preset, rng, number, count, *widths_m)) for number in range(count)]
    return tuple(things)


def _tree_along(slot: _Slot) -> SceneObject:
    aside_m = slot.road_m + 0.85 * slot.sidewalk_m + slot.terrain_m * slot.draw(0.3, 0.9)
    return slot.thing(VEGETATION, (slot.sign() * aside_m, _STREET_M * slot.spread(0.8)), (3.5, 7.0))


def _car_along(slot: _Slot) -> SceneObject:
    """Draw a car: most are parked, others approach, and one drives ahead of the camera."""
    along_m = _STREET_M * slot.spread(0.8)
    if slot.number == 0 and slot.preset.lane < 1:
        ahead = slot.thing(CAR, (slot.road_m * slot.preset.lane, slot.draw(7, 11)), (1.4, 1.7))
        return replace(ahead, leads=True)
    if slot.draw(0, 1) < 0.6:
        return slot.thing(CAR, (slot.sign() * (slot.road_m - 1), along_m), (1.35, 1.8))
    coming = slot.thing(CAR, (-slot.road_m * slot.draw(0.35, 0.5), along_m), (1.35, 1.8))
    return replace(coming, speed_mps=-slot.draw(5, 10))


def _person_along(slot: _Slot) -> SceneObject:
    """Draw a person: most walk on the sidewalk, some on the road."""
    window_m = slot.preset.person_depth_m[1]
    aside_m = slot.road_m + slot.sidewalk_m * slot.draw(0.15, 0.85)
    if not slot.sidewalk_m:
        aside_m = slot.road_m + slot.terrain_m * slot.draw(-0.4, 0.3)
    across_m = slot.sign() * aside_m if slot.draw(0, 1) > 0.15 else slot.road_m * slot.draw(-0.8, 0.8)
    person = slot.thing(PERSON, (across_m, window_m * slot.spread(0.8)), (1.6, 1.9))
    speed_mps = slot.sign() * slot.draw(0.7, 1.5)
    return replace(person, speed_mps=speed_mps, window_m=window_m, stride_hz=slot.draw(0.8, 1.1))


def _tree_across(slot: _Slot) -> SceneObject:
    return slot.thing(VEGETATION, (24 * (slot.spread(1.0) - 0.5), slot.draw(8.5, 11.5)), (3.5, 6.0))


def _car_across(slot: _Slot) -> SceneObject:
    return slot.thing(CAR, (20 * (slot.spread(1.0) - 0.5), slot.draw(7.5, 9.0)), (1.4, 1.7))


def _person_across(slot: _Slot) -> SceneObject:
    """Draw a person: two stand side by side in front; some of those behind them walk past."""
    near_m, far_m = slot.preset.person_depth_m
    depth_m = near_m + (far_m - near_m) * slot.number / max(1, slot.count - 1)
    across_m = (slot.number - 0.5) * slot.draw(0.5, 1.1) if slot.number < 2 else slot.draw(-0.9, 0.9)
    person = replace(slot.thing(PERSON, (across_m * depth_m, depth_m), (1.6, 1.9)), stride_hz=slot.draw(0.4, 0.9))
    if slot.number < 2 or slot.draw(0, 1) > 0.4:
        return person
    return replace(person, speed_mps=slot.sign() * slot.draw(0.6, 1.3), window_m=3.2 * depth_m + 4)


_PLACERS = {
    ("along", VEGETATION): _tree_along,
    ("along", CAR): _car_along,
    ("along", PERSON): _person_along,
    ("across", VEGETATION): _tree_across,
    ("across", CAR): _car_across,
    ("across", PERSON): _person_across,
}
