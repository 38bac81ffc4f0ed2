"""MCDNN's choice among independent networks: the best accuracy per compute, within all budgets of the window.

Differs from the paper: written from its idea; everything runs on the device; the energy of a window is unlimited; an
application that stops frees its memory at once, so there is nothing to evict.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from driftlab.platform.scheduling.admission import admit, allocation
from driftlab.platform.scheduling.base import EACH_WINDOW, Allocation, Demand, Scheduling, Window


@dataclass(frozen=True)
class Mcdnn(Scheduling):
    """Start from the smallest networks; upgrade where accuracy per compute is best while all budgets hold."""

    wants = EACH_WINDOW

    def allocate(self, window: Window) -> Allocation:
        """Give each application the share that its network needs, and divide the rest in proportion.

        A need is at most the full machine: an unreachable goal, such as 0 s, leaves something for the others.
        """
        admitted, notes = admit(window)
        chosen = {i: min(_all(window, i), key=lambda m: _size(window.demands[i], m)) for i in admitted}
        while upgrade := _best_upgrade(window, chosen):
            chosen |= [upgrade]
        needs = {i: min(1.0, need(window.demands[i], network)) for i, network in chosen.items()}
        whole = sum(needs.values())
        return allocation(window, [(i, network, needs[i] / whole) for i, network in chosen.items()], notes)


def need(demand: Demand, network: int) -> float:
    """Return the share on which a network meets the latency goal, or without one processes every frame."""
    period_s = 1 / demand.fps if demand.latency_goal_s is None else demand.latency_goal_s
    return demand.variants[network].latency_s / max(period_s, 1e-9)


def _best_upgrade(window: Window, chosen: dict[int, int]) -> tuple[int, int] | None:
    """Return the feasible upgrade with the most accuracy per added compute, weighted by priority."""
    best, most = None, 0.0
    for i, network in _upgrades(window, chosen):
        demand, now = window.demands[i], chosen[i]
        added = need(demand, network) - need(demand, now)
        gained = demand.priority * (_accuracy(demand, network) - _accuracy(demand, now))
        worth = gained / max(added, 1e-12)
        if worth > most:
            best, most = (i, network), worth
    return best


def _upgrades(window: Window, chosen: dict[int, int]) -> Iterator[tuple[int, int]]:
    """List the changes to a more accurate network that all budgets allow."""
    for i, now in chosen.items():
        for network in _all(window, i):
            better = _accuracy(window.demands[i], network) > _accuracy(window.demands[i], now)
            if better and _fits(window, {**chosen, i: network}):
                yield i, network


def _fits(window: Window, chosen: dict[int, int]) -> bool:
    pairs = [(window.demands[i], network) for i, network in chosen.items()]
    return sum(_size(*pair) for pair in pairs) <= window.memory_bytes and sum(need(*pair) for pair in pairs) <= 1


def _all(window: Window, i: int) -> range:
    return range(len(window.demands[i].variants))


def _size(demand: Demand, network: int) -> int:
    return demand.variants[network].memory_bytes


def _accuracy(demand: Demand, network: int) -> float:
    return demand.variants[network].accuracy or 0.0
