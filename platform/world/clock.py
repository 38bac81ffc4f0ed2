"""The clock of a simulation: processes run in virtual time or in wall-clock time."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal

import simpy
from simpy.rt import RealtimeEnvironment

Clock = simpy.Environment
ClockKind = Literal["virtual", "wall"]
Process = Generator[simpy.Event, Any, None]


def make_clock(kind: ClockKind, *, factor: float = 1.0) -> Clock:
    """Return a clock at zero; a wall clock takes `factor` host seconds per second and tolerates delays."""
    if kind == "virtual":
        return simpy.Environment()
    return RealtimeEnvironment(factor=factor, strict=False)
