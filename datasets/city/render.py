"""The rasteriser of city streets: each surface has a separate colour, and walls have windows."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from driftlab.datasets.city.palette import Ink
from driftlab.datasets.city.scene import SurfaceFinish
from driftlab.datasets.city.textures import Textures
from driftlab.datasets.streets.look import TEXELS_PER_M, TILE, Floats
from driftlab.datasets.streets.render import FACTS, GROUND, SUBPIXEL, SUBPIXEL_BITS, WALL, Camera, Canvas, Points

SKY = 3.0  # how a surface lies: behind everything
_MARKS = (Ink.GLASS, Ink.FRAME, Ink.WARM)  # rows that marks of a texture stand for; a lit window is the last
_CRISP_M, _MARKED_M = 22.0, 70.0
_SHADOW_DEPTH = 0.62


@dataclass(frozen=True, eq=False)
class Light:
    """Colours as they are lit and weathered, the air before them, and the lamps."""

    colours: Floats  # [slot, 3] in 0..255
    haze: Floats  # [3] in 0..255
    visibility_m: float
    overcast: float  # share of the sky that fog, rain and snow hide
    shadows: float
    lamps: Floats | None  # [3] light that a lamp adds at night
    lit_windows: bool


class CityCanvas(Canvas):
    """A map of surfaces with separate colours, and of the shadows on the ground."""

    MAX_SURFACES = 255 - len(_MARKS)

    def __init__(self, camera: Camera) -> None:
        super().__init__(camera)
        self._slots: list[int] = []
        self._texels_per_px_m = TEXELS_PER_M / camera.focal
        self.shadows: list[Points] = []  # outlines on the ground
        self.lamps: list[tuple[float, float, float]] = []  # column, row and radius

    def face(
        self,
        finish: SurfaceFinish,
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
        self._slots.append(slot)
        first = tile * (TILE * TILE)
        return self.describe(
            material, lies, depth_m, texels, anchor[0] * texels, anchor[1] * texels, owner, shade, first
        )

    def picture(self, light: Light, textures: Textures) -> Floats:
        """Colour the surfaces: texture, windows, shadow and haze; [height, width, 3] in 0..255, not rounded.

        Planes and look-up tables instead of pixels of three channels: that is several times as fast.
        """
        table = np.array(self._facts).reshape(-1, FACTS)
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
        """Fade the sky towards the horizon, or everywhere if it is overcast."""
        camera = self.camera
        above = (camera.horizon - np.arange(camera.height, dtype=np.float32)) / np.float32(0.3 * camera.height)
        clear = (1 - np.exp(-np.maximum(above, 0))) * (1 - light.overcast)
        return np.asarray(clear[:, None], np.float32)

    def _shadow(self, lies: Floats, depth: float) -> Floats:
        """Darken the ground where shadows lie on it."""
        bright = np.ones(self.surfaces.shape, np.float32)
        dark = 1 - _SHADOW_DEPTH * depth
        for outline in (np.stack(self.shadows).clip(-2e4, 2e4) * SUBPIXEL).astype(np.int32):
            cv2.fillConvexPoly(bright, outline, dark, lineType=8, shift=SUBPIXEL_BITS)
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
        columns = np.arange(camera.width, dtype=np.float32)[None, :]
        rows, aside, ground_m, wall_m, come = camera.distances()
        reach, per_m, eye = (np.float32(value) for value in (camera.focal, TEXELS_PER_M, camera.eye_m))
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
