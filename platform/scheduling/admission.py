"""Admission of applications by memory and units, with notes on waiting and unreachable goals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from driftlab.platform.scheduling.base import Allocation, Demand, Grant, SchedulerInput


def admit(window: SchedulerInput, max_apps: int | None = None) -> tuple[list[int], list[str]]:
    """Return the applications that fit with their smallest networks, and a note per application.

    Applications of lower priority wait first; of equals, the last to arrive.
    """
    running: list[int] = []
    notes, free_bytes = [""] * len(window.demands), window.memory_bytes
    for i in sorted(range(len(window.demands)), key=lambda i: -window.demands[i].priority):
        demand = window.demands[i]
        least_bytes = min((variant.memory_bytes for variant in demand.variants), default=0)
        if not demand.variants:
            notes[i] = "waits: it has no network"
        elif len(running) == max_apps:
            notes[i] = f"waits: the machine is shared by {max_apps} applications, and not finer"
        elif least_bytes > free_bytes:
            notes[i] = f"waits: its smallest network needs {least_bytes} bytes, {free_bytes} are free"
        else:
            running.append(i)
            free_bytes -= least_bytes
    return sorted(running), notes


def allocation(
    window: SchedulerInput,
    chosen: Sequence[tuple[int, int | None, float]],
    notes: Sequence[str] = (),
    state: Any = None,
) -> Allocation:
    """Return the allocation of (demand, network, share) triples; all other demands wait."""
    grants = [Grant(0.0, note=note) for note in notes or [""] * len(window.demands)]
    for i, variant, share in chosen:
        note = "; ".join(filter(None, (grants[i].note, *unreachable_goals(window.demands[i]))))
        grants[i] = Grant(share, variant=variant, note=note)
    return Allocation(tuple(grants), state)


def unreachable_goals(demand: Demand) -> Iterator[str]:
    """Describe the goals that none of an application's networks meets, even without co-running tasks."""
    known = [variant.accuracy for variant in demand.variants if variant.accuracy is not None]
    if known and demand.accuracy_goal is not None and max(known) < demand.accuracy_goal:
        yield f"an accuracy of {demand.accuracy_goal:g} is out of reach: its best network has {max(known):g}"
    fastest_s = min(variant.latency_s for variant in demand.variants)
    if demand.latency_goal_s is not None and fastest_s > demand.latency_goal_s:
        yield f"{demand.latency_goal_s:g} s is out of reach: its fastest network takes {fastest_s:g} s"
