"""BUFR (ICLR 2022): restores the source's histograms of features and outputs, block by block.

In phases one block after another joins in. On the stream all of them make one step per batch.

Differs from the paper: unless `no_stabilisation`, steps are clipped, empty bins count a little, units that never varied
on the source are left out, and a phase whose outputs explode is undone; rates are those for a hundred samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from driftlab.platform.adaptation.base import EMPTY_PACK, Batch, Phase
from driftlab.platform.adaptation.batches import (
    ONE_FRAME,
    NormMomentum,
    Rows,
    frames_reject,
    mini_batches,
    source_passes,
)
from driftlab.platform.adaptation.learn import LearningAdaptation, StatefulAdaptation
from driftlab.platform.adaptation.memory import own_arrays
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Weights
from driftlab.platform.networks.heads import linear_head
from driftlab.platform.networks.training.descent import Momentum

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.adaptation.run import LearningRun
    from driftlab.platform.networks.features import FeaturePass
    from driftlab.platform.networks.training.training_loop import DataSplits

BINS = 10
TRACKED, LARGEST = ("features", "outputs"), 10.0  # multiple of the source's largest output that is an explosion


@dataclass(frozen=True)
class Bufr(LearningAdaptation, StatefulAdaptation):
    """Restore the distributions of features and outputs, block by block."""

    iterations: Annotated[int, Ge(1), Means("steps of a phase for each block")] = 10
    batch: Annotated[int, Ge(2), Means("frames of a step in a phase", "frames")] = 100
    learning_rate: Annotated[float, Ge(0), Le(10), Means("step size of the first block")] = 1e-2
    block_lr_divisor: Annotated[float, Ge(1), Means("divisor of the step size from block to block")] = 1.5
    momentum: Annotated[float, Ge(0), Lt(1), Means("momentum of the steps")] = 0.9
    temperature: Annotated[float, Gt(0), Means("softness of the bins' edges, in ranges of a unit")] = 0.05
    no_stabilisation: Annotated[bool, Means("whether outputs may explode: no clipping and no floors")] = False
    bn_momentum: NormMomentum = 0.1

    tasks, has_source_summary = ("classification",), True

    def summarise_source(self, model: nn.Module, data: DataSplits) -> Weights:
        """Return the range and the histogram of each feature and output on the source."""
        if data.task.name != "classification":
            return EMPTY_PACK
        seen = source_passes(model, data.train.images, self.batch)
        found: dict[str, torch.Tensor] = {}
        for what in TRACKED:
            values: torch.Tensor = getattr(seen, what)
            low, high = values.amin(dim=0), values.amax(dim=0)
            shares = soft_counts(values, low, self._range(low, high), self.temperature) / len(values)
            found |= {f"{what}/low": low, f"{what}/high": high, f"{what}/shares": shares}
        return own_arrays(found)

    def reject_reason(self, model: nn.Module, batch: Batch, state: Any) -> str:
        if why := frames_reject("Bufr", batch):
            return why
        if not state.pack:
            return "there is no summary of the source to restore"
        return ONE_FRAME if len(batch.images) == 1 else ""

    def training_batches(self, model: nn.Module, batch: Batch, phase: Phase) -> list[Rows]:
        """Draw a mini-batch per step; the blocks share a phase's steps."""
        blocks = self.blocks(model, phase)
        return mini_batches(batch, phase, self.batch, self.iterations * len(blocks)) if blocks else []

    def blocks(self, model: nn.Module, phase: Phase) -> list[list[str]]:
        """List the parameters of each block from the bottom up, without the head; on the stream as one."""
        from driftlab.platform.networks.vector import layout_of

        head, parts = linear_head(model), dict[str, list[str]]()
        for name in layout_of(model).names:
            if not head or not name.startswith(f"{head}."):
                parts.setdefault("" if phase.on_stream else name.partition(".")[0], []).append(name)
        return list(parts.values())

    def carries(self, phase: Phase) -> bool:
        return phase.on_stream

    def start(self, run: LearningRun) -> str:
        run.notes.update(blocks=self.blocks(run.model, run.phase), explosion="")
        self._next_block(run, 0)
        return ""

    def train_step(self, run: LearningRun, rows: Rows) -> None:
        blocks = run.notes["blocks"]
        shares = np.array_split(np.arange(run.planned), len(blocks))
        number = next(which for which, share in enumerate(shares) if run.made in share)
        if number != run.notes["number"] and not self._next_block(run, number):
            return
        if run.backward(self.surprise(run, self._seen(run, rows))):
            gradient = run.gradient()
            run.step(gradient if self.no_stabilisation else gradient.mul_(1 / gradient.norm().clamp_min(1.0)))

    def _next_block(self, run: LearningRun, number: int) -> bool:
        """Train one more block, at a lower rate; return False where the training so far must be undone."""
        if run.made and (run.invalid_reason() or run.notes["explosion"]):
            run.stop()
            return False
        names = [name for block in run.notes["blocks"][: number + 1] for name in block]
        run.bind(names, Momentum(self.learning_rate / self.block_lr_divisor**number, self.momentum))
        run.notes["number"] = number
        return True

    def _seen(self, run: LearningRun, rows: Rows) -> FeaturePass:
        """Run the network, and note an explosion of its outputs."""
        seen = run.features(run.inputs(rows))
        usual = max(np.abs(run.pack[f"outputs/{end}"]).max() for end in ("low", "high"))
        largest = float(seen.outputs.detach().abs().max())
        if not self.no_stabilisation and largest > LARGEST * usual:
            run.notes["explosion"] = (
                f"an output of {largest:.3g} is more than {LARGEST:g} times the largest of the source"
            )
        return seen

    def fault(self, run: LearningRun) -> str:
        return str(run.notes["explosion"])

    def _range(self, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        """Return the range by which the values of each unit are divided, with a floor."""
        ranges = high + 1e-8 - low
        return ranges if self.no_stabilisation else ranges.clamp_min(float(ranges.median()) * 0.01 + 1e-8)

    def surprise(self, run: LearningRun, seen: FeaturePass) -> torch.Tensor:
        """Return the mean divergence of the histograms of features and outputs from the source's."""
        import torch

        total = torch.zeros((), device=seen.outputs.device, dtype=seen.outputs.dtype)
        for what in TRACKED:
            values: torch.Tensor = getattr(seen, what)
            low, high, shares = (run.packed(f"{what}/{key}") for key in ("low", "high", "shares"))
            alive = torch.ones_like(low, dtype=torch.bool) if self.no_stabilisation else high > low
            now = soft_counts(values, low, self._range(low, high), self.temperature) / len(values)
            extra = 0.0 if self.no_stabilisation else 1e-3 / len(values)
            total = total + instability(shares + extra, now + extra)[alive].mean()
        return total


def soft_counts(values: torch.Tensor, low: torch.Tensor, ranges: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return soft counts [units, 10] of values [n, units] in eight bins over their range and two beyond."""
    import torch

    places = torch.linspace(0, 1, BINS - 1, device=values.device, dtype=values.dtype)
    edges = (low / ranges)[:, None] + places
    shift = torch.cat([torch.zeros_like(edges[:, :1]), -edges.cumsum(dim=1)], dim=1)
    steps = torch.arange(1, BINS + 1, device=values.device, dtype=values.dtype)
    return (((values / ranges)[..., None] * steps + shift) / temperature).softmax(dim=-1).sum(dim=0)


def instability(source: torch.Tensor, now: torch.Tensor) -> torch.Tensor:
    """Return the population stability index of each unit: the symmetric divergence, to base 10."""
    return divergence(source, now) + divergence(now, source)


def divergence(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return (first * ((first + 1e-8) / (second + 1e-8)).log()).sum(dim=-1) / math.log(BINS)
