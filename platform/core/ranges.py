"""Parameters and where they must lie."""

from __future__ import annotations

from collections.abc import Mapping

Ranges = Mapping[str, tuple[bool, str]]  # parameter -> (whether it lies there, where it must lie)
BEFORE = "before"  # metadata of a parameter that came later: with this value all is as it was without the parameter


def faults_in(member: object, ranges: Ranges) -> list[str]:
    """Name every parameter that does not lie where it must."""
    return [
        f"'{name}' is {getattr(member, name)}, must be {where}" for name, (lies, where) in ranges.items() if not lies
    ]
