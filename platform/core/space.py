"""What a search may choose from: a domain for every setting, and positions in it between 0 and 1."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

GRID_POINTS = 5  # of a continuous range, where a grid is asked for
Settings = Mapping[str, Any]  # dotted path -> value


@dataclass(frozen=True)
class OneOf:
    """One of several values."""

    values: tuple[Any, ...]
    ordered: bool = False  # whether neighbours in the list are alike, as widths are and names are not

    def __str__(self) -> str:
        return " | ".join(map(str, self.values))

    @property
    def count(self) -> int:
        return len(self.values)

    def at(self, position: float) -> Any:
        """Give the value at a position; every value has an equal part of the unit interval."""
        return self.values[min(int(position * len(self.values)), len(self.values) - 1)]

    def position(self, value: Any) -> float:
        """Give the middle of a value's part; ValueError where it is none of the values."""
        return (self.values.index(value) + 0.5) / len(self.values)

    def grid(self) -> tuple[Any, ...]:
        """List every value."""
        return self.values


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; `log` spreads them by their orders of magnitude."""

    low: float
    high: float
    log: bool = False
    integer: bool = False

    ordered = True

    def __str__(self) -> str:
        how = ", by orders of magnitude" if self.log else ""
        return f"{self.low:g} to {self.high:g}{how}{', whole' if self.integer else ''}"

    @property
    def count(self) -> int | None:
        """How many values there are; None for a continuous range."""
        return int(self.high) - int(self.low) + 1 if self.integer else None

    def at(self, position: float) -> float | int:
        """Give the value at a position."""
        if not self.integer:
            return self._between(position, self.low, self.high)
        # Every integer has a part of its own, so the ends are as likely as any other.
        value = self._between(position, self.low - (0 if self.log else 0.5), self.high + (1 if self.log else 0.5))
        return int(min(self.high, max(self.low, math.floor(value) if self.log else round(value))))

    def position(self, value: float) -> float:
        """Give the position of a value; ValueError where it is outside."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.low <= value <= self.high:
            raise ValueError(f"{value} is not from {self.low:g} to {self.high:g}")
        low, high, at = self.low, self.high, float(value)
        if self.integer:
            low, high, at = (low, high + 1, at + 0.5) if self.log else (low - 0.5, high + 0.5, at)
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return 0.5 if high == low else (at - low) / (high - low)

    def grid(self) -> tuple[float | int, ...]:
        """List every integer, or five points of a continuous range, its ends included."""
        points = min(self.count or GRID_POINTS, GRID_POINTS)
        if self.integer and self.count is not None and self.count <= GRID_POINTS:
            return tuple(range(int(self.low), int(self.high) + 1))
        spread = [self._between(k / (points - 1), self.low, self.high) for k in range(points)]
        return tuple(dict.fromkeys(round(value) if self.integer else value for value in spread))

    def _between(self, position: float, low: float, high: float) -> float:
        if self.log:
            return min(high, max(low, math.exp(math.log(low) + position * (math.log(high) - math.log(low)))))
        return low + position * (high - low)


Domain = OneOf | Range


@dataclass(frozen=True)
class Space:
    """The domain of every setting, in a fixed order."""

    domains: Mapping[str, Domain]

    @property
    def count(self) -> int | None:
        """How many settings there are; None where one of the domains is continuous."""
        counts = [domain.count for domain in self.domains.values()]
        return None if None in counts else math.prod(count for count in counts if count is not None)

    def at(self, positions: Sequence[float]) -> dict[str, Any]:
        """Give the settings at a point of the unit cube."""
        return {
            path: domain.at(float(position))
            for (path, domain), position in zip(self.domains.items(), positions, strict=True)
        }

    def positions(self, settings: Settings) -> list[float] | None:
        """Give the point of some settings; None where they are not in this space."""
        try:
            return [domain.position(settings[path]) for path, domain in self.domains.items()]
        except (KeyError, ValueError):
            return None

    def grid(self) -> Iterator[dict[str, Any]]:
        """Go through all combinations; of continuous ranges, through some points."""
        for values in itertools.product(*(domain.grid() for domain in self.domains.values())):
            yield dict(zip(self.domains, values, strict=True))

    def draw(self, rng: np.random.Generator) -> dict[str, Any]:
        """Draw settings at random."""
        return self.at(rng.random(len(self.domains)).tolist())


def key(settings: Settings) -> tuple[tuple[str, str], ...]:
    """Tell settings apart."""
    return tuple((path, repr(settings[path])) for path in sorted(settings))
