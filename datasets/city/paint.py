"""Put a city scene before the camera: far things first, each one a few polygons."""

from __future__ import annotations

import math

import numpy as np

from driftlab.datasets.city.palette import Ink
from driftlab.datasets.city.render import SKY, CityCanvas
from driftlab.datasets.city.scene import CityScene, Facade, StreetFigure, SurfaceFinish
from driftlab.datasets.city.textures import Swatch
from driftlab.datasets.streets.look import Material
from driftlab.datasets.streets.paint import (
    BUMPS,
    CLOUD_M,
    CROWN,
    DETAIL_PX,
    DISC,
    NEAR_M,
    NEAREST_THING_M,
    SKYLINE_M,
    STEM,
    ObjectPainter,
    fill_car,
    fill_person,
    fill_skyline,
    lots_in_view,
    place_thing,
    shape,
)
from driftlab.datasets.streets.presets import CAR, PERSON, VEGETATION, StreetPreset
from driftlab.datasets.streets.render import FLAT, GROUND, WALL, Camera
from driftlab.datasets.streets.scene import LOTS_M, LandLot

_FAR_M, _VISIBLE_M = 200.0, 66.0
_BANDS_M = 28.0  # farther away a shop front, a roof's edge and a crossing are less than a pixel
_EAVES_M, _PITCH = 3.0, 0.7  # from the front to the ridge, and how steep a roof is
_SHOP_M, _CORNICE_M, _KERB_M, _LAMP_M, _LAMPS_M = 3.1, 0.5, 0.3, 4.5, 18.0
_SKY = SurfaceFinish(Material.SKY, Ink.SKY, Swatch.CLOUDS)
_GRASS = SurfaceFinish(Material.GRASS, Ink.GRASS, Swatch.GRASS)
_PAVING = SurfaceFinish(Material.PAVING, Ink.PAVING, Swatch.SLABS)
_KERB = SurfaceFinish(Material.PAVING, Ink.KERB, Swatch.PLAIN)
_ROAD = SurfaceFinish(Material.ROAD_BED, Ink.ROAD, Swatch.ASPHALT)
_PATH = SurfaceFinish(Material.ROAD_BED, Ink.PAVING, Swatch.GRAVEL)
_LINE = SurfaceFinish(Material.MARKING, Ink.LINE, Swatch.PLAIN)
_TRUNK = SurfaceFinish(Material.TRUNK, Ink.TRUNK, Swatch.CLOTH)
_GLASS = SurfaceFinish(Material.GLASS, Ink.GLASS, Swatch.PLAIN)
_TYRE = SurfaceFinish(Material.TYRE, Ink.TYRE, Swatch.PLAIN)
_RED, _WHITE = (SurfaceFinish(Material.BODY, ink, Swatch.PLAIN) for ink in (Ink.RED, Ink.WHITE))
_REAR_LIGHTS = tuple(
    shape((side * 0.58, 0.44), (side * 0.58, 0.55), (side * 0.42, 0.55), (side * 0.42, 0.44)) for side in (-1, 1)
)
_SIDE_LIGHT = shape((1.26, 0.40), (1.26, 0.52), (1.40, 0.50), (1.41, 0.40))
_HAIR = DISC[DISC[:, 1] > 0.1] * (0.068, 0.082) + (0, 0.925)
_AROUND = np.linspace(0, 2 * np.pi, 8, endpoint=False)
_SHADOW = np.stack([np.cos(_AROUND), np.sin(_AROUND)], axis=1)
_SPREADS = {PERSON: (0.20, 0.35), CAR: (0.72, 0.35), VEGETATION: (0.32, 0.55)}  # radius and shift, in heights


def paint(canvas: CityCanvas, preset: StreetPreset, scene: CityScene, time_s: float, passers: int) -> None:
    """Paint everything the camera sees at this time, with this number of passers close to it."""
    along = preset.view == "along"
    _paint_sky(canvas, scene, time_s)
    (_paint_street if along else _paint_square)(canvas, scene)
    placed = [
        (*place_thing(figure.thing, canvas.camera, time_s, along), figure)
        for figure in scene.figures
        if figure.passer < passers
    ]
    placed = sorted((item for item in placed if item[0] >= NEAREST_THING_M), key=lambda item: -item[0])
    _cast_shadows(canvas, scene, placed)
    for depth_m, across_m, figure in placed:
        easel = _CityEasel(canvas, figure.thing, across_m, depth_m)
        if easel.seen:
            _PAINTERS[figure.thing.kind](easel, figure, scene, time_s, preset)
    canvas.rasterise()


def _paint_sky(canvas: CityCanvas, scene: CityScene, time_s: float) -> None:
    camera, place = canvas.camera, scene.place
    drift = (camera.centre - 0.01 * camera.width * time_s, 0.0)
    canvas.surfaces[:] = canvas.face(_SKY, SKY, depth_m=CLOUD_M, anchor=drift)
    finish = scene.fronts[0][0].wall
    if not place.built_up:
        finish = SurfaceFinish(Material.LEAVES, Ink.LEAVES, Swatch.LEAVES)
    elif finish.material != Material.HOUSE:
        finish = SurfaceFinish(Material.HOUSE, Ink.HOUSE, Swatch.PLAIN)
    band = canvas.face(finish._replace(tile=Swatch.PLAIN), FLAT, depth_m=SKYLINE_M)
    fill_skyline(canvas, place, band)


def _fill_below(canvas: CityCanvas, finish: SurfaceFinish, top: float) -> None:
    right, bottom = canvas.camera.width, canvas.camera.height
    canvas.quad(canvas.face(finish, GROUND), -1, top, right, top, right, bottom, -1, bottom)


def _strip(canvas: CityCanvas, surface: int, sides_m: tuple[float, float], near_m: float, far_m: float) -> None:
    """Paint a strip of the ground along the street."""
    camera, (left, right) = canvas.camera, sides_m
    near, far = camera.row(0, near_m), camera.row(0, far_m)
    canvas.quad(
        surface,
        *(camera.column(left, near_m), near, camera.column(left, far_m), far),
        *(camera.column(right, far_m), far, camera.column(right, near_m), near),
    )


def _paint_street(canvas: CityCanvas, scene: CityScene) -> None:
    """Paint the ground and, on either side, the lots from far to near."""
    camera, place = canvas.camera, scene.place
    _fill_below(canvas, _GRASS if any(place.terrain_m) else _PAVING, camera.horizon)
    kerb_m = place.road_m
    if place.sidewalk_m:
        half_m = kerb_m + place.sidewalk_m
        _strip(canvas, canvas.face(_PAVING, GROUND), (-half_m, half_m), 0.4, _FAR_M)
    if scene.paved:
        _strip(canvas, canvas.face(_KERB, GROUND), (-kerb_m - _KERB_M, kerb_m + _KERB_M), 0.4, 60.0)
    _strip(canvas, canvas.face(_ROAD if scene.paved else _PATH, GROUND), (-kerb_m, kerb_m), 0.4, _FAR_M)
    if scene.paved:
        _paint_markings(canvas, scene)
    for side, (lots, fronts) in zip((-1, 1), zip(place.lots, scene.fronts, strict=True), strict=True):
        _paint_side(canvas, scene, side, lots, fronts)


def _paint_markings(canvas: CityCanvas, scene: CityScene) -> None:
    """Paint the dashes along the middle, the lines along the kerbs and the next zebra crossing."""
    camera, kerb_m = canvas.camera, scene.place.road_m
    line = canvas.face(_LINE, GROUND)
    for start_m in np.arange(-(camera.along_m % 8.0), _BANDS_M, 8.0):
        if start_m > -2.5:
            _strip(canvas, line, (-0.1, 0.1), max(float(start_m), 0.4), float(start_m) + 3.0)
    first_m, apart_m = scene.crossings_m
    near_m = (first_m - camera.along_m) % apart_m
    if 0.5 < near_m < _BANDS_M:
        for across_m in np.arange(-kerb_m + 0.4, kerb_m - 0.5, 1.1):
            _strip(canvas, line, (float(across_m), float(across_m) + 0.55), near_m, near_m + 3.5)


def _paint_side(
    canvas: CityCanvas, scene: CityScene, side: int, lots: tuple[LandLot, ...], fronts: tuple[Facade, ...]
) -> None:
    """Paint the lots from far to near."""
    for number, near_m, has_front in lots_in_view(lots, canvas.camera.along_m, _VISIBLE_M):
        _paint_lot(canvas, scene, (near_m, side), lots[number], fronts[number], has_front)


def _paint_lot(
    canvas: CityCanvas, scene: CityScene, at: tuple[float, int], lot: LandLot, front: Facade, has_front: bool
) -> None:
    """Paint the face towards the camera and the face along the street, with its shop and its roof."""
    camera, (near_m, side) = canvas.camera, at
    wall_m = camera.walls_m[0] if side < 0 else camera.walls_m[1]
    far_m, height_m = near_m + lot.length_m, lot.height_m
    if has_front:
        column, foot, top = camera.column(wall_m, near_m), camera.row(0, near_m), camera.row(height_m, near_m)
        outer = camera.column(wall_m + side * 14, near_m)
        face = canvas.face(front.wall, FLAT, depth_m=near_m, anchor=(column, foot), shade=0.88)
        canvas.quad(face, column, foot, outer, foot, outer, top, column, top)
    shade = 1 - 0.22 * scene.look.sun * side
    near_m = max(near_m, NEAR_M)
    span = (near_m, far_m, wall_m)
    if lot.green:
        _paint_green(canvas, lot, span, canvas.face(front.wall, WALL, shade=shade))
        return
    wall = _Wall(camera, span)
    wall.paint(canvas, canvas.face(front.wall, WALL, shade=shade), 0.0, height_m)
    if near_m < _BANDS_M:
        roof = canvas.face(front.roof, WALL, shade=shade)
        if front.pitched and abs(wall_m - camera.across_m) * _PITCH > height_m - camera.eye_m:
            gable = canvas.face(front.wall, FLAT, depth_m=near_m, shade=0.88)
            _paint_roof(canvas, (roof, gable), span, (height_m, side))
        else:
            wall.paint(canvas, roof, height_m - _CORNICE_M, height_m)
        if front.shop:
            wall.paint(canvas, canvas.face(front.shop, WALL, shade=shade), 0.0, _SHOP_M)
        if scene.look.sun * side > 0:
            _shade_ground(canvas, span, side * 0.75 * height_m * abs(scene.look.sun))


class _Wall:
    """A wall along the street, of which bands are painted."""

    def __init__(self, camera: Camera, span: tuple[float, float, float]) -> None:
        near_m, far_m, wall_m = span
        self.near, self.far = camera.focal / near_m, camera.focal / far_m
        aside_m = wall_m - camera.across_m
        self.columns = (camera.centre + aside_m * self.near, camera.centre + aside_m * self.far)
        self.horizon, self.eye_m = camera.horizon, camera.eye_m

    def paint(self, canvas: CityCanvas, surface: int, low_m: float, high_m: float) -> None:
        """Paint the wall between two heights."""
        (near, far), horizon = self.columns, self.horizon
        low_m, high_m = self.eye_m - low_m, self.eye_m - high_m
        canvas.quad(
            surface,
            *(near, horizon + low_m * self.near, near, horizon + high_m * self.near),
            *(far, horizon + high_m * self.far, far, horizon + low_m * self.far),
        )


def _paint_roof(
    canvas: CityCanvas, surfaces: tuple[int, int], span: tuple[float, float, float], at: tuple[float, int]
) -> None:
    """Paint a roof that falls towards the street, and the gable below its near end."""
    camera, (near_m, far_m, wall_m), (height_m, side) = canvas.camera, span, at
    surface, gable = surfaces
    ridge_m, up_m = wall_m + _EAVES_M * side, height_m + _PITCH * _EAVES_M
    canvas.quad(
        surface,
        *(camera.column(wall_m, near_m), camera.row(height_m, near_m)),
        *(camera.column(wall_m, far_m), camera.row(height_m, far_m)),
        *(camera.column(ridge_m, far_m), camera.row(up_m, far_m)),
        *(camera.column(ridge_m, near_m), camera.row(up_m, near_m)),
    )
    if near_m > NEAR_M:
        eaves, back = camera.column(wall_m, near_m), camera.column(2 * ridge_m - wall_m, near_m)
        low, top = camera.row(height_m, near_m), camera.row(up_m, near_m)
        canvas.quad(gable, eaves, low, camera.column(ridge_m, near_m), top, back, low, back, low)


def _paint_green(canvas: CityCanvas, lot: LandLot, span: tuple[float, float, float], surface: int) -> None:
    """Paint greenery whose top goes up and down."""
    camera, (near_m, far_m, wall_m) = canvas.camera, span
    depths = [near_m + (far_m - near_m) * step / 6 for step in range(7)]
    tops = [lot.height_m * (1 + BUMPS * math.sin(z + camera.along_m + 7 * lot.start_m)) for z in depths]
    outline = [(camera.column(wall_m, z), camera.row(up_m, z)) for z, up_m in zip(depths, tops, strict=True)]
    feet = [(camera.column(wall_m, z), camera.row(0, z)) for z in (far_m, near_m)]
    canvas.fill(surface, shape(*outline, *feet))


def _shade_ground(canvas: CityCanvas, span: tuple[float, float, float], wide_m: float) -> None:
    """Draw the shadow of a house across the street."""
    camera, (near_m, far_m, wall_m) = canvas.camera, span
    corners = [(wall_m, near_m), (wall_m, far_m), (wall_m - wide_m, far_m), (wall_m - wide_m, near_m)]
    outline = [(camera.column(across_m, z), camera.row(0, z)) for across_m, z in corners]
    canvas.shadows.append(np.array([*outline, *(outline[-1:] * 4)]))


def _paint_square(canvas: CityCanvas, scene: CityScene) -> None:
    """Paint ground in bands and a row of houses behind it."""
    camera, place = canvas.camera, scene.place
    depth_m, kerb_m = place.wall_m, place.wall_m - 3.0
    _fill_below(canvas, _PAVING if place.sidewalk_m else _GRASS, camera.row(0, _FAR_M))
    if place.road_m:
        bands = ((_PAVING, depth_m), (_KERB, kerb_m + _KERB_M), (_ROAD, kerb_m))
        for finish, far_m in (
            *bands,
            (_KERB, kerb_m - 2 * place.road_m + _KERB_M),
            (_PAVING, kerb_m - 2 * place.road_m),
        ):
            _fill_below(canvas, finish, camera.row(0, far_m))
    half_m = camera.width / camera.focal * depth_m
    for lot, front in zip(place.lots[0], scene.fronts[0], strict=True):
        left_m = lot.start_m - LOTS_M / 2
        if -half_m < left_m + lot.length_m and left_m < half_m:
            _paint_house(canvas, lot, front, (left_m, depth_m))


def _paint_house(canvas: CityCanvas, lot: LandLot, front: Facade, at: tuple[float, float]) -> None:
    """Paint a house that faces the camera."""
    camera, (left_m, depth_m) = canvas.camera, at
    left, right = camera.column(left_m, depth_m), camera.column(left_m + lot.length_m, depth_m)
    foot, height_m = camera.row(0, depth_m), 0.6 * lot.height_m
    anchor = (left, foot)
    face = canvas.face(front.wall, FLAT, depth_m=depth_m, anchor=anchor)
    if lot.green:
        columns = np.linspace(left, right, 7)
        top = camera.row(height_m, depth_m)
        tops = top + (foot - top) * 0.2 * np.sin(np.arange(7) * 2.0 + lot.start_m)
        canvas.fill(face, shape((left, foot), *zip(columns, tops, strict=True), (right, foot)))
        return
    bands = [(face, 0.0, height_m), (canvas.face(front.roof, FLAT, depth_m=depth_m), height_m, height_m + _CORNICE_M)]
    if front.shop:
        bands.append((canvas.face(front.shop, FLAT, depth_m=depth_m, anchor=anchor), 0.0, _SHOP_M))
    for surface, low_m, high_m in bands:
        low, high = camera.row(low_m, depth_m), camera.row(high_m, depth_m)
        canvas.quad(surface, left, low, right, low, right, high, left, high)


def _cast_shadows(canvas: CityCanvas, scene: CityScene, placed: list[tuple[float, float, StreetFigure]]) -> None:
    """Darken the ground below objects that stand on it."""
    placed = [item for item in placed if item[0] < _BANDS_M]
    if not placed:
        return
    camera = canvas.camera
    reach = np.array([_SPREADS[figure.thing.kind] for *_, figure in placed])
    reach *= np.array([[figure.thing.size_m] for *_, figure in placed])
    depth_m = np.array([[item[0]] for item in placed]) + reach[:, :1] * 0.8 * _SHADOW[:, 1]
    across_m = np.array([[item[1]] for item in placed]) - scene.look.sun * reach[:, 1:] + reach[:, :1] * _SHADOW[:, 0]
    depth_m = np.maximum(depth_m, NEAR_M)
    columns = camera.centre + camera.focal * (across_m - camera.across_m) / depth_m
    canvas.shadows += list(np.stack([columns, camera.horizon + camera.focal * camera.eye_m / depth_m], axis=2))


def hang_lamps(canvas: CityCanvas, preset: StreetPreset, scene: CityScene) -> None:
    """Hang lamps along the street or before the houses of a square; each lights the ground below."""
    camera = canvas.camera
    if preset.view == "along":
        first_m = (_LAMPS_M - camera.along_m) % _LAMPS_M
        depths_m = np.arange(first_m, 60.0, _LAMPS_M)
        half_m = scene.place.road_m + 0.4
        feet = [(side * half_m, float(depth_m)) for depth_m in depths_m if depth_m > 1.5 for side in (-1, 1)]
    else:
        feet = [(float(across_m), scene.place.wall_m - 2.5) for across_m in np.arange(-20, 21, 8)]
    for across_m, depth_m in feet:
        column, scale = camera.column(across_m, depth_m), camera.focal / depth_m
        canvas.lamps.append((column, camera.row(0, depth_m), 4.5 * scale))
        canvas.lamps.append((column, camera.row(_LAMP_M, depth_m), 0.5 * scale))


class _CityEasel(ObjectPainter[CityCanvas]):
    """Paints in the colours of finishes."""

    CONVEX = True

    def face(self, finish: SurfaceFinish, shade: float = 1.0) -> int:
        return self.canvas.face(finish, FLAT, depth_m=self.depth_m, anchor=self.foot, owner=self.owner, shade=shade)


def _paint_tree(easel: _CityEasel, figure: StreetFigure, scene: CityScene, time_s: float, preset: StreetPreset) -> None:
    """Paint a stem and a crown, lighter where the sun is."""
    thing = figure.thing
    easel.fill(easel.face(_TRUNK), STEM)
    wide, sway = 0.22 + 0.002 * (thing.variant % 40), 0.01 * math.sin(0.8 * time_s + thing.phase)
    easel.fill(easel.face(figure.finishes[0], 0.8), CROWN * (wide, 0.3) + (sway, 0.7), convex=False)
    if easel.scale > 1.5 * DETAIL_PX:
        lit = (sway + 0.25 * wide * scene.look.sun, 0.77)
        easel.fill(easel.face(figure.finishes[0], 1.15), CROWN * (0.68 * wide, 0.19) + lit, convex=False)


def _paint_car(easel: _CityEasel, figure: StreetFigure, scene: CityScene, time_s: float, preset: StreetPreset) -> None:
    """Paint a car with its lights: red behind, white where it comes."""
    fill_car(easel, preset, (easel.face(_TYRE), easel.face(figure.finishes[0]), easel.face(_GLASS)))
    if easel.scale > 0.5 * DETAIL_PX:
        light = easel.face(_WHITE if figure.thing.speed_mps < 0 else _RED)
        easel.fill(light, *(_REAR_LIGHTS if preset.view == "along" else (_SIDE_LIGHT,)))


def _paint_person(
    easel: _CityEasel, figure: StreetFigure, scene: CityScene, time_s: float, preset: StreetPreset
) -> None:
    """Paint a person with hair."""
    legs, coat, skin, hair = [easel.face(finish) for finish in figure.finishes]
    aside = fill_person(easel, figure.thing, time_s, preset, (legs, coat, skin))
    easel.fill(hair, _HAIR, aside=aside)


_PAINTERS = {PERSON: _paint_person, CAR: _paint_car, VEGETATION: _paint_tree}
