"""What happens when: which scene is shown, and how far the camera has come."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from driftlab.datasets.streets.presets import Preset


@dataclass(frozen=True)
class Script:
    """Visits to scenes in rounds; round n shows the same pattern with scene numbers raised by n * fresh."""

    starts_s: tuple[float, ...]
    scenes: tuple[int, ...]
    round_s: float
    fresh: int

    def scene_at(self, time_s: float) -> int:
        """Number the scene shown at this time."""
        turn, local_s = (0, time_s) if math.isinf(self.round_s) else divmod(time_s, self.round_s)
        return self.scenes[bisect_right(self.starts_s, local_s) - 1] + int(turn) * self.fresh

    def changes_s(self, stop_s: float) -> tuple[float, ...]:
        """List the times before stop_s at which another scene begins."""
        found: list[float] = []
        turn, offset_s, shown = 0, 0.0, self.scenes[0]
        while offset_s < stop_s:
            for start_s, number in zip(self.starts_s, self.scenes, strict=True):
                scene = number + turn * self.fresh
                if scene != shown and offset_s + start_s < stop_s:
                    found.append(offset_s + start_s)
                shown = scene
            turn += 1
            offset_s = turn * self.round_s
        return tuple(found)


def draw_script(preset: Preset, seed: int, pace: float) -> Script:
    """Vary the preset's visits by a fifth, so that seeds do not change scene in step."""
    rng = np.random.default_rng([seed, 101])
    lengths_s = [seconds * rng.uniform(0.8, 1.2) / pace for _, seconds in preset.visits]
    return Script(
        starts_s=(0.0, *accumulate(lengths_s[:-1])),
        scenes=tuple(scene for scene, _ in preset.visits),
        round_s=sum(lengths_s),
        fresh=preset.fresh,
    )


@dataclass(frozen=True)
class Travel:
    """Distance under a speed that is linear between knots and repeats."""

    knots: tuple[tuple[float, float], ...]
    phase_s: float

    def distance_m(self, time_s: float) -> float:
        """Say how far the camera has come since time 0."""
        return self._since_knot_zero(time_s + self.phase_s) - self._since_knot_zero(self.phase_s)

    def _since_knot_zero(self, time_s: float) -> float:
        areas = [(b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in zip(self.knots, self.knots[1:], strict=False)]
        rounds, local_s = divmod(time_s, self.knots[-1][0])
        done_m = rounds * sum(areas)
        for (start_s, speed), (stop_s, next_speed), area in zip(self.knots, self.knots[1:], areas, strict=False):
            if local_s >= stop_s:
                done_m += area
                continue
            slope = (next_speed - speed) / (stop_s - start_s)
            return done_m + (local_s - start_s) * (speed + slope * (local_s - start_s) / 2)
        return done_m


def draw_travel(preset: Preset, seed: int) -> Travel:
    """Start somewhere in the preset's speed cycle."""
    return Travel(preset.speed_mps, float(np.random.default_rng([seed, 102]).uniform(0, preset.speed_mps[-1][0])))
