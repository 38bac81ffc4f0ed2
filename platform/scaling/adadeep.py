"""AdaDeep (Liu et al., TMC 2020): Q-learning selects a combination of operators once.

The choice does not change under load.

An episode selects an operator per stage; the state is the stage and the share of the latency limit that is left. The
reward at its end weighs accuracy and energy, with a penalty for a violated limit.

Differs from the paper: networks are the paths of a supernet without exits; the reward uses measured accuracies instead
of training every candidate; a table replaces the deep network; new accuracy estimates start the learning again.
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
from driftlab.platform.scaling.branches import PathScaling, fitting_among, fitting_paths
from driftlab.platform.scaling.selecting import alone_limit_s, same

BUCKETS = 8  # of the remaining latency limit
FIRST_EPSILON, LAST_EPSILON = 1.0, 0.1  # probability of a random operator, in the first and last episode
LEARNING_RATE = 0.3
EPISODES = 200  # of Q-learning
State = tuple[int, int]  # stage, and bucket of the remaining limit


@dataclass(frozen=True)
class AdaDeep(PathScaling):
    """AdaDeep (TMC 2020): Q-learning selects operators once; repeated only for new accuracies."""

    energy_weight: Annotated[float, Ge(0), Le(1), Means("weight of energy in the reward")] = field(
        default=0.3, metadata={CHOOSING: True}
    )

    def select_within(self, variants: Sequence[Variant], budget: Budget, state: Any) -> tuple[int, Any]:
        """Search at the first call and after a change of accuracies; `state` is the result and its networks."""
        is_current = state is not None and same(variants, state[1])
        which = state[0] if is_current else self.search(variants, budget)
        return fitting_among(variants, [which], budget)[0], (which, variants)

    def search(self, variants: Sequence[Variant], budget: Budget) -> int:
        """Return the best network of all episodes among those that fit in the free memory."""
        paths = fitting_paths(variants, budget)
        options = [list(dict.fromkeys(names)) for names in zip(*paths, strict=True)]
        limit_s = alone_limit_s(budget)
        rng, values = rng_for(0, "adadeep"), dict[tuple[State, str], float]()
        rewards: dict[int, float] = {}
        for episode in range(EPISODES):
            epsilon = FIRST_EPSILON + (LAST_EPSILON - FIRST_EPSILON) * episode / (EPISODES - 1)
            steps = self._run_episode(variants, paths, options, values, (limit_s, epsilon, rng))
            which = paths[tuple(name for _, name in steps)]
            rewards[which] = reward = self._reward(variants, which, limit_s)
            for number, (state, name) in reversed(list(enumerate(steps))):
                next_values = (
                    [values.get((steps[number + 1][0], one), 0.0) for one in options[number + 1]]
                    if number + 1 < len(steps)
                    else [reward]
                )
                old = values.get((state, name), 0.0)
                values[state, name] = old + LEARNING_RATE * (max(next_values) - old)
        return max(rewards, key=lambda which: (rewards[which], -which))

    def _run_episode(
        self,
        variants: Sequence[Variant],
        paths: Mapping[tuple[str, ...], int],
        options: Sequence[Sequence[str]],
        values: Mapping[tuple[State, str], float],
        how: tuple[float, float, np.random.Generator],
    ) -> list[tuple[State, str]]:
        """Select an operator for each stage, epsilon-greedily; `how` is the limit, epsilon and the generator."""
        (limit_s, epsilon, rng), steps = how, list[tuple[State, str]]()
        for stage, every in enumerate(options):
            prefix = tuple(name for _, name in steps)
            ends = {path: which for path, which in paths.items() if path[:stage] == prefix}
            names = [name for name in every if any(path[stage] == name for path in ends)]
            fastest_s = min(variants[which].latency_s for which in ends.values())
            left = max(0.0, 1 - fastest_s / limit_s) if np.isfinite(limit_s) and limit_s > 0 else 1.0
            state = stage, min(BUCKETS - 1, int(left * BUCKETS))
            q_values = [values.get((state, name), 0.0) for name in names]
            action = int(rng.integers(len(names))) if rng.random() < epsilon else int(np.argmax(q_values))
            steps.append((state, names[action]))
        return steps

    def _reward(self, variants: Sequence[Variant], which: int, limit_s: float) -> float:
        variant, max_j = variants[which], max(each.energy_j or 0.0 for each in variants) or 1.0
        reward = (1 - self.energy_weight) * (variant.accuracy or 0.0) + self.energy_weight * (
            1 - (variant.energy_j or 0.0) / max_j
        )
        return reward - (variant.latency_s > limit_s)
