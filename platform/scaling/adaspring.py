"""AdaSpring (Liu et al., IMWUT 2021): beam search for operators, stage by stage.

The search runs when the device context changes.

The search keeps the best prefixes at every stage. Its score weighs accuracy and energy; the weight of energy rises as
the battery drains.

Differs from the paper: networks are the paths of a supernet without exits; accuracies are those of whole paths,
measured or estimated, and changed ones start a search; candidates are not mutated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from annotated_types import Ge, Le

from driftlab.platform.core.parameters import CHOOSING, Means
from driftlab.platform.core.records import Variant
from driftlab.platform.scaling.base import Budget
from driftlab.platform.scaling.branches import PathScaling, deep_paths, fitting_paths
from driftlab.platform.scaling.selecting import predicted_slowdown, same

Operators = tuple[str, ...]  # of the first stages, or of all


@dataclass(frozen=True)
class AdaSpring(PathScaling):
    """AdaSpring (IMWUT 2021): beam search for operators, stage by stage, when load or accuracies change."""

    beam: Annotated[int, Ge(1), Means("width of the beam: prefixes kept at each stage")] = field(
        default=2, metadata={CHOOSING: True}
    )
    energy_weight: Annotated[float, Ge(0), Le(1), Means("weight of energy in the score at a full battery")] = field(
        default=0.3, metadata={CHOOSING: True}
    )
    change: Annotated[float, Ge(0), Le(10), Means("relative change of the slowdown that starts a search")] = field(
        default=0.1, metadata={CHOOSING: True}
    )

    def select_within(self, variants: Sequence[Variant], budget: Budget, state: Any) -> tuple[int, Any]:
        """Search if context or accuracies have changed; `state` is the running network and both."""
        slower = predicted_slowdown(budget)
        limits = (budget.latency_s, set(fitting_paths(variants, budget)))
        if state is not None and same(variants, state[3]):
            which, slower_before, limits_before, _ = state
            if limits == limits_before and abs(slower - slower_before) <= self.change * slower_before:
                return which, state
        which = self.search(variants, budget, slower)
        return which, (which, slower, limits, variants)

    def search(self, variants: Sequence[Variant], budget: Budget, slowdown: float) -> int:
        """Return the best network of a beam search; if none of its results is in time, the fastest of them."""
        paths, options = fitting_paths(variants, budget), deep_paths(variants)[1]
        beam: list[Operators] = [()]
        for names in options:
            longer = [one for prefix in beam for name in names if _is_prefix(one := (*prefix, name), paths)]
            scored = [
                (self.score(variants[self._fastest_end(variants, paths, one)], budget, slowdown), one) for one in longer
            ]
            beam = [one for _, one in sorted(scored, key=lambda pair: -pair[0])[: self.beam]]
        return paths[beam[0]]

    def score(self, variant: Variant, budget: Budget, slowdown: float) -> float:
        """Return the weighted accuracy less the weighted energy.

        Late networks score below all others, by their lateness.
        """
        late_s = variant.latency_s * slowdown - (float("inf") if budget.latency_s is None else budget.latency_s)
        if late_s > 0:
            return -1e3 - late_s
        battery = budget.load[-1].battery if budget.load else None
        weight = self.energy_weight if battery is None else 1 - (1 - self.energy_weight) * battery
        limit_j = budget.energy_j or variant.energy_j or 1.0
        return (1 - weight) * (variant.accuracy or 0.0) - weight * (variant.energy_j or 0.0) / limit_j

    def _fastest_end(self, variants: Sequence[Variant], paths: Mapping[Operators, int], prefix: Operators) -> int:
        """Return the fastest network with a prefix: open stages count as their fastest operator."""
        ends = (which for path, which in paths.items() if path[: len(prefix)] == prefix)
        return min(ends, key=lambda which: (variants[which].latency_s, which))


def _is_prefix(prefix: Operators, paths: Iterable[Operators]) -> bool:
    return any(path[: len(prefix)] == prefix for path in paths)
