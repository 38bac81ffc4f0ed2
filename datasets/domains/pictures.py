"""The pictures of a labelled set in the order in which domains show them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from driftlab.datasets.labelled import Pictures, open_set
from driftlab.datasets.slides import Rows, Slides

MAX_PICTURES = 5000  # of a set's test part, however long the stream is: a longer stream begins like a shorter one


@dataclass(frozen=True)
class DomainSlides(Slides):
    """The test pictures of a set, in two parts: those to adapt on open each stretch, the others follow.

    Each part is shown completely before a picture of it returns, in another order every time.
    """

    stretch: int  # frames of one domain at a time
    adapt: int  # of them to adapt on

    def rows(self, numbers: Rows) -> Rows:
        """Return the picture that each frame shows; no picture is shown both to adapt on and to judge by."""
        return np.array([self._row(int(number)) for number in numbers], np.int64)

    def _row(self, number: int) -> int:
        turn, place = divmod(number, self.stretch)
        if place < self.adapt:
            return self._nth(0, turn * self.adapt + place)
        return self._nth(1, turn * (self.stretch - self.adapt) + place - self.adapt)

    def _nth(self, part: int, count: int) -> int:
        own = self._parts[part]
        turn, place = divmod(count, len(own))
        return int(own[self._pass(part, turn)[place]])

    def _pass(self, part: int, turn: int) -> Rows:
        """Order the pictures of a part for one pass over it."""
        key = (part, turn)
        if key not in self._passes:
            self._passes.clear()
            rng = np.random.default_rng([self.seed, 44, part, turn])
            self._passes[key] = rng.permutation(len(self._parts[part]))
        return self._passes[key]

    @cached_property
    def _passes(self) -> dict[tuple[int, int], Rows]:
        return {}

    @cached_property
    def _parts(self) -> tuple[Rows, Rows]:
        count = len(self._pictures.images)
        first = min(max(round(count * self.adapt / self.stretch), 1), count - 1) if self.adapt else 0
        order = np.random.default_rng([self.seed, 45]).permutation(count)
        return order[:first], order[first:]

    @cached_property
    def _pictures(self) -> Pictures:
        return open_set(self.labelled, size=self.size, counts=MAX_PICTURES).test
