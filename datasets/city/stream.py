"""The stream of city streets: any frame, at any time, in any order, from a seed."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from driftlab.datasets.city.air import let_fall, light_of
from driftlab.datasets.city.paint import hang_lamps, paint
from driftlab.datasets.city.palette import CityLook, blend_looks, draw_city, draw_look
from driftlab.datasets.city.render import CityCanvas
from driftlab.datasets.city.scene import PASSERS, CityScene, Drawing, draw_scene
from driftlab.datasets.city.sensor import Pixels, balance_at, draw_grain, expose, exposure_at
from driftlab.datasets.frames import frame_number
from driftlab.datasets.procedural import ProceduralRequest, draw_cached
from driftlab.datasets.script import draw_script
from driftlab.datasets.severity import SeverityCourse
from driftlab.datasets.streets.look import Floats
from driftlab.datasets.streets.presets import PRESETS
from driftlab.datasets.streets.stream import CameraView, RenderedStreet, camera_of
from driftlab.datasets.streets.travel import draw_travel


@dataclass(frozen=True)
class CityRequest(ProceduralRequest):
    """A city street, how varied and crowded it is, and the course of every condition."""

    crowd: float = 1.0
    variety: float = 1.0
    photos: float = 0.0
    conditions: tuple[tuple[str, SeverityCourse], ...] = ()


class CityStream(RenderedStreet[CityRequest]):
    """A procedural street that looks like one."""

    family = "city"

    def __init__(self, request: CityRequest) -> None:
        preset = PRESETS[request.preset]
        super().__init__(request, draw_script(preset.visits, preset.fresh, request.seed, request.pace))
        self._preset = preset
        self._travel = draw_travel(preset, request.seed)
        self._courses = dict(request.conditions)
        self._drawing = Drawing(
            preset,
            request.seed,
            draw_city(np.random.default_rng([request.seed, 14]), request.variety),
            request.variety,
            request.crowd,
            self._courses["passers"].severity,
            request.photos,
        )
        self._phase = float(np.random.default_rng([request.seed, 15]).uniform(0, 2 * math.pi))
        self._grain = draw_grain(request.seed, request.height, request.width)
        self._scenes: OrderedDict[int, CityScene] = OrderedDict()
        self._looks: OrderedDict[int, CityLook] = OrderedDict()

    def _frame(self, time_s: float) -> tuple[Pixels, npt.NDArray[np.uint8], Floats, int]:
        index = frame_number(self, time_s)
        shown_s = index / self.fps
        number = self._script.scene_at(shown_s)
        scene = self._scene(number)
        now = {name: course.at(shown_s) for name, course in self._courses.items()}
        rng = np.random.Generator(np.random.SFC64([self._request.seed, 11, index]))
        view = CameraView(self.size, self._preset, scene.place, self._travel, now["motion"])
        canvas = CityCanvas(camera_of(view, shown_s, rng.standard_normal(2)))
        paint(canvas, self._preset, scene, shown_s, round(PASSERS * now["passers"]))
        if now["night"]:
            hang_lamps(canvas, self._preset, scene)
        light = light_of(self._look(scene, shown_s), now, self._brightness(scene, shown_s, now))
        picture = canvas.picture(light, scene.textures)
        if now["rain"] or now["snow"]:
            let_fall(picture, now["rain"], now["snow"], rng)
        if now["white_balance"]:
            picture *= balance_at(now["white_balance"], shown_s, self._phase)
        return expose(picture, now, self._grain, rng), canvas.labels(), canvas.boxes(), number

    def _brightness(self, scene: CityScene, time_s: float, now: dict[str, float]) -> float:
        """Let the light change slowly, and the camera look for its exposure."""
        swing = 1 + self._preset.light_swing * math.sin(2 * math.pi * time_s / 40 + scene.place.phase)
        return swing * exposure_at(now["exposure"], time_s, self._phase) if now["exposure"] else swing

    def _scene(self, number: int) -> CityScene:
        return draw_cached(self._scenes, number, lambda: draw_scene(self._drawing, number))

    def _look(self, scene: CityScene, time_s: float) -> CityLook:
        """Give the scene's own look, or a mixture of the two that a drifting one is between."""
        if not self._preset.drift_s:
            return scene.look
        passed, weight = divmod(time_s * self._request.pace / self._preset.drift_s, 1.0)
        return blend_looks(self._drawn_look(int(passed)), self._drawn_look(int(passed) + 1), weight)

    def _drawn_look(self, number: int) -> CityLook:
        asked, seeds = self._request, [self._request.seed, 16, number]
        return draw_cached(
            self._looks, number, lambda: draw_look(self._drawing.city, np.random.default_rng(seeds), asked.variety)
        )
