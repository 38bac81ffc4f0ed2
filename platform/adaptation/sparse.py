"""Sparse updates: trains the wrapped member on every k-th batch, up to a budget of steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge

from driftlab.platform.adaptation.base import Adapted, Batch, Phase
from driftlab.platform.adaptation.wrapper import AdaptationWrapper
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Passes, Weights

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class SparseUpdates(AdaptationWrapper):
    """Train on every k-th batch, within a budget."""

    every_batches: Annotated[int, Ge(1), Means("batches from one that is learned from to the next")] = 4
    budget: Annotated[int, Ge(0), Means("steps after which the network stays as it is; 0: no end")] = 0

    def begin(self, model: nn.Module) -> Weights:
        return {"waited": np.array(self.every_batches - 1), "steps": np.array(0)}

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        waited, steps = (int(state.held[name]) for name in ("waited", "steps"))
        if self.budget and steps >= self.budget:
            return Adapted(state, skipped=f"the budget of {self.budget} steps is used up", passes=Passes())
        if waited + 1 < self.every_batches:
            after = replace(state, held={**state.held, "waited": np.array(waited + 1)})
            return Adapted(after, skipped=f"it learns from every {self.every_batches} batches", passes=Passes())
        done = self._wrapped(model, state, batch, phase)
        if not done.iterations:
            return done
        held = {"waited": np.array(0), "steps": np.array(steps + done.iterations)}
        return replace(done, state=replace(done.state, held=held))
