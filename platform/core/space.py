"""The shape of a search: domains, objectives, constraints and trials, and which trials beat which."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from driftlab.errors import RequestError

Floats = npt.NDArray[np.float64]
BOUND = re.compile(r"\s*(\w+)\s*(<=|>=)\s*(\S+)\s*")
GRID_POINTS = 5  # of a continuous range in a grid
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
        # Every integer has a separate part, so the ends are as likely as any other.
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
    """Return a hashable key of settings."""
    return tuple((path, repr(settings[path])) for path in sorted(settings))


@dataclass(frozen=True)
class Objective:
    """A metric, and which way it is better."""

    metric: str
    better: Literal["max", "min"] = "max"

    def loss(self, metrics: Mapping[str, float]) -> float:
        """Give the metric so that lower is better."""
        return -metrics[self.metric] if self.better == "max" else metrics[self.metric]


@dataclass(frozen=True)
class Constraint:
    """A bound that a metric has to keep."""

    metric: str
    relation: Literal["<=", ">="]
    bound: float

    def violation(self, metrics: Mapping[str, float]) -> float:
        """Return the violation relative to the bound (absolute for a bound of 0); 0 if it is kept."""
        over = metrics[self.metric] - self.bound
        return max(0.0, over if self.relation == "<=" else -over) / (abs(self.bound) or 1.0)


def constraint_of(text: str) -> Constraint:
    """Read `METRIC <= NUMBER` or `METRIC >= NUMBER`."""
    found = BOUND.fullmatch(text)
    try:
        metric, relation, bound = found.groups() if found else ("", "", "none")
        return Constraint(metric, relation, float(bound))  # type: ignore[arg-type]
    except ValueError:
        raise RequestError(f"'{text}' is not METRIC <= NUMBER or METRIC >= NUMBER") from None


@dataclass(frozen=True)
class SearchProblem:
    """Space, objectives, constraints and seed of a search."""

    space: Space
    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...] = ()
    seed: int = 0

    @property
    def metrics(self) -> dict[str, Literal["max", "min"]]:
        """List the metrics that a trial must have measured, and which way each is better."""
        bounds: dict[str, Literal["max", "min"]] = {
            one.metric: "min" if one.relation == "<=" else "max" for one in self.constraints
        }
        return {**bounds, **{one.metric: one.better for one in self.objectives}}


@dataclass(frozen=True)
class Trial:
    """Settings of a trial, and its metrics."""

    number: int
    settings: Settings
    metrics: Mapping[str, float] | None  # None: it failed

    def losses(self, problem: SearchProblem) -> tuple[float, ...]:
        """Give every objective so that lower is better; of a trial that did not fail."""
        return tuple(objective.loss(self.metrics or {}) for objective in problem.objectives)

    def violation(self, problem: SearchProblem) -> float:
        """Add up by how much the bounds are missed."""
        return sum(constraint.violation(self.metrics or {}) for constraint in problem.constraints)


def leading(trials: Sequence[Trial], problem: SearchProblem) -> list[Trial]:
    """Return the Pareto-optimal trials; trials that miss a bound only if all do."""
    succeeded = [trial for trial in trials if trial.metrics is not None]
    if not succeeded:
        return []
    return [trial for trial, rank in zip(succeeded, ranks(succeeded, problem), strict=True) if rank == 0]


def best_of(trials: Sequence[Trial], problem: SearchProblem) -> Trial | None:
    """Choose of the leading trials the one with the best first objective, the earliest among equals."""
    front = leading(trials, problem)
    return min(front, key=lambda trial: (trial.losses(problem), trial.number), default=None)


def ranks(trials: Sequence[Trial], problem: SearchProblem) -> list[int]:
    """Rank trials by dominance; trials within the bounds come first, the others by violation."""
    violations = np.array([trial.violation(problem) for trial in trials])
    losses = np.array([trial.losses(problem) for trial in trials]).reshape(len(trials), -1)
    found = np.zeros(len(trials), dtype=np.int64)
    kept = np.flatnonzero(violations == 0)
    found[kept] = _fronts(losses[kept])
    after = int(found[kept].max()) + 1 if len(kept) else 0
    missed = np.flatnonzero(violations > 0)
    found[missed] = after + np.unique(violations[missed], return_inverse=True)[1]
    return [int(rank) for rank in found]


def _fronts(losses: Floats) -> npt.NDArray[np.int64]:
    """Number the Pareto fronts of points, lower being better in each coordinate."""
    found, left, front = np.zeros(len(losses), dtype=np.int64), np.arange(len(losses)), 0
    while len(left):
        points = losses[left]
        no_worse = (points[:, None] <= points[None]).all(axis=2)
        beaten = (no_worse & ~no_worse.T).any(axis=0)
        found[left[~beaten]] = front
        left, front = left[beaten], front + 1
    return found


def room(losses: Floats) -> Floats:
    """Return the crowding distance of each point of a front; that of the ends is infinite."""
    around = np.zeros(len(losses))
    for column in losses.T:
        order = column.argsort(kind="stable")
        extent = column[order[-1]] - column[order[0]]
        around[order[[0, -1]]] = np.inf
        if extent > 0:
            around[order[1:-1]] += (column[order[2:]] - column[order[:-2]]) / extent
    return around


def hypervolume(losses: Floats, reference: Sequence[float]) -> float:
    """Return the hypervolume between points and a worse reference; lower coordinates are better."""
    inside = losses[(losses < np.asarray(reference)).all(axis=1)]
    if not len(inside):
        return 0.0
    if inside.shape[1] == 1:
        return float(reference[0] - inside.min())
    total, order = 0.0, inside[:, -1].argsort(kind="stable")
    heights = [*inside[order[1:], -1].tolist(), reference[-1]]
    for count, (point, height) in enumerate(zip(order, heights, strict=True), 1):
        depth = height - inside[point, -1]
        if depth > 0:
            total += depth * hypervolume(inside[order[:count], :-1], reference[:-1])
    return total
