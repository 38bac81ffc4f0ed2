"""ACE: labelled frames of the source are painted in the device's colours, and the network trains on both.

Differs from the paper: colours are means and deviations of the pixels, where the paper transfers those of features and
decodes a picture; steps are those for small networks; detection is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Le

from driftlab.platform.adaptation import stream
from driftlab.platform.adaptation.base import EMPTY_PACK, Adapted, Batch, Phase
from driftlab.platform.adaptation.memory import MethodMemory
from driftlab.platform.adaptation.walks import LossWalk, Walking
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Weights
from driftlab.platform.networks.tasks.tasks import Answers

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.networks.training.descent import Rule
    from driftlab.platform.networks.training.training_loop import Data
    from driftlab.platform.networks.vector import Flat

Pixels = npt.NDArray[Any]


@dataclass(frozen=True)
class Ace(Walking):
    """Train on labelled source frames in the style of the device's and of past domains."""

    iterations: stream.PhaseSteps = 30
    batch: Annotated[int, Ge(1), Means("frames of a step in a phase", "frames")] = 16
    agreement: Annotated[float, Ge(0), Means("weight of agreement between a frame and its painted copy")] = 10.0
    past: Annotated[float, Ge(0), Le(1), Means("share of the frames that are painted as a past domain")] = 0.5
    source_frames: Annotated[int, Ge(1), Means("labelled frames of the source that are kept", "frames")] = 64

    tasks, packs = ("segmentation", "classification"), True

    def pack(self, model: nn.Module, data: Data) -> Weights:
        """Return a few frames of the source with their labels."""
        if data.task.name not in self.tasks:
            return EMPTY_PACK
        few = data.train.first(self.source_frames)
        return {"image": np.array(few.images), "label": np.array(few.labels)}

    def unfit(self, model: nn.Module, batch: Batch, state: MethodMemory) -> str:
        if not len(batch.images):
            return stream.NO_FRAMES
        if batch.task.name not in self.tasks:
            return f"ACE paints frames with one label or label maps, the task is {batch.task.name}"
        if not state.pack:
            return "there are no frames of the source to paint"
        return "" if self.learns_of(model) else "the network has nothing that learns"

    def learns_of(self, model: nn.Module) -> list[str]:
        from driftlab.platform.networks.vector import layout_of

        return list(layout_of(model).names)

    def begin_walk(self, flat: Flat, state: MethodMemory) -> LossWalk:
        from driftlab.platform.networks.training.descent import Momentum

        return _Painting(self, Momentum(self.learning_rate, self.momentum), flat, state)

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        done = self.walk(model, state, batch, phase)
        if done.skipped or phase.on_stream:
            return done
        style = styles(batch.images).mean(axis=0, keepdims=True)
        known = state.held.get("styles", style[:0])
        return replace(done, state=replace(done.state, held={"styles": np.concatenate([known, style])}))


class _Painting(LossWalk):
    """Steps on painted frames."""

    def __init__(self, member: Ace, rule: Rule, flat: Flat, state: MethodMemory) -> None:
        super().__init__(rule, flat, state)
        self._member, self._pack, self._past = member, state.pack, state.held.get("styles")

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

    def _source(self, batch: Batch, count: int) -> tuple[Pixels, Answers]:
        drawn = batch.rng.integers(len(self._pack["image"]), size=count)
        return self._pack["image"][drawn], self._pack["label"][drawn]

    def _run(self, model: nn.Module, batch: Batch, images: Pixels) -> torch.Tensor:
        outputs: torch.Tensor = model(stream.device_inputs(model, batch.showing(images), np.arange(len(images))))
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
