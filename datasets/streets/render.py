"""The rasteriser: polygons fill one map of surfaces; truth and image are both read from that map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from driftlab.datasets.streets.look import MATERIAL_CLASS, TEXELS_PER_M, TILE, Floats, StreetLook

Points = npt.NDArray[np.float64]
FLAT, GROUND, WALL = 0.0, 1.0, 2.0  # orientation of a surface: facing the camera, horizontal, along the street
_AS_IT_IS = (1.0, 1.0, 0.0, 0.0)
_SUBPIXEL_BITS = 4
_FAR_M = 200.0
_CRISP_M = 14.0  # textures fade beyond this distance, where they would flicker


@dataclass(frozen=True)
class Camera:
    """Position and projection of the camera; lengths in pixels unless the name says otherwise."""

    height: int
    width: int
    focal: float
    centre: float  # column of the vanishing point
    horizon: float  # its row
    eye_m: float  # height over the ground
    across_m: float
    along_m: float
    walls_m: tuple[float, float]  # lateral positions of the houses, left and right

    def column(self, across_m: float, depth_m: float) -> float:
        return self.centre + self.focal * (across_m - self.across_m) / depth_m

    def row(self, up_m: float, depth_m: float) -> float:
        return self.horizon + self.focal * (self.eye_m - up_m) / depth_m


class Canvas:
    """A map of surface numbers, with the material and orientation of each number."""

    def __init__(self, camera: Camera) -> None:
        self.camera = camera
        self.surfaces = np.zeros((camera.height, camera.width), np.uint8)
        self._queue: list[tuple[int, Points, tuple[float, float, float, float]]] = []
        self._rows: list[tuple[float, ...]] = []
        self._objects: list[int] = [0]  # class of each object; number 0 is no object

    def add_object(self, kind: int) -> int:
        """Register a thing whose visible extent becomes a box; return its number."""
        self._objects.append(kind)
        return len(self._objects) - 1

    def surface(
        self,
        material: int,
        lies: float,
        *,
        depth_m: float = 0.0,
        anchor: tuple[float, float] = (0, 0),
        owner: int = 0,
        shade: float = 1.0,
    ) -> int:
        """Describe a surface and return its number; the anchor is the pixel its texture hangs on."""
        texels = depth_m / self.camera.focal * TEXELS_PER_M
        self._rows.append((material, lies, depth_m, texels, anchor[0] * texels, anchor[1] * texels, owner, shade))
        if len(self._rows) > 255:
            raise AssertionError("more than 255 surfaces in one frame")
        return len(self._rows) - 1

    def fill(self, surface: int, outline: Points, place: tuple[float, float, float, float] = _AS_IT_IS) -> None:
        """Queue a polygon to fill; place maps its corners to (column, row): two factors, two shifts."""
        self._queue.append((surface, outline, place))

    def rasterise(self) -> None:
        """Fill the queued polygons in order; all corners are computed at once, for speed."""
        lengths = [len(outline) for _, outline, _ in self._queue]
        places = np.repeat(np.array([place for _, _, place in self._queue]), lengths, axis=0)
        corners = np.concatenate([outline for _, outline, _ in self._queue]) * places[:, :2] + places[:, 2:]
        fixed = (corners * (1 << _SUBPIXEL_BITS)).astype(np.int32)
        start = 0
        for (surface, _, _), length in zip(self._queue, lengths, strict=True):
            polygon = fixed[start : start + length]
            cv2.fillPoly(self.surfaces, [polygon], surface, lineType=8, shift=_SUBPIXEL_BITS)
            start += length
        self._queue.clear()

    def labels(self) -> npt.NDArray[np.uint8]:
        """Return the class of every pixel."""
        kinds = [MATERIAL_CLASS[int(material)] for material in self._column(0)]
        return np.array(kinds, np.uint8)[self.surfaces]

    def boxes(self) -> Floats:
        """Find the visible extent of every object: class, x0, y0, x1, y1, the far edges exclusive."""
        from scipy import ndimage  # here: it takes longer to import than to open a stream

        owners = np.array(self._column(6), np.uint8)[self.surfaces]
        found = [
            (self._objects[number], columns.start, rows.start, columns.stop, rows.stop)
            for number, place in enumerate(ndimage.find_objects(owners), start=1)
            if place is not None
            for rows, columns in [place]
        ]
        return np.array(found, np.float32).reshape(-1, 5)

    def _column(self, number: int) -> Sequence[float]:
        """Return one column of the surfaces."""
        return [row[number] for row in self._rows]

    def image(self, look: StreetLook, tiles: Floats, light: float, noise: Floats) -> npt.NDArray[np.uint8]:
        """Colour the surfaces: texture, shade, haze and light, then the lens and the sensor."""
        table = np.array(self._rows, np.float32)
        which = self.surfaces.astype(np.intp)
        material = table[:, 0].astype(np.intp)
        u, v, depth_m = self._texture_places(table, which)
        kinds = np.array(MATERIAL_CLASS, np.int32)[material] * (TILE * TILE)
        texel = kinds[which] + (v.astype(np.int32) & (TILE - 1)) * TILE + (u.astype(np.int32) & (TILE - 1))
        detail = tiles.reshape(-1, 3).take(texel, axis=0)
        detail *= (_CRISP_M / (_CRISP_M + depth_m))[..., None]
        picture = (look.colours[material] * table[:, 7:8]).take(which, axis=0)
        picture += detail
        haze = 1 - np.exp(depth_m * np.float32(-1 / look.visibility_m))
        picture += haze[..., None] * (look.haze - picture)
        picture = cv2.GaussianBlur(picture * np.float32(255 * light * look.gain), (3, 3), 0.6)
        grain = noise * np.float32(255 * look.noise)
        return np.asarray(cv2.add(picture, grain, dtype=cv2.CV_8U))  # rounds and saturates

    def _texture_places(self, table: Floats, which: npt.NDArray[np.intp]) -> tuple[Floats, Floats, Floats]:
        """Return for every pixel its position on its surface's texture, and its distance."""
        camera = self.camera
        columns = np.arange(camera.width, dtype=np.float32)[None, :]
        rows = np.arange(camera.height, dtype=np.float32)[:, None]
        reach = np.float32(camera.focal)
        drop = np.maximum(rows - np.float32(camera.horizon), np.float32(1e-3))
        ground_m = np.minimum(reach * np.float32(camera.eye_m) / drop, _FAR_M)
        aside = columns - np.float32(camera.centre)
        left, right = camera.walls_m[0] - camera.across_m, camera.walls_m[1] - camera.across_m
        gap = np.where(aside < 0, np.minimum(aside, -1e-3) / left, np.maximum(aside, 1e-3) / right)
        wall_m = np.minimum(reach / gap, _FAR_M).astype(np.float32)
        lies, texels = table[:, 1].take(which), table[:, 3].take(which)
        under, beside = lies == GROUND, lies == WALL
        depth_m = np.where(under, ground_m, np.where(beside, wall_m, table[:, 2].take(which)))
        # Texture repeats every TILE texels, so the way that the camera has come is taken modulo that first:
        # single precision would lose the texel on a long drive.
        come = np.float32(camera.along_m * TEXELS_PER_M % TILE)
        per_m = np.float32(TEXELS_PER_M)
        away = depth_m * per_m + come
        over = depth_m * (aside * (per_m / reach)) + np.float32(camera.across_m * TEXELS_PER_M)
        up = depth_m * ((rows - np.float32(camera.horizon)) * (per_m / reach))
        u = np.where(under, over, np.where(beside, away, columns * texels - table[:, 4].take(which)))
        v = np.where(under, away, np.where(beside, up, rows * texels - table[:, 5].take(which)))
        return u + np.float32(TILE * 1024), v + np.float32(TILE * 1024), depth_m
