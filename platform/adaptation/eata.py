"""EATA: Tent on frames that are sure and unlike those before them, with important weights held near the source.

Without a summary of the source nothing holds the weights, which is the method ETA.

Differs from the paper: thresholds and rates are those for ten classes; in segmentation a sample is a pixel; a batch of
which nothing is fit makes no step, where an optimiser with momentum would go on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Le

from driftlab.platform.adaptation.base import EMPTY_PACK
from driftlab.platform.adaptation.memory import Remembering, own_arrays
from driftlab.platform.adaptation.scales import OfScales, Steps, samples_of, scales_and_shifts, without_entropy
from driftlab.platform.adaptation.stream import Rows, entropies
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Weights

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.networks.training.training_loop import Data


@dataclass(frozen=True)
class Eata(OfScales, Remembering):
    """Minimise the entropy of sure and new samples; Fisher information holds what the source needs."""

    threshold: Annotated[float, Gt(0), Le(1), Means("entropy of a sure sample, as a share of the largest one")] = 0.4
    likeness: Annotated[
        float, Gt(0), Le(1), Means("cosine to the mean prediction from which a sample is nothing new")
    ] = 0.4
    beta: Annotated[float, Ge(0), Means("weight of the pull to the source")] = 1.0
    fisher_frames: Annotated[int, Ge(0), Means("frames of the source for the Fisher information", "frames")] = 2000
    fisher_batch: Annotated[int, Ge(2), Means("frames of one of its gradients", "frames")] = 64

    tasks, packs = ("segmentation", "classification"), True

    def pack(self, model: nn.Module, data: Data) -> Weights:
        """Return the Fisher information of scales and shifts: the mean squared gradient on its own answers."""
        from driftlab.platform.networks.module_utils import batch_norms, normalise_by_batch

        images = data.train.images[: self.fisher_frames]
        if without_entropy(data.task) or not batch_norms(model) or not len(images):
            return EMPTY_PACK
        parameters = {name: model.get_parameter(name) for name in scales_and_shifts(model)}
        with normalise_by_batch(model, keeps=False):
            parts = np.array_split(np.arange(len(images)), math.ceil(len(images) / self.fisher_batch))
            squares = [_squared_gradients(model, parameters, images[rows], data) for rows in parts]
        return own_arrays({name: sum(part[name] for part in squares) / len(squares) for name in parameters})

    def lesson(self, steps: Steps, rows: Rows) -> None:
        import torch

        outputs = samples_of(steps.outputs(rows))
        entropy, shares = entropies(outputs), outputs.detach().softmax(dim=1)
        limit = self.threshold * math.log(outputs.shape[1])
        fit = entropy.detach() < limit
        mean = steps.held.get("mean")
        if mean is not None:
            fit &= torch.cosine_similarity(shares, mean[None], dim=1).abs() < self.likeness
        if not steps.judge(fit):
            return
        newest = shares[fit].mean(dim=0)
        steps.held["mean"] = newest if mean is None else 0.9 * mean + 0.1 * newest
        chosen = entropy[fit]
        steps.learn(((limit - chosen.detach()).exp() * chosen).mean() + self._pull(steps), rows)

    def _pull(self, steps: Steps) -> Any:
        """Return the weighted squared distance from the source."""
        import torch

        total: Any = 0.0
        for name, importance in steps.pack.items():
            if name in steps.flat.layout.spans:  # in a network of another width only what it has
                value = steps.model.get_parameter(name)
                there, weight = (torch.tensor(each, device=value.device) for each in (steps.source[name], importance))
                total = total + (weight * (value - there) ** 2).sum()
        return self.beta * total


def _squared_gradients(
    model: nn.Module, parameters: dict[str, nn.Parameter], images: Any, data: Data
) -> dict[str, torch.Tensor]:
    """Return the squared gradients of the loss when the network's own answers are taken as labels."""
    import torch

    from driftlab.platform.networks.predict import device_of, to_input

    outputs = model(to_input(images).to(device_of(model)))
    loss = data.task.loss(outputs, data.task.answers(outputs.detach(), *data.size))
    assert loss is not None
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, materialize_grads=True)
    return {name: found**2 for name, found in zip(parameters, gradients, strict=True)}
