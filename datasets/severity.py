"""The severity of a condition over time: constant, drifting or switching."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from driftlab.datasets import checks
from driftlab.errors import quoted, unknown_name

STAY, DRIFT, SWITCH = "stay", "drift", "switch"
_SCHEDULES = (STAY, DRIFT, SWITCH)
_MIN_PERIOD_S, _MAX_PERIOD_S = 0.1, 1e6
_KEYS = ("severity", "schedule", "period_s")


@dataclass(frozen=True)
class SeveritySchedule:
    """A severity, and its schedule between the neutral value and this severity."""

    severity: float
    schedule: str = STAY
    period_s: float = 60.0
    neutral: float = 0.0

    def at(self, time_s: float) -> float:
        """Return the severity at a time: `drift` changes smoothly, `switch` in steps every `period_s`."""
        turns = time_s / self.period_s
        if self.schedule == DRIFT:
            return self.neutral + (self.severity - self.neutral) * (1 - math.cos(math.pi * turns)) / 2
        if self.schedule == SWITCH and not math.floor(turns + 1e-9) % 2:
            return self.neutral
        return self.severity


def faults_in(name: str, value: object, low: float, high: float) -> list[str]:
    """Return the faults of a severity: a number, or a mapping with severity, schedule and period_s."""
    if not isinstance(value, Mapping):
        return checks.check_number(name, value, low, high)
    faults = [str(unknown_name(f"key of {name}", str(key), _KEYS)).rstrip(".") for key in value if key not in _KEYS]
    if "severity" not in value:
        faults.append(f"{name} has no severity, such as {name}.severity=0.5")
    else:
        faults += checks.check_number(f"{name}.severity", value["severity"], low, high)
    if value.get("schedule", STAY) not in _SCHEDULES:
        faults.append(f"{name}.schedule is {quoted(value['schedule'])}, allowed are {', '.join(_SCHEDULES)}")
    return faults + checks.check_number(f"{name}.period_s", value.get("period_s", 60.0), _MIN_PERIOD_S, _MAX_PERIOD_S)


def read(value: float | Mapping[str, object], neutral: float) -> SeveritySchedule:
    """Return the schedule of a checked value."""
    if not isinstance(value, Mapping):
        return SeveritySchedule(float(value), neutral=neutral)
    schedule, period_s = str(value.get("schedule", STAY)), float(value.get("period_s", 60.0))  # type: ignore[arg-type]
    return SeveritySchedule(float(value["severity"]), schedule, period_s, neutral)  # type: ignore[arg-type]
