"""Joint training of all widths: sandwich rule, inplace distillation, calibration.

US-Nets and once-for-all use it.
"""

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
from driftlab.platform.networks.training.training_loop import TrainingSchedule, epochs
from driftlab.platform.scaling.growing import PruningContext, prefix_of, score_filters

Rows = npt.NDArray[np.int64]
Share = float | Mapping[str, float]  # of all channels, or by group; 0 under the name of a block: block removed
Shapes = dict[tuple[tuple[int, ...], tuple[str, ...]], nn.Module]  # by the channels of each group and removed blocks
Draws = Callable[[np.random.Generator], Iterable[Share]]


def train_widths(
    context: PruningContext,
    draws: Draws,
    schedule: TrainingSchedule,
    begin: nn.Module | None = None,
    purpose: str = "usnet",
) -> nn.Module:
    """Train a copy of the network at many widths with shared weights; `draws` yields the widths of a step.

    Training starts from `begin`, by default the original network. `purpose` names the random numbers.
    """
    whole, rng = copy.deepcopy(context.model if begin is None else begin), context.rng(purpose)
    shapes: Shapes = {}

    def learn(rows: Rows) -> None:
        images, labels = to_input(context.data.train.images[rows]), context.data.train.labels[rows]
        teacher_logits: Tensor | None = None
        for share in draws(rng):
            output = _run_narrow(context, whole, shapes, share, images.to(next(whole.parameters()).device))
            loss = (
                distillation_loss(output, teacher_logits)
                if teacher_logits is not None and labels.dtype != object
                else context.data.task.loss(output, labels)
            )
            if loss is not None:
                torch.autograd.backward(loss)
            teacher_logits = output.detach() if teacher_logits is None else teacher_logits

    for _ in epochs(whole, context.data, schedule, context.rng(purpose, "order"), learn=learn):
        pass
    return whole.eval()


def sort_channels(context: PruningContext, whole: nn.Module) -> nn.Module:
    """Sort channels by L1 norm, descending, so that narrow networks keep the largest; outputs stay equal."""
    scores = score_filters(context, whole, "l1", ranked_on=1)
    order = {name: each.argsort(descending=True, stable=True) for name, each in scores.items()}
    return permute(whole, context.groups, order)


def draw_widths(keep: tuple[float, ...], widths: int, rng: np.random.Generator) -> Iterator[float]:
    """Yield the widths of one step by the sandwich rule.

    The widest comes first, then the narrowest, then random ones between.
    """
    yield keep[0]
    yield keep[-1]
    yield from np.round(rng.uniform(keep[-1], keep[0], widths - 2), 2).tolist()


def distillation_loss(output: Tensor, teacher_logits: Tensor) -> Tensor:
    """Return the cross-entropy with the teacher's softmax over dimension 1 (inplace distillation)."""
    return -(teacher_logits.softmax(dim=1) * F.log_softmax(output, dim=1)).sum(dim=1).mean()


def narrow(context: PruningContext, whole: nn.Module, share: Share) -> nn.Module:
    """Return the network of the first channels of every layer, without removed blocks."""
    return without_blocks(cut(whole, context.groups, prefix_of(context, share)), missing_blocks(share))


def missing_blocks(share: Share) -> tuple[str, ...]:
    """Return the names of removed blocks."""
    return tuple(name for name, part in share.items() if not part) if isinstance(share, Mapping) else ()


def calibrate(
    context: PruningContext, whole: nn.Module, share: Share, schedule: TrainingSchedule, batches: int
) -> nn.Module:
    """Return the network of one width with its own batch-norm statistics: they differ between widths."""
    network = narrow(context, whole, share)
    norms = [module for module in network.modules() if isinstance(module, _NormBase)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # plain average over batches
    rows = context.rng("calibration").integers(len(context.data.train), size=(batches, schedule.batch))
    network.train()
    with torch.no_grad():
        for batch in rows:
            network(to_input(context.data.train.images[batch]).to(next(network.parameters()).device))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return network.eval()


def _run_narrow(context: PruningContext, whole: nn.Module, shapes: Shapes, share: Share, images: Tensor) -> Tensor:
    """Run the narrow network; gradients flow into the shared weights."""
    keep, missing = prefix_of(context, share), missing_blocks(share)
    shape = tuple(map(len, keep.values())), missing
    if shape not in shapes:
        shapes[shape] = narrow(context, whole, share).train()
    weights = outside_blocks(restrict(dict(whole.named_parameters()), context.groups, keep), missing)
    output: Tensor = functional_call(shapes[shape], weights, (images,))
    return output
