"""RDumb (NeurIPS 2023): resets the wrapped member to the source at regular intervals.

Differs from the paper: steps in which nothing was fit to learn from do not count; the wrapped member is a parameter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge

from driftlab.platform.adaptation.base import Adapted, Batch, Phase
from driftlab.platform.adaptation.wrapper import AdaptationWrapper, moved_since
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Weights

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class RDumb(AdaptationWrapper):
    """Reset the weights to the source network at fixed intervals."""

    reset_steps: Annotated[int, Ge(1), Means("steps after which the network returns to the source")] = 1000

    def begin(self, model: nn.Module) -> Weights:
        return {"steps": np.array(0)}

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        from driftlab.platform.networks.vector import read

        before = read(model)
        done = self._wrapped(model, state, batch, phase)
        steps = int(state.held["steps"]) + done.iterations
        if steps < self.reset_steps:
            held = {"steps": np.array(steps)} if done.iterations else state.held
            return replace(done, state=replace(done.state, held=held))
        return moved_since(model, before, replace(done, state=self.reset(model, done.state)))
