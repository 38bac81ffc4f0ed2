"""Checks of values; each returns a list of faults, empty for a valid value."""

from __future__ import annotations

import math

from driftlab.errors import quoted


def check_integer(name: str, value: object, low: int, high: int) -> list[str]:
    """Check that a value is an integer from `low` to `high`."""
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return []
    return [f"{name} is {quoted(value)}, allowed are whole numbers from {low} to {high}"]


def check_number(name: str, value: object, low: float, high: float) -> list[str]:
    """Check that a value is a finite number from `low` to `high`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and math.isfinite(value) and low <= value <= high:  # type: ignore[arg-type, operator]
        return []
    return [f"{name} is {quoted(value)}, allowed are numbers from {low:g} to {high:g}"]
