"""Model zoo of RECL: expert models, and the selector that ranks them for the current frames.

Models are stored by number with a signature, the mean feature of their training data. The selector is a linear
classifier from signatures to models; its top candidates are scored, and the best one replaces the current model if its
accuracy is higher by a margin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
SOURCE = 0  # number of the network as built; stored networks have numbers from 1 on
MAX_SCORED_SAMPLES = 32  # samples on which a stored network is scored
MARGIN = 0.01  # accuracy by which a stored network must exceed the current one
RIDGE = 1e-3  # regularisation of the classifier's weights


@dataclass(frozen=True, eq=False)
class Expert:
    """A model in the zoo."""

    number: int
    signature: Floats
    selected: int  # when it was stored or last selected, as a count of selections


@dataclass(frozen=True, eq=False)
class Zoo:
    """Experts of one architecture; a full zoo evicts the least recently selected one."""

    room: int = 20
    experts: tuple[Expert, ...] = ()
    clock: int = 0

    def remember(self, number: int, signature: Floats) -> Zoo:
        """Return a zoo with a model added after its training."""
        others = [one for one in self.experts if one.number != number]
        others.sort(key=lambda one: (one.selected, one.number))
        retained = others[max(0, len(others) + 1 - self.room) :]
        stored = Expert(number, np.asarray(signature, np.float64), self.clock)
        return replace(self, experts=(*retained, stored)[-self.room :], clock=self.clock + 1)

    def select(self, number: int) -> Zoo:
        """Return a zoo in which a model is the most recently selected."""
        experts = tuple(replace(one, selected=self.clock) if one.number == number else one for one in self.experts)
        return replace(self, experts=experts, clock=self.clock + 1)

    def rank(self, signature: Floats, top: int = 3) -> list[int]:
        """Return the numbers of the `top` experts for a signature, best first.

        The classifier is fitted by ridge regression with one target per expert, in closed form.
        """
        if not self.experts:
            return []
        stored = np.array([one.signature for one in self.experts])
        mean, scale = stored.mean(axis=0), float(stored.std()) or 1.0
        inputs = np.column_stack([(stored - mean) / scale, np.ones(len(stored))])
        gram = inputs @ inputs.T + RIDGE * np.eye(len(stored))
        current = np.append((np.asarray(signature) - mean) / scale, 1.0)
        scores = np.linalg.solve(gram, inputs @ current)
        order = sorted(range(len(stored)), key=lambda i: (-scores[i], self.experts[i].number))
        return [self.experts[i].number for i in order[:top]]


def start_from(scores: Mapping[int, float], now: float, margin: float = MARGIN) -> int | None:
    """Return the network to start from; None if none exceeds the current accuracy by more than the margin."""
    best = max(scores, key=scores.__getitem__, default=None)
    return best if best is not None and scores[best] > now + margin else None
