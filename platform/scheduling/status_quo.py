"""Status quo, the baseline of NestDNN (MobiCom 2018): one fixed network per application."""

from __future__ import annotations

from dataclasses import dataclass

from driftlab.platform.scheduling.admission import allocation
from driftlab.platform.scheduling.base import WINDOW_ONLY, Allocation, SchedulerInput, Scheduling
from driftlab.platform.world.measured import knee


@dataclass(frozen=True)
class StatusQuo(Scheduling):
    """Status quo (NestDNN, MobiCom 2018): the variant at the accuracy-size knee.

    Shares are equal, and memory is ignored.
    """

    triggers = WINDOW_ONLY

    def allocate(self, window: SchedulerInput) -> Allocation:
        """Admit every application; a note reports networks that exceed the memory."""
        admitted = [i for i, demand in enumerate(window.demands) if demand.variants]
        chosen = [(i, knee(window.demands[i].variants), 1 / len(admitted)) for i in admitted]
        used_bytes = sum(window.demands[i].variants[network].memory_bytes for i, network, _ in chosen)
        excess = f"the networks need {used_bytes} bytes, the machine has {window.memory_bytes}"
        note = excess if used_bytes > window.memory_bytes else ""
        notes = [note if demand.variants else "waits: it has no network" for demand in window.demands]
        return allocation(window, chosen, notes)
