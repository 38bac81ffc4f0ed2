"""The rasteriser of city streets: each surface has a colour of its own, and walls have windows."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from driftlab.datasets.city.palette import Ink
from driftlab.datasets.city.scene import Finish
from driftlab.datasets.city.textures import Textures
from driftlab.datasets.streets.look import TEXELS_PER_M, TILE, Floats
from driftlab.datasets.streets.render import FLAT, GROUND, WALL, Camera, Canvas, Points

SKY = 3.0  # how a surface lies: behind everything
_MARKS = (Ink.GLASS, Ink.FRAME, Ink.WARM)  # rows that marks of a texture stand for; a lit window is the last
_CRISP_M, _MARKED_M, _FAR_M = 22.0, 70.0, 200.0
_SUBPIXEL = 16.0
_SHADOW_DEPTH = 0.62
_MOST_SURFACES = 255 - len(_MARKS)  # numbers are bytes
_FACTS = 9  # of a surface: material, how it lies, depth, texels a pixel, anchor, owner, shade, first texel
_ANY, _CONVEX, _QUAD = range(3)
_NEUTRAL = (1.0, 1.0, 0.0, 0.0)


@dataclass(frozen=True, eq=False)
class Light:
    """Colours as they are lit and weathered, the air before them, and the lamps."""

    colours: Floats  # [slot, 3] in 0..255
    haze: Floats  # [3] in 0..255
    visibility_m: float
    overcast: float  # share of the sky that fog, rain and snow hide
    shadows: float
    lamps: Floats | None  # [3] what a lamp adds to the light, where it is night
    lit_windows: bool


class CityCanvas(Canvas):
    """A map of surfaces with colours of their own, and of the shadows on the ground."""

    def __init__(self, camera: Camera) -> None:
        super().__init__(camera)
        self._flat = array("f")  # a row of _FACTS for each surface; filling it is faster than making it from tuples
        self._slots: list[int] = []
        self._texels_per_px_m = TEXELS_PER_M / camera.focal
        self._quads = array("d")
        self._order: list[tuple[int, int]] = []  # surface, and how to fill it
        self.shadows: list[npt.NDArray[np.float64]] = []  # outlines on the ground
        self.lamps: list[tuple[float, float, float]] = []  # column, row and radius

    def face(
        self,
        finish: Finish,
        lies: float,
        *,
        depth_m: float = 0.0,
        anchor: tuple[float, float] = (0.0, 0.0),
        owner: int = 0,
        shade: float = 1.0,
    ) -> int:
        """Describe a surface by its finish and return its number."""
        material, slot, tile = finish
        texels = depth_m * self._texels_per_px_m
        place = (lies, depth_m, texels, anchor[0] * texels, anchor[1] * texels)
        self._flat.extend((material, *place, owner, shade, tile * (TILE * TILE)))
        self._slots.append(slot)
        number = len(self._slots) - 1
        if number >= _MOST_SURFACES:
            raise AssertionError(f"more than {_MOST_SURFACES} surfaces in one frame")
        return number

    def fill(
        self,
        surface: int,
        outline: Points,
        place: tuple[float, float, float, float] = _NEUTRAL,
        *,
        convex: bool = False,
    ) -> None:
        """Fill any polygon later; convex ones are faster."""
        self._order.append((surface, _CONVEX if convex else _ANY))
        super().fill(surface, outline, place)

    def quad(self, surface: int, *corners: float) -> None:
        """Fill a convex polygon of four corners later: column, row, column, row and so on."""
        self._order.append((surface, _QUAD))
        self._quads.extend(corners)

    def rasterise(self) -> None:
        """Fill what was asked for, in that order; all corners are placed at once, for speed."""
        lengths = [len(outline) for _, outline, _ in self._queue]
        fixed = np.empty((0, 2), np.int32)
        if lengths:
            places = np.repeat(np.array([place for _, _, place in self._queue]), lengths, axis=0)
            corners = np.concatenate([outline for _, outline, _ in self._queue]) * places[:, :2] + places[:, 2:]
            fixed = (corners * _SUBPIXEL).astype(np.int32)
        quads = list((np.array(self._quads).reshape(-1, 4, 2).clip(-2e4, 2e4) * _SUBPIXEL).astype(np.int32))
        start = quad = number = 0
        for surface, way in self._order:
            if way == _QUAD:
                cv2.fillConvexPoly(self.surfaces, quads[quad], surface, lineType=8, shift=4)
                quad += 1
                continue
            stop = start + lengths[number]
            if way == _CONVEX:
                cv2.fillConvexPoly(self.surfaces, fixed[start:stop], surface, lineType=8, shift=4)
            else:
                cv2.fillPoly(self.surfaces, [fixed[start:stop]], surface, lineType=8, shift=4)
            start, number = stop, number + 1
        self._queue.clear()

    def _column(self, number: int) -> Sequence[float]:
        return self._flat[number::_FACTS]

    def picture(self, light: Light, textures: Textures) -> Floats:
        """Colour the surfaces: texture, windows, shadow and haze; [height, width, 3] in 0..255, not rounded.

        Planes and look-up tables instead of pixels of three channels: that is several times as fast.
        """
        table = np.array(self._flat).reshape(-1, _FACTS)
        lies = _look_up(self.surfaces, table[:, 1])
        texel, depth_m = self._texels(table, lies)
        weight = textures.tones.take(texel)
        weight *= _CRISP_M / (_CRISP_M + depth_m)
        weight += 1
        if light.shadows and self.shadows:
            weight *= self._shadow(lies, light.shadows)
        clear = depth_m * np.float32(-1 / light.visibility_m)
        np.exp(clear, out=clear)
        np.copyto(clear, self._sky_clear(light), where=lies == SKY)
        weight *= clear
        marks = textures.marks.take(texel)
        marks[depth_m > _MARKED_M] = 0
        shown = self.surfaces.copy()
        np.copyto(shown, marks + np.uint8(len(table) - 1), where=marks > 0)
        marked = light.colours[[*_MARKS[:2], _MARKS[2 if light.lit_windows else 0]]]
        colours = np.concatenate([light.colours[self._slots] * table[:, 7:8], marked])
        lamps = None if light.lamps is None else self._lamp_map(lies)
        veil = 1 - clear
        planes = []
        for channel in range(3):
            plane = _look_up(shown, colours[:, channel])
            plane *= weight
            if lamps is not None and light.lamps is not None:
                plane *= 1 + lamps * light.lamps[channel]
            plane += veil * light.haze[channel]
            planes.append(plane)
        return np.asarray(cv2.merge(planes), np.float32)

    def _sky_clear(self, light: Light) -> Floats:
        """Let the sky pale towards the horizon, or everywhere where it is overcast."""
        camera = self.camera
        above = (camera.horizon - np.arange(camera.height, dtype=np.float32)) / np.float32(0.3 * camera.height)
        clear = (1 - np.exp(-np.maximum(above, 0))) * (1 - light.overcast)
        return np.asarray(clear[:, None], np.float32)

    def _shadow(self, lies: Floats, depth: float) -> Floats:
        """Darken the ground where shadows lie on it."""
        bright = np.ones(self.surfaces.shape, np.float32)
        dark = 1 - _SHADOW_DEPTH * depth
        for outline in (np.stack(self.shadows).clip(-2e4, 2e4) * _SUBPIXEL).astype(np.int32):
            cv2.fillConvexPoly(bright, outline, dark, lineType=8, shift=4)
        bright[lies != GROUND] = 1
        return bright

    def _lamp_map(self, lies: Floats) -> Floats:
        """Light the surroundings of each lamp."""
        glow = np.zeros(self.surfaces.shape, np.float32)
        for column, row, radius in self.lamps:
            centre = (round(column), round(row))
            cv2.ellipse(glow, centre, (max(1, round(radius)), max(1, round(0.6 * radius))), 0, 0, 360, 1.0, -1)
        sigma = self.camera.height / 20
        glow = np.asarray(cv2.GaussianBlur(glow, (0, 0), sigma), np.float32)
        glow[lies == SKY] = 0
        return glow

    def _texels(self, table: Floats, lies: Floats) -> tuple[npt.NDArray[np.intp], Floats]:
        """Find for every pixel its place in the textures, and how far away it is."""
        camera = self.camera
        rows = np.arange(camera.height, dtype=np.float32)[:, None] - np.float32(camera.horizon)
        columns = np.arange(camera.width, dtype=np.float32)[None, :]
        reach, per_m, eye = (np.float32(value) for value in (camera.focal, TEXELS_PER_M, camera.eye_m))
        ground_m = np.minimum(reach * eye / np.maximum(rows, np.float32(1e-3)), np.float32(_FAR_M))
        aside = columns - np.float32(camera.centre)
        left, right = camera.walls_m[0] - camera.across_m, camera.walls_m[1] - camera.across_m
        gap = np.where(aside < 0, np.minimum(aside, -1e-3) / left, np.maximum(aside, 1e-3) / right)
        wall_m = np.minimum(reach / gap, _FAR_M).astype(np.float32)
        # Textures repeat every TILE texels, so the way that the camera has come is taken modulo that first:
        # single precision would lose the texel on a long drive.
        come = np.float32(camera.along_m * TEXELS_PER_M % TILE)
        scale, anchor_u, anchor_v, depth_m, tile = (_look_up(self.surfaces, table[:, key]) for key in (3, 4, 5, 2, 8))
        under, beside = lies == GROUND, lies == WALL
        u = columns * scale - anchor_u
        v = (rows + np.float32(camera.horizon)) * scale - anchor_v
        np.copyto(u, ground_m * (aside * (per_m / reach)) + np.float32(camera.across_m * TEXELS_PER_M), where=under)
        np.copyto(v, ground_m * per_m + come, where=under)
        np.copyto(depth_m, ground_m, where=under)
        np.copyto(u, wall_m * per_m + come, where=beside)
        np.copyto(v, wall_m * (rows * (per_m / reach)) - per_m * eye, where=beside)
        np.copyto(depth_m, wall_m, where=beside)
        shift = np.float32(TILE * 1024)
        u += shift
        v += shift
        texel = v.astype(np.intp)
        texel &= TILE - 1
        texel *= TILE
        texel += u.astype(np.intp) & (TILE - 1)
        texel += tile.astype(np.intp)
        return texel, depth_m


def _look_up(surfaces: npt.NDArray[np.uint8], values: Floats) -> Floats:
    """Give every pixel the value of its surface."""
    table = np.zeros(256, np.float32)
    table[: len(values)] = values
    return np.asarray(cv2.LUT(surfaces, table), np.float32)


__all__ = ["FLAT", "GROUND", "SKY", "WALL", "CityCanvas", "Light"]
