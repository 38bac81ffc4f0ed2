"""NOTE (NeurIPS 2022): instance-aware batch norms and steps on a prediction-balanced memory.

Differs from the paper: its networks are trained with such batch norms from the beginning, here those of any network are
replaced (`lite` leaves them as they are); the released code drops an incomplete last group of frames.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Gt, Le

from driftlab.platform.adaptation.banks import Frame, MemoryBankAdaptation, ReservoirBank
from driftlab.platform.adaptation.base import Batch, Predicted
from driftlab.platform.adaptation.batches import Rows, predict_with_statistics
from driftlab.platform.adaptation.norms import InstanceNorm, normalise_with
from driftlab.platform.core.parameters import Means

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.adaptation.run import LearningRun


@dataclass(frozen=True)
class Note(MemoryBankAdaptation):
    """Correct batch norms frame by frame, and minimise entropy over a balanced memory."""

    learning_rate: Annotated[float, Gt(0), Le(10), Means("step size of adam")] = 1e-4
    variant: Annotated[
        Literal["original", "lite"], Means("whether batch norms are instance-aware, or stay as they are")
    ] = "original"
    width: Annotated[float, Gt(0), Means("standard errors by which a frame may differ before it is corrected")] = 4.0
    bn_momentum: Annotated[
        float, Gt(0), Le(1), Means("weight of the memory in the statistics of batch norms, at each step")
    ] = 0.01

    only_on_stream = True

    def predict(self, model: nn.Module, state: Any, batch: Batch) -> Predicted:
        """Predict each frame with corrected statistics where its own are far from the stored ones."""
        return predict_with_statistics(self._norms(model, learns=False), model, state, batch, alone=False)

    def bank(self, classes: int, rng: np.random.Generator) -> ReservoirBank:
        return ReservoirBank(self.capacity, rng=rng)

    def predict_rows(self, run: LearningRun, rows: Rows) -> torch.Tensor:
        with self._norms(run.model, learns=False):
            return run.outputs(rows)

    def learn_from(self, run: LearningRun, images: Frame, ages: npt.NDArray[np.int64]) -> None:
        """Make one step along the entropy of the memory, averaged over frames and classes."""
        with self._norms(run.model, learns=True):
            shares = run.outputs_of(run.inputs_of(images)).softmax(dim=1)
            self.step(run, -(shares * (shares + 1e-6).log()).mean())

    def _norms(self, model: nn.Module, *, learns: bool) -> AbstractContextManager[Any]:
        from driftlab.platform.networks.module_utils import normalise_by_batch

        if self.variant == "original":
            return normalise_with(model, InstanceNorm(self.width, self.bn_momentum if learns else None))
        return normalise_by_batch(model, keeps=True, momentum=self.bn_momentum) if learns else nullcontext()
