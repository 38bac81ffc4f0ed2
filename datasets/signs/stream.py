"""The stream of signs, rendered from a seed at any time and in any order.

Each scene draws a colour for each class, so colours identify a class in that scene only. Shape and patterns are the
same in all scenes, but hard to recognise under noise.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from driftlab.datasets.frames import Frames, Times, frame_number
from driftlab.datasets.procedural import Procedural, ProceduralRequest, draw_cached
from driftlab.datasets.script import draw_script
from driftlab.datasets.signs.alphabet import Floats, kinds_of, names_of
from driftlab.datasets.signs.draw import Views, draw
from driftlab.datasets.signs.presets import PRESETS
from driftlab.datasets.signs.views import draw_grain, draw_views

Pixels = npt.NDArray[np.uint8]
_COLOUR_DEVIATION = 0.06  # standard deviation of a sign's colour around the colour of its class in the scene


@dataclass(frozen=True)
class SignsRequest(ProceduralRequest):
    """The request of a stream of signs, with the number of classes and the difficulty."""

    classes: float = 8.0
    difficulty: float = 2.0


@dataclass(frozen=True, eq=False)
class SignsLook:
    """Colours, class frequencies and light of a scene."""

    colours: Floats  # [classes, 2, 3] of sign and background
    frequencies: npt.NDArray[np.float64]  # [classes] with sum 1
    gain: float


class SignsStream(Procedural[SignsRequest]):
    """A stream of passing signs, one visible at a time."""

    family = "signs"

    def __init__(self, request: SignsRequest) -> None:
        self._preset = PRESETS[request.preset]
        super().__init__(request, draw_script(self._preset.visits, self._preset.fresh, request.seed, request.pace))
        self._kinds = kinds_of(int(request.classes))
        self._looks: OrderedDict[int, SignsLook] = OrderedDict()

    @property
    def classes(self) -> tuple[str, ...]:
        return names_of(len(self._kinds))

    def at(self, times_s: Times | Sequence[float]) -> Frames:
        """Render the frames at these times; frame k starts at k / fps."""
        times = np.asarray(times_s, np.float64)
        images = np.empty((len(times), *self.size, 3), np.uint8)
        scenes, classes = np.empty(len(times), np.int32), np.empty(len(times), np.int64)
        for row, time_s in enumerate(times):
            images[row], scenes[row], classes[row] = self._frame(float(time_s))
        return Frames(times_s=times, images=images, scenes=scenes, classes=classes)

    def _frame(self, time_s: float) -> tuple[Pixels, int, int]:
        index = frame_number(self, time_s)
        shown_s = index / self.fps
        scene = self._script.scene_at(shown_s)
        kind, views = self._view(scene, shown_s)
        rng = np.random.Generator(np.random.SFC64([self._request.seed, 11, index]))
        grain = draw_grain(rng, (1, *self.size, 3), self._request.difficulty)
        return draw(views, *self.size, grain)[0], scene, kind

    def _view(self, scene: int, time_s: float) -> tuple[int, Views]:
        """Return class and view of the visible sign, which comes closer; a scene change replaces the sign."""
        number, passed = self._visible_sign(time_s)
        look = self._look(scene, time_s)
        rng = np.random.Generator(np.random.SFC64([self._request.seed, 13, scene, number]))
        kind = int(rng.choice(len(self._kinds), p=look.frequencies))
        views = draw_views(rng, [self._kinds[kind]], self._request.difficulty)
        heading = rng.uniform(-0.08, 0.08, 2).astype(np.float32)
        colours = look.colours[kind] + rng.uniform(-_COLOUR_DEVIATION, _COLOUR_DEVIATION, (2, 3)).astype(np.float32)
        swing = self._preset.light_swing * math.sin(2 * math.pi * time_s / 40)
        nearer = replace(
            views,
            centres=views.centres + heading * np.float32(passed - 0.5),
            radii=np.array([0.24 + 0.2 * passed], np.float32),
            colours=colours[None],
            gain=np.array([look.gain * (1 + swing)], np.float32),
        )
        return kind, nearer

    def _visible_sign(self, time_s: float) -> tuple[int, float]:
        """Return the number of the visible sign and the share of its visible time that has passed."""
        visible_s = self._preset.visible_s
        number = math.floor(time_s / visible_s)
        if time_s < self._start_s(number):
            number -= 1
        start_s, stop_s = self._start_s(number), self._start_s(number + 1)
        return number + 1, (time_s - start_s) / (stop_s - start_s)  # the first sign may start before the stream

    def _start_s(self, number: int) -> float:
        late = np.random.Generator(np.random.SFC64([self._request.seed, 14, number + 1])).random()
        return (number + 0.5 * late) * self._preset.visible_s

    def _look(self, scene: int, time_s: float) -> SignsLook:
        """Return the look of a scene; for a drifting stream, the mixture of two successive looks."""
        if not self._preset.drift_s:
            return self._cached_look(scene)
        passed, weight = divmod(time_s * self._request.pace / self._preset.drift_s, 1.0)
        before, after = self._cached_look(int(passed)), self._cached_look(int(passed) + 1)
        mixed = np.float32(1 - weight) * before.colours + np.float32(weight) * after.colours
        return replace(before, colours=mixed, gain=(1 - weight) * before.gain + weight * after.gain)

    def _cached_look(self, number: int) -> SignsLook:
        return draw_cached(self._looks, number, lambda: self._draw_look(number))

    def _draw_look(self, number: int) -> SignsLook:
        rng = np.random.default_rng([self._request.seed, 12, number])
        weights = np.exp(self._preset.favour * rng.standard_normal(len(self._kinds)))
        return SignsLook(
            colours=rng.uniform(0.15, 0.85, (len(self._kinds), 2, 3)).astype(np.float32),
            frequencies=weights / weights.sum(),
            gain=float(rng.uniform(0.7, 1.15)),
        )
