"""ACE (ICCV 2019): trains on labelled source frames and on copies in the style of device frames.

Differs from the paper: styles are means and deviations of the pixels, where the paper transfers those of features and
decodes an image; steps suit small networks; detection is left out.
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
CONSISTENCY_WEIGHT = 10.0  # of the KL divergence relative to the task's loss, both in nats


@dataclass(frozen=True)
class Ace(LossDescent):
    """Train on labelled source frames in the style of device frames and of past domains."""

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
            return f"ACE restyles frames with one label or label maps, the task is {batch.task.name}"
        if not state.pack:
            return "there are no frames of the source to restyle"
        return "" if self.scope(model) else "the network has nothing that learns"

    def scope(self, model: nn.Module) -> list[str]:
        from driftlab.platform.networks.vector import layout_of

        return list(layout_of(model).names)

    def loss(self, run: LearningRun, rows: Rows) -> torch.Tensor:
        """Return the loss of labelled frames and of restyled ones, and the divergence of their predictions."""
        from torch.nn import functional as F

        batch, past = run.batch, run.held.get("styles")
        drawn = batch.rng.integers(len(run.pack["image"]), size=len(rows))
        images, labels = run.pack["image"][drawn], run.pack["label"][drawn]
        targets = styles(batch.images[rows])
        if past is not None:
            old = batch.rng.random(len(rows)) < PAST_STYLE_PROB
            targets[old] = past[batch.rng.integers(len(past), size=int(old.sum()))]
        plain, restyled = (run.outputs_of(run.inputs_of(each)) for each in (images, restyle(images, targets)))
        taught = [found for each in (plain, restyled) if (found := batch.task.loss(each, labels)) is not None]
        target = plain.detach().log_softmax(dim=1)
        apart = F.kl_div(restyled.log_softmax(dim=1), target, log_target=True, reduction="none").sum(dim=1).mean()
        total: torch.Tensor = CONSISTENCY_WEIGHT * apart
        return total + sum(taught[1:], taught[0]) if taught else total

    def end(self, run: LearningRun) -> None:
        """Store the style of a phase as that of a past domain."""
        if not run.phase.on_stream:
            style = styles(run.batch.images).mean(axis=0, keepdims=True)
            run.held["styles"] = np.concatenate([run.held.get("styles", style[:0]), style])


def styles(images: Pixels) -> Pixels:
    """Return mean and deviation of each channel of each frame, [n, 2, 3]."""
    pixels = images.reshape(len(images), -1, 3).astype(np.float64)
    return np.stack([pixels.mean(axis=1), pixels.std(axis=1)], axis=1)


def restyle(images: Pixels, targets: Pixels) -> Pixels:
    """Return frames with the means and deviations of others, clipped to the range of a pixel."""
    own = styles(images)
    mean, spread = (own[:, which, None, None] for which in (0, 1))
    pixels = (images - mean) / (spread + 1e-5) * targets[:, 1, None, None] + targets[:, 0, None, None]
    return np.clip(pixels, 0, 255)
