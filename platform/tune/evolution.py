"""An evolutionary search of spaces with several objectives and bounds, made for discrete design spaces.

Of parents and their children the best `population` are the next parents, by rank and then by the room around them (the
selection of NSGA-II). A child takes each setting from one of two parents, and some of its settings
change: a little where values are ordered, to any other value where they are names. No settings are tried twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from driftlab.platform.core.seeding import rng_for
from driftlab.platform.core.space import Domain, OneOf, SearchProblem, Settings, Trial, key, ranks, room
from driftlab.platform.tune.study import Batches, Searcher

Tried = set[tuple[tuple[str, str], ...]]  # keys of settings
TRIES = 60  # at a child that was not tried before; later ones change more


@dataclass(frozen=True)
class Evolution(Searcher):
    """Breed settings from the best of all trials so far."""

    population: int = 20
    batch: int = 8
    crossover: float = 0.7  # share of the children that have two parents
    mutation: float = 1.2  # settings that change in each child, on average
    step: float = 0.15  # standard deviation of a change, as a part of an ordered domain

    def batches(self, problem: SearchProblem) -> Batches:
        """Yield the first population, spread over the space, and then children of the best."""
        rng = rng_for(problem.seed, "search", "evolution")
        parents: list[Trial] = []
        tried: Tried = set()
        proposed: list[Settings] = _spread(problem, max(self.batch, self.population // 2), rng)
        while proposed:
            tried |= {key(settings) for settings in proposed}
            told = yield proposed
            tried |= {key(trial.settings) for trial in told}  # also the defaults, which this searcher did not propose
            parents = _best([*parents, *(one for one in told if one.metrics is not None)], problem, self.population)
            proposed = []
            for _ in range(self.batch):
                child = self._child(problem, parents, tried, rng)
                if child is not None:
                    tried.add(key(child))
                    proposed.append(child)

    def _child(
        self,
        problem: SearchProblem,
        parents: Sequence[Trial],
        tried: Tried,
        rng: np.random.Generator,
    ) -> Settings | None:
        """Breed settings that were not tried; None where so many attempts find none."""
        for attempt in range(TRIES):
            child = problem.space.draw(rng) if not parents else self._bred(problem, parents, attempt / TRIES, rng)
            if key(child) not in tried:
                return child
        return next((one for one in (problem.space.draw(rng) for _ in range(TRIES)) if key(one) not in tried), None)

    def _bred(
        self, problem: SearchProblem, parents: Sequence[Trial], more: float, rng: np.random.Generator
    ) -> dict[str, object]:
        """Cross two parents and change some settings; `more` from 0 to 1 changes more of them."""
        domains = problem.space.domains
        first, second = (parents[int(min(rng.integers(len(parents), size=2)))].settings for _ in range(2))
        crossed = rng.random() < self.crossover
        rate = max(self.mutation / len(domains), more)
        child = {}
        for path, domain in domains.items():
            value = second[path] if crossed and rng.random() < 0.5 else first[path]
            child[path] = _changed(domain, value, self.step * (1 + 3 * more), rng) if rng.random() < rate else value
        return child


def _spread(problem: SearchProblem, count: int, rng: np.random.Generator) -> list[Settings]:
    """Draw settings so that each domain is covered evenly (a Latin hypercube), each settings once."""
    columns = [(rng.permutation(count) + rng.random(count)) / count for _ in problem.space.domains]
    points = [problem.space.at(point) for point in zip(*columns, strict=True)]
    return list({key(settings): settings for settings in points}.values())


def _best(trials: Sequence[Trial], problem: SearchProblem, count: int) -> list[Trial]:
    """Sort trials by rank and, within a rank, by the room around them; give the first ones."""
    if not trials:
        return []
    rank = np.array(ranks(trials, problem))
    losses = np.array([trial.losses(problem) for trial in trials])
    around = np.zeros(len(trials))
    for one in np.unique(rank):
        around[rank == one] = room(losses[rank == one])
    order = sorted(range(len(trials)), key=lambda i: (rank[i], -around[i], trials[i].number))
    return [trials[i] for i in order[:count]]


def _changed(domain: Domain, value: object, step: float, rng: np.random.Generator) -> object:
    """Change a value: to one nearby where values are ordered, else to any other."""
    if domain.count == 1:
        return value
    if isinstance(domain, OneOf) and not domain.ordered:
        others = [other for other in domain.values if other != value]
        return others[int(rng.integers(len(others)))]
    width = max(step, 1 / domain.count if domain.count else 0.0)
    for _ in range(TRIES):
        moved = domain.position(value) + rng.normal(0.0, width)  # type: ignore[arg-type]
        if 0 <= moved <= 1 and (other := domain.at(moved)) != value:
            return other
    return domain.at(float(rng.random()))
