"""AdaBN: batch norms use the statistics of device frames instead of those of the source.

Differs from the paper: `momentum`, `batch` and `alpha` are variants from later work for streams, which have no pass
over a complete domain; `full` is the paper's, as a cumulative average.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Le

from driftlab.platform.adaptation.base import Adapted, Batch, Phase
from driftlab.platform.adaptation.batches import Rows
from driftlab.platform.adaptation.learn import NormStatistics
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Passes

if TYPE_CHECKING:
    from torch import nn

    from driftlab.platform.adaptation.run import LearningRun


@dataclass(frozen=True)
class AdaBn(NormStatistics):
    """Move the batch-norm statistics to the target domain."""

    variant: Annotated[Literal["momentum", "batch", "full", "alpha"], Means("which statistics batch norms use")] = (
        "momentum"
    )
    momentum: Annotated[float, Ge(0), Le(1), Means("weight of the newest batch, in variant momentum")] = 0.1
    alpha: Annotated[float, Ge(0), Le(1), Means("weight of the batch against the source, in variant alpha")] = 0.1
    update_first: Annotated[
        bool, Means("whether a batch moves the statistics before it is predicted, with predict_on batch")
    ] = False

    def faults(self) -> list[str]:
        """Return a fault where no batch is predicted after its update."""
        late = self.update_first and (self.predict_on == "frame" or self.by_batch())
        return ["'update_first' needs predict_on: batch, and variant momentum or full"] if late else []

    @property
    def bn_momentum(self) -> float | None:  # type: ignore[override]
        return None if self.variant == "full" else self.momentum

    def by_batch(self) -> bool:
        return self.variant in ("batch", "alpha")

    def statistics(self, model: nn.Module) -> AbstractContextManager[Any] | None:
        """Normalise by stored statistics; in `batch` and `alpha` by those of the batch or of each frame."""
        from driftlab.platform.networks.module_utils import blend_statistics

        return blend_statistics(model, self.alpha) if self.variant == "alpha" else super().statistics(model)

    def train_step(self, run: LearningRun, rows: Rows) -> None:
        if self.variant == "full" and not run.forward:
            run.forget_statistics()
        run.watch(rows)
        if self.update_first and run.phase.on_stream:
            with run.resting():
                run.show(run.outputs(rows))

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        if not self.by_batch():
            return super().adapt(model, state, batch, phase)
        why = f"variant {self.variant} keeps nothing from one batch to the next"
        return self.only_predict(model, state, batch, phase, why)

    def passes_of(self, phase: Phase, frames: int) -> Passes | None:
        """Return the forward passes of a network with batch norms; none without an update or a prediction."""
        idle = self.by_batch() and not (phase.on_stream and self.predict_on == "batch")
        found = Passes() if idle else super().passes_of(phase, frames)
        twice = self.update_first and phase.on_stream and found is not None
        return replace(found, forward=2 * found.forward) if twice and found else found
