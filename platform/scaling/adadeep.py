"""AdaDeep: a combination of operators found once, before the network is deployed, by learning from rewards.

Q-learning goes through the stages and chooses an operator at each, knowing how much of the latency limit is left. Its
reward at the end weighs accuracy and energy, and punishes a limit that is broken (Liu et al., TMC 2020). What it found
stays, whatever the load becomes.

Differs from the paper: its networks are the paths of a branched network without exits; the reward uses their measured
accuracies instead of training every candidate; a table takes the place of a deep network; where accuracies are
estimated anew while the application runs, it learns anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le

from driftlab.platform.core.parameters import CHOOSING, Means
from driftlab.platform.core.records import Variant
from driftlab.platform.core.seeding import rng_for
from driftlab.platform.scaling.base import Budget
from driftlab.platform.scaling.branches import OfPaths, held_among, held_paths
from driftlab.platform.scaling.selecting import alone_limit_s, same

BUCKETS = 8  # of the latency limit that is left
FIRST_CHANCE, LAST_CHANCE = 1.0, 0.1  # of a random operator, from the first episode to the last
RATE = 0.3  # of learning
Place = tuple[int, int]  # stage, and how much of the limit is left


@dataclass(frozen=True)
class AdaDeep(OfPaths):
    """Choose operators once by Q-learning, whatever the load becomes; only new accuracies start it anew."""

    episodes: Annotated[int, Ge(1), Means("combinations that are tried")] = field(
        default=200, metadata={CHOOSING: True}
    )
    energy_weight: Annotated[float, Ge(0), Le(1), Means("weight of energy in the reward")] = field(
        default=0.3, metadata={CHOOSING: True}
    )

    def prefer(self, variants: Sequence[Variant], budget: Budget, state: Any) -> tuple[int, Any]:
        """Search at the first call, and where accuracies are others; `state` is what was found, and by what."""
        known = state is not None and same(variants, state[1])
        which = state[0] if known else self.search(variants, budget)
        return held_among(variants, [which], budget)[0], (which, variants)

    def search(self, variants: Sequence[Variant], budget: Budget) -> int:
        """Return the best network of all episodes, of those that fit in the free memory."""
        paths = held_paths(variants, budget)
        options = [list(dict.fromkeys(names)) for names in zip(*paths, strict=True)]
        limit_s = alone_limit_s(budget)
        rng, values = rng_for(0, "adadeep"), dict[tuple[Place, str], float]()
        rewards: dict[int, float] = {}
        for episode in range(self.episodes):
            chance = FIRST_CHANCE + (LAST_CHANCE - FIRST_CHANCE) * episode / max(1, self.episodes - 1)
            steps = self._walk(variants, paths, options, values, (limit_s, chance, rng))
            which = paths[tuple(name for _, name in steps)]
            rewards[which] = reward = self._reward(variants, which, limit_s)
            for number, (place, name) in reversed(list(enumerate(steps))):
                follows = (
                    [values.get((steps[number + 1][0], one), 0.0) for one in options[number + 1]]
                    if number + 1 < len(steps)
                    else [reward]
                )
                old = values.get((place, name), 0.0)
                values[place, name] = old + RATE * (max(follows) - old)
        return max(rewards, key=lambda which: (rewards[which], -which))

    def _walk(
        self,
        variants: Sequence[Variant],
        paths: Mapping[tuple[str, ...], int],
        options: Sequence[Sequence[str]],
        values: Mapping[tuple[Place, str], float],
        how: tuple[float, float, np.random.Generator],
    ) -> list[tuple[Place, str]]:
        """Choose an operator for each stage: by chance, or of the greatest value."""
        (limit_s, chance, rng), steps = how, list[tuple[Place, str]]()
        for stage, every in enumerate(options):
            begun = tuple(name for _, name in steps)
            ends = {path: which for path, which in paths.items() if path[:stage] == begun}
            names = [name for name in every if any(path[stage] == name for path in ends)]
            quickest_s = min(variants[which].latency_s for which in ends.values())
            left = max(0.0, 1 - quickest_s / limit_s) if np.isfinite(limit_s) and limit_s > 0 else 1.0
            place = stage, min(BUCKETS - 1, int(left * BUCKETS))
            known = [values.get((place, name), 0.0) for name in names]
            drawn = int(rng.integers(len(names))) if rng.random() < chance else int(np.argmax(known))
            steps.append((place, names[drawn]))
        return steps

    def _reward(self, variants: Sequence[Variant], which: int, limit_s: float) -> float:
        one, dearest = variants[which], max(each.energy_j or 0.0 for each in variants) or 1.0
        worth = (1 - self.energy_weight) * (one.accuracy or 0.0) + self.energy_weight * (
            1 - (one.energy_j or 0.0) / dearest
        )
        return worth - (one.latency_s > limit_s)
