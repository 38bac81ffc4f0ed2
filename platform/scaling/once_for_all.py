"""Once-for-all (Cai et al., ICLR 2020): joint training of elastic depth and width.

The best network per size is searched after the training.

Every step trains the widest network, the narrowest, and random ones with a separate width per group of channels and
without some residual blocks; all are distilled from the widest. With `training: progressive` the networks shrink
progressively: first the full network trains, then depths, then widths. For each size in `keep`, the search draws
candidates with at most the operations of the uniform network of this size and keeps the best on validation frames.

Differs from the paper: kernel size and resolution are not elastic; any block that keeps its shape can be removed, not
only the last ones of a stage; candidates are random, not evolved; each network contains the next smaller one, so that a
switch moves only the difference.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt, Le

from driftlab.platform.core.parameters import BEFORE, Means
from driftlab.platform.scaling.base import width_of
from driftlab.platform.scaling.widths import WidthScaling

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from driftlab.platform.networks.pruning.family import Family
    from driftlab.platform.networks.training.training_loop import TrainingSchedule
    from driftlab.platform.scaling.growing import PruningContext
    from driftlab.platform.scaling.slimming import Draws, Share

logger = logging.getLogger(__name__)
Shares = Mapping[str, float]  # of the channels, by group; of a block, 0 or 1
MAX_DRAWS = 50  # per candidate
MIN_WIDTH_FACTOR = 0.6  # narrowest width of a group over that of the smallest uniform network
KEEP_PROB = 0.5  # of each block in a random network


@dataclass(frozen=True)
class OnceForAll(WidthScaling):
    """Once-for-all (ICLR 2020): train elastic depth and width jointly; search the best subnet per size."""

    widths: Annotated[int, Ge(2), Means("networks per step: the widest, the narrowest, others random")] = 4
    epochs: Annotated[int, Ge(0), Means("training epochs", "epochs")] = 8
    learning_rate: Annotated[float, Gt(0), Le(10), Means("initial learning rate")] = 0.03
    batch: Annotated[int, Ge(2), Means("batch size", "frames")] = 32
    calibration: Annotated[int, Ge(1), Means("batches for measuring the batch-norm statistics of each network")] = 5
    candidates: Annotated[int, Ge(0), Means("candidates scored per size, in addition to the uniform network")] = 12
    depth: Annotated[bool, Means("whether residual blocks that keep their shape can be removed")] = True
    training: Annotated[
        Literal["joint", "progressive"],
        Means("joint: depth and width elastic at once; progressive: full network, then depths, then widths"),
    ] = field(default="joint", metadata={BEFORE: "joint"})

    version = 2
    nested = True

    def grow_family(self, context: PruningContext) -> Family:
        from driftlab.platform.networks.pruning.family import merge_networks
        from driftlab.platform.networks.training.training_loop import TrainingSchedule
        from driftlab.platform.scaling.growing import drop_equal_shares, measure_accuracies
        from driftlab.platform.scaling.slimming import calibrate

        schedule = TrainingSchedule(self.epochs, self.learning_rate, self.batch)
        whole = self._train(context, schedule)
        chosen: list[Shares] = []
        for number, share in enumerate(drop_equal_shares(context, self.keep_ratios)):
            even = {**dict.fromkeys(context.groups.sizes, share), **dict.fromkeys(self._blocks(context), 1.0)}
            chosen.append(self._search(context, whole, even, chosen[-1], number) if chosen else even)
        chosen.reverse()
        networks = [calibrate(context, whole, shares, schedule, self.calibration) for shares in chosen]
        sizes = context.groups.sizes.items()
        widths = {name: tuple(width_of(size, shares[name]) for shares in chosen) for name, size in sizes}
        widths |= {name: tuple(int(shares[name]) for shares in chosen) for name in self._blocks(context)}
        own = {name for name, _ in context.model.named_buffers()}
        family = merge_networks(context.model, context.groups, widths, networks, own=own)
        return measure_accuracies(family, context, networks)

    def _train(self, context: PruningContext, schedule: TrainingSchedule) -> nn.Module:
        """Return the network with trained shared weights.

        Phases split the epochs evenly, and later ones take the rest.
        """
        from driftlab.platform.scaling.slimming import sort_channels, train_widths

        if self.training == "joint":
            return train_widths(context, partial(self._draw_step, context), schedule)
        phases: dict[str, Draws] = {"whole": self._whole_only}
        if self._blocks(context):
            phases["depths"] = partial(self._draw_depths, context)
        phases["widths"] = partial(self._draw_step, context)
        whole, left = context.model, self.epochs
        for number, (name, draws) in enumerate(phases.items()):
            epochs = left // (len(phases) - number)
            whole = sort_channels(context, whole) if name == "widths" else whole
            whole = train_widths(context, draws, replace(schedule, epochs=epochs), whole, f"once_for_all/{name}")
            left -= epochs
            logger.info("Trained %s for %d epochs", name, epochs)
        return whole

    def _whole_only(self, rng: np.random.Generator) -> Iterator[Share]:
        """Yield the full network only."""
        yield self.keep_ratios[0]

    def _draw_depths(self, context: PruningContext, rng: np.random.Generator) -> Iterator[Share]:
        """Yield networks of full width: the deepest first, the shallowest, random ones between."""
        groups, blocks = dict.fromkeys(context.groups.sizes, self.keep_ratios[0]), self._blocks(context)
        yield self.keep_ratios[0]
        yield {**groups, **dict.fromkeys(blocks, 0.0)}
        for _ in range(self.widths - 2):
            yield {**groups, **{name: float(rng.random() < KEEP_PROB) for name in blocks}}

    @property
    def narrowest(self) -> float:
        """Return the smallest width of a group.

        It is below that of the smallest uniform network, because other groups are wider.
        """
        return MIN_WIDTH_FACTOR * self.keep_ratios[-1]

    def _draw_step(self, context: PruningContext, rng: np.random.Generator) -> Iterator[Share]:
        """Yield the networks of a step: the widest first, the narrowest, random ones with a width per group."""
        groups, blocks = dict.fromkeys(context.groups.sizes, self.keep_ratios[0]), self._blocks(context)
        yield self.keep_ratios[0]
        yield {**dict.fromkeys(groups, self.narrowest), **dict.fromkeys(blocks, 0.0)}
        for _ in range(self.widths - 2):
            yield self._draw_within(context, {**groups, **dict.fromkeys(blocks, 1.0)}, rng)

    def _blocks(self, context: PruningContext) -> tuple[str, ...]:
        """Return the names of removable blocks."""
        from driftlab.platform.networks.pruning.depth import removable_blocks

        return removable_blocks(context.model) if self.depth else ()

    def _draw_within(self, context: PruningContext, within: Shares, rng: np.random.Generator) -> Shares:
        """Draw a network contained in a larger one."""
        widths = {name: round(rng.uniform(self.narrowest, within[name]), 2) for name in context.groups.sizes}
        return {**widths, **{name: within[name] * (rng.random() < KEEP_PROB) for name in self._blocks(context)}}

    def _search(self, context: PruningContext, whole: nn.Module, even: Shares, larger: Shares, number: int) -> Shares:
        """Return the best candidate that a larger network contains.

        It has at most the operations of the uniform network.
        """
        from driftlab.platform.networks.training.training_loop import TrainingSchedule, grade
        from driftlab.platform.scaling.slimming import calibrate

        schedule, rng = TrainingSchedule(0, self.learning_rate, self.batch), context.rng("once_for_all", number)
        within = {name: min(even[name], share) for name, share in larger.items()}
        scores = {}
        for candidate in (within, *self._candidates(context, even, larger, rng)):
            network = calibrate(context, whole, candidate, schedule, self.calibration)
            scores[tuple(candidate.items())] = grade(network, context.data, context.data.val)
        best = max(scores, key=scores.__getitem__)
        logger.info("Best of %d candidates for size %d: %.3f", len(scores), number, scores[best])
        return dict(best)

    def _candidates(
        self, context: PruningContext, even: Shares, larger: Shares, rng: np.random.Generator
    ) -> Iterator[Shares]:
        """Draw networks contained in a larger one, with 80 to 100 % of the operations of the uniform one."""
        max_macs = _macs(context, even)
        for _ in range(self.candidates):
            for _ in range(MAX_DRAWS):
                drawn = self._draw_within(context, larger, rng)
                if 0.8 * max_macs <= _macs(context, drawn) <= max_macs:
                    yield drawn
                    break


def _macs(context: PruningContext, shares: Shares) -> int:
    """Return the multiply-accumulates of a network."""
    from driftlab.platform.networks.cost_counter import count_cost
    from driftlab.platform.scaling.slimming import narrow

    return count_cost(narrow(context, context.model, shares), *context.data.size).macs
