"""BUFR: blocks train from the bottom up until each unit's values are spread as they were on the source.

In phases one block after another joins in. On the stream all of them make one step per batch.

Differs from the paper: unless `faithful`, steps are clipped, empty bins count a little, units that never varied on the
source are left out, and a phase whose outputs explode is undone; rates are those for a hundred samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from driftlab.platform.adaptation import stream
from driftlab.platform.adaptation.base import EMPTY_PACK, Adapted, Batch, Phase
from driftlab.platform.adaptation.memory import MethodMemory, own_arrays
from driftlab.platform.adaptation.of_bank import whole_frames
from driftlab.platform.adaptation.stream import Remembering
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Passes, Weights

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.networks.features import FeaturePass
    from driftlab.platform.networks.training.training_loop import Data

BINS = 10
Stretch = tuple[list[str], float, list[stream.Rows]]  # what learns, at which rate, and its mini-batches
TRACKED, LARGEST = ("features", "outputs"), 10.0  # times the source's largest output is an explosion


@dataclass(frozen=True)
class Bufr(Remembering):
    """Restore the distributions of features and outputs, block by block."""

    iterations: Annotated[int, Ge(1), Means("steps of a phase for each block")] = 10
    batch: Annotated[int, Ge(2), Means("frames of a step in a phase", "frames")] = 100
    learning_rate: Annotated[float, Ge(0), Le(10), Means("step size of the first block")] = 1e-2
    slower: Annotated[float, Ge(1), Means("what the step size is divided by from block to block")] = 1.5
    momentum: Annotated[float, Ge(0), Lt(1), Means("momentum of the steps")] = 0.9
    temperature: Annotated[float, Gt(0), Means("softness of the bins' edges, in ranges of a unit")] = 0.05
    faithful: Annotated[bool, Means("whether to do without what keeps outputs from exploding")] = False
    bn_momentum: stream.NormMomentum = 0.1

    tasks, packs = ("classification",), True

    def changes(self, model: nn.Module) -> list[str]:
        return list(model.state_dict())

    def pack(self, model: nn.Module, data: Data) -> Weights:
        """Return the range and the histogram of each feature and output on the source."""
        import torch

        from driftlab.platform.networks.features import features
        from driftlab.platform.networks.predict import evaluating

        if data.task.name != "classification":
            return EMPTY_PACK
        given = Batch(data.train.images, None, np.random.default_rng(0), data.task)
        parts = np.array_split(np.arange(len(given.images)), math.ceil(len(given.images) / self.batch))
        with evaluating(model), torch.no_grad():
            seen = [features(model, stream.device_inputs(model, given, rows)) for rows in parts]
        found: dict[str, torch.Tensor] = {}
        for what in TRACKED:
            values = torch.cat([getattr(each, what) for each in seen])
            low, high = values.amin(dim=0), values.amax(dim=0)
            shares = soft_counts(values, low, self._range(low, high), self.temperature) / len(values)
            found |= {f"{what}/low": low, f"{what}/high": high, f"{what}/shares": shares}
        return own_arrays(found)

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        if why := _unfit(batch, state):
            return Adapted(state, skipped=why, work=Passes())
        plan = list(self._plan(model, batch, phase))
        if not plan:
            return Adapted(state, skipped=stream.NO_STEPS, work=Passes())
        model.eval()
        return self._learn(model, state, batch, plan, on_stream=phase.on_stream)

    def _plan(self, model: nn.Module, batch: Batch, phase: Phase) -> Iterator[Stretch]:
        """Yield what learns in each stretch, its rate and its mini-batches; blocks share a phase's steps."""
        blocks = _blocks(model)
        if phase.on_stream:
            blocks = [[name for block in blocks for name in block]] if blocks else []
        lessons = list(stream.mini_batches(batch, phase, self.batch, self.iterations * len(blocks)))
        shares = np.array_split(np.arange(len(lessons)), max(len(blocks), 1))
        for number, share in enumerate(shares[: len(blocks)]):
            names = [name for block in blocks[: number + 1] for name in block]
            if len(share):
                yield names, self.learning_rate / self.slower**number, [lessons[place] for place in share]

    def _learn(
        self, model: nn.Module, state: MethodMemory, batch: Batch, plan: list[Stretch], *, on_stream: bool
    ) -> Adapted:
        from driftlab.platform.networks.module_utils import coordinates, copy_entries, record_layers, restore_entries
        from driftlab.platform.networks.vector import layout_of

        before, layout, done, after = copy_entries(model, state.source), layout_of(model), stream.WorkLog(), state
        trained: dict[str, None] = {}
        for names, rate, lessons in plan:
            learning = stream.part_learning(model, names, keeps=True, momentum=self.bn_momentum)
            with record_layers(model) as ran, learning as (flat, passed):
                walk = _Walk(self, model, batch, flat, after if on_stream else replace(after, moments=()), rate)
                stream.descend(lessons, walk.loss, walk.step, done)
                after = replace(after, moments=walk.moments(), steps=state.steps + len(done.backward))
            trained |= dict.fromkeys(stream.owners_of(names, ran))
            why = stream.invalid_reason(model, after, passed, done) or walk.explosion
            if why:
                restore_entries(model, before)
                return Adapted(state, skipped=why, work=done.passes(after, trained))
        work, changed = done.passes(after, trained), coordinates(layout, plan[-1][0])
        after = after if on_stream else replace(after, moments=())
        return Adapted(after, len(done.losses), tuple(done.losses), changed, work=work)

    def _range(self, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        """Return what divides the values of each unit; a floor holds those that hardly vary."""
        ranges = high + 1e-8 - low
        return ranges if self.faithful else ranges.clamp_min(float(ranges.median()) * 0.01 + 1e-8)

    def surprise(self, seen: FeaturePass, pack: Weights) -> torch.Tensor:
        """Return how far features and outputs are spread otherwise than on the source."""
        import torch

        total = torch.zeros((), device=seen.outputs.device, dtype=seen.outputs.dtype)
        for what in TRACKED:
            values: torch.Tensor = getattr(seen, what)
            ends = (pack[f"{what}/{key}"] for key in ("low", "high", "shares"))
            low, high, shares = (torch.tensor(each, device=values.device) for each in ends)
            alive = torch.ones_like(low, dtype=torch.bool) if self.faithful else high > low
            now = soft_counts(values, low, self._range(low, high), self.temperature) / len(values)
            extra = 0.0 if self.faithful else 1e-3 / len(values)
            total = total + instability(shares + extra, now + extra)[alive].mean()
        return total


class _Walk:
    """The steps of one stretch of a phase."""

    def __init__(
        self, member: Bufr, model: nn.Module, batch: Batch, flat: Any, state: MethodMemory, rate: float
    ) -> None:
        from driftlab.platform.networks.training.descent import Descent, Momentum

        self._member, self._model, self._batch, self._flat, self._pack = member, model, batch, flat, state.pack
        moments = stream.flatten_moments(state.moments, flat.layout, 1)
        self._descent = Descent(Momentum(rate, member.momentum), flat.weights, moments, 0)
        self.explosion = ""

    def loss(self, rows: stream.Rows) -> torch.Tensor:
        from driftlab.platform.networks.features import features

        seen = features(self._model, stream.device_inputs(self._model, self._batch, rows))
        usual = max(np.abs(self._pack[f"outputs/{end}"]).max() for end in ("low", "high"))
        largest = float(seen.outputs.detach().abs().max())
        if not self._member.faithful and largest > LARGEST * usual:
            self.explosion = f"an output of {largest:.3g} is more than {LARGEST:g} times the largest of the source"
        return self._member.surprise(seen, self._pack)

    def step(self) -> None:
        gradients = self._flat.gradients
        if not self._member.faithful:
            gradients.mul_(1 / gradients.norm().clamp_min(1.0))
        self._descent.step(gradients)
        gradients.zero_()

    def moments(self) -> tuple[Weights, ...]:
        return stream.split_by_name(self._descent.moments(), self._flat.layout)


def _blocks(model: nn.Module) -> list[list[str]]:
    """List the trainable parameters of the network's parts from the bottom up, without those of the head."""
    from driftlab.platform.networks.heads import linear_head
    from driftlab.platform.networks.vector import layout_of

    head, names = linear_head(model), layout_of(model).names
    parts: dict[str, list[str]] = {}
    for name in names:
        if not name.startswith(f"{head}." if head else "\n"):
            parts.setdefault(name.partition(".")[0], []).append(name)
    return list(parts.values())


def _unfit(batch: Batch, state: MethodMemory) -> str:
    if why := whole_frames("Bufr", batch) if len(batch.images) else stream.NO_FRAMES:
        return why
    few = "one frame has no distribution" if len(batch.images) == 1 else ""
    return few if state.pack else "there is no summary of the source to restore"


def soft_counts(values: torch.Tensor, low: torch.Tensor, ranges: torch.Tensor, temperature: float) -> torch.Tensor:
    """Count values [n, units] softly in eight bins over the range of each unit and two beyond it, [units, 10]."""
    import torch

    places = torch.linspace(0, 1, BINS - 1, device=values.device, dtype=values.dtype)
    edges = (low / ranges)[:, None] + places
    shift = torch.cat([torch.zeros_like(edges[:, :1]), -edges.cumsum(dim=1)], dim=1)
    steps = torch.arange(1, BINS + 1, device=values.device, dtype=values.dtype)
    return (((values / ranges)[..., None] * steps + shift) / temperature).softmax(dim=-1).sum(dim=0)


def instability(source: torch.Tensor, now: torch.Tensor) -> torch.Tensor:
    """Return the population stability index of each unit: the divergence both ways, in logarithms of base 10."""
    return divergence(source, now) + divergence(now, source)


def divergence(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return (first * ((first + 1e-8) / (second + 1e-8)).log()).sum(dim=-1) / math.log(BINS)
