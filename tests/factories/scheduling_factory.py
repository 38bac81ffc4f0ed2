"""Applications with five pruned networks each, whose cost and memory fall with the width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from driftlab.platform.core.records import Share, Variant
from driftlab.platform.scheduling.base import Allocation, Demand, SchedulerInput
from driftlab.platform.scheduling.costs import Choices, tabulate
from driftlab.platform.world.measured import knee

WIDTHS = np.array([0.2, 0.3, 0.45, 0.6, 0.8]) / 0.8


def usual_goals(variants: Sequence[Variant]) -> tuple[float | None, float]:
    """Return as goals the accuracy of the smallest network, and four times the latency at the knee."""
    smallest = min(variants, key=lambda variant: variant.memory_bytes)
    return smallest.accuracy, 4 * variants[knee(variants)].latency_s


def demand(rng: np.random.Generator, app: str, networks: int = 5) -> Demand:
    """Draw the networks of one application, with the usual goals."""
    missing = rng.uniform(0.03, 0.2) * ((1 - WIDTHS) / (1 - WIDTHS[0])) ** rng.uniform(1, 3)
    accuracy = rng.uniform(0.7, 0.95) - missing
    latency_s = rng.uniform(0.02, 0.2) * WIDTHS ** rng.uniform(1.2, 2)
    memory_bytes = np.round(rng.uniform(10e6, 200e6) * WIDTHS**2)
    chosen = sorted(rng.permutation(5)[:networks])
    variants = tuple(Variant(f"w{i}", float(accuracy[i]), int(memory_bytes[i]), float(latency_s[i])) for i in chosen)
    accuracy_goal, latency_goal_s = usual_goals(variants)
    return Demand(app, 30.0, variants, accuracy_goal=accuracy_goal, latency_goal_s=latency_goal_s)


def demands(seed: int, apps: int | None = None, networks: int = 5) -> tuple[Demand, ...]:
    """Draw two to six applications."""
    rng = np.random.default_rng(seed)
    return tuple(demand(rng, f"app{i}", networks) for i in range(apps or rng.integers(2, 7)))


def memory_bytes(given: tuple[Demand, ...], share: float) -> int:
    """Return a share of the memory of the largest networks, at least that of the smallest ones."""
    least, most = (sum(pick(v.memory_bytes for v in one.variants) for one in given) for pick in (min, max))
    return max(least, int(share * most))


def window(given: tuple[Demand, ...], share: float = 1.0) -> SchedulerInput:
    return SchedulerInput(0.0, 10.0, memory_bytes(given, share), given)


def choices(given: tuple[Demand, ...], alpha: float, share: float = 1.0, units: int = 100) -> Choices:
    return tabulate(given, memory_bytes(given, share), alpha, units)


def shares(allocation: Allocation) -> tuple[Share, ...]:
    return tuple(grant.inference_share for grant in allocation.grants)


def variants(allocation: Allocation) -> tuple[int | None, ...]:
    return tuple(grant.variant for grant in allocation.grants)


def notes(allocation: Allocation) -> tuple[str, ...]:
    return tuple(grant.note for grant in allocation.grants)


def with_goal(given: tuple[Demand, ...], accuracy_goal: float) -> tuple[Demand, ...]:
    return tuple(replace(one, accuracy_goal=accuracy_goal) for one in given)
