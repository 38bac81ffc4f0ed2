"""Put a scene before the camera: far things first, each one a few polygons."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from driftlab.datasets.streets.presets import BUILDING, CAR, PERSON, Preset
from driftlab.datasets.streets.render import FLAT, GROUND, WALL, Camera, Canvas
from driftlab.datasets.streets.scene import (
    BODIES,
    BODY,
    COAT,
    GLASS,
    GRASS,
    HEAD,
    HOUSE,
    LEAF_KINDS,
    LEAVES,
    LOTS_M,
    MARKING,
    OUTFITS,
    PAVING,
    ROAD_BED,
    SKY_DOME,
    TROUSERS,
    TRUNK,
    TYRE,
    WINDOW_M,
    Lot,
    Scene,
    Thing,
)

Points = npt.NDArray[np.float64]

_NEAR_M = 0.6
_SIGHT_M = 90.0
_SKYLINE_M = 150.0
_ROUND = np.linspace(0, 2 * np.pi, 12, endpoint=False)
_DISC = np.stack([np.cos(_ROUND), np.sin(_ROUND)], axis=1)


def _shape(*corners: tuple[float, float]) -> Points:
    return np.array(corners, np.float64)


# Outlines in units of the thing's height, x from its middle, y up from the ground.
_TORSO = _shape((-0.13, 0.45), (-0.15, 0.80), (-0.08, 0.86), (0.08, 0.86), (0.15, 0.80), (0.13, 0.45))
_HEAD = _DISC * (0.065, 0.08) + (0, 0.92)
_REAR_BODY = _shape((-0.62, 0.14), (-0.62, 0.56), (-0.52, 0.62), (0.52, 0.62), (0.62, 0.56), (0.62, 0.14))
_REAR_CABIN = _shape((-0.52, 0.60), (-0.40, 1.0), (0.40, 1.0), (0.52, 0.60))
_REAR_GLASS = _shape((-0.43, 0.64), (-0.34, 0.93), (0.34, 0.93), (0.43, 0.64))
_REAR_TYRES = (
    _shape((-0.6, 0.0), (-0.6, 0.2), (-0.42, 0.2), (-0.42, 0.0)),
    _shape((0.6, 0.0), (0.6, 0.2), (0.42, 0.2), (0.42, 0.0)),
)
_SIDE_BODY = _shape((-1.4, 0.18), (-1.42, 0.5), (-0.9, 0.62), (1.15, 0.62), (1.4, 0.5), (1.42, 0.18))
_SIDE_CABIN = _shape((-0.85, 0.60), (-0.45, 1.0), (0.55, 1.0), (1.0, 0.60))
_SIDE_GLASS = _shape((-0.68, 0.63), (-0.40, 0.93), (0.50, 0.93), (0.80, 0.63))
_SIDE_TYRES = (_DISC * (0.22, 0.21) + (-0.85, 0.21), _DISC * (0.22, 0.21) + (0.85, 0.21))
_STEM = _shape((-0.035, 0), (-0.025, 0.5), (0.025, 0.5), (0.035, 0))


def paint(canvas: Canvas, preset: Preset, scene: Scene, time_s: float) -> None:
    """Paint everything the camera sees at this time."""
    along = preset.view == "along"
    _paint_sky(canvas, scene, time_s)
    (_paint_street if along else _paint_square)(canvas, scene)
    placed = [(*_place(thing, canvas.camera, time_s, along), thing) for thing in scene.things]
    for depth_m, across_m, thing in sorted(placed, key=lambda item: -item[0]):
        if depth_m > _NEAR_M + 0.6:
            _PAINTERS[thing.kind](_Easel(canvas, thing, across_m, depth_m), thing, time_s, preset)


def _place(thing: Thing, camera: Camera, time_s: float, along: bool) -> tuple[float, float]:
    """Say how far away and how far aside a thing is now; what leaves the window comes in at its other end."""
    if thing.lead:
        return thing.along_m + 2.5 * math.sin(0.25 * time_s + thing.phase), thing.across_m
    if along:
        return (thing.along_m + thing.speed_mps * time_s - camera.along_m) % WINDOW_M, thing.across_m
    if thing.speed_mps:
        half_m = thing.along_m * 1.6 + 2
        return thing.along_m, (thing.across_m + thing.speed_mps * time_s + half_m) % (2 * half_m) - half_m
    return thing.along_m, thing.across_m


def _paint_sky(canvas: Canvas, scene: Scene, time_s: float) -> None:
    camera = canvas.camera
    clouds_m = TEXEL_STRETCH * camera.focal
    sky = canvas.surface(
        SKY_DOME, FLAT, depth_m=clouds_m / camera.focal, anchor=(camera.centre - 0.01 * camera.width * time_s, 0)
    )
    width, height = camera.width, camera.height
    canvas.fill(sky, [(-1, -1), (width, -1), (width, height), (-1, height)])
    material = HOUSE if scene.skyline_class == BUILDING else LEAVES
    band = canvas.surface(material, FLAT, depth_m=_SKYLINE_M, anchor=(camera.centre, camera.horizon))
    columns = camera.centre + (np.arange(-24, 24) + 0.5) * camera.width / 24
    tops = camera.horizon - np.tile(scene.skyline, 2) * camera.height
    if material == HOUSE:
        columns, tops = np.repeat(columns, 2)[1:], np.repeat(tops, 2)[:-1]
    ground = [(columns[-1], camera.horizon + 1), (columns[0], camera.horizon + 1)]
    canvas.fill(band, [*zip(columns, tops, strict=True), *ground])


TEXEL_STRETCH = 6.0


def _paint_street(canvas: Canvas, scene: Scene) -> None:
    camera = canvas.camera
    width, height, horizon = camera.width, camera.height, camera.horizon
    grass = canvas.surface(GRASS, GROUND)
    canvas.fill(grass, [(-1, horizon), (width, horizon), (width, height), (-1, height)])
    kerb_m = scene.road_m
    if scene.sidewalk_m:
        _paint_strip(canvas, PAVING, -kerb_m - scene.sidewalk_m, kerb_m + scene.sidewalk_m)
    _paint_strip(canvas, ROAD_BED, -kerb_m, kerb_m)
    if kerb_m > 3:
        _paint_dashes(canvas)
    walls: list[tuple[float, int, Lot]] = []
    for side, lots in zip((-1, 1), scene.lots, strict=True):
        for lot in lots:
            near_m = (lot.start_m - camera.along_m) % LOTS_M
            near_m -= LOTS_M if near_m > LOTS_M - lot.length_m else 0
            if near_m < _SIGHT_M and near_m + lot.length_m > _NEAR_M:
                walls.append((near_m, side, lot))
    for near_m, side, lot in sorted(walls, key=lambda wall: -wall[0]):
        _paint_lot(canvas, scene, near_m, side, lot)


def _paint_strip(canvas: Canvas, material: int, left_m: float, right_m: float) -> None:
    camera = canvas.camera
    near, far = 0.25 * camera.eye_m, 200.0
    corners = [(left_m, near), (left_m, far), (right_m, far), (right_m, near)]
    points = [(camera.column(across_m, depth_m), camera.row(0, depth_m)) for across_m, depth_m in corners]
    canvas.fill(canvas.surface(material, GROUND), points)


def _paint_dashes(canvas: Canvas) -> None:
    camera = canvas.camera
    dash = canvas.surface(MARKING, GROUND)
    first_m = -(camera.along_m % 8.0)
    for start_m in np.arange(first_m, 40.0, 8.0):
        near, far = max(start_m, _NEAR_M), start_m + 3.0
        if far > near:
            corners = [(-0.1, near), (-0.1, far), (0.1, far), (0.1, near)]
            canvas.fill(dash, [(camera.column(x, z), camera.row(0, z)) for x, z in corners])


def _paint_lot(canvas: Canvas, scene: Scene, near_m: float, side: int, lot: Lot) -> None:
    """Paint the face towards the camera and the face along the street."""
    camera = canvas.camera
    wall_m = camera.walls_m[0] if side < 0 else camera.walls_m[1]
    far_m = near_m + lot.length_m
    lit = 1 - 0.3 * scene.look.sun * side
    if near_m > _NEAR_M:
        corner = (camera.column(wall_m, near_m), camera.row(0, near_m))
        front = canvas.surface(lot.material, FLAT, depth_m=near_m, anchor=corner, shade=1.0)
        outer = camera.column(wall_m + side * 14, near_m)
        tops = camera.row(lot.height_m, near_m)
        canvas.fill(front, [corner, (outer, corner[1]), (outer, tops), (corner[0], tops)])
    beside = canvas.surface(lot.material, WALL, shade=lit)
    near_m = max(near_m, _NEAR_M)
    depths = np.linspace(near_m, far_m, 7 if lot.green else 2)
    heights = np.full(len(depths), lot.height_m)
    if lot.green:
        heights *= 1 + 0.25 * np.sin(depths + camera.along_m + lot.start_m * 7)
    columns = camera.column(wall_m, depths)
    tops = camera.row(heights, depths)
    foot = [(columns[-1], camera.row(0, far_m)), (columns[0], camera.row(0, near_m))]
    canvas.fill(beside, [*zip(columns, tops, strict=True), *foot])


def _paint_square(canvas: Canvas, scene: Scene) -> None:
    """Paint ground in bands and a row of houses behind it."""
    camera = canvas.camera
    width, height = camera.width, camera.height
    depth_m = scene.wall_m
    bands = ((GRASS, 200.0), (PAVING, depth_m), (ROAD_BED, depth_m - 3.0), (PAVING, depth_m - 3.0 - 2 * scene.road_m))
    if not scene.sidewalk_m:
        bands = ((GRASS, 200.0),)
    elif not scene.road_m:
        bands = ((PAVING, 200.0),)
    for material, far_m in bands:
        top = camera.row(0, far_m)
        canvas.fill(canvas.surface(material, GROUND), [(-1, top), (width, top), (width, height), (-1, height)])
    start_m = camera.across_m - depth_m * width / camera.focal * 0.5 - 20
    for lot in scene.lots[0]:
        left_m = lot.start_m - 0.5 * LOTS_M
        if left_m + lot.length_m < start_m or left_m > -start_m:
            continue
        left, right = camera.column(left_m, depth_m), camera.column(left_m + lot.length_m, depth_m)
        foot, top = camera.row(0, depth_m), camera.row(lot.height_m * 0.7, depth_m)
        face = canvas.surface(lot.material, FLAT, depth_m=depth_m, anchor=(left, foot))
        columns = np.linspace(left, right, 7 if lot.green else 2)
        bumps = 1 + (0.2 * np.sin(columns * 40 / height + lot.start_m) if lot.green else np.zeros(2))
        canvas.fill(face, [(left, foot), *zip(columns, foot + (top - foot) * bumps, strict=True), (right, foot)])


class _Easel:
    """Paints outlines given in a thing's own units, standing where the thing stands."""

    def __init__(self, canvas: Canvas, thing: Thing, across_m: float, depth_m: float) -> None:
        camera = canvas.camera
        self.canvas, self.depth_m = canvas, depth_m
        self.foot = (camera.column(across_m, depth_m), camera.row(0, depth_m))
        self.scale = camera.focal * thing.size_m / depth_m
        reach = 1.6 * self.scale
        self.seen = -reach < self.foot[0] < camera.width + reach and self.scale > 2.0
        self.owner = canvas.add_object(thing.kind) if self.seen and thing.kind in (PERSON, CAR) else 0

    def surface(self, material: int) -> int:
        return self.canvas.surface(material, FLAT, depth_m=self.depth_m, anchor=self.foot, owner=self.owner)

    def fill(self, surface: int, outline: Points) -> None:
        self.canvas.fill(surface, outline * (self.scale, -self.scale) + self.foot)


def _paint_tree(easel: _Easel, thing: Thing, time_s: float, preset: Preset) -> None:
    if not easel.seen:
        return
    easel.fill(easel.surface(TRUNK), _STEM)
    crown = easel.surface(LEAVES + thing.variant % LEAF_KINDS)
    sway = 0.01 * math.sin(0.8 * time_s + thing.phase)
    wide = 0.2 + 0.002 * (thing.variant % 40)
    for aside, up, size in ((-0.5, 0.62, 0.75), (0.5, 0.66, 0.7), (0.0, 0.8, 0.9)):
        easel.fill(crown, _DISC * (wide * size, 0.22 * size) + (wide * aside + sway, up))


def _paint_car(easel: _Easel, thing: Thing, time_s: float, preset: Preset) -> None:
    if not easel.seen:
        return
    rear = preset.view == "along"
    body, cabin, glass, tyres = (
        (_REAR_BODY, _REAR_CABIN, _REAR_GLASS, _REAR_TYRES)
        if rear
        else (_SIDE_BODY, _SIDE_CABIN, _SIDE_GLASS, _SIDE_TYRES)
    )
    tyre = easel.surface(TYRE)
    paint_of_body = easel.surface(BODY + thing.variant % BODIES)
    for ring in tyres if rear else ():
        easel.fill(tyre, ring)
    easel.fill(paint_of_body, body)
    easel.fill(paint_of_body, cabin)
    easel.fill(easel.surface(GLASS), glass)
    for ring in () if rear else tyres:
        easel.fill(tyre, ring)


def _paint_person(easel: _Easel, thing: Thing, time_s: float, preset: Preset) -> None:
    """Paint legs that stride when the person walks, arms that swing, a torso and a head."""
    if not easel.seen:
        return
    beat = math.sin(2 * math.pi * thing.pace_hz * time_s + thing.phase)
    stride = 0.13 * beat if thing.speed_mps else 0.04 * preset.liveliness * beat
    lean = 0.02 * preset.liveliness * math.sin(1.3 * time_s + thing.phase)
    legs = easel.surface(TROUSERS + thing.variant % OUTFITS)
    for sign in (-1, 1):
        foot = sign * (0.06 + stride)
        easel.fill(
            legs, _shape((-0.06 + sign * 0.05, 0.48), (0.06 + sign * 0.05, 0.48), (foot + 0.045, 0), (foot - 0.045, 0))
        )
    coat = easel.surface(COAT + thing.variant // OUTFITS % OUTFITS)
    raised = 0.55 if preset.liveliness < 1 else 0.55 + 0.35 * abs(beat) * (preset.liveliness - 0.8)
    for sign in (-1, 1):
        hand = sign * (0.19 + 0.06 * preset.liveliness * abs(beat))
        easel.fill(
            coat, _shape((sign * 0.10, 0.83), (sign * 0.16, 0.78), (hand + 0.03, raised), (hand - 0.03, raised - 0.05))
        )
    easel.fill(coat, _TORSO + (lean, 0))
    easel.fill(easel.surface(HEAD), _HEAD + (1.5 * lean, 0))


_PAINTERS = {PERSON: _paint_person, CAR: _paint_car, 3: _paint_tree}
