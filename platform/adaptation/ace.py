"""ACE: labelled frames of the source are painted in the device's colours, and the network trains on both.

Differs from the paper: colours are means and deviations of the pixels, where the paper transfers those of features and
decodes a picture; steps are those for small networks; detection is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Ge

from driftlab.platform.adaptation.base import EMPTY_PACK, Batch
from driftlab.platform.adaptation.batches import NO_FRAMES, PhaseSteps, Rows
from driftlab.platform.adaptation.learn import LossDescent
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Weights

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.adaptation.run import LearningRun
    from driftlab.platform.networks.training.training_loop import DataSplits

Pixels = npt.NDArray[Any]
SOURCE_FRAMES = 64  # labelled frames of the source that the device stores; ours
PAST_STYLE_PROB = 0.5  # probability that a frame takes the style of a past domain, not of the present one
CONSISTENCY_WEIGHT = 10.0  # of the KL divergence beside the task's loss, both in nats


@dataclass(frozen=True)
class Ace(LossDescent):
    """Train on labelled source frames in the style of the device's and of past domains."""

    iterations: PhaseSteps = 30
    batch: Annotated[int, Ge(1), Means("frames of a step in a phase", "frames")] = 16

    tasks, has_source_summary = ("segmentation", "classification"), True

    def summarise_source(self, model: nn.Module, data: DataSplits) -> Weights:
        """Return a few frames of the source with their labels."""
        if data.task.name not in self.tasks:
            return EMPTY_PACK
        few = data.train.first(SOURCE_FRAMES)
        return {"image": np.array(few.images), "label": np.array(few.labels)}

    def reject_reason(self, model: nn.Module, batch: Batch, state: Any) -> str:
        if not len(batch.images):
            return NO_FRAMES
        if batch.task.name not in self.tasks:
            return f"ACE paints frames with one label or label maps, the task is {batch.task.name}"
        if not state.pack:
            return "there are no frames of the source to paint"
        return "" if self.scope(model) else "the network has nothing that learns"

    def scope(self, model: nn.Module) -> list[str]:
        from driftlab.platform.networks.vector import layout_of

        return list(layout_of(model).names)

    def loss(self, run: LearningRun, rows: Rows) -> torch.Tensor:
        """Return the loss of labelled frames, of painted ones, and of where their predictions differ."""
        from torch.nn import functional as F

        batch, past = run.batch, run.held.get("styles")
        drawn = batch.rng.integers(len(run.pack["image"]), size=len(rows))
        images, labels = run.pack["image"][drawn], run.pack["label"][drawn]
        wanted = styles(batch.images[rows])
        if past is not None:
            old = batch.rng.random(len(rows)) < PAST_STYLE_PROB
            wanted[old] = past[batch.rng.integers(len(past), size=int(old.sum()))]
        plain, painted = (run.outputs_of(run.inputs_of(each)) for each in (images, paint(images, wanted)))
        taught = [found for each in (plain, painted) if (found := batch.task.loss(each, labels)) is not None]
        target = plain.detach().log_softmax(dim=1)
        apart = F.kl_div(painted.log_softmax(dim=1), target, log_target=True, reduction="none").sum(dim=1).mean()
        total: torch.Tensor = CONSISTENCY_WEIGHT * apart
        return total + sum(taught[1:], taught[0]) if taught else total

    def end(self, run: LearningRun) -> None:
        """Remember the style of a phase as that of a past domain."""
        if not run.phase.on_stream:
            style = styles(run.batch.images).mean(axis=0, keepdims=True)
            run.held["styles"] = np.concatenate([run.held.get("styles", style[:0]), style])


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
