"""Tent: scales and shifts of batch norms minimise the entropy of the network's predictions.

Differs from the paper: mini-batches of a phase hold no frame twice, only batch norms leave evaluation mode, and a step
that leaves the finite numbers is undone. `episodic` resets at boundaries between domains, not before each batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from driftlab.platform.adaptation.scales import OfScales, Steps
from driftlab.platform.adaptation.stream import Rows, entropies


@dataclass(frozen=True)
class Tent(OfScales):
    """Minimise the entropy of predictions by the scales and shifts of batch norms."""

    tasks = ("segmentation", "classification")

    def lesson(self, steps: Steps, rows: Rows) -> None:
        steps.learn(entropies(steps.outputs(rows)).mean(), rows)
