"""An evolutionary search for a path within a latency limit, as AdaptiveNet runs it on a device.

Of each generation the best quarter are parents; half of the children are mutants of one parent, the others are crossed
from two. A path within the limit counts by its accuracy, any other by a hundredth of it less how late it is, so that
those close to the limit come first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from driftlab.platform.core.records import Variant

Names = tuple[str, ...]
PARENTS, MUTANTS, CHANCE = 0.25, 0.5, 0.1  # shares of a generation, and chance that a stage mutates
TRIES = 1000  # at a first generation near the limit


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
