"""The shifts by name, without the code that draws them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

SEVERITIES = (1, 2, 3, 4, 5)
ANGLES = (10, 20, 30, 45, 60)  # degrees of a rotation by severity


@dataclass(frozen=True)
class Shift:
    """A change of pictures in five severities."""

    name: str
    group: str
    summary: str
    graded: bool = True  # whether severities differ
    turns: bool = False  # whether truth turns with the picture


_SHIFTS = (
    Shift("gaussian_noise", "noise", "noise of equal strength everywhere"),
    Shift("rotation", "view", f"turned by {ANGLES[0]} to {ANGLES[-1]} degrees, with its truth", turns=True),
    Shift("inversion", "look", "light becomes dark and dark light", graded=False),
)
SHIFTS: Mapping[str, Shift] = MappingProxyType({shift.name: shift for shift in _SHIFTS})
THIRTY = ("gaussian_noise", "rotation", "inversion")
