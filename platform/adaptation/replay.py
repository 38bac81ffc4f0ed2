"""Samples of past domains that a member keeps, with the labels and the confidence that it gave them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from driftlab.platform.core.records import Weights

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Replay:
    """Frames with labels; `domain` numbers the phase from which each comes."""

    image: Array
    label: Array
    sure: Array  # confidence of the label
    domain: Array

    def __len__(self) -> int:
        return len(self.label)

    def arrays(self) -> Weights:
        return dict(vars(self)) if len(self) else {}

    def take(self, rows: Array) -> Replay:
        return Replay(*(value[rows] for value in vars(self).values()))

    def with_these(self, other: Replay) -> Replay:
        """Return both, the older ones first."""
        if not len(self):
            return other
        parts = zip(vars(self).values(), vars(other).values(), strict=True)
        return Replay(*(np.concatenate(both) for both in parts))


def replay_of(held: Weights) -> Replay:
    """Take samples back from arrays."""
    if "label" not in held:
        return Replay(*(np.zeros(0),) * 4)
    return Replay(*(held[name] for name in ("image", "label", "sure", "domain")))


def most_confident(samples: Replay, per_class: int, min_confidence: float) -> Replay:
    """Keep the most confident samples of each class, evenly over domains, none below a confidence."""
    stay: list[int] = []
    for label in np.unique(samples.label):
        mine = [row for row in np.flatnonzero(samples.label == label).tolist() if samples.sure[row] >= min_confidence]
        ranks = {row: _rank(samples, row, mine) for row in mine}
        stay += sorted(mine, key=lambda row: (ranks[row], -samples.sure[row], row))[:per_class]
    return samples.take(np.array(sorted(stay), dtype=np.int64))


def _rank(samples: Replay, row: int, rows: list[int]) -> int:
    """Return the number of more confident samples of the same domain: each domain's best come first."""
    mine = (-samples.sure[row], row)
    return sum((-samples.sure[one], one) < mine for one in rows if samples.domain[one] == samples.domain[row])
