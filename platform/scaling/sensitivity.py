"""Layer sensitivity: the accuracy lost by narrowing one layer.

It also gives the widths at which all layers lose equally.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.networks.pruning.rankings import Ranking
from driftlab.platform.networks.pruning.surgery import cut
from driftlab.platform.networks.training.training_loop import grade
from driftlab.platform.scaling.base import MIN_CHANNELS, width_of
from driftlab.platform.scaling.growing import PruningContext, best_channels, score_filters

Losses = Mapping[str, npt.NDArray[np.float64]]  # by group: accuracy lost with 0, 1, 2, ... channels
MEASURED_WIDTHS = 10  # per group; losses between them are interpolated linearly
TIE_BREAK = 1e-3  # score, over the width of a group: of two groups without loss the wider one is narrowed first


def measure_losses(context: PruningContext, ranking: Ranking, ranked_on: int) -> Losses:
    """Return the validation accuracy lost by narrowing one group of channels, for each width.

    The network is not retrained.
    """
    groups, val = context.groups, context.data.val
    whole, scores = grade(context.model, context.data, val), score_filters(context, context.model, ranking, ranked_on)

    def lost(name: str, width: int) -> float:
        kept = best_channels(torch.arange(groups.sizes[name]), scores[name], width)
        return whole - grade(cut(context.model, groups, {name: kept}), context.data, val)

    return {
        name: loss_curve(size, {width: lost(name, width) for width in measured_widths(size)})
        for name, size in groups.sizes.items()
    }


def measured_widths(size: int) -> list[int]:
    """Return the widths to measure, ascending; the full width loses nothing."""
    return sorted({width_of(size, share) for share in np.linspace(0, 1, MEASURED_WIDTHS + 1)} - {size})


def loss_curve(size: int, lost: dict[int, float]) -> npt.NDArray[np.float64]:
    """Return the loss at every width of a group, interpolated and made monotone: noise never lets it fall."""
    worst = np.maximum.accumulate([0.0, *reversed(lost.values())])[::-1]
    every = np.arange(size + 1)
    return np.interp(every, [*lost, size], worst) + TIE_BREAK * (1 - every / size)


def equally_lossy(context: PruningContext, predicted: Losses, share: float) -> dict[str, float]:
    """Return shares at which all groups lose the same accuracy.

    The cost is that of the network with `share` of each group.

    Numbers of channels are rounded such that no group loses more than the common level.
    """
    sizes = context.groups.sizes
    goal = count_macs(context, {name: width_of(size, share) for name, size in sizes.items()})
    levels = np.unique(np.concatenate([lost[min(MIN_CHANNELS, len(lost) - 1) :] for lost in predicted.values()]))
    first = bisect_left(levels, -goal, key=lambda level: -count_macs(context, narrowest(predicted, level)))
    return {name: width / sizes[name] for name, width in narrowest(predicted, levels[first]).items()}


def narrowest(predicted: Losses, level: float) -> dict[str, int]:
    """Return the narrowest width of each group whose loss is at most a level."""
    return {
        name: max(min(MIN_CHANNELS, len(lost) - 1), int(np.argmax(lost <= level))) for name, lost in predicted.items()
    }


def count_macs(context: PruningContext, widths: Mapping[str, int]) -> int:
    """Return the multiply-accumulates per frame of the network with these widths."""
    network = cut(context.model, context.groups, {name: range(width) for name, width in widths.items()})
    return count_cost(network, *context.data.size).macs
