"""The steps of pruning and growing: the kept filters, their nested order, and the filters put back around them."""

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
from driftlab.platform.networks.training.training_loop import Data, grade
from driftlab.platform.networks.vector import layout_of
from driftlab.platform.scaling.base import width_of

Kept = Mapping[str, Tensor]  # by group: the kept original channels, ascending
Order = Mapping[str, Tensor]  # by group: all original channels, those of the seed first
Marks = Mapping[str, Tensor]  # by tensor: marks of its numbers
Initial = Literal["preserve", "footprint", "scratch"]
BatchNorm = Literal["private", "shared_frozen"]


@dataclass(frozen=True, eq=False)
class PruningContext:
    """The base of every step: the original network, its groups, and its training data."""

    model: nn.Module
    groups: Groups
    data: Data

    def __post_init__(self) -> None:
        """Refuse a network without prunable channels: its sizes would all be the same."""
        if not self.groups.sizes:
            reasons = "; ".join(f"{layer}: {why}" for layer, why in self.groups.fixed.items())
            raise RequestError(
                f"Nothing of {type(self.model).__name__} can be pruned ({reasons or 'it has no channels'}). "
                "Take another network, or scaling 'fixed'."
            )

    def rng(self, *purpose: str | int) -> np.random.Generator:
        return rng_for(self.data.seed, "scaling", *purpose)


@dataclass(frozen=True, eq=False)
class Footprint:
    """A partly pruned network, and the original filters that it keeps."""

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
    """Start with the original network."""
    return Footprint({name: torch.arange(size) for name, size in context.groups.sizes.items()}, context.model)


def prune(
    context: PruningContext, here: Footprint, shares: Mapping[str, float], ranking: Ranking, ranked_on: int
) -> Footprint:
    """Keep the most important filters of each group, a given share of the original ones."""
    model, found = context.model, context.groups
    whole = mask(expand(here.network, model, found, here.kept), found, here.kept)  # removed channels have no effect
    scores = score_filters(context, whole, ranking, ranked_on)
    kept = {
        name: best_channels(channels, scores[name][channels], width_of(found.sizes[name], shares[name]))
        for name, channels in here.kept.items()
    }
    return Footprint(kept, cut(whole, found, kept))


def score_filters(context: PruningContext, whole: nn.Module, ranking: Ranking, ranked_on: int) -> Scores:
    """Score the filters of a network of full width."""
    lessons = context.data.train.first(ranked_on)
    return rank(whole, context.groups, ranking, images=lessons.images, labels=lessons.labels, rng=context.rng("rank"))


def best_channels(channels: Tensor, scores: Tensor, count: int) -> Tensor:
    """Return the channels with the highest scores, ascending; of equal ones the first."""
    return channels[scores.argsort(descending=True, stable=True)[:count]].sort().values


def nested_order(found: Groups, roadmap: Sequence[Footprint]) -> Order:
    """Put the channels of the seed first, then those that each larger footprint adds, then the rest."""
    order = {}
    for name, size in found.sizes.items():
        nests = [*(footprint.kept[name].tolist() for footprint in reversed(roadmap)), range(size)]
        order[name] = torch.tensor(list(dict.fromkeys(channel for nest in nests for channel in nest)))
    return order


def reorder_nested(context: PruningContext, footprint: Footprint, order: Order) -> nn.Module:
    """Return a footprint's network with its channels in nested order."""
    return cut(expand_nested(context, footprint, order), context.groups, footprint.prefix)


def expand_nested(context: PruningContext, footprint: Footprint, order: Order) -> nn.Module:
    """Expand a footprint to full width, in nested order."""
    return permute(expand(footprint.network, context.model, context.groups, footprint.kept), context.groups, order)


def untrained(context: PruningContext, footprint: Footprint, _: Order) -> nn.Module:
    """Return an untrained network of a footprint's width, at full width; the order does not matter."""
    return expand(untrained_narrow(context, footprint.prefix), context.model, context.groups, footprint.prefix)


def without_reads(found: Groups) -> Groups:
    """Return the groups without reads between filters."""
    return replace(found, reads=frozenset())


def filter_reads_only(found: Groups) -> Groups:
    """Return the groups with reads by filters only, without those by layers that make no channels (classifiers)."""
    filters = {name for name, dim in found.axes if (name, dim) not in found.reads}
    return replace(found, reads=frozenset((name, dim) for name, dim in found.reads if name in filters))


@dataclass(frozen=True, eq=False)
class Growth:
    """The way in which descendants grow around one another."""

    around: Callable[[PruningContext, Footprint, Order], nn.Module]  # initial values of the filters that are put back
    closed: Groups  # reads of new filters by old ones that stay zero
    unread: Groups  # reads of new filters by old ones that start at zero
    own: set[str]  # unshared tensors of each descendant


def plan_growth(context: PruningContext, initial: Initial, batch_norm: BatchNorm, *, causal: bool) -> Growth:
    """Choose how to grow. With `preserve`, weights from new filters into old ones start at zero: outputs stay equal."""
    found = context.groups
    around = {"preserve": expand_nested, "footprint": expand_nested, "scratch": untrained}
    own = {"private": unshared_names(context.model), "shared_frozen": unshared_names(context.model) - found.dims.keys()}
    closed = filter_reads_only(found) if causal else without_reads(found)
    return Growth(around[initial], closed, found if initial == "preserve" else closed, own[batch_norm])


def grow(
    context: PruningContext, how: Growth, descendant: nn.Module, smaller: Footprint, larger: Footprint, order: Order
) -> nn.Module:
    """Put the filters that the larger footprint adds back around a descendant."""
    whole = expand(descendant, how.around(context, larger, order), context.groups, smaller.prefix)
    return cut(mask(whole, how.unread, smaller.prefix), context.groups, larger.prefix)


def mark_finished(context: PruningContext, how: Growth, smaller: Footprint, larger: Footprint) -> Marks:
    """Mark the numbers of a larger network that never change again: those shared with the smaller one, and zeros."""
    found = context.groups
    tensors = (*context.model.named_parameters(), *context.model.named_buffers())
    marks = {name: torch.ones(tensor.shape, dtype=torch.bool) for name, tensor in tensors if name not in how.own}
    old = restrict(lift(restrict(marks, found, smaller.prefix), found, smaller.prefix), found, larger.prefix)
    free = restrict(silence(marks, how.closed, smaller.prefix), found, larger.prefix)
    return {name: old[name] | ~free[name] for name in marks}


def new_coordinates(descendant: nn.Module, done: Marks) -> npt.NDArray[np.bool_]:
    """Mark the coordinates of a grown descendant that may be trained: all that are not finished."""
    layout = layout_of(descendant)
    changes = np.ones(layout.size, dtype=bool)
    for name in done.keys() & layout.spans.keys():
        changes[layout.spans[name]] = ~done[name].reshape(-1).numpy()
    return changes


@contextmanager
def fixed_statistics(descendant: nn.Module, done: Marks) -> Iterator[None]:
    """While a descendant trains, normalise finished channels by their fixed statistics."""
    modules = descendant.named_modules()
    norms = {module: done[f"{name}.running_mean"] for name, module in modules if f"{name}.running_mean" in done}
    before = {norm: copy.deepcopy(norm).eval().requires_grad_(requires_grad=False) for norm in norms}

    def as_ever(norm: nn.Module, given: tuple[Tensor], made: Tensor) -> Tensor:
        old = norms[norm].to(made.device).view(-1, *(1,) * (made.dim() - 2))
        return torch.where(old, before[norm](*given), made)

    hooks = [norm.register_forward_hook(as_ever) for norm in norms]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for norm, old in norms.items():
            for name in ("running_mean", "running_var"):
                norm.get_buffer(name)[old] = before[norm].get_buffer(name)[old]


def prefix_of(context: PruningContext, share: float | Mapping[str, float]) -> dict[str, range]:
    """Return the first channels of every group, a given share of them, or one for each group."""
    shares = share if isinstance(share, Mapping) else dict.fromkeys(context.groups.sizes, share)
    return {name: range(width_of(size, shares[name])) for name, size in context.groups.sizes.items()}


def drop_equal_shares(context: PruningContext, shares: Sequence[float]) -> list[float]:
    """Leave out a share that gives the same numbers of channels as another one: they are one network."""
    return list({tuple(prefix_of(context, share).items()): share for share in shares}.values())


def widths_of(context: PruningContext, shares: Sequence[float]) -> Widths:
    """Count the channels of networks with these shares, from the smallest on."""
    return {name: tuple(width_of(size, share) for share in shares) for name, size in context.groups.sizes.items()}


def untrained_narrow(context: PruningContext, prefix: Mapping[str, range]) -> nn.Module:
    """Return an untrained narrow network."""
    network = cut(context.model, context.groups, prefix)
    for module in network.modules():
        reset: Any = getattr(module, "reset_parameters", None)
        if reset is not None:
            reset()
    return network


def unshared_names(model: nn.Module) -> set[str]:
    """Name the unshared tensors of each descendant: those with one number per channel, and every statistic."""
    shared = {name for name, tensor in model.named_parameters() if tensor.dim() > 1}
    return tensor_names(model) - shared


def tensor_names(model: nn.Module) -> set[str]:
    """Name all tensors of a network."""
    return {name for name, _ in (*model.named_parameters(), *model.named_buffers())}


def store_descendants(
    context: PruningContext, how: Growth, roadmap: Sequence[Footprint], descendants: Sequence[nn.Module]
) -> Family:
    """Store the descendants inside one another, and measure each."""
    footprints = roadmap[::-1]
    widths: Widths = {name: tuple(each.widths[name] for each in footprints) for name in context.groups.sizes}
    return measure_accuracies(
        merge_networks(context.model, context.groups, widths, descendants, own=how.own), context, descendants
    )


def merge_measured(
    context: PruningContext, shares: Sequence[float], networks: Sequence[nn.Module], *, own: set[str]
) -> Family:
    """Make a family of networks that keep these shares, and measure each."""
    family = merge_networks(context.model, context.groups, widths_of(context, shares), networks, own=own)
    return measure_accuracies(family, context, networks)


def measure_accuracies(family: Family, context: PruningContext, networks: Sequence[nn.Module]) -> Family:
    """Measure the validation and the test accuracy of each network."""
    val_accuracies, test_accuracies = (
        tuple(grade(network, context.data, lessons) for network in networks)
        for lessons in (context.data.val, context.data.test)
    )
    return replace(family, val_accuracies=val_accuracies, test_accuracies=test_accuracies)
