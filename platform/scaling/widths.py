"""Families whose networks differ in width only: what their members have in common."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from driftlab.platform.core.records import Weights
from driftlab.platform.scaling.base import Budget, Profile, Scaling, Size, checked, most_accurate

if TYPE_CHECKING:
    from torch import nn

    from driftlab.platform.pruning.family import Family

Keep = tuple[float, ...]
KEEP: Keep = (0.8, 0.6, 0.45, 0.3, 0.2)  # shares of the original width
FEWEST = 2  # channels that every group keeps, if it has them


class OfWidths(Scaling):
    """A member builds a family of `models/family.py`, and the other verbs are the same for all."""

    needs_data = True

    def select(self, family: Family, budget: Budget) -> nn.Module:
        """Make the network that was chosen; else the most accurate one that fits into memory."""
        from driftlab.platform.pruning.family import dense

        return dense(family, chosen(family, budget))

    def absorb(self, family: Family, variant: nn.Module) -> Family:
        from driftlab.platform.pruning.family import absorbed

        return absorbed(family, variant)

    def profile(self, family: Family, size: Size) -> tuple[Profile, ...]:
        from driftlab.platform.networks.account import account
        from driftlab.platform.pruning.family import dense

        costs = [account(dense(family, which), *size) for which in range(len(family))]
        return tuple(
            Profile(f"{which + 1}/{len(family)}", known, family.memory_bytes(which), cost, judged)
            for which, (cost, known, judged) in enumerate(zip(costs, family.accuracies, family.judged, strict=True))
        )

    def store(self, family: Family) -> Weights:
        from driftlab.platform.pruning.family import stored

        return stored(family)

    def restore(self, model: nn.Module, arrays: Weights, size: Size) -> Family:
        from driftlab.platform.pruning.family import restored

        return restored(model, arrays, size)


def chosen(family: Family, budget: Budget) -> int:
    """Take the network that the budget names, or the most accurate one that fits into memory."""
    if budget.variant is not None:
        return checked(budget.variant, len(family))
    limit = budget.memory_bytes
    good = [which for which in range(len(family)) if limit is None or family.memory_bytes(which) <= limit]
    return most_accurate(family.accuracies, good)


def keep_faults(keep: Keep) -> list[str]:
    """Say what is wrong with a list of shares."""
    falls = all(small < large for large, small in itertools.pairwise(keep))
    return [] if keep and falls else [f"'keep' is {keep}, must be one or more shares that fall"]


def width_of(size: int, share: float) -> int:
    """Say how many of a group's channels a share of them is."""
    return min(size, max(FEWEST, round(share * size)))
