"""A zoo of expert models, and the selector that ranks them for the frames at hand (RECL).

Models are kept by number with a signature, the mean feature of the data that each was trained on. The selector is a
linear classifier from signatures to models; the best few that it names are scored, and the best of them is taken if it
beats the current model clearly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
MARGIN = 0.01  # of accuracy, by which a stored network must be better
RIDGE = 1e-3  # weight of the classifier's weights against its errors


@dataclass(frozen=True, eq=False)
class Expert:
    """A model in the zoo."""

    number: int
    signature: Floats
    selected: int  # when it was stored or last selected, as a count of selections


@dataclass(frozen=True, eq=False)
class Zoo:
    """Experts of one architecture; the least recently selected one makes room."""

    room: int = 20
    experts: tuple[Expert, ...] = ()
    clock: int = 0

    def remember(self, number: int, signature: Floats) -> Zoo:
        """Store a model after its training."""
        others = [one for one in self.experts if one.number != number]
        others.sort(key=lambda one: (one.selected, one.number))
        stay = others[max(0, len(others) + 1 - self.room) :]
        stored = Expert(number, np.asarray(signature, np.float64), self.clock)
        return replace(self, experts=(*stay, stored)[-self.room :], clock=self.clock + 1)

    def select(self, number: int) -> Zoo:
        """Note that a model was selected."""
        experts = tuple(replace(one, selected=self.clock) if one.number == number else one for one in self.experts)
        return replace(self, experts=experts, clock=self.clock + 1)

    def rank(self, signature: Floats, top: int = 3) -> list[int]:
        """Return the numbers of the experts that suit a signature best.

        The classifier is fitted by least squares with one target per expert, in closed form.
        """
        if not self.experts:
            return []
        known = np.array([one.signature for one in self.experts])
        mean, scale = known.mean(axis=0), float(known.std()) or 1.0
        inputs = np.column_stack([(known - mean) / scale, np.ones(len(known))])
        gram = inputs @ inputs.T + RIDGE * np.eye(len(known))
        here = np.append((np.asarray(signature) - mean) / scale, 1.0)
        scores = np.linalg.solve(gram, inputs @ here)
        order = sorted(range(len(known)), key=lambda i: (-scores[i], self.experts[i].number))
        return [self.experts[i].number for i in order[:top]]


def start_from(scores: Mapping[int, float], now: float, margin: float = MARGIN) -> int | None:
    """Return the network to begin with; None where none beats the current accuracy by more than the margin."""
    best = max(scores, key=scores.__getitem__, default=None)
    return best if best is not None and scores[best] > now + margin else None
