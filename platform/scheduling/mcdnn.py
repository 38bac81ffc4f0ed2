"""MCDNN (MobiSys 2016): choose among independent variants by accuracy per compute, within budgets.

Differs from the paper: written from its idea; everything runs on the device; the energy of a window is unlimited; an
application that stops frees its memory at once, so there is nothing to evict.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from driftlab.platform.scheduling.admission import admit, allocation
from driftlab.platform.scheduling.base import WINDOW_ONLY, Allocation, Demand, SchedulerInput, Scheduling


@dataclass(frozen=True)
class Mcdnn(Scheduling):
    """MCDNN (MobiSys 2016): upgrade variants by accuracy per compute within compute and memory budgets."""

    triggers = WINDOW_ONLY

    def allocate(self, window: SchedulerInput) -> Allocation:
        """Upgrade from the smallest variants one at a time; divide the processor by required shares.

        A required share counts as at most 1, so that an unreachable goal, such as 0 s, leaves shares for the others.
        """
        admitted, notes = admit(window)
        chosen = {i: min(_variants(window, i), key=lambda m: _size(window.demands[i], m)) for i in admitted}
        while upgrade := _best_upgrade(window, chosen):
            chosen |= [upgrade]
        shares = {i: min(1.0, required_share(window.demands[i], network)) for i, network in chosen.items()}
        total = sum(shares.values())
        return allocation(window, [(i, network, shares[i] / total) for i, network in chosen.items()], notes)


def required_share(demand: Demand, network: int) -> float:
    """Return the share at which a network meets the latency goal, or without one predicts every frame."""
    period_s = 1 / demand.fps if demand.latency_goal_s is None else demand.latency_goal_s
    return demand.variants[network].latency_s / max(period_s, 1e-9)


def _best_upgrade(window: SchedulerInput, chosen: dict[int, int]) -> tuple[int, int] | None:
    """Return the feasible upgrade with the most accuracy per added compute, weighted by priority."""
    best, highest = None, 0.0
    for i, network in _feasible_upgrades(window, chosen):
        demand, now = window.demands[i], chosen[i]
        added = required_share(demand, network) - required_share(demand, now)
        gain = demand.priority * (_accuracy(demand, network) - _accuracy(demand, now))
        ratio = gain / max(added, 1e-12)
        if ratio > highest:
            best, highest = (i, network), ratio
    return best


def _feasible_upgrades(window: SchedulerInput, chosen: dict[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the changes to a more accurate variant that fit into all budgets."""
    for i, now in chosen.items():
        for network in _variants(window, i):
            better = _accuracy(window.demands[i], network) > _accuracy(window.demands[i], now)
            if better and _fits(window, {**chosen, i: network}):
                yield i, network


def _fits(window: SchedulerInput, chosen: dict[int, int]) -> bool:
    """Return whether the variants fit into the memory and the compute of the device."""
    pairs = [(window.demands[i], network) for i, network in chosen.items()]
    memory_bytes, shares = sum(_size(*pair) for pair in pairs), sum(required_share(*pair) for pair in pairs)
    return memory_bytes <= window.memory_bytes and shares <= 1


def _variants(window: SchedulerInput, i: int) -> range:
    return range(len(window.demands[i].variants))


def _size(demand: Demand, network: int) -> int:
    return demand.variants[network].memory_bytes


def _accuracy(demand: Demand, network: int) -> float:
    return demand.variants[network].accuracy or 0.0
