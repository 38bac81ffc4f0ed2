"""NestDNN's roadmap (Section 3.1), freeze-&-grow (Section 3.2), and steps on channels.

Several members share the steps.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from driftlab.errors import RequestError
from driftlab.platform.core.seeding import rng_for
from driftlab.platform.networks.pruning.family import Family, Widths, merge_networks
from driftlab.platform.networks.pruning.ranking import Scores, rank
from driftlab.platform.networks.pruning.rankings import Ranking
from driftlab.platform.networks.pruning.surgery import Groups, cut, expand, lift, mask, permute, restrict, silence
from driftlab.platform.networks.training.training_loop import DataSplits, grade
from driftlab.platform.networks.vector import layout_of
from driftlab.platform.scaling.base import width_of

Kept = Mapping[str, Tensor]  # by group: the kept original channels, ascending
Order = Mapping[str, Tensor]  # by group: all original channels, those of the seed model first
Marks = Mapping[str, Tensor]  # by tensor: a boolean per number
Initial = Literal["preserve", "footprint", "scratch"]
BatchNorm = Literal["private", "shared_frozen"]


@dataclass(frozen=True, eq=False)
class PruningContext:
    """The input of every step: the original network, its groups of channels, and the training data."""

    model: nn.Module
    groups: Groups
    data: DataSplits

    def __post_init__(self) -> None:
        """Refuse a network without prunable channels: all its sizes would be equal."""
        if not self.groups.sizes:
            reasons = "; ".join(f"{layer}: {why}" for layer, why in self.groups.fixed.items())
            raise RequestError(
                f"{type(self.model).__name__} has no prunable channels ({reasons or 'it has no channels'}). "
                "Use another network or scaling 'fixed'."
            )

    def rng(self, *purpose: str | int) -> np.random.Generator:
        return rng_for(self.data.seed, "scaling", *purpose)


# Widths ---------------------------------------------------------------------------------------------------------------


def prefix_of(context: PruningContext, share: float | Mapping[str, float]) -> dict[str, range]:
    """Return the first channels of every group: one share for all groups, or a share per group."""
    shares = share if isinstance(share, Mapping) else dict.fromkeys(context.groups.sizes, share)
    return {name: range(width_of(size, shares[name])) for name, size in context.groups.sizes.items()}


def drop_equal_shares(context: PruningContext, shares: Sequence[float]) -> list[float]:
    """Drop all but one of the shares that round to the same numbers of channels.

    They give the same network.
    """
    return list({tuple(prefix_of(context, share).items()): share for share in shares}.values())


def untrained_narrow(context: PruningContext, prefix: Mapping[str, range]) -> nn.Module:
    """Return an untrained network with these channels."""
    network = cut(context.model, context.groups, prefix)
    for module in network.modules():
        reset: Any = getattr(module, "reset_parameters", None)
        if reset is not None:
            reset()
    return network


def tensor_names(model: nn.Module) -> set[str]:
    """Return the names of all parameters and buffers."""
    return {name for name, _ in (*model.named_parameters(), *model.named_buffers())}


def merge_measured(
    context: PruningContext, shares: Sequence[float], networks: Sequence[nn.Module], *, own: set[str]
) -> Family:
    """Merge networks with these shares, from the smallest on, into a family, and measure each."""
    widths = {name: tuple(width_of(size, share) for share in shares) for name, size in context.groups.sizes.items()}
    return measure_accuracies(
        merge_networks(context.model, context.groups, widths, networks, own=own), context, networks
    )


def measure_accuracies(family: Family, context: PruningContext, networks: Sequence[nn.Module]) -> Family:
    """Return the family with the validation and test accuracy of each network."""
    val_accuracies, test_accuracies = (
        tuple(grade(network, context.data, split) for network in networks)
        for split in (context.data.val, context.data.test)
    )
    return replace(family, val_accuracies=val_accuracies, test_accuracies=test_accuracies)


# NestDNN, Section 3.1: filter importance ranking and the filter pruning roadmap ---------------------------------------


@dataclass(frozen=True, eq=False)
class Footprint:
    """A pruned model of the roadmap with its filter pruning record."""

    kept: Kept
    network: nn.Module

    @property
    def widths(self) -> dict[str, int]:
        return {name: len(channels) for name, channels in self.kept.items()}

    @property
    def prefix(self) -> dict[str, range]:
        """Return the positions of its channels in nested order."""
        return {name: range(width) for name, width in self.widths.items()}


def start_footprint(context: PruningContext) -> Footprint:
    """Return the vanilla model as a footprint."""
    return Footprint({name: torch.arange(size) for name, size in context.groups.sizes.items()}, context.model)


def prune(
    context: PruningContext, footprint: Footprint, shares: Mapping[str, float], ranking: Ranking, ranked_on: int
) -> Footprint:
    """Keep the highest-ranked filters of each group; a share counts filters of the vanilla model."""
    model, groups = context.model, context.groups
    # Ranked at full width, where pruned channels are zero: scores and kept channels have the vanilla numbering.
    whole = mask(expand(footprint.network, model, groups, footprint.kept), groups, footprint.kept)
    scores = score_filters(context, whole, ranking, ranked_on)
    kept = {
        name: best_channels(channels, scores[name][channels], width_of(groups.sizes[name], shares[name]))
        for name, channels in footprint.kept.items()
    }
    return Footprint(kept, cut(whole, groups, kept))


def score_filters(context: PruningContext, whole: nn.Module, ranking: Ranking, ranked_on: int) -> Scores:
    """Score the filters of a network of full width on the first frames of the training data (TRR: Eq. 1)."""
    frames = context.data.train.first(ranked_on)
    return rank(whole, context.groups, ranking, images=frames.images, labels=frames.labels, rng=context.rng("rank"))


def best_channels(channels: Tensor, scores: Tensor, count: int) -> Tensor:
    """Return the channels with the highest scores, ascending; of equal scores the first."""
    return channels[scores.argsort(descending=True, stable=True)[:count]].sort().values


# NestDNN, Section 3.2: model freezing and filter growing --------------------------------------------------------------


def nested_order(groups: Groups, roadmap: Sequence[Footprint]) -> Order:
    """Return the channels in the order of growing.

    The seed model's channels come first, then those added by each footprint.
    """
    order = {}
    for name, size in groups.sizes.items():
        nests = [*(footprint.kept[name].tolist() for footprint in reversed(roadmap)), range(size)]
        order[name] = torch.tensor(list(dict.fromkeys(channel for nest in nests for channel in nest)))
    return order


def reorder_nested(context: PruningContext, footprint: Footprint, order: Order) -> nn.Module:
    """Return a footprint's network with its channels in nested order."""
    return cut(expand_nested(context, footprint, order), context.groups, footprint.prefix)


def expand_nested(context: PruningContext, footprint: Footprint, order: Order) -> nn.Module:
    """Return a footprint's network at full width, in nested order."""
    return permute(expand(footprint.network, context.model, context.groups, footprint.kept), context.groups, order)


def expand_untrained(context: PruningContext, footprint: Footprint, _: Order) -> nn.Module:
    """Return an untrained network of a footprint's width at full width; the order does not matter."""
    return expand(untrained_narrow(context, footprint.prefix), context.model, context.groups, footprint.prefix)


@dataclass(frozen=True, eq=False)
class Growth:
    """The choices of filter growing that the paper leaves open."""

    around: Callable[[PruningContext, Footprint, Order], nn.Module]  # the network that grown filters are taken from
    closed: Groups  # reads of grown filters by frozen ones that stay zero
    unread: Groups  # reads of grown filters by frozen ones that start at zero
    own: set[str]  # tensors that every descendant stores separately


def plan_growth(context: PruningContext, initial: Initial, batch_norm: BatchNorm, *, causal: bool) -> Growth:
    """Return how to grow.

    With `preserve`, weights from grown to frozen filters are zero at first, so that outputs stay.
    """
    groups, model = context.groups, context.model
    around = {"preserve": expand_nested, "footprint": expand_nested, "scratch": expand_untrained}
    shared = {name for name, tensor in model.named_parameters() if tensor.dim() > 1}
    private = tensor_names(model) - shared  # one number per channel, and every statistic
    own = {"private": private, "shared_frozen": private - groups.dims.keys()}
    closed = filter_reads_only(groups) if causal else replace(groups, reads=frozenset())
    return Growth(around[initial], closed, groups if initial == "preserve" else closed, own[batch_norm])


def filter_reads_only(groups: Groups) -> Groups:
    """Return the groups with reads by filters only.

    Layers that make no channels, such as classifiers, are left out.
    """
    filters = {name for name, dim in groups.axes if (name, dim) not in groups.reads}
    return replace(groups, reads=frozenset((name, dim) for name, dim in groups.reads if name in filters))


def grow(
    context: PruningContext, how: Growth, descendant: nn.Module, smaller: Footprint, larger: Footprint, order: Order
) -> nn.Module:
    """Add the filters of the larger footprint's pruning record back around a descendant."""
    whole = expand(descendant, how.around(context, larger, order), context.groups, smaller.prefix)
    return cut(mask(whole, how.unread, smaller.prefix), context.groups, larger.prefix)


def mark_finished(context: PruningContext, how: Growth, smaller: Footprint, larger: Footprint) -> Marks:
    """Mark the frozen numbers of a grown descendant: those shared with the smaller one, and closed reads."""
    groups = context.groups
    tensors = (*context.model.named_parameters(), *context.model.named_buffers())
    marks = {name: torch.ones(tensor.shape, dtype=torch.bool) for name, tensor in tensors if name not in how.own}
    old = restrict(lift(restrict(marks, groups, smaller.prefix), groups, smaller.prefix), groups, larger.prefix)
    free = restrict(silence(marks, how.closed, smaller.prefix), groups, larger.prefix)
    return {name: old[name] | ~free[name] for name in marks}


def new_coordinates(descendant: nn.Module, frozen: Marks) -> npt.NDArray[np.bool_]:
    """Mark the trainable coordinates of a grown descendant: all that are not frozen."""
    layout = layout_of(descendant)
    trainable = np.ones(layout.size, dtype=bool)
    for name in frozen.keys() & layout.spans.keys():
        trainable[layout.spans[name]] = ~frozen[name].reshape(-1).numpy()
    return trainable


@contextmanager
def fixed_statistics(descendant: nn.Module, frozen: Marks) -> Iterator[None]:
    """While a descendant trains, normalise its frozen channels by their stored statistics."""
    modules = descendant.named_modules()
    norms = {module: frozen[f"{name}.running_mean"] for name, module in modules if f"{name}.running_mean" in frozen}
    before = {norm: copy.deepcopy(norm).eval().requires_grad_(requires_grad=False) for norm in norms}

    def keep_frozen(norm: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        old = norms[norm].to(output.device).view(-1, *(1,) * (output.dim() - 2))
        return torch.where(old, before[norm](*inputs), output)

    hooks = [norm.register_forward_hook(keep_frozen) for norm in norms]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for norm, old in norms.items():
            for name in ("running_mean", "running_var"):
                norm.get_buffer(name)[old] = before[norm].get_buffer(name)[old]


def store_descendants(
    context: PruningContext, how: Growth, roadmap: Sequence[Footprint], descendants: Sequence[nn.Module]
) -> Family:
    """Store the descendants, from the seed model on, as one multi-capacity model, and measure each."""
    footprints = roadmap[::-1]
    widths: Widths = {name: tuple(each.widths[name] for each in footprints) for name in context.groups.sizes}
    return measure_accuracies(
        merge_networks(context.model, context.groups, widths, descendants, own=how.own), context, descendants
    )
