"""AdaptiveNet (Wen et al., MobiCom 2023): select the slowest network that is in time.

The networks are those of a Pareto list, and their latency is predicted.

On the device, an evolutionary search finds the Pareto list of subnets in latency and accuracy. At run time, the
measured slowdown of the running network scales the latency table; the selection moves down the list at once if the
limit is violated, and up if a slower network fits with some slack.

Differs from the paper: subnets are the paths of a supernet without exits, and stages keep their depth; the list comes
from a comparison of all subnets unless `search` is `evolution`; the slowdown is that of the sensed load; changed
accuracies change the list.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le

from driftlab.platform.core.parameters import CHOOSING, Means
from driftlab.platform.core.records import Variant
from driftlab.platform.core.seeding import rng_for
from driftlab.platform.scaling.base import Budget
from driftlab.platform.scaling.branches import PathScaling, deep_paths, fitting_among, full_depth
from driftlab.platform.scaling.selecting import alone_limit_s, renamed, same

Names = tuple[str, ...]
PARENT_SHARE, MUTANT_SHARE, MUTATION_PROB = 0.25, 0.5, 0.1  # of a generation; mutation per stage
MAX_DRAWS = 1000  # for a first generation near the limit


@dataclass(frozen=True)
class AdaptiveNet(PathScaling):
    """AdaptiveNet (MobiCom 2023): select the slowest Pareto network predicted to be in time."""

    slack: Annotated[float, Ge(0), Le(1), Means("share of the latency limit that a slower network must leave")] = field(
        default=0.02, metadata={CHOOSING: True}
    )

    search: Annotated[
        Literal["all", "evolution"],
        Means("how the list is found: comparison of all networks, or an evolutionary search per latency limit"),
    ] = field(default="all", metadata={CHOOSING: True})
    limits: Annotated[int, Ge(1), Means("latency limits of the evolutionary search")] = field(
        default=8, metadata={CHOOSING: True}
    )
    population: Annotated[int, Ge(4), Means("networks per generation")] = field(default=100, metadata={CHOOSING: True})
    rounds: Annotated[int, Ge(1), Means("generations of the search")] = field(default=10, metadata={CHOOSING: True})

    def select_within(self, variants: Sequence[Variant], budget: Budget, state: Any) -> tuple[int, Any]:
        """Move along the list.

        `state` is the running network, the list, and the networks that it was found for.
        """
        # On-device search: the Pareto list.
        if state is None or renamed(variants, state[2]):
            state = None, self.front(variants), variants
        running, front, before = state
        if not same(variants, before):
            front = self.front(variants)
        # Run-time adaptation: the slowest network in time; one slower than the running network needs slack.
        candidates = fitting_among(variants, front, budget)
        limit_s, running_s = alone_limit_s(budget), math.inf if running is None else variants[running].latency_s
        in_time = [
            which
            for which in candidates
            if variants[which].latency_s <= limit_s * (1 - self.slack if variants[which].latency_s > running_s else 1)
        ]
        which = in_time[-1] if in_time else candidates[0]
        return which, (which, front, variants)

    def front(self, variants: Sequence[Variant]) -> tuple[int, ...]:
        """Return the Pareto list, from the fastest network on."""
        if self.search == "all":
            return latency_front(variants)
        rng, search = rng_for(0, "adaptivenet"), PathSearch(variants, *deep_paths(variants))
        times_s = [variants[which].latency_s for which in search.paths.values()]
        sizes = self.population, self.rounds
        limits_s = np.linspace(min(times_s), max(times_s), self.limits)
        return latency_front(variants, sorted({search.best(limit_s, sizes, rng) for limit_s in limits_s}))


def latency_front(variants: Sequence[Variant], among: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return the Pareto front in latency and accuracy, from the fastest network on.

    By default it is that of all full paths.
    """
    deep = full_depth(variants) if among is None else among
    candidates = [variants[which] for which in deep]
    index = LatencyIndex.of([one.latency_s for one in candidates], [one.accuracy or 0.0 for one in candidates])
    return tuple(deep[place] for place in index.front())


@dataclass(frozen=True, eq=False)
class PathSearch:
    """The evolutionary search over full paths."""

    variants: Sequence[Variant]
    paths: Mapping[Names, int]
    options: Sequence[Sequence[str]]  # of each stage

    def best(self, limit_s: float, sizes: tuple[int, int], rng: np.random.Generator) -> int:
        """Return the best path of all generations for a latency limit; `sizes` are population and generations."""
        population, generations = sizes
        generation = self._first_generation(limit_s, population, rng)
        seen = set(generation)
        for _ in range(generations):
            count = max(2, int(PARENT_SHARE * population))
            parents = sorted(dict.fromkeys(generation), key=self._order(limit_s))[:count]
            children = [
                self._mutate(parents, rng) if number < MUTANT_SHARE * population else self._cross(parents, rng)
                for number in range(population)
            ]
            generation = [*parents, *children]
            seen.update(children)
        return self.paths[min(seen, key=self._order(limit_s))]

    def score(self, which: int, limit_s: float) -> float:
        """Return the accuracy in percent within the limit, else a score below that of every path in time."""
        variant = self.variants[which]
        percent = 100 * (variant.accuracy or 0.0)
        return percent if variant.latency_s <= limit_s else percent / 100 - variant.latency_s / max(limit_s, 1e-12)

    def _order(self, limit_s: float) -> Callable[[Names], tuple[float, int]]:
        """Return a sort key: the best path first, of equal scores the lower number."""
        return lambda path: (-self.score(self.paths[path], limit_s), self.paths[path])

    def _first_generation(self, limit_s: float, count: int, rng: np.random.Generator) -> list[Names]:
        """Return the random paths closest to the limit, of four times as many draws."""
        draws = [self._draw(rng) for _ in range(min(MAX_DRAWS, 4 * count))]
        return sorted(draws, key=lambda path: abs(self.variants[self.paths[path]].latency_s - limit_s))[:count]

    def _draw(self, rng: np.random.Generator) -> Names:
        return tuple(names[int(rng.integers(len(names)))] for names in self.options)

    def _mutate(self, parents: Sequence[Names], rng: np.random.Generator) -> Names:
        parent, other = parents[int(rng.integers(len(parents)))], self._draw(rng)
        return tuple(new if rng.random() < MUTATION_PROB else old for old, new in zip(parent, other, strict=True))

    def _cross(self, parents: Sequence[Names], rng: np.random.Generator) -> Names:
        first, second = (parents[int(number)] for number in rng.integers(len(parents), size=2))
        return tuple(mine if rng.random() < 0.5 else other for mine, other in zip(first, second, strict=True))


@dataclass(frozen=True)
class LatencyIndex:
    """Networks sorted by latency, and the most accurate one of each prefix."""

    latencies_s: tuple[float, ...]
    numbers: tuple[int, ...]
    best: tuple[int, ...]  # of each prefix; of equals the faster, then the lower number

    @classmethod
    def of(cls, latencies_s: Sequence[float], accuracies: Sequence[float]) -> LatencyIndex:
        """Sort networks by latency; of equal latency the most accurate first."""
        order = sorted(range(len(latencies_s)), key=lambda which: (latencies_s[which], -accuracies[which], which))
        best: list[int] = []
        for which in order:
            before = best[-1] if best else which
            best.append(which if accuracies[which] > accuracies[before] else before)
        return cls(tuple(latencies_s[which] for which in order), tuple(order), tuple(best))

    def most_accurate(self, limit_s: float) -> int | None:
        """Return the most accurate network within a latency limit; None if there is none."""
        count = bisect_right(self.latencies_s, limit_s)
        return self.best[count - 1] if count else None

    def front(self) -> tuple[int, ...]:
        """Return the Pareto front in latency and accuracy, from the fastest network on."""
        return tuple(which for place, which in enumerate(self.best) if place == 0 or which != self.best[place - 1])
