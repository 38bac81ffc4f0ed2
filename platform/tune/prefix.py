"""Whether a short session is, to the bit, the beginning of a longer one: then a trial may be stopped at any window."""

from __future__ import annotations

from driftlab.platform.core.registry import Member
from driftlab.platform.lab.cells import cells_of
from driftlab.platform.lab.read import Experiment
from driftlab.platform.streaming.base import StreamFacts


def reads_end(experiment: Experiment) -> str:
    """Say which plan depends on when the session ends; empty if none does."""
    for cell in cells_of(experiment):
        for device in cell.devices:
            for tenant in device.apps:
                facts = StreamFacts(tenant.stream.fps, tenant.stream.duration_s)
                if plan_reads_end(cell.system.streaming, facts):
                    return f"streaming={cell.system.streaming} plans by the end of the session"
    return ""


def plan_reads_end(streaming: Member, facts: StreamFacts) -> bool:
    """Ask a streaming member whether it would plan otherwise in a longer session."""
    return bool(streaming.make().reads_end(facts))
