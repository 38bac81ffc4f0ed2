"""The street stream: any frame, at any time, in any order, from a seed."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from driftlab.datasets.frames import Frames, Times, frame_number
from driftlab.datasets.procedural import AnyRequest, Procedural, ProceduralRequest, draw_cached
from driftlab.datasets.script import draw_script
from driftlab.datasets.streets.look import AnyLook, Floats, StreetLook, blend_appearance, draw_look
from driftlab.datasets.streets.paint import paint
from driftlab.datasets.streets.presets import CLASSES, PRESETS, StreetPreset
from driftlab.datasets.streets.render import Camera, Canvas, StreetCanvas
from driftlab.datasets.streets.scene import Place, Scene, draw_scene
from driftlab.datasets.streets.travel import Travel, draw_travel

Pixels = npt.NDArray[np.uint8]
AnyScene = TypeVar("AnyScene")
_GLANCE_S = 4.3
_UNIFORM_TO_STD = math.sqrt(12)  # uniform noise is drawn four times as fast as normal noise


@dataclass(frozen=True)
class StreetRequest(ProceduralRequest):
    """A street, with its density of things and its sensor noise."""

    crowd: float = 1.0
    noise: float = 1.0


class RenderedStreet(Procedural[AnyRequest], ABC, Generic[AnyRequest, AnyScene, AnyLook]):
    """A street rendered frame by frame; a subclass draws scenes and appearances and renders them."""

    def __init__(self, request: AnyRequest) -> None:
        self._preset = PRESETS[request.preset]
        super().__init__(request, draw_script(self._preset.visits, self._preset.fresh, request.seed, request.pace))
        self._travel = draw_travel(self._preset, request.seed)
        self._scenes: OrderedDict[int, AnyScene] = OrderedDict()
        self._looks: OrderedDict[int, AnyLook] = OrderedDict()

    @property
    def classes(self) -> tuple[str, ...]:
        return CLASSES

    def at(self, times_s: Times | Sequence[float]) -> Frames:
        """Render the frames shown at these times; frame k is shown from k / fps on."""
        times = np.asarray(times_s, np.float64)
        height, width = self.size
        images = np.empty((len(times), height, width, 3), np.uint8)
        labels = np.empty((len(times), height, width), np.uint8)
        scenes = np.empty(len(times), np.int32)
        boxes = []
        for row, time_s in enumerate(times):
            images[row], labels[row], found, scenes[row] = self._frame(float(time_s))
            boxes.append(found)
        return Frames(times_s=times, images=images, scenes=scenes, labels=labels, boxes=tuple(boxes))

    def _frame(self, time_s: float) -> tuple[Pixels, Pixels, Floats, int]:
        """Render the image, the labels and the boxes shown at a time, and number the scene."""
        index = frame_number(self, time_s)
        shown_s = index / self.fps
        number = self._script.scene_at(shown_s)
        scene = draw_cached(self._scenes, number, partial(self._draw_scene, number))
        rng = np.random.Generator(np.random.SFC64([self._request.seed, 11, index]))
        image, canvas = self._render(scene, shown_s, rng)
        return image, canvas.labels(), canvas.boxes(), number

    @abstractmethod
    def _draw_scene(self, number: int) -> AnyScene:
        """Draw everything that a scene keeps, whenever it is shown."""

    @abstractmethod
    def _render(self, scene: AnyScene, shown_s: float, rng: np.random.Generator) -> tuple[Pixels, Canvas]:
        """Render a frame of a scene, with the canvas that its truth is read from."""

    @abstractmethod
    def _draw_look(self, number: int) -> AnyLook:
        """Draw one of the looks that a drifting scene passes through."""

    def _look(self, of_scene: AnyLook, time_s: float) -> AnyLook:
        """Return the look of a scene; of a drifting scene, the mixture of the two looks that it is between."""
        if not self._preset.drift_s:
            return of_scene
        passed, weight = divmod(time_s * self._request.pace / self._preset.drift_s, 1.0)
        first, second = (
            draw_cached(self._looks, number, partial(self._draw_look, number))
            for number in (int(passed), int(passed) + 1)
        )
        return blend_appearance(first, second, weight)


class StreetStream(RenderedStreet[StreetRequest, Scene, StreetLook]):
    """A procedural street."""

    family = "streets"

    def _render(self, scene: Scene, shown_s: float, rng: np.random.Generator) -> tuple[Pixels, Canvas]:
        view = CameraView(self.size, self._preset, scene, self._travel)
        canvas = StreetCanvas(camera_of(view, shown_s, rng.standard_normal(2)))
        paint(canvas, self._preset, scene, shown_s)
        grain = (rng.random((*self.size, 3), np.float32) - np.float32(0.5)) * np.float32(
            _UNIFORM_TO_STD * self._request.noise
        )
        light = 1 + self._preset.light_swing * math.sin(2 * math.pi * shown_s / 40 + scene.phase)
        return canvas.image(self._look(scene.look, shown_s), scene.tiles, light, grain), canvas

    def _draw_scene(self, number: int) -> Scene:
        return draw_scene(self._preset, self._request.seed, number, self._request.crowd)

    def _draw_look(self, number: int) -> StreetLook:
        return draw_look(np.random.default_rng([self._request.seed, 12, number]))


@dataclass(frozen=True)
class CameraView:
    """Arguments of the camera direction besides the time."""

    size: tuple[int, int]
    preset: StreetPreset
    place: Place
    travel: Travel
    motion: float = 1.0  # how many times as much as usual it shakes; above 1 it also glances aside


def camera_of(view: CameraView, time_s: float, jitter: npt.NDArray[np.float64]) -> Camera:
    """Put the camera where it is at a time; the jitter is the shake of this frame."""
    (height, width), preset, place = view.size, view.preset, view.place
    shake = preset.shake * view.motion
    stride = view.motion * preset.bob * math.sin(2 * math.pi * 1.8 * time_s)
    turn = preset.yaw * math.sin(2 * math.pi * time_s / 13 + place.phase)
    if view.motion > 1:
        turn += (view.motion - 1) * preset.yaw * math.sin(2 * math.pi * time_s / _GLANCE_S + 2 * place.phase)
    if preset.view == "along":
        across_m, along_m = place.road_m * preset.lane, view.travel.distance_m(time_s)
    else:
        across_m, along_m = 0.2 * math.sin(time_s / 5), 0.0
    half_m = place.road_m + place.sidewalk_m
    return Camera(
        height=height,
        width=width,
        focal=place.focal * max(height, width / 2),
        centre=width * (0.5 + turn) + height * shake * float(jitter[0]),
        horizon=height * (place.horizon + stride + shake * float(jitter[1])),
        eye_m=preset.camera_height_m,
        across_m=across_m,
        along_m=along_m,
        walls_m=(-half_m - place.terrain_m[0], half_m + place.terrain_m[1]),
    )
