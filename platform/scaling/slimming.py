"""The steps of training all widths jointly: the sandwich rule, distillation from the widest, calibration."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase

from driftlab.platform.networks.predict import to_input
from driftlab.platform.networks.pruning.depth import outside_blocks, without_blocks
from driftlab.platform.networks.pruning.surgery import cut, permute, restrict
from driftlab.platform.networks.training.training_loop import Course, epochs
from driftlab.platform.scaling.growing import PruningContext, prefix_of, score_filters

Rows = npt.NDArray[np.int64]
Share = float | Mapping[str, float]  # of all channels, or by group; 0 under the name of a block: without it
Shapes = dict[tuple[tuple[int, ...], tuple[str, ...]], nn.Module]  # by the channels of each group and missing blocks
Draws = Callable[[np.random.Generator], Iterable[Share]]


def train_widths(
    context: PruningContext, draws: Draws, course: Course, begin: nn.Module | None = None, purpose: str = "usnet"
) -> nn.Module:
    """Train a copy of the network at many widths, which share the same weights; `draws` yields those of a step.

    It goes on from `begin`, by default from the original network. `purpose` names the random numbers.
    """
    whole, rng = copy.deepcopy(context.model if begin is None else begin), context.rng(purpose)
    shapes: Shapes = {}

    def learn(rows: Rows) -> None:
        images, labels = to_input(context.data.train.images[rows]), context.data.train.labels[rows]
        teacher_logits: Tensor | None = None
        for share in draws(rng):
            output = _run(context, whole, shapes, share, images.to(next(whole.parameters()).device))
            soft = teacher_logits is not None and labels.dtype != object
            loss = (
                distillation_loss(output, teacher_logits)
                if soft and teacher_logits is not None
                else context.data.task.loss(output, labels)
            )
            if loss is not None:
                torch.autograd.backward(loss)
            teacher_logits = output.detach() if teacher_logits is None else teacher_logits

    for _ in epochs(whole, context.data, course, context.rng(purpose, "order"), learn=learn):
        pass
    return whole.eval()


def sort_channels(context: PruningContext, whole: nn.Module) -> nn.Module:
    """Put the channels with the largest weights first, so that narrow networks begin with them; outputs stay equal."""
    scores = score_filters(context, whole, "l1", ranked_on=1)
    order = {name: each.argsort(descending=True, stable=True) for name, each in scores.items()}
    return permute(whole, context.groups, order)


def draw_widths(keep: tuple[float, ...], widths: int, rng: np.random.Generator) -> Iterator[float]:
    """Yield the widths of one step: the widest first, the narrowest, and some at random."""
    yield keep[0]
    yield keep[-1]
    yield from np.round(rng.uniform(keep[-1], keep[0], widths - 2), 2).tolist()


def distillation_loss(output: Tensor, teacher_logits: Tensor) -> Tensor:
    """Return the loss against the widest network's logits, class by class along dimension 1."""
    return -(teacher_logits.softmax(dim=1) * F.log_softmax(output, dim=1)).sum(dim=1).mean()


def narrowed(context: PruningContext, whole: nn.Module, share: Share) -> nn.Module:
    """Return the first channels of every layer, without the blocks that are left out."""
    return without_blocks(cut(whole, context.groups, prefix_of(context, share)), missing_blocks(share))


def missing_blocks(share: Share) -> tuple[str, ...]:
    """Name the blocks that are left out."""
    return tuple(name for name, part in share.items() if not part) if isinstance(share, Mapping) else ()


def calibrate(context: PruningContext, whole: nn.Module, share: Share, course: Course, batches: int) -> nn.Module:
    """Return the network of one width with statistics measured for it: those of another width do not fit."""
    network = narrowed(context, whole, share)
    norms = [module for module in network.modules() if isinstance(module, _NormBase)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average over the batches
    rows = context.rng("calibration").integers(len(context.data.train), size=(batches, course.batch))
    network.train()
    with torch.no_grad():
        for batch in rows:
            network(to_input(context.data.train.images[batch]).to(next(network.parameters()).device))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return network.eval()


def _run(context: PruningContext, whole: nn.Module, shapes: Shapes, share: Share, images: Tensor) -> Tensor:
    """Run the first channels of every layer; gradients reach the shared weights."""
    keep, missing = prefix_of(context, share), missing_blocks(share)
    shape = tuple(map(len, keep.values())), missing
    if shape not in shapes:
        shapes[shape] = narrowed(context, whole, share).train()
    weights = outside_blocks(restrict(dict(whole.named_parameters()), context.groups, keep), missing)
    output: Tensor = functional_call(shapes[shape], weights, (images,))
    return output
