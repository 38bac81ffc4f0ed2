"""Searchers that learn nothing from trials: a grid in order, and settings drawn at random."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from driftlab.platform.core.seeding import rng_for
from driftlab.platform.core.space import SearchProblem, key
from driftlab.platform.tune.study import Batches, Searcher

BATCH = 8
DRAWS = 100  # at random, for settings that were not drawn before


@dataclass(frozen=True)
class GridSearch(Searcher):
    """Every combination once."""

    def batches(self, problem: SearchProblem) -> Batches:
        """Yield the grid in slices."""
        grid = problem.space.grid()
        while batch := list(itertools.islice(grid, BATCH)):
            yield batch


@dataclass(frozen=True)
class Random(Searcher):
    """Settings drawn one by one, each once; it ends where nearly all of a small space was drawn."""

    def batches(self, problem: SearchProblem) -> Batches:
        """Yield settings that were not drawn before."""
        rng, drawn = rng_for(problem.seed, "search", "random"), set()
        while True:
            batch = []
            for _ in range(BATCH):
                fresh = (one for one in (problem.space.draw(rng) for _ in range(DRAWS)) if key(one) not in drawn)
                settings = next(fresh, None)
                if settings is not None:
                    drawn.add(key(settings))
                    batch.append(settings)
            if not batch:
                return
            yield batch
