"""Paint a scene, distant things first, each as a few polygons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np

from driftlab.datasets.streets.look import Material
from driftlab.datasets.streets.presets import CAR, PERSON, VEGETATION, StreetPreset
from driftlab.datasets.streets.render import FLAT, GROUND, WALL, Camera, Canvas, Points, StreetCanvas
from driftlab.datasets.streets.scene import LOTS_M, LandLot, Place, Scene
from driftlab.datasets.streets.things import SceneObject

NEAR_M = 0.6
NEAREST_THING_M = 1.2
_VISIBLE_M = 90.0
BUMPS = 0.25  # amplitude of the tops of greenery
SKYLINE_M = 150.0
CLOUD_M = 6.0  # distance of a wall whose texture is as coarse as the clouds
_ROUND = np.linspace(0, 2 * np.pi, 20, endpoint=False)
DISC = np.stack([np.cos(_ROUND), np.sin(_ROUND)], axis=1)[::2]


AnyCanvas = TypeVar("AnyCanvas", bound=Canvas)


def shape(*corners: tuple[float, float]) -> Points:
    return np.array(corners, np.float64)


# Outlines in units of the thing's height, x from its middle, y up from the ground.
TORSO = shape((-0.13, 0.45), (-0.15, 0.80), (-0.08, 0.86), (0.08, 0.86), (0.15, 0.80), (0.13, 0.45))
HEAD = DISC * (0.065, 0.08) + (0, 0.92)
LEGS = shape((-0.11, 0.48), (0.11, 0.48), (0.10, 0), (-0.10, 0))
REAR_BODY = shape(
    (-0.62, 0.14), (-0.62, 0.56), (-0.52, 0.62), (-0.40, 1.0), (0.40, 1.0), (0.52, 0.62), (0.62, 0.56), (0.62, 0.14)
)
REAR_GLASS = shape((-0.43, 0.64), (-0.34, 0.93), (0.34, 0.93), (0.43, 0.64))
REAR_TYRES = (
    shape((-0.6, 0.0), (-0.6, 0.2), (-0.42, 0.2), (-0.42, 0.0)),
    shape((0.6, 0.0), (0.6, 0.2), (0.42, 0.2), (0.42, 0.0)),
)
SIDE_BODY = shape(
    (-1.4, 0.18), (-1.42, 0.5), (-0.85, 0.62), (-0.45, 1.0), (0.55, 1.0), (1.0, 0.62), (1.4, 0.5), (1.42, 0.18)
)
SIDE_GLASS = shape((-0.68, 0.63), (-0.40, 0.93), (0.50, 0.93), (0.80, 0.63))
SIDE_TYRES = (DISC * (0.22, 0.21) + (-0.85, 0.21), DISC * (0.22, 0.21) + (0.85, 0.21))
CROWN = np.stack([np.cos(_ROUND), np.sin(_ROUND)], axis=1) * (1 + 0.12 * np.sin(5 * _ROUND))[:, None]
DETAIL_PX = 14.0  # below this height limbs are less than a pixel wide
STEM = shape((-0.035, 0), (-0.025, 0.5), (0.025, 0.5), (0.035, 0))


def paint(canvas: StreetCanvas, preset: StreetPreset, scene: Scene, time_s: float) -> None:
    """Paint everything that the camera sees at this time."""
    along = preset.view == "along"
    _paint_sky(canvas, scene, time_s)
    (_paint_street if along else _paint_square)(canvas, scene)
    placed = [(*place_thing(thing, canvas.camera, time_s, along), thing) for thing in scene.things]
    for depth_m, across_m, thing in sorted(placed, key=lambda item: -item[0]):
        if depth_m < NEAREST_THING_M:
            continue
        easel = _StreetEasel(canvas, thing, across_m, depth_m)
        if easel.seen:
            _PAINTERS[thing.kind](easel, thing, time_s, preset)
    canvas.rasterise()


def place_thing(thing: SceneObject, camera: Camera, time_s: float, along: bool) -> tuple[float, float]:
    """Return distance and lateral offset of an object; one that leaves the window enters at the other end."""
    if thing.leads:
        return thing.along_m + 2.5 * math.sin(0.25 * time_s + thing.phase), thing.across_m
    if along:
        return (thing.along_m + thing.speed_mps * time_s - camera.along_m) % thing.window_m, thing.across_m
    half_m = thing.window_m / 2
    return thing.along_m, (thing.across_m + thing.speed_mps * time_s + half_m) % thing.window_m - half_m


def _paint_sky(canvas: StreetCanvas, scene: Scene, time_s: float) -> None:
    camera = canvas.camera
    drift = (camera.centre - 0.01 * camera.width * time_s, 0.0)
    _fill_below(canvas, canvas.surface(Material.SKY, FLAT, depth_m=CLOUD_M, anchor=drift), -1.0)
    material = Material.HOUSE if scene.built_up else Material.LEAVES
    band = canvas.surface(material, FLAT, depth_m=SKYLINE_M, anchor=(camera.centre, camera.horizon))
    fill_skyline(canvas, scene, band)


def fill_skyline(canvas: Canvas, place: Place, surface: int) -> None:
    """Fill the outline at the horizon: flat roofs where the scene is built up, else treetops."""
    camera = canvas.camera
    columns = camera.centre + (np.arange(-24, 24) + 0.5) * camera.width / 24
    tops = camera.horizon - np.tile(place.skyline, 2) * camera.height
    if place.built_up:
        columns, tops = np.repeat(columns, 2)[1:], np.repeat(tops, 2)[:-1]
    ground = [[columns[-1], camera.horizon + 1], [columns[0], camera.horizon + 1]]
    canvas.fill(surface, np.concatenate([np.stack([columns, tops], axis=1), ground]))


def _fill_below(canvas: StreetCanvas, surface: int, top: float) -> None:
    right, bottom = canvas.camera.width, canvas.camera.height
    canvas.fill(surface, shape((-1, top), (right, top), (right, bottom), (-1, bottom)))


def _paint_street(canvas: StreetCanvas, scene: Scene) -> None:
    """Paint the ground and, on either side, the lots from far to near."""
    camera = canvas.camera
    verge = Material.GRASS if any(scene.terrain_m) else Material.PAVING
    _fill_below(canvas, canvas.surface(verge, GROUND), camera.horizon)
    kerb_m = scene.road_m
    if scene.sidewalk_m:
        canvas.fill(canvas.surface(Material.PAVING, GROUND), _on_ground(camera, kerb_m + scene.sidewalk_m, 0.4, 200.0))
    canvas.fill(canvas.surface(Material.ROAD_BED, GROUND), _on_ground(camera, kerb_m, 0.4, 200.0))
    if kerb_m > 3:
        starts_m = np.arange(-(camera.along_m % 8.0), 40.0, 8.0)
        spans = [(max(start_m, 0.4), start_m + 3.0) for start_m in starts_m if start_m > -2.5]
        dash = canvas.surface(Material.MARKING, GROUND)
        for span in spans:
            canvas.fill(dash, _on_ground(camera, 0.1, *span))
    for side, lots in zip((-1, 1), scene.lots, strict=True):
        _paint_side(canvas, scene, side, lots)


def _paint_side(canvas: StreetCanvas, scene: Scene, side: int, lots: tuple[LandLot, ...]) -> None:
    """Paint the lots from far to near."""
    for number, near_m, has_front in lots_in_view(lots, canvas.camera.along_m, _VISIBLE_M):
        _paint_lot(canvas, scene, near_m, side, lots[number], has_front)


def lots_in_view(lots: Sequence[LandLot], along_m: float, visible_m: float) -> list[tuple[int, float, bool]]:
    """List the number of each lot, its distance and whether it shows a front, from far to near.

    A front behind a lot at least as high is hidden.
    """
    distances_m = [(lot.start_m - along_m + lot.length_m) % LOTS_M - lot.length_m for lot in lots]
    shown: list[tuple[int, float, bool]] = []
    hidden_m = 0.0
    for number in sorted(range(len(lots)), key=distances_m.__getitem__):
        lot, near_m = lots[number], distances_m[number]
        if near_m < visible_m and near_m + lot.length_m > NEAR_M:
            shown.append((number, near_m, near_m > NEAR_M and lot.height_m > hidden_m))
            hidden_m = lot.height_m * (1 - BUMPS if lot.green else 1.0)
    return shown[::-1]


def _on_ground(camera: Camera, half_m: float, near_m: float, far_m: float) -> Points:
    """Outline a strip along the middle of the street."""
    near, far = camera.row(0, near_m), camera.row(0, far_m)
    return shape(
        (camera.column(-half_m, near_m), near),
        (camera.column(-half_m, far_m), far),
        (camera.column(half_m, far_m), far),
        (camera.column(half_m, near_m), near),
    )


def _paint_lot(canvas: StreetCanvas, scene: Scene, near_m: float, side: int, lot: LandLot, has_front: bool) -> None:
    """Paint the face towards the camera and the face along the street."""
    camera = canvas.camera
    wall_m = camera.walls_m[0] if side < 0 else camera.walls_m[1]
    far_m = near_m + lot.length_m
    if has_front:
        column, foot, top = camera.column(wall_m, near_m), camera.row(0, near_m), camera.row(lot.height_m, near_m)
        front = canvas.surface(lot.material, FLAT, depth_m=near_m, anchor=(column, foot))
        outer = camera.column(wall_m + side * 14, near_m)
        canvas.fill(front, shape((column, foot), (outer, foot), (outer, top), (column, top)))
    street_side = canvas.surface(lot.material, WALL, shade=1 - 0.3 * scene.look.sun * side)
    near_m = max(near_m, NEAR_M)
    tops = [(near_m, lot.height_m), (far_m, lot.height_m)]
    if lot.green:
        step_m = (far_m - near_m) / 6
        depths = [near_m + step_m * i for i in range(7)]
        tops = [(z, lot.height_m * (1 + BUMPS * math.sin(z + camera.along_m + 7 * lot.start_m))) for z in depths]
    outline = [(camera.column(wall_m, depth_m), camera.row(up_m, depth_m)) for depth_m, up_m in tops]
    feet = [(camera.column(wall_m, depth_m), camera.row(0, depth_m)) for depth_m in (far_m, near_m)]
    canvas.fill(street_side, shape(*outline, *feet))


def _paint_square(canvas: StreetCanvas, scene: Scene) -> None:
    """Paint ground in bands and a row of houses behind it."""
    camera, depth_m = canvas.camera, scene.wall_m
    kerb_m = depth_m - 3.0
    bands = [(Material.PAVING, depth_m), (Material.ROAD_BED, kerb_m), (Material.PAVING, kerb_m - 2 * scene.road_m)]
    if not scene.road_m:
        bands = []
    ground = Material.PAVING if scene.sidewalk_m else Material.GRASS
    for material, far_m in ((ground, 200.0), *bands):
        _fill_below(canvas, canvas.surface(material, GROUND), camera.row(0, far_m))
    half_m = camera.width / camera.focal * depth_m
    for lot in scene.lots[0]:
        left_m = lot.start_m - LOTS_M / 2
        if left_m + lot.length_m < -half_m or left_m > half_m:
            continue
        left, right = camera.column(left_m, depth_m), camera.column(left_m + lot.length_m, depth_m)
        foot, top = camera.row(0, depth_m), camera.row(0.6 * lot.height_m, depth_m)
        face = canvas.surface(lot.material, FLAT, depth_m=depth_m, anchor=(left, foot))
        columns = np.linspace(left, right, 7 if lot.green else 2)
        tops = np.full(len(columns), top)
        if lot.green:
            tops += (foot - top) * 0.2 * np.sin(np.arange(7) * 2.0 + lot.start_m)
        canvas.fill(face, shape((left, foot), *zip(columns, tops, strict=True), (right, foot)))


class ObjectPainter(Generic[AnyCanvas]):
    """Fills outlines given in a thing's own units, at the thing's position."""

    CONVEX = False  # whether outlines are filled as convex ones, unless a call says otherwise

    def __init__(self, canvas: AnyCanvas, thing: SceneObject, across_m: float, depth_m: float) -> None:
        camera = canvas.camera
        self.canvas, self.depth_m = canvas, depth_m
        self.foot = (camera.column(across_m, depth_m), camera.row(0, depth_m))
        self.scale = camera.focal * thing.size_m / depth_m
        reach = 1.6 * self.scale
        self.seen = -reach < self.foot[0] < camera.width + reach and self.scale > 2.0
        self.owner = canvas.add_object(thing.kind) if self.seen and thing.kind in (PERSON, CAR) else 0

    def fill(self, surface: int, *outlines: Points, aside: float = 0.0, convex: bool | None = None) -> None:
        column, row = self.foot
        place = (self.scale, -self.scale, column + aside * self.scale, row)
        for outline in outlines:
            self.canvas.fill(surface, outline, place, convex=self.CONVEX if convex is None else convex)

    def quad(self, surface: int, *corners: float) -> None:
        """Fill four corners; every other number is a height."""
        if not self.CONVEX:
            self.fill(surface, np.array(corners).reshape(4, 2))
            return
        (column, row), scale = self.foot, self.scale
        placed = (row - scale * value if at % 2 else column + scale * value for at, value in enumerate(corners))
        self.canvas.quad(surface, *placed)


class _StreetEasel(ObjectPainter[StreetCanvas]):
    """Paints in the colours of materials."""

    def surface(self, material: int) -> int:
        return self.canvas.surface(material, FLAT, depth_m=self.depth_m, anchor=self.foot, owner=self.owner)


def _paint_tree(easel: _StreetEasel, thing: SceneObject, time_s: float, preset: StreetPreset) -> None:
    easel.fill(easel.surface(Material.TRUNK), STEM)
    wide = 0.22 + 0.002 * (thing.variant % 40)
    sway = 0.01 * math.sin(0.8 * time_s + thing.phase)
    easel.fill(easel.surface(Material.LEAVES + thing.variant % 2), CROWN * (wide, 0.3) + (sway, 0.7))


def _paint_car(easel: _StreetEasel, thing: SceneObject, time_s: float, preset: StreetPreset) -> None:
    tyre, body, glass = (
        easel.surface(material) for material in (Material.TYRE, Material.BODY + thing.variant % 2, Material.GLASS)
    )
    fill_car(easel, preset, (tyre, body, glass))


def fill_car(easel: ObjectPainter[AnyCanvas], preset: StreetPreset, surfaces: tuple[int, int, int]) -> None:
    """Fill tyres, body and glass: the rear of a car down the street, its side across it."""
    tyre, body, glass = surfaces
    if preset.view == "along":
        easel.fill(tyre, *REAR_TYRES)
        easel.fill(body, REAR_BODY, convex=False)
        easel.fill(glass, REAR_GLASS)
    else:
        easel.fill(body, SIDE_BODY, convex=False)
        easel.fill(glass, SIDE_GLASS)
        easel.fill(tyre, *SIDE_TYRES)


def _paint_person(easel: _StreetEasel, thing: SceneObject, time_s: float, preset: StreetPreset) -> None:
    legs = easel.surface(Material.TROUSERS + thing.variant % 2)
    coat = easel.surface(Material.COAT + thing.variant // 2 % 2)
    fill_person(easel, thing, time_s, preset, (legs, coat, easel.surface(Material.HEAD)))


def fill_person(
    easel: ObjectPainter[AnyCanvas],
    thing: SceneObject,
    time_s: float,
    preset: StreetPreset,
    surfaces: tuple[int, int, int],
) -> float:
    """Fill legs that stride, arms that swing, a torso and a head; return how far the head leans aside."""
    legs, coat, head = surfaces
    lively = preset.liveliness
    beat = math.sin(2 * math.pi * thing.stride_hz * time_s + thing.phase)
    lean = 0.02 * lively * math.sin(1.3 * time_s + thing.phase)
    if easel.scale < DETAIL_PX:
        easel.fill(legs, LEGS)
    else:
        stride = (0.13 if thing.speed_mps else 0.04 * lively) * beat
        raised = 0.55 + 0.35 * abs(beat) * max(0.0, lively - 1)
        for sign in (-1, 1):
            hip, foot, hand = sign * 0.05, sign * (0.06 + stride), sign * (0.19 + 0.06 * lively * abs(beat))
            easel.quad(legs, hip - 0.06, 0.48, hip + 0.06, 0.48, foot + 0.045, 0, foot - 0.045, 0)
            easel.quad(coat, sign * 0.1, 0.83, sign * 0.16, 0.78, hand + 0.03, raised, hand - 0.03, raised - 0.05)
    easel.fill(coat, TORSO, aside=lean)
    easel.fill(head, HEAD, aside=1.5 * lean)
    return 1.5 * lean


_PAINTERS = {PERSON: _paint_person, CAR: _paint_car, VEGETATION: _paint_tree}
