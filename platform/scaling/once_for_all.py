"""Once-for-all: networks of different depths and widths, trained together, of which a search keeps the best.

Every step trains the widest network, the narrowest and some whose groups of channels each have a width of their own,
without some of the residual blocks that keep their shape; they learn from the widest. With `training: progressive` the
networks shrink step by step: the whole network learns first, then depths, then widths. Then, for each size in `keep`,
candidates of at most the operations of the even network of that size are drawn and scored on validation frames, and the
best one stays (Cai et al., ICLR 2020).

Differs from the paper: kernels and resolution are not elastic; any block may be left out, not the last ones of a stage;
candidates are drawn, not bred; each network holds the next smaller one, so that a switch moves only the difference.
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
from driftlab.platform.scaling.widths import OfWidths

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from driftlab.platform.networks.pruning.family import Family
    from driftlab.platform.networks.training.training_loop import Course
    from driftlab.platform.scaling.growing import PruningContext
    from driftlab.platform.scaling.slimming import Draws, Share

logger = logging.getLogger(__name__)
Shares = Mapping[str, float]  # of the channels, by group; of a block, 0 or 1
TRIES = 50  # draws for each candidate
NARROWER = 0.6
STAYS = 0.5  # probability of each block in a random network


@dataclass(frozen=True)
class OnceForAll(OfWidths):
    """Train networks of uneven depths and widths jointly, and search for the best one of each size."""

    widths: Annotated[int, Ge(2), Means("networks trained per step: the widest, the narrowest, others at random")] = 4
    epochs: Annotated[int, Ge(0), Means("passes over the data", "epochs")] = 8
    learning_rate: Annotated[float, Gt(0), Le(10), Means("step size at the beginning")] = 0.03
    batch: Annotated[int, Ge(2), Means("frames of a step", "frames")] = 32
    calibration: Annotated[int, Ge(1), Means("batches that each network's statistics are measured on")] = 5
    candidates: Annotated[int, Ge(0), Means("networks scored for each size, beside the even one")] = 12
    depth: Annotated[bool, Means("whether residual blocks that keep their shape may be left out")] = True
    training: Annotated[
        Literal["joint", "progressive"],
        Means("whether depths and widths are elastic at once, or the whole network learns, then depths, then widths"),
    ] = field(default="joint", metadata={BEFORE: "joint"})

    version = 2
    nested = True

    def grow_family(self, context: PruningContext) -> Family:
        from driftlab.platform.networks.pruning.family import merge_networks
        from driftlab.platform.networks.training.training_loop import Course
        from driftlab.platform.scaling.growing import drop_equal_shares, measure_accuracies
        from driftlab.platform.scaling.slimming import calibrate

        course = Course(self.epochs, self.learning_rate, self.batch)
        whole = self._trained(context, course)
        chosen: list[Shares] = []
        for number, share in enumerate(drop_equal_shares(context, self.keep)):
            even = {**dict.fromkeys(context.groups.sizes, share), **dict.fromkeys(self._blocks(context), 1.0)}
            chosen.append(self._searched(context, whole, even, chosen[-1], number) if chosen else even)
        chosen.reverse()
        networks = [calibrate(context, whole, shares, course, self.calibration) for shares in chosen]
        sizes = context.groups.sizes.items()
        widths = {name: tuple(width_of(size, shares[name]) for shares in chosen) for name, size in sizes}
        widths |= {name: tuple(int(shares[name]) for shares in chosen) for name in self._blocks(context)}
        own = {name for name, _ in context.model.named_buffers()}
        family = merge_networks(context.model, context.groups, widths, networks, own=own)
        return measure_accuracies(family, context, networks)

    def _trained(self, context: PruningContext, course: Course) -> nn.Module:
        """Train the weights that all networks share; phases have equally many epochs, the last ones more."""
        from driftlab.platform.scaling.slimming import sort_channels, train_widths

        if self.training == "joint":
            return train_widths(context, partial(self._draws, context), course)
        phases: dict[str, Draws] = {"whole": self._draw_whole}
        if self._blocks(context):
            phases["depths"] = partial(self._draw_depths, context)
        phases["widths"] = partial(self._draws, context)
        whole, left = context.model, self.epochs
        for number, (name, draws) in enumerate(phases.items()):
            epochs = left // (len(phases) - number)
            whole = sort_channels(context, whole) if name == "widths" else whole
            whole = train_widths(context, draws, replace(course, epochs=epochs), whole, f"once_for_all/{name}")
            left -= epochs
            logger.info("Trained %s for %d epochs", name, epochs)
        return whole

    def _draw_whole(self, rng: np.random.Generator) -> Iterator[Share]:
        """Yield the widest network, the only one of a step."""
        yield self.keep[0]

    def _draw_depths(self, context: PruningContext, rng: np.random.Generator) -> Iterator[Share]:
        """Yield networks of full width: the deepest first, the shallowest, and some without random blocks."""
        groups, blocks = dict.fromkeys(context.groups.sizes, self.keep[0]), self._blocks(context)
        yield self.keep[0]
        yield {**groups, **dict.fromkeys(blocks, 0.0)}
        for _ in range(self.widths - 2):
            yield {**groups, **{name: float(rng.random() < STAYS) for name in blocks}}

    @property
    def narrowest(self) -> float:
        """Return the smallest width of a group: less than that of the smallest even network, as others are wider."""
        return NARROWER * self.keep[-1]

    def _draws(self, context: PruningContext, rng: np.random.Generator) -> Iterator[Share]:
        """Yield the networks of a step: the widest first, the narrowest, and some with a width for each group."""
        groups, blocks = dict.fromkeys(context.groups.sizes, self.keep[0]), self._blocks(context)
        yield self.keep[0]
        yield {**dict.fromkeys(groups, self.narrowest), **dict.fromkeys(blocks, 0.0)}
        for _ in range(self.widths - 2):
            yield self._drawn(context, {**groups, **dict.fromkeys(blocks, 1.0)}, rng)

    def _blocks(self, context: PruningContext) -> tuple[str, ...]:
        """Name the blocks that networks may go without."""
        from driftlab.platform.networks.pruning.depth import removable_blocks

        return removable_blocks(context.model) if self.depth else ()

    def _drawn(self, context: PruningContext, within: Shares, rng: np.random.Generator) -> Shares:
        """Draw a network within a larger one."""
        widths = {name: round(rng.uniform(self.narrowest, within[name]), 2) for name in context.groups.sizes}
        return {**widths, **{name: within[name] * (rng.random() < STAYS) for name in self._blocks(context)}}

    def _searched(self, context: PruningContext, whole: nn.Module, even: Shares, larger: Shares, number: int) -> Shares:
        """Return the best of some networks within a larger one that take no more operations than the even one."""
        from driftlab.platform.networks.training.training_loop import Course, grade
        from driftlab.platform.scaling.slimming import calibrate

        course, rng = Course(0, self.learning_rate, self.batch), context.rng("once_for_all", number)
        within = {name: min(even[name], share) for name, share in larger.items()}
        scores = {}
        for candidate in (within, *self._candidates(context, even, larger, rng)):
            network = calibrate(context, whole, candidate, course, self.calibration)
            scores[tuple(candidate.items())] = grade(network, context.data, context.data.val)
        best = max(scores, key=scores.__getitem__)
        logger.info("Of %d networks of size %d the best reaches %.3f", len(scores), number, scores[best])
        return dict(best)

    def _candidates(
        self, context: PruningContext, even: Shares, larger: Shares, rng: np.random.Generator
    ) -> Iterator[Shares]:
        """Draw networks within a larger one, with nearly the operations of the even one."""
        most = _macs(context, even)
        for _ in range(self.candidates):
            for _ in range(TRIES):
                drawn = self._drawn(context, larger, rng)
                if 0.8 * most <= _macs(context, drawn) <= most:
                    yield drawn
                    break


def _macs(context: PruningContext, shares: Shares) -> int:
    """Count the operations of a network."""
    from driftlab.platform.networks.cost_counter import count_cost
    from driftlab.platform.scaling.slimming import narrowed

    return count_cost(narrowed(context, context.model, shares), *context.data.size).macs
