"""The schedule of scenes of a stream."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

Visit = tuple[int, float]  # (scene number, seconds); a repeated number is the same scene again


@dataclass(frozen=True)
class Script:
    """Visits to scenes in rounds; in round n all scene numbers are increased by n * fresh."""

    starts_s: tuple[float, ...]
    scenes: tuple[int, ...]
    round_s: float
    fresh: int

    def scene_at(self, time_s: float) -> int:
        """Return the number of the scene at a time."""
        turn, local_s = (0, time_s) if math.isinf(self.round_s) else divmod(time_s, self.round_s)
        return self.scenes[bisect_right(self.starts_s, local_s) - 1] + int(turn) * self.fresh

    def changes_s(self, stop_s: float) -> tuple[float, ...]:
        """Return the times before stop_s at which another scene begins."""
        changes: list[float] = []
        turn, offset_s, shown = 0, 0.0, self.scenes[0]
        while offset_s < stop_s:
            for start_s, number in zip(self.starts_s, self.scenes, strict=True):
                scene = number + turn * self.fresh
                if scene != shown and offset_s + start_s < stop_s:
                    changes.append(offset_s + start_s)
                shown = scene
            turn += 1
            offset_s = turn * self.round_s
        return tuple(changes)


def draw_script(visits: Sequence[Visit], fresh: int, seed: int, pace: float) -> Script:
    """Return a script whose visits vary in length by up to 20 %, so scene changes differ between seeds."""
    rng = np.random.default_rng([seed, 101])
    lengths_s = [seconds * rng.uniform(0.8, 1.2) / pace for _, seconds in visits]
    return Script(
        starts_s=(0.0, *accumulate(lengths_s[:-1])),
        scenes=tuple(scene for scene, _ in visits),
        round_s=sum(lengths_s),
        fresh=fresh,
    )
