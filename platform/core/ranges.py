"""Parameters and their ranges."""

from __future__ import annotations

from collections.abc import Mapping

Ranges = Mapping[str, tuple[bool, str]]  # parameter -> (whether it lies in its range, the range in words)
BEFORE = "before"  # metadata of a parameter added later: the value that keeps earlier recipes and their keys unchanged


def faults_in(member: object, ranges: Ranges) -> list[str]:
    """List every parameter outside its range."""
    return [
        f"'{name}' is {getattr(member, name)}, must be {where}" for name, (lies, where) in ranges.items() if not lies
    ]
