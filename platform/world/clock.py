"""One clock for everything that takes time: the same processes run in virtual or wall-clock time."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal

import simpy
from simpy.rt import RealtimeEnvironment

Clock = simpy.Environment
ClockKind = Literal["virtual", "wall"]
Process = Generator[simpy.Event, Any, None]


def make_clock(kind: ClockKind, *, factor: float = 1.0) -> Clock:
    """Start a clock at zero; a wall clock takes `factor` host seconds per second and tolerates delays."""
    if kind == "virtual":
        return simpy.Environment()
    return RealtimeEnvironment(factor=factor, strict=False)
