"""How busy others keep a machine over time."""

from __future__ import annotations

import bisect
from dataclasses import dataclass


@dataclass(frozen=True)
class Load:
    """A load in [0, 1) that changes in steps: each value holds from its time on, the first from the beginning."""

    values: tuple[float, ...] = (0.0,)
    from_s: tuple[float, ...] = ()  # one time fewer than values

    def __post_init__(self) -> None:
        """Refuse a load that is no share of a machine, or times out of order."""
        if len(self.values) != len(self.from_s) + 1:
            raise ValueError(
                f"{len(self.values)} loads need {len(self.values) - 1} times of change, not {len(self.from_s)}"
            )
        if any(not 0 <= value < 1 for value in self.values):
            raise ValueError(f"a load must be at least 0 and below 1, not {self.values}")
        if any(later <= earlier for earlier, later in zip(self.from_s, self.from_s[1:], strict=False)):
            raise ValueError(f"the times of change must rise, not {self.from_s}")

    def at(self, time_s: float) -> float:
        """Tell the load at a time."""
        return self.values[bisect.bisect_right(self.from_s, time_s)]
