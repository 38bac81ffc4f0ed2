"""Tent (ICLR 2021): entropy minimisation by the scales and shifts of norms.

Differs from the paper: mini-batches of a phase hold no frame twice, only batch norms leave evaluation mode, and a call
that makes a weight or a loss non-finite is undone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from driftlab.platform.adaptation.learn import NormAffine
from driftlab.platform.adaptation.objectives import entropies

if TYPE_CHECKING:
    from driftlab.platform.adaptation.batches import Rows
    from driftlab.platform.adaptation.run import LearningRun


@dataclass(frozen=True)
class Tent(NormAffine):
    """Minimise the entropy of predictions by the scales and shifts of norms."""

    def train_step(self, run: LearningRun, rows: Rows) -> None:
        run.learn(entropies(run.outputs(rows)).mean())
