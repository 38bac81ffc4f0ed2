"""The severity of a condition over time: constant, drifting or switching."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from driftlab.datasets import checks
from driftlab.errors import quoted, unknown_name

STAY, DRIFT, SWITCH = "stay", "drift", "switch"
_COURSES = (STAY, DRIFT, SWITCH)
_MIN_PERIOD_S, _MAX_PERIOD_S = 0.1, 1e6
_KEYS = ("severity", "course", "every_s")


@dataclass(frozen=True)
class SeverityCourse:
    """A severity, and its schedule between the neutral value and this severity."""

    severity: float
    course: str = STAY
    every_s: float = 60.0
    neutral: float = 0.0

    def at(self, time_s: float) -> float:
        """Return the severity at a time: `drift` changes smoothly, `switch` in steps every `every_s`."""
        turns = time_s / self.every_s
        if self.course == DRIFT:
            return self.neutral + (self.severity - self.neutral) * (1 - math.cos(math.pi * turns)) / 2
        if self.course == SWITCH and not math.floor(turns + 1e-9) % 2:
            return self.neutral
        return self.severity


def faults_in(name: str, value: object, low: float, high: float) -> list[str]:
    """Return the faults of a severity: a number, or a mapping with severity, course and every_s."""
    if not isinstance(value, Mapping):
        return checks.check_number(name, value, low, high)
    faults = [str(unknown_name(f"key of {name}", str(key), _KEYS)).rstrip(".") for key in value if key not in _KEYS]
    if "severity" not in value:
        faults.append(f"{name} has no severity, such as {name}.severity=0.5")
    else:
        faults += checks.check_number(f"{name}.severity", value["severity"], low, high)
    if value.get("course", STAY) not in _COURSES:
        faults.append(f"{name}.course is {quoted(value['course'])}, allowed are {', '.join(_COURSES)}")
    return faults + checks.check_number(f"{name}.every_s", value.get("every_s", 60.0), _MIN_PERIOD_S, _MAX_PERIOD_S)


def read(value: float | Mapping[str, object], neutral: float) -> SeverityCourse:
    """Return the schedule of a checked value."""
    if not isinstance(value, Mapping):
        return SeverityCourse(float(value), neutral=neutral)
    course, every_s = str(value.get("course", STAY)), float(value.get("every_s", 60.0))  # type: ignore[arg-type]
    return SeverityCourse(float(value["severity"]), course, every_s, neutral)  # type: ignore[arg-type]
