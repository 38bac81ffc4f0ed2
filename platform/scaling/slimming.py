"""The steps of training all widths jointly: the sandwich rule, distillation from the widest, calibration."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase

from driftlab.platform.networks.predict import to_input
from driftlab.platform.pruning.surgery import cut, restrict
from driftlab.platform.scaling.growing import Ground, prefix_of
from driftlab.platform.training.schooling import Course, epochs

Rows = npt.NDArray[np.int64]


def trained(ground: Ground, keep: tuple[float, ...], widths: int, course: Course) -> nn.Module:
    """Train a copy of the network at many widths, all of which share the same weights."""
    whole, rng = copy.deepcopy(ground.model), ground.rng("usnet")
    shapes: dict[float, nn.Module] = {}

    def learn(rows: Rows) -> None:
        images, labels = to_input(ground.data.train.images[rows]), ground.data.train.labels[rows]
        wisdom: Tensor | None = None
        for share in sandwich(keep, widths, rng):
            output = _run(ground, whole, shapes, share, images.to(next(whole.parameters()).device))
            soft = wisdom is not None and labels.dtype != object
            loss = imitation(output, wisdom) if soft and wisdom is not None else ground.data.task.loss(output, labels)
            if loss is not None:
                torch.autograd.backward(loss)
            wisdom = output.detach() if wisdom is None else wisdom

    for _ in epochs(whole, ground.data, course, ground.rng("usnet", "order"), learn=learn):
        pass
    return whole.eval()


def sandwich(keep: tuple[float, ...], widths: int, rng: np.random.Generator) -> Iterator[float]:
    """Yield the widths of one step: the widest first, the narrowest, and some at random."""
    yield keep[0]
    yield keep[-1]
    yield from np.round(rng.uniform(keep[-1], keep[0], widths - 2), 2).tolist()


def imitation(output: Tensor, wisdom: Tensor) -> Tensor:
    """Return the loss against the widest network's logits, class by class along dimension 1."""
    return -(wisdom.softmax(dim=1) * F.log_softmax(output, dim=1)).sum(dim=1).mean()


def calibrated(ground: Ground, whole: nn.Module, share: float, course: Course, batches: int) -> nn.Module:
    """Return the network of one width with statistics measured for it: those of another width do not fit."""
    network = cut(whole, ground.groups, prefix_of(ground, share))
    norms = [module for module in network.modules() if isinstance(module, _NormBase)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average over the batches
    rows = ground.rng("calibration").integers(len(ground.data.train), size=(batches, course.batch))
    network.train()
    with torch.no_grad():
        for batch in rows:
            network(to_input(ground.data.train.images[batch]).to(next(network.parameters()).device))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return network.eval()


def _run(ground: Ground, whole: nn.Module, shapes: dict[float, nn.Module], share: float, images: Tensor) -> Tensor:
    """Run the first channels of every layer; gradients reach the shared weights."""
    keep = prefix_of(ground, share)
    if share not in shapes:
        shapes[share] = cut(whole, ground.groups, keep).train()
    weights = restrict(dict(whole.named_parameters()), ground.groups, keep)
    output: Tensor = functional_call(shapes[share], weights, (images,))
    return output
