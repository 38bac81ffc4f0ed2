"""AdaptiveNet: a list of the best networks by latency, of which the dearest one runs that is predicted to be in time.

On the device a search leaves the networks that no other one beats in latency and accuracy. While the application runs,
the measured latency of the running network tells how much slower than in the table all others are; the choice moves
down at once where the limit is broken, and up where a dearer network fits with some slack (Wen et al., MobiCom 2023).

Differs from the paper: its networks are the paths of a branched network without exits, whose stages keep their depth;
the list is found by comparing all of them unless `search` is `evolution`; the measured slowdown is that of the sensed
load; new accuracies bring a new list.
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
from driftlab.platform.scaling.branches import OfPaths, deep_paths, full_depth, held_among
from driftlab.platform.scaling.selecting import alone_limit_s, renamed, same

Names = tuple[str, ...]
PARENTS, MUTANTS, CHANCE = 0.25, 0.5, 0.1  # shares of a generation, and chance that a stage mutates
TRIES = 1000  # at a first generation near the limit


@dataclass(frozen=True)
class AdaptiveNet(OfPaths):
    """Run the dearest network of the latency front that is predicted to be in time."""

    slack: Annotated[float, Ge(0), Le(1), Means("share of the latency limit that a dearer network must leave")] = field(
        default=0.02, metadata={CHOOSING: True}
    )

    search: Annotated[
        Literal["all", "evolution"],
        Means("whether the list is found by comparing all networks, or by a search for each of some limits"),
    ] = field(default="all", metadata={CHOOSING: True})
    limits: Annotated[int, Ge(1), Means("latency limits that evolution searches for")] = field(
        default=8, metadata={CHOOSING: True}
    )
    population: Annotated[int, Ge(4), Means("networks of a generation")] = field(default=100, metadata={CHOOSING: True})
    rounds: Annotated[int, Ge(1), Means("generations of the search")] = field(default=10, metadata={CHOOSING: True})

    def prefer(self, variants: Sequence[Variant], budget: Budget, state: Any) -> tuple[int, Any]:
        """Move along the list; `state` is the running network, the list, and what it was found by."""
        if state is None or renamed(variants, state[2]):
            state = None, self.front(variants), variants
        running, front, known = state
        if not same(variants, known):
            front = self.front(variants)
        held = held_among(variants, front, budget)
        limit_s, now_s = alone_limit_s(budget), math.inf if running is None else variants[running].latency_s
        fits = [
            which
            for which in held
            if variants[which].latency_s <= limit_s * (1 - self.slack if variants[which].latency_s > now_s else 1)
        ]
        which = fits[-1] if fits else held[0]
        return which, (which, front, variants)

    def front(self, variants: Sequence[Variant]) -> tuple[int, ...]:
        """Find the list of networks, from the quickest on."""
        if self.search == "all":
            return latency_front(variants)
        rng, search = rng_for(0, "adaptivenet"), PathSearch(variants, *deep_paths(variants))
        times_s = [variants[which].latency_s for which in search.paths.values()]
        sizes = self.population, self.rounds
        found = {search.best(limit_s, sizes, rng) for limit_s in np.linspace(min(times_s), max(times_s), self.limits)}
        return latency_front(variants, sorted(found))


def latency_front(variants: Sequence[Variant], among: Sequence[int] | None = None) -> tuple[int, ...]:
    """List the networks that run to the end and that no other one of them beats, from the quickest on."""
    deep = full_depth(variants) if among is None else among
    known = [variants[which] for which in deep]
    index = LatencyIndex.of([one.latency_s for one in known], [one.accuracy or 0.0 for one in known])
    return tuple(deep[place] for place in index.front())


@dataclass(frozen=True, eq=False)
class PathSearch:
    """The paths that a search may find."""

    variants: Sequence[Variant]
    paths: Mapping[Names, int]
    options: Sequence[Sequence[str]]  # of each stage

    def best(self, limit_s: float, sizes: tuple[int, int], rng: np.random.Generator) -> int:
        """Return the best of all paths that generations of a size see."""
        population, rounds = sizes
        found = self._first(limit_s, population, rng)
        seen = set(found)
        for _ in range(rounds):
            parents = sorted(dict.fromkeys(found), key=self._order(limit_s))[: max(2, int(PARENTS * population))]
            children = [
                self._mutant(parents, rng) if one < MUTANTS * population else self._crossed(parents, rng)
                for one in range(population)
            ]
            found = [*parents, *children]
            seen.update(children)
        return self.paths[min(seen, key=self._order(limit_s))]

    def score(self, which: int, limit_s: float) -> float:
        """Score a path; accuracies in percent."""
        one = self.variants[which]
        percent = 100 * (one.accuracy or 0.0)
        return percent if one.latency_s <= limit_s else percent / 100 - one.latency_s / max(limit_s, 1e-12)

    def _order(self, limit_s: float) -> Callable[[Names], tuple[float, int]]:
        """Sort the best path first, the lower number of equals."""
        return lambda path: (-self.score(self.paths[path], limit_s), self.paths[path])

    def _first(self, limit_s: float, count: int, rng: np.random.Generator) -> list[Names]:
        """Draw paths, those nearest to the limit of several draws."""
        drawn = [self._drawn(rng) for _ in range(min(TRIES, 4 * count))]
        return sorted(drawn, key=lambda path: abs(self.variants[self.paths[path]].latency_s - limit_s))[:count]

    def _drawn(self, rng: np.random.Generator) -> Names:
        return tuple(names[int(rng.integers(len(names)))] for names in self.options)

    def _mutant(self, parents: Sequence[Names], rng: np.random.Generator) -> Names:
        parent, other = parents[int(rng.integers(len(parents)))], self._drawn(rng)
        return tuple(new if rng.random() < CHANCE else old for old, new in zip(parent, other, strict=True))

    def _crossed(self, parents: Sequence[Names], rng: np.random.Generator) -> Names:
        first, second = (parents[int(one)] for one in rng.integers(len(parents), size=2))
        return tuple(one if rng.random() < 0.5 else other for one, other in zip(first, second, strict=True))


@dataclass(frozen=True)
class LatencyIndex:
    """Networks in order of latency, and the most accurate one of each prefix."""

    latencies_s: tuple[float, ...]
    numbers: tuple[int, ...]
    best: tuple[int, ...]  # of each prefix, the quicker and then the lower number of equals

    @classmethod
    def of(cls, latencies_s: Sequence[float], accuracies: Sequence[float]) -> LatencyIndex:
        """Sort networks by latency, equals by accuracy from the best on."""
        order = sorted(range(len(latencies_s)), key=lambda which: (latencies_s[which], -accuracies[which], which))
        best: list[int] = []
        for which in order:
            before = best[-1] if best else which
            best.append(which if accuracies[which] > accuracies[before] else before)
        return cls(tuple(latencies_s[which] for which in order), tuple(order), tuple(best))

    def most_accurate(self, limit_s: float) -> int | None:
        """Return the most accurate network that takes at most so long; None where none does."""
        count = bisect_right(self.latencies_s, limit_s)
        return self.best[count - 1] if count else None

    def front(self) -> tuple[int, ...]:
        """List the networks that no other one beats in latency and accuracy, from the quickest on."""
        return tuple(which for place, which in enumerate(self.best) if place == 0 or which != self.best[place - 1])
