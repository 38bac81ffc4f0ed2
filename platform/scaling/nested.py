"""NestDNN's multi-capacity model: filter pruning (Section 3.1), then freeze-&-grow (Section 3.2).

Filters are ranked by their triplet response residual (Eq. 1) and pruned iteratively; every pruned and retrained model
is a footprint of the roadmap, the smallest one is the seed model. It is frozen, the filters of the next larger
footprint are grown back around it and trained, and so on: each descendant contains all smaller ones. The scheduler
that chooses among descendants (Section 3.3, Eq. 2-4) is `scheduling/nestdnn`.

Differs from the paper: batch norms and biases are separate for each descendant; grown filters start with the weights
of their footprint, and frozen filters read them with weight zero at first; each retraining keeps its best epoch.
"""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt, Le

from driftlab.errors import RequestError
from driftlab.platform.core.parameters import BEFORE, Means
from driftlab.platform.networks.pruning.rankings import Ranking
from driftlab.platform.scaling.widths import WidthScaling

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from driftlab.platform.networks.pruning.family import Family
    from driftlab.platform.scaling.growing import Footprint, Growth, PruningContext

logger = logging.getLogger(__name__)
GROW_LEARNING_RATE = 0.03  # initial, after each growing step


@dataclass(frozen=True)
class Nested(WidthScaling):
    """NestDNN (MobiCom 2018): TRR filter pruning, then freeze-and-grow into one multi-capacity model."""

    shares: Annotated[
        Literal["uniform", "sensitivity"],
        Means("whether each layer loses the same share of filters, or sensitive layers lose fewer"),
    ] = field(default="uniform", metadata={BEFORE: "uniform"})
    ranking: Annotated[Ranking, Means("how filters are ranked")] = "trr"
    ranked_on: Annotated[int, Ge(2), Means("training frames that the ranking uses", "frames")] = 500
    accuracy_loss: Annotated[
        float, Ge(0), Le(1), Means("accuracy goal: how far a network may score below the unpruned one", "fraction")
    ] = 0.05
    only: Annotated[int | None, Ge(0), Means("index of the only group of channels to prune; none: all groups")] = None
    initial: Annotated[Literal["preserve", "footprint", "scratch"], Means("initial weights of grown filters")] = (
        "preserve"
    )
    causal: Annotated[bool, Means("whether frozen filters never read grown ones")] = field(
        default=False, metadata={BEFORE: False}
    )
    batch_norm: Annotated[
        Literal["private", "shared_frozen"], Means("whether each network has separate batch norms")
    ] = field(default="private", metadata={BEFORE: "private"})
    prune_epochs: Annotated[int, Ge(0), Means("epochs of retraining after each pruning step", "epochs")] = 2
    prune_learning_rate: Annotated[float, Gt(0), Le(10), Means("initial learning rate after pruning")] = 0.02
    grow_epochs: Annotated[int, Ge(0), Means("epochs of training after each growing step", "epochs")] = 3
    batch: Annotated[int, Ge(2), Means("batch size", "frames")] = 32

    nested = True

    def faults(self) -> list[str]:
        """Return faults in the shares, and a single group combined with shares by sensitivity."""
        conflict = self.only is not None and self.shares != "uniform"
        faults = [f"'shares' is {self.shares}, must be uniform where 'only' one group is pruned"] if conflict else []
        return super().faults() + faults

    def grow_family(self, context: PruningContext) -> Family:
        from driftlab.platform.scaling.growing import plan_growth, store_descendants

        roadmap = self._prune(context)
        how = plan_growth(context, self.initial, self.batch_norm, causal=self.causal)
        return store_descendants(context, how, roadmap, self._freeze_and_grow(context, how, roadmap))

    def _prune(self, context: PruningContext) -> list[Footprint]:
        """Return the filter pruning roadmap; its last footprint is the seed model (Section 3.1.5)."""
        from driftlab.platform.networks.training.training_loop import TrainingSchedule, grade, train_best
        from driftlab.platform.scaling.growing import prune, start_footprint

        goal = grade(context.model, context.data, context.data.val) - self.accuracy_loss
        schedule = TrainingSchedule(self.prune_epochs, self.prune_learning_rate, self.batch)
        shares_of = self._layer_shares(context)
        roadmap: list[Footprint] = []
        for step, share in enumerate(self.keep_ratios):
            before = roadmap[-1] if roadmap else start_footprint(context)
            footprint = prune(context, before, shares_of(share), self.ranking, self.ranked_on)
            if roadmap and footprint.widths == before.widths:  # rounding left every width as it was
                continue
            score = train_best(footprint.network, context.data, schedule, context.rng("prune", step))
            logger.info("Pruned to %s: %.3f, accuracy goal %.3f", dict(footprint.widths), score, goal)
            if score < goal:
                break
            roadmap.append(footprint)
        if not roadmap:
            raise RequestError(
                f"The network pruned to {self.keep_ratios[0]:.0%} scores {score:.3f}, below the goal {goal:.3f}: no "
                "seed model. Raise accuracy_loss or prune_epochs, or start 'keep_ratios' with a larger share."
            )
        return roadmap

    def _layer_shares(self, context: PruningContext) -> Callable[[float], dict[str, float]]:
        """Return the function that splits a step's share over the groups of channels."""
        from driftlab.platform.scaling.sensitivity import equally_lossy, measure_losses

        if self.shares == "sensitivity":
            return partial(equally_lossy, context, measure_losses(context, self.ranking, self.ranked_on))
        groups, only = list(context.groups.sizes), self.only
        if only is None:
            return lambda share: dict.fromkeys(groups, share)
        if only >= len(groups):
            raise RequestError(f"'only' is {only}, the network has groups 0 to {len(groups) - 1}")
        return lambda share: {**dict.fromkeys(groups, 1.0), groups[only]: share}

    def _freeze_and_grow(self, context: PruningContext, how: Growth, roadmap: list[Footprint]) -> list[nn.Module]:
        """Return the descendants, from the seed model to the largest (Section 3.2.2)."""
        from driftlab.platform.networks.training.training_loop import TrainingSchedule, train_best
        from driftlab.platform.scaling import growing

        schedule = TrainingSchedule(self.grow_epochs, GROW_LEARNING_RATE, self.batch)
        order = growing.nested_order(context.groups, roadmap)
        footprints = roadmap[::-1]
        descendants = [growing.reorder_nested(context, footprints[0], order)]
        for step, (smaller, larger) in enumerate(itertools.pairwise(footprints)):
            # Filter growing: the roadmap in reverse order.
            descendant = growing.grow(context, how, descendants[-1], smaller, larger, order)
            # Model freezing: only the added filters change.
            frozen = growing.mark_finished(context, how, smaller, larger)
            trainable, rng = growing.new_coordinates(descendant, frozen), context.rng("grow", step)
            with growing.fixed_statistics(descendant, frozen):
                score = train_best(descendant, context.data, schedule, rng, trainable)
            logger.info("Grown to %s: %.3f", dict(larger.widths), score)
            descendants.append(descendant)
        return descendants
