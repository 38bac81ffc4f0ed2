"""The status quo of NestDNN's comparison: one fixed network per application."""

from __future__ import annotations

from dataclasses import dataclass

from driftlab.platform.scheduling.admission import allocation
from driftlab.platform.scheduling.base import EACH_WINDOW, Allocation, Scheduling, Window
from driftlab.platform.world.measured import knee


@dataclass(frozen=True)
class StatusQuo(Scheduling):
    """Run each application's network at the knee of accuracy over size, on equal shares, regardless of memory."""

    wants = EACH_WINDOW

    def allocate(self, window: Window) -> Allocation:
        """Admit every application; a note says where the networks need more memory than there is."""
        admitted = [i for i, demand in enumerate(window.demands) if demand.variants]
        chosen = [(i, knee(window.demands[i].variants), 1 / len(admitted)) for i in admitted]
        held_bytes = sum(window.demands[i].variants[network].memory_bytes for i, network, _ in chosen)
        short = f"the networks need {held_bytes} bytes, the machine has {window.memory_bytes}"
        runs = short if held_bytes > window.memory_bytes else ""
        notes = [runs if demand.variants else "waits: it has no network" for demand in window.demands]
        return allocation(window, chosen, notes)
