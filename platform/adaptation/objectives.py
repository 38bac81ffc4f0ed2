"""Objectives of members, as functions of outputs: losses, sample selection, feature distances."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from driftlab.platform.adaptation.batches import scales_and_shifts, without_entropy
from driftlab.platform.adaptation.memory import own_arrays
from driftlab.platform.core.records import Weights

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.adaptation.run import LearningRun
    from driftlab.platform.networks.training.training_loop import DataSplits

KERNELS = 5


def samples_of(outputs: torch.Tensor) -> torch.Tensor:
    """Arrange outputs as [samples, classes]: a sample is a frame, or a pixel."""
    return outputs.movedim(1, -1).flatten(0, -2)


def entropies(outputs: torch.Tensor) -> torch.Tensor:
    """Return the entropy of each output in nats: per frame, or per pixel."""
    logs = outputs.log_softmax(dim=1)  # p * log(p) would be NaN where a probability is 0
    return -(logs.exp() * logs).sum(dim=1)


def entropy_limit(outputs: torch.Tensor, share: float) -> float:
    """Return a share of the largest entropy that outputs can have."""
    return share * math.log(outputs.shape[1])


def cross_entropy(outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of each sample with a distribution over the classes."""
    return -(target * outputs.log_softmax(dim=1)).sum(dim=1)


def information(outputs: torch.Tensor, div_weight: float = 1.0) -> torch.Tensor:
    """Return the negative mutual information: mean entropy minus the entropy of the mean prediction."""
    import torch

    shares = torch.logsumexp(outputs.log_softmax(dim=1), dim=0) - math.log(len(outputs))
    diversity = -(shares.exp() * shares).sum()
    return entropies(outputs).mean() - div_weight * diversity


def fisher_information(model: nn.Module, data: DataSplits, frames: int, batch: int) -> Weights:
    """Return the mean squared gradient of scales and shifts, on predicted labels of source frames."""
    from driftlab.platform.networks.module_utils import normalise_by_batch

    images = data.train.images[:frames]
    parameters = {name: model.get_parameter(name) for name in scales_and_shifts(model)}
    if without_entropy(data.task) or not parameters or not len(images):
        return {}
    with normalise_by_batch(model, keeps=False):
        parts = np.array_split(np.arange(len(images)), math.ceil(len(images) / batch))
        squares = [_squared_gradients(model, parameters, images[rows], data) for rows in parts]
    return own_arrays({name: sum(part[name] for part in squares) / len(squares) for name in parameters})


def _squared_gradients(
    model: nn.Module, parameters: dict[str, nn.Parameter], images: Any, data: DataSplits
) -> dict[str, torch.Tensor]:
    import torch

    from driftlab.platform.networks.predict import device_of, to_input

    outputs = model(to_input(images).to(device_of(model)))
    loss = data.task.loss(outputs, data.task.predictions(outputs.detach(), *data.size))
    assert loss is not None
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, materialize_grads=True)
    return {name: found**2 for name, found in zip(parameters, gradients, strict=True)}


def source_distance(run: LearningRun) -> Any:
    """Return the squared distance of the weights from the source, each times its importance."""
    total: Any = 0.0
    for name in run.pack:
        if name in run.parameters:  # a network of another width has only some
            away = run.parameters[name] - run.source(name)
            total = total + (run.packed(name) * away**2).sum()
    return total


def mean_discrepancy(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the squared maximum mean discrepancy under a sum of five Gaussians whose widths double."""
    import torch

    both = torch.cat([source, target])
    away = (both[:, None] - both[None]).square().sum(dim=2)
    count = len(both)
    width = (away.detach().sum() / (count**2 - count) / 2 ** (KERNELS // 2)).clamp_min(1e-30)
    alike = sum(((-away / (width * 2**step)).exp() for step in range(KERNELS)), torch.zeros_like(away))
    first = len(source)
    same = alike[:first, :first].mean() + alike[first:, first:].mean()
    return same - alike[:first, first:].mean() - alike[first:, :first].mean()


def covariance_distance(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the CORAL distance: of covariances, squared, over four times the squared feature count."""
    return (source.T.cov() - target.T.cov()).square().sum() / (4 * source.shape[1] ** 2)
