"""The distance that the camera has travelled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from driftlab.datasets.streets.presets import StreetPreset


@dataclass(frozen=True)
class Travel:
    """Distance under a speed that is linear between knots and repeats."""

    knots: tuple[tuple[float, float], ...]
    phase_s: float

    def distance_m(self, time_s: float) -> float:
        """Return the distance since time 0."""
        return self._since_knot_zero(time_s + self.phase_s) - self._since_knot_zero(self.phase_s)

    def stretches(self, stop_s: float) -> list[tuple[float, float, float, float]]:
        """Cut a session into stretches of constant acceleration: start time, distance, speed, acceleration."""
        found, offset_s = [], -self.phase_s
        while offset_s < stop_s:
            for (a_s, speed), (b_s, next_speed) in zip(self.knots, self.knots[1:], strict=False):
                if offset_s + b_s > 0 and offset_s + a_s < stop_s:
                    slope, begin_s = (next_speed - speed) / (b_s - a_s), max(offset_s + a_s, 0.0)
                    now_mps = speed + slope * (begin_s - offset_s - a_s)
                    found.append((begin_s, self.distance_m(begin_s), now_mps, slope))
            offset_s += self.knots[-1][0]
        return found

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


def draw_travel(preset: StreetPreset, seed: int) -> Travel:
    """Start at a random time of the preset's speed cycle."""
    return Travel(preset.speed_mps, float(np.random.default_rng([seed, 102]).uniform(0, preset.speed_mps[-1][0])))
