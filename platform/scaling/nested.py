"""Nested: one set of weights that contains networks of several widths (NestDNN: pruning, then freeze-and-grow).

Filters are pruned step by step; each network is retrained and leaves a footprint. The last one that is accurate
enough is the seed. It is frozen, the filters of the next larger footprint are put back around it and
trained, and so on: every descendant is contained in the next one.

Differs from the paper: batch norms and biases belong to each descendant, new filters start with their footprint's
weights and the weights from them into old filters at zero, and each retraining keeps its best epoch.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt, Le

from driftlab.errors import RequestError
from driftlab.platform.core.parameters import BEFORE, Means
from driftlab.platform.networks.pruning.rankings import Ranking
from driftlab.platform.scaling.widths import OfWidths

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from driftlab.platform.networks.pruning.family import Family
    from driftlab.platform.networks.training.training_loop import Course
    from driftlab.platform.scaling.growing import Footprint, Growth, PruningContext

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Nested(OfWidths):
    """Prune filters step by step, then grow them back around a frozen seed: one model of several capacities."""

    shares: Annotated[
        Literal["uniform", "sensitivity"],
        Means("whether each layer loses the same share, or less where it matters more"),
    ] = field(default="uniform", metadata={BEFORE: "uniform"})
    ranking: Annotated[Ranking, Means("how filters are ranked")] = "trr"
    ranked_on: Annotated[int, Ge(2), Means("frames that the ranking looks at", "frames")] = 500
    accuracy_loss: Annotated[
        float, Ge(0), Le(1), Means("how far the smallest network may score below the whole one", "fraction")
    ] = 0.05
    only: Annotated[int | None, Ge(0), Means("the one group of channels to prune, by its place; none: all")] = None
    initial: Annotated[Literal["preserve", "footprint", "scratch"], Means("how filters begin that are grown back")] = (
        "preserve"
    )
    causal: Annotated[bool, Means("whether no old filter ever reads a new one")] = field(
        default=False, metadata={BEFORE: False}
    )
    batch_norm: Annotated[
        Literal["private", "shared_frozen"], Means("whether each network has batch norms of its own")
    ] = field(default="private", metadata={BEFORE: "private"})
    prune_epochs: Annotated[int, Ge(0), Means("passes over the data after each step of pruning", "epochs")] = 2
    prune_rate: Annotated[float, Gt(0), Le(10), Means("step size after pruning")] = 0.02
    grow_epochs: Annotated[int, Ge(0), Means("passes over the data after each step of growing", "epochs")] = 3
    grow_rate: Annotated[float, Gt(0), Le(10), Means("step size after growing")] = 0.03
    batch: Annotated[int, Ge(2), Means("frames of a step", "frames")] = 32

    nested = True

    def faults(self) -> list[str]:
        """Name a list of shares that does not fall, and what does not fit together."""
        apart = self.only is not None and self.shares != "uniform"
        faults = [f"'shares' is {self.shares}, must be uniform where 'only' one group is pruned"] if apart else []
        return super().faults() + faults

    def grow_family(self, context: PruningContext) -> Family:
        from driftlab.platform.scaling.growing import store_descendants

        roadmap, how = self._prune(context), self._growth(context)
        return store_descendants(context, how, roadmap, self._freeze_and_grow(context, how, roadmap))

    def _prune(self, context: PruningContext) -> list[Footprint]:
        """Prune while the accuracy goal is met (paper, section 3.1)."""
        from driftlab.platform.networks.training.training_loop import grade, train_best
        from driftlab.platform.scaling.growing import prune, start_footprint

        goal = grade(context.model, context.data, context.data.val) - self.accuracy_loss
        shares = self._shares(context)
        roadmap: list[Footprint] = []
        for step, share in enumerate(self.keep):
            here = roadmap[-1] if roadmap else start_footprint(context)
            footprint = prune(context, here, shares(share), self.ranking, self.ranked_on)
            if roadmap and footprint.widths == here.widths:  # after rounding, no channel was removed
                continue
            score = train_best(footprint.network, context.data, self._course("prune"), context.rng("prune", step))
            logger.info("Pruned to %s: %.3f, the goal is %.3f", dict(footprint.widths), score, goal)
            if score < goal:
                break
            roadmap.append(footprint)
        if not roadmap:
            raise RequestError(
                f"The network pruned to {self.keep[0]:.0%} scores {score:.3f} and the goal is {goal:.3f}: "
                "there is no seed. Allow a larger accuracy_loss, prune less at first or retrain for more epochs."
            )
        return roadmap

    def _shares(self, context: PruningContext) -> Callable[[float], dict[str, float]]:
        """Return the function that splits the share of a step over the groups of channels."""
        from driftlab.platform.scaling.sensitivity import equally_lossy, measure_losses

        if self.shares == "sensitivity":
            return partial(equally_lossy, context, measure_losses(context, self.ranking, self.ranked_on))
        groups, only = list(context.groups.sizes), self.only
        if only is None:
            return lambda share: dict.fromkeys(groups, share)
        if only >= len(groups):
            raise RequestError(f"'only' is {only}, the network has groups 0 to {len(groups) - 1}")
        return lambda share: {**dict.fromkeys(groups, 1.0), groups[only]: share}

    def _growth(self, context: PruningContext) -> Growth:
        from driftlab.platform.scaling.growing import plan_growth

        return plan_growth(context, self.initial, self.batch_norm, causal=self.causal)

    def _freeze_and_grow(self, context: PruningContext, how: Growth, roadmap: list[Footprint]) -> list[nn.Module]:
        """Grow from the seed to the largest footprint; stored weights are never changed again (paper, section 3.2)."""
        from driftlab.platform.networks.training.training_loop import train_best
        from driftlab.platform.scaling import growing

        order = growing.nested_order(context.groups, roadmap)
        seed, *rest = roadmap[::-1]
        descendants = [growing.reorder_nested(context, seed, order)]
        for step, (smaller, larger) in enumerate(zip(roadmap[::-1], rest, strict=False)):
            descendant = growing.grow(context, how, descendants[-1], smaller, larger, order)
            done = growing.mark_finished(context, how, smaller, larger)
            new, rng = growing.new_coordinates(descendant, done), context.rng("grow", step)
            with growing.fixed_statistics(descendant, done):
                score = train_best(descendant, context.data, self._course("grow"), rng, new)
            logger.info("Grown back to %s: %.3f", dict(larger.widths), score)
            descendants.append(descendant)
        return descendants

    def _course(self, phase: Literal["prune", "grow"]) -> Course:
        from driftlab.platform.networks.training.training_loop import Course

        if phase == "prune":
            return Course(self.prune_epochs, self.prune_rate, self.batch)
        return Course(self.grow_epochs, self.grow_rate, self.batch)
