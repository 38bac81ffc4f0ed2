"""ACE: labelled frames of the source are painted in the device's colours, and the network trains on both.

Differs from the paper: colours are means and deviations of the pixels, where the paper transfers those of features and
decodes a picture; steps are those for small networks; detection is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Le, Lt

from driftlab.platform.adaptation import stream
from driftlab.platform.adaptation.base import EMPTY_PACK, Adapted, Batch, Phase
from driftlab.platform.adaptation.memory import MethodMemory, Remembering
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Passes, Weights
from driftlab.platform.tasks.tasks import Answers

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.networks.vector import Flat
    from driftlab.platform.training.schooling import Data

Pixels = npt.NDArray[Any]


@dataclass(frozen=True)
class Ace(Remembering):
    """Train on labelled source frames in the style of the device's and of past domains."""

    iterations: Annotated[int, Ge(1), Means("steps of a phase")] = 30
    batch: Annotated[int, Ge(1), Means("frames of a step in a phase", "frames")] = 16
    learning_rate: Annotated[float, Ge(0), Le(10), Means("step size")] = 1e-3
    momentum: Annotated[float, Ge(0), Lt(1), Means("momentum of the steps")] = 0.9
    agreement: Annotated[float, Ge(0), Means("weight of agreement between a frame and its painted copy")] = 10.0
    past: Annotated[float, Ge(0), Le(1), Means("share of the frames that are painted as a past domain")] = 0.5
    source_frames: Annotated[int, Ge(1), Means("labelled frames of the source that are kept", "frames")] = 64
    bn_momentum: Annotated[
        float, Ge(0), Le(1), Means("weight of the newest batch in the statistics of batch norms")
    ] = 0.1

    tasks, packs = ("segmentation", "classification"), True

    def changes(self, model: nn.Module) -> list[str]:
        return list(model.state_dict())

    def pack(self, model: nn.Module, data: Data) -> Weights:
        """Return a few frames of the source with their labels."""
        if data.task.name not in self.tasks:
            return EMPTY_PACK
        few = data.train.first(self.source_frames)
        return {"image": np.array(few.images), "label": np.array(few.labels)}

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        from driftlab.platform.networks.vector import layout_of

        if why := _unfit(batch, state) or ("" if layout_of(model).size else "the network has nothing that learns"):
            return Adapted(state, skipped=why, work=Passes())
        lessons = list(stream.mini_batches(batch, phase, self.batch, self.iterations))
        if not lessons:
            return Adapted(state, skipped=stream.NO_STEPS, work=Passes())
        model.eval()
        return self._learn(model, state, batch, lessons, on_stream=phase.on_stream)

    def _learn(
        self, model: nn.Module, state: MethodMemory, batch: Batch, lessons: list[stream.Rows], *, on_stream: bool
    ) -> Adapted:
        from driftlab.platform.networks.parts import copy_entries, record_layers, restore_entries
        from driftlab.platform.networks.vector import layout_of

        before, names, done = copy_entries(model, state.source), layout_of(model).names, stream.WorkLog()
        learning = stream.part_learning(model, names, keeps=True, momentum=self.bn_momentum)
        with record_layers(model) as ran, learning as (flat, passed):
            walk = _Walk(self, flat, state if on_stream else replace(state, moments=()))
            stream.descend(lessons, lambda rows: walk.loss(model, batch, rows, done), walk.step, done)
            after = replace(state, moments=walk.moments(), steps=state.steps + len(lessons))
        work = done.passes(after, stream.owners_of(names, ran))
        if why := stream.invalid_reason(model, after, passed, done):
            restore_entries(model, before)
            return Adapted(state, skipped=why, work=work)
        if not on_stream:
            style = styles(batch.images).mean(axis=0, keepdims=True)
            known = state.held.get("styles", style[:0])
            after = replace(after, moments=(), held={"styles": np.concatenate([known, style])})
        changed = np.ones(flat.layout.size, dtype=bool)
        return Adapted(after, len(done.losses), tuple(done.losses), changed, work=work)


class _Walk:
    """The steps of one call."""

    def __init__(self, member: Ace, flat: Flat, state: MethodMemory) -> None:
        from driftlab.platform.training.descent import Descent, Momentum

        self._member, self._flat, self._pack, self._past = member, flat, state.pack, state.held.get("styles")
        moments = stream.flatten_moments(state.moments, flat.layout, 1)
        self._descent = Descent(Momentum(member.learning_rate, member.momentum), flat.weights, moments, 0)

    def loss(self, model: nn.Module, batch: Batch, rows: stream.Rows, done: stream.WorkLog) -> torch.Tensor:
        """Return the loss of labelled frames, of painted ones, and of where their predictions differ."""
        from torch.nn import functional as F

        images, labels = self._source(batch, len(rows))
        wanted = styles(batch.images[rows])
        if self._past is not None:
            old = batch.rng.random(len(rows)) < self._member.past
            wanted[old] = self._past[batch.rng.integers(len(self._past), size=int(old.sum()))]
        plain, painted = (self._run(model, batch, each) for each in (images, paint(images, wanted)))
        done.forward.append(len(rows))
        done.backward.append(len(rows))
        taught = [found for each in (plain, painted) if (found := batch.task.loss(each, labels)) is not None]
        target = plain.detach().log_softmax(dim=1)
        apart = F.kl_div(painted.log_softmax(dim=1), target, log_target=True, reduction="none").sum(dim=1).mean()
        total: torch.Tensor = self._member.agreement * apart
        return total + sum(taught[1:], taught[0]) if taught else total

    def step(self) -> None:
        self._descent.step(self._flat.gradients)
        self._flat.gradients.zero_()

    def moments(self) -> tuple[Weights, ...]:
        return stream.split_by_name(self._descent.moments(), self._flat.layout)

    def _source(self, batch: Batch, count: int) -> tuple[Pixels, Answers]:
        drawn = batch.rng.integers(len(self._pack["image"]), size=count)
        return self._pack["image"][drawn], self._pack["label"][drawn]

    def _run(self, model: nn.Module, batch: Batch, images: Pixels) -> torch.Tensor:
        outputs: torch.Tensor = model(
            stream.device_inputs(model, replace(batch, images=images), np.arange(len(images)))
        )
        return outputs


def styles(images: Pixels) -> Pixels:
    """Return mean and deviation of each channel of each frame, [n, 2, 3]."""
    pixels = images.reshape(len(images), -1, 3).astype(np.float64)
    return np.stack([pixels.mean(axis=1), pixels.std(axis=1)], axis=1)


def paint(images: Pixels, wanted: Pixels) -> Pixels:
    """Give frames the means and deviations of others, within what a pixel can hold."""
    own = styles(images)
    mean, spread = (own[:, which, None, None] for which in (0, 1))
    pixels = (images - mean) / (spread + 1e-5) * wanted[:, 1, None, None] + wanted[:, 0, None, None]
    return np.clip(pixels, 0, 255)


def _unfit(batch: Batch, state: MethodMemory) -> str:
    if not len(batch.images):
        return stream.NO_FRAMES
    if batch.task.name not in Ace.tasks:
        return f"Ace paints frames with one label or label maps, the task is {batch.task.name}"
    return "" if state.pack else "there are no frames of the source to paint"
