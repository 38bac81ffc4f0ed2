"""The rasteriser: polygons fill one map of surfaces; truth and image are both read from that map."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from driftlab.datasets.streets.look import MATERIAL_CLASS, TEXELS_PER_M, TILE, Floats, StreetLook

Points = npt.NDArray[np.float64]
FLAT, GROUND, WALL = 0.0, 1.0, 2.0  # orientation of a surface: facing the camera, horizontal, along the street
Placing = tuple[float, float, float, float]  # of an outline: two factors, two shifts
AS_IT_IS: Placing = (1.0, 1.0, 0.0, 0.0)
FACTS = 9  # of a surface: material, how it lies, depth, texels a pixel, anchor, owner, shade, first texel
SUBPIXEL_BITS = 4
SUBPIXEL = float(1 << SUBPIXEL_BITS)
_ANY, _CONVEX, _QUAD = range(3)
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

    def distances(self) -> Distances:
        """Measure for every pixel how far away the ground and the walls are, as if nothing stood before them."""
        rows = np.arange(self.height, dtype=np.float32)[:, None] - np.float32(self.horizon)
        aside = np.arange(self.width, dtype=np.float32)[None, :] - np.float32(self.centre)
        reach = np.float32(self.focal)
        ground_m = np.minimum(reach * np.float32(self.eye_m) / np.maximum(rows, np.float32(1e-3)), np.float32(_FAR_M))
        left, right = self.walls_m[0] - self.across_m, self.walls_m[1] - self.across_m
        gap = np.where(aside < 0, np.minimum(aside, -1e-3) / left, np.maximum(aside, 1e-3) / right)
        wall_m = np.minimum(reach / gap, _FAR_M).astype(np.float32)
        # Textures repeat every TILE texels, so the way that the camera has come is taken modulo that first:
        # single precision would lose the texel on a long drive.
        come = np.float32(self.along_m * TEXELS_PER_M % TILE)
        return Distances(rows, aside, ground_m, wall_m, come)


class Distances(NamedTuple):
    """Per pixel: rows below the horizon, columns from the centre, metres to the ground and the wall."""

    rows: Floats  # [height, 1]
    aside: Floats  # [1, width]
    ground_m: Floats  # [height, 1]
    wall_m: Floats  # [1, width]
    come: np.float32  # texels that the camera has come along the street, modulo a tile


class Canvas:
    """A map of surface numbers, with the facts of each number; a subclass colours it."""

    MAX_SURFACES = 255  # numbers are bytes

    def __init__(self, camera: Camera) -> None:
        self.camera = camera
        self.surfaces = np.zeros((camera.height, camera.width), np.uint8)
        self._facts = array("f")  # a row of FACTS for each surface; filling it is faster than making it from tuples
        self._outlines: list[tuple[Points, Placing]] = []
        self._quads = array("d")
        self._order: list[tuple[int, int]] = []  # surface, and how to fill it
        self._objects: list[int] = [0]  # class of each object; number 0 is no object

    def add_object(self, kind: int) -> int:
        """Register a thing whose visible extent becomes a box; return its number."""
        self._objects.append(kind)
        return len(self._objects) - 1

    def describe(self, *facts: float) -> int:
        """Add a surface and return its number; facts are those that FACTS counts."""
        self._facts.extend(facts)
        number = len(self._facts) // FACTS
        if number > self.MAX_SURFACES:
            raise AssertionError(f"more than {self.MAX_SURFACES} surfaces in one frame")
        return number - 1

    def fill(self, surface: int, outline: Points, place: Placing = AS_IT_IS, *, convex: bool = False) -> None:
        """Queue a polygon to fill; place maps its corners to (column, row). Convex ones differ at edges."""
        self._order.append((surface, _CONVEX if convex else _ANY))
        self._outlines.append((outline, place))

    def quad(self, surface: int, *corners: float) -> None:
        """Queue a convex polygon of four corners: column, row, column, row and so on."""
        self._order.append((surface, _QUAD))
        self._quads.extend(corners)

    def rasterise(self) -> None:
        """Fill the queued polygons in order; all corners are computed at once, for speed."""
        lengths = [len(outline) for outline, _ in self._outlines]
        fixed = np.empty((0, 2), np.int32)
        if lengths:
            places = np.repeat(np.array([place for _, place in self._outlines]), lengths, axis=0)
            corners = np.concatenate([outline for outline, _ in self._outlines]) * places[:, :2] + places[:, 2:]
            fixed = (corners * SUBPIXEL).astype(np.int32)
        quads = list((np.array(self._quads).reshape(-1, 4, 2).clip(-2e4, 2e4) * SUBPIXEL).astype(np.int32))
        start = quad = number = 0
        for surface, way in self._order:
            if way == _QUAD:
                cv2.fillConvexPoly(self.surfaces, quads[quad], surface, lineType=8, shift=SUBPIXEL_BITS)
                quad += 1
                continue
            stop = start + lengths[number]
            if way == _CONVEX:
                cv2.fillConvexPoly(self.surfaces, fixed[start:stop], surface, lineType=8, shift=SUBPIXEL_BITS)
            else:
                cv2.fillPoly(self.surfaces, [fixed[start:stop]], surface, lineType=8, shift=SUBPIXEL_BITS)
            start, number = stop, number + 1
        self._order.clear()
        self._outlines.clear()
        del self._quads[:]

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
        return self._facts[number::FACTS]


class StreetCanvas(Canvas):
    """A canvas of surfaces that have the colour of their material."""

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
        return self.describe(material, lies, depth_m, texels, anchor[0] * texels, anchor[1] * texels, owner, shade, 0)

    def image(self, look: StreetLook, tiles: Floats, light: float, noise: Floats) -> npt.NDArray[np.uint8]:
        """Colour the surfaces: texture, shade, haze and light, then the lens and the sensor."""
        table = np.array(self._facts).reshape(-1, FACTS)
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
        rows = np.arange(camera.height, dtype=np.float32)[:, None]
        columns = np.arange(camera.width, dtype=np.float32)[None, :]
        below, aside, ground_m, wall_m, come = camera.distances()
        lies, texels = table[:, 1].take(which), table[:, 3].take(which)
        under, beside = lies == GROUND, lies == WALL
        depth_m = np.where(under, ground_m, np.where(beside, wall_m, table[:, 2].take(which)))
        reach, per_m = np.float32(camera.focal), np.float32(TEXELS_PER_M)
        away = depth_m * per_m + come
        over = depth_m * (aside * (per_m / reach)) + np.float32(camera.across_m * TEXELS_PER_M)
        up = depth_m * (below * (per_m / reach))
        u = np.where(under, over, np.where(beside, away, columns * texels - table[:, 4].take(which)))
        v = np.where(under, away, np.where(beside, up, rows * texels - table[:, 5].take(which)))
        return u + np.float32(TILE * 1024), v + np.float32(TILE * 1024), depth_m
