"""AdaSpring: a search for a combination of operators, layer by layer, whenever the context of the device changes.

The search keeps the best two beginnings at every stage, by a score of accuracy and energy whose weights follow the
battery: the emptier it is, the more energy counts (Liu et al., IMWUT 2021).

Differs from the paper: its networks are the paths of a branched network without exits; accuracies are those measured
of whole paths, or estimated, and new ones start a search; candidates are not mutated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from annotated_types import Ge, Le

from driftlab.platform.core.parameters import CHOOSING, Means
from driftlab.platform.core.records import Variant
from driftlab.platform.scaling.base import Budget
from driftlab.platform.scaling.branches import OfPaths, deep_paths, held_paths
from driftlab.platform.scaling.selecting import predicted_slowdown, same

Begun = tuple[str, ...]  # the operators of the first stages


@dataclass(frozen=True)
class AdaSpring(OfPaths):
    """Search for operators stage by stage, with the best beginnings only, when the load or accuracies have changed."""

    beam: Annotated[int, Ge(1), Means("beginnings that are kept at each stage")] = field(
        default=2, metadata={CHOOSING: True}
    )
    energy_weight: Annotated[float, Ge(0), Le(1), Means("weight of energy in the score, with a full battery")] = field(
        default=0.3, metadata={CHOOSING: True}
    )
    change: Annotated[float, Ge(0), Le(10), Means("change of the slowdown that starts a search")] = field(
        default=0.1, metadata={CHOOSING: True}
    )

    def prefer(self, variants: Sequence[Variant], budget: Budget, state: Any) -> tuple[int, Any]:
        """Search where the context or accuracies have changed; `state` is the running network and both."""
        slower = predicted_slowdown(budget)
        known = (budget.latency_s, set(held_paths(variants, budget)))
        if state is not None and same(variants, state[3]):
            which, before, limits, _ = state
            if limits == known and abs(slower - before) <= self.change * before:
                return which, state
        which = self.search(variants, budget, slower)
        return which, (which, slower, known, variants)

    def search(self, variants: Sequence[Variant], budget: Budget, slowdown: float) -> int:
        """Return the network that a beam search finds; the fastest one where none of its ends is in time."""
        paths, options = held_paths(variants, budget), deep_paths(variants)[1]
        kept: list[Begun] = [()]
        for names in options:
            longer = [one for begun in kept for name in names if _begins(one := (*begun, name), paths)]
            scored = [
                (self.score(variants[self._ended(variants, paths, one)], budget, slowdown), one) for one in longer
            ]
            kept = [one for _, one in sorted(scored, key=lambda pair: -pair[0])[: self.beam]]
        return paths[kept[0]]

    def score(self, variant: Variant, budget: Budget, slowdown: float) -> float:
        """Weigh accuracy against energy; what is too slow comes after all that is not, the slowest last."""
        late_s = variant.latency_s * slowdown - (float("inf") if budget.latency_s is None else budget.latency_s)
        if late_s > 0:
            return -1e3 - late_s
        battery = budget.load[-1].battery if budget.load else None
        weight = self.energy_weight if battery is None else 1 - (1 - self.energy_weight) * battery
        limit_j = budget.energy_j or variant.energy_j or 1.0
        return (1 - weight) * (variant.accuracy or 0.0) - weight * (variant.energy_j or 0.0) / limit_j

    def _ended(self, variants: Sequence[Variant], paths: Mapping[Begun, int], begun: Begun) -> int:
        """Return the quickest network that begins so: stages not yet chosen count as their cheapest."""
        ends = (which for path, which in paths.items() if path[: len(begun)] == begun)
        return min(ends, key=lambda which: (variants[which].latency_s, which))


def _begins(begun: Begun, paths: Iterable[Begun]) -> bool:
    """Tell whether some path begins so."""
    return any(path[: len(begun)] == begun for path in paths)
