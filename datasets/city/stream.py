"""The stream of city streets: any frame, at any time, in any order, from a seed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from driftlab.datasets.city.air import let_fall, light_of
from driftlab.datasets.city.paint import hang_lamps, paint
from driftlab.datasets.city.palette import draw_city, draw_look
from driftlab.datasets.city.render import CityCanvas
from driftlab.datasets.city.scene import PASSERS, CityScene, Drawing, draw_scene
from driftlab.datasets.city.sensor import Pixels, balance_at, draw_grain, expose, exposure_at
from driftlab.datasets.procedural import ProceduralRequest
from driftlab.datasets.severity import SeveritySchedule
from driftlab.datasets.streets.look import Look
from driftlab.datasets.streets.render import Canvas
from driftlab.datasets.streets.stream import CameraView, RenderedStreet, camera_of


@dataclass(frozen=True)
class CityRequest(ProceduralRequest):
    """A city street, how varied and crowded it is, and the course of every condition."""

    crowd: float = 1.0
    variety: float = 1.0
    photos: float = 0.0
    conditions: tuple[tuple[str, SeveritySchedule], ...] = ()


class CityStream(RenderedStreet[CityRequest, CityScene, Look]):
    """A procedural street that looks like one."""

    family = "city"

    def __init__(self, request: CityRequest) -> None:
        super().__init__(request)
        self._courses = dict(request.conditions)
        self._drawing = Drawing(
            self._preset,
            request.seed,
            draw_city(np.random.default_rng([request.seed, 14]), request.variety),
            request.variety,
            request.crowd,
            self._courses["passers"].severity,
            request.photos,
        )
        self._phase = float(np.random.default_rng([request.seed, 15]).uniform(0, 2 * math.pi))
        self._grain = draw_grain(request.seed, request.height, request.width)

    def _render(self, scene: CityScene, shown_s: float, rng: np.random.Generator) -> tuple[Pixels, Canvas]:
        now = {name: course.at(shown_s) for name, course in self._courses.items()}
        view = CameraView(self.size, self._preset, scene.place, self._travel, now["motion"])
        canvas = CityCanvas(camera_of(view, shown_s, rng.standard_normal(2)))
        paint(canvas, self._preset, scene, shown_s, round(PASSERS * now["passers"]))
        if now["night"]:
            hang_lamps(canvas, self._preset, scene)
        light = light_of(self._look(scene.look, shown_s), now, self._brightness(scene, shown_s, now))
        picture = canvas.picture(light, scene.textures)
        if now["rain"] or now["snow"]:
            let_fall(picture, now["rain"], now["snow"], rng)
        if now["white_balance"]:
            picture *= balance_at(now["white_balance"], shown_s, self._phase)
        return expose(picture, now, self._grain, rng), canvas

    def _brightness(self, scene: CityScene, time_s: float, now: dict[str, float]) -> float:
        """Change the light slowly, and adjust the exposure to it."""
        swing = 1 + self._preset.light_swing * math.sin(2 * math.pi * time_s / 40 + scene.place.phase)
        return swing * exposure_at(now["exposure"], time_s, self._phase) if now["exposure"] else swing

    def _draw_scene(self, number: int) -> CityScene:
        return draw_scene(self._drawing, number)

    def _draw_look(self, number: int) -> Look:
        rng = np.random.default_rng([self._request.seed, 16, number])
        return draw_look(self._drawing.city, rng, self._request.variety)
