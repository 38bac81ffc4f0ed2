"""A search by a recurrent controller that learns from rewards (Zoph and Le, ICLR 2017).

The controller chooses the value of one setting after another; of a range it chooses a part, and the place within it is
random. The reward of a trial is the share of all trials so far that it beats, by rank: it needs no scale, and it
heeds every objective and bound.

Differs from the paper: no settings are tried twice; the controller learns from each trial in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from driftlab.platform.core.seeding import rng_for
from driftlab.platform.core.space import Domain, OneOf, SearchProblem, Settings, Trial, key, ranks
from driftlab.platform.tune.study import Batches, Searcher

if TYPE_CHECKING:
    from driftlab.platform.scaling.controller import Controller

DRAWS = 25  # for each of a batch; where none of them is new, the controller is sure and the search is over


@dataclass(frozen=True)
class Reinforce(Searcher):
    """Let a controller propose settings, and learn from what came of them."""

    batch: int = 8
    parts: int = 8  # of a range
    rate: float = 0.02  # step size of the controller

    def batches(self, problem: SearchProblem) -> Batches:
        """Yield what the controller draws."""
        from driftlab.platform.scaling.controller import Controller

        rng = rng_for(problem.seed, "search", "reinforce")
        counts = [self._count(domain) for domain in problem.space.domains.values()]
        controller = Controller(counts, int(rng.integers(2**31)), self.rate)
        trials: list[Trial] = []
        tried: set[tuple[tuple[str, str], ...]] = set()
        while batch := self._drawn(problem, controller, counts, tried, rng):
            told = yield batch
            tried |= {key(trial.settings) for trial in told}  # also the defaults, which the controller did not draw
            trials += told
            for trial, reward in zip(told, rewards(trials, problem)[-len(told) :], strict=True):
                controller.learn(_choices(problem, trial.settings, counts), reward)

    def _count(self, domain: Domain) -> int:
        """Return of how many options a setting is chosen: its values, or parts of a range."""
        if isinstance(domain, OneOf):
            return domain.count
        return min(domain.count or self.parts, self.parts)

    def _drawn(
        self,
        problem: SearchProblem,
        controller: Controller,
        counts: Sequence[int],
        tried: set[tuple[tuple[str, str], ...]],
        rng: np.random.Generator,
    ) -> list[Settings]:
        """Draw settings that were not tried; fewer, or none, where the controller draws no others."""
        found: list[Settings] = []
        for _ in range(DRAWS * self.batch):
            places = zip(controller.draw(rng), rng.random(len(counts)).tolist(), counts, strict=True)
            settings = problem.space.at([(one + within) / count for one, within, count in places])
            if key(settings) not in tried:
                tried.add(key(settings))
                found.append(settings)
            if len(found) == self.batch:
                break
        return found


def rewards(trials: Sequence[Trial], problem: SearchProblem) -> list[float]:
    """Return which share of the other trials each one beats, ties by half; one that failed beats none."""
    known = [trial for trial in trials if trial.metrics is not None]
    rank = dict(zip((trial.number for trial in known), ranks(known, problem) if known else [], strict=True))
    places = np.array([rank.get(trial.number, np.inf) for trial in trials])
    worse = (places[None] > places[:, None]).sum(axis=1) + 0.5 * ((places[None] == places[:, None]).sum(axis=1) - 1)
    failed = np.isinf(places)
    shares: list[float] = np.where(failed, 0.0, worse / max(len(trials) - 1, 1)).tolist()
    return shares


def _choices(problem: SearchProblem, settings: Settings, counts: Sequence[int]) -> list[int]:
    """Return the options that settings stand for."""
    places = problem.space.positions(settings) or []
    return [min(int(place * count), count - 1) for place, count in zip(places, counts, strict=True)]
