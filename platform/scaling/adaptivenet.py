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
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le

from driftlab.platform.core.parameters import CHOOSING, Means
from driftlab.platform.core.records import Variant
from driftlab.platform.core.seeding import rng_for
from driftlab.platform.scaling.base import Budget
from driftlab.platform.scaling.branches import OfPaths, deep_paths, full_depth, held_among
from driftlab.platform.scaling.evolving import PathSearch
from driftlab.platform.scaling.index import LatencyIndex
from driftlab.platform.scaling.selecting import alone_limit_s, renamed, same


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
