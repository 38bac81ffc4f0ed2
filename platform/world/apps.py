"""Traces of the applications on a device: arrivals, departures and changed requirements, drawn from a seed.

As in NestDNN's benchmark, at every tick one of the absent applications may start, or one of the running ones may
stop, each chosen uniformly. The number of running applications is then a birth-death chain, and a trace begins in its
stationary state. The paper gives the shares of time with two to six applications, not the probabilities; their
successive ratios are 1.37 on average, which is the ratio of the two probabilities here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Le, Lt, MinLen

from driftlab.errors import RequestError
from driftlab.platform.world.profile import STRICT, parse

MAX_TICKS = 1_000_000
Chance = Annotated[float, Ge(0), Le(1)]
Count = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0), Lt(math.inf)]
Several = Annotated[tuple[Positive, ...], MinLen(1)]


@dataclass(frozen=True)
class AppGoals:
    """An application and its requirements."""

    __pydantic_config__: ClassVar = STRICT

    name: str
    fps: Positive = 30.0
    accuracy_goal: Chance | None = None
    latency_goal_s: Annotated[float, Ge(0), Lt(math.inf)] | None = None
    priority: Positive = 1.0
    energy_goal_j: Positive | None = None


@dataclass(frozen=True)
class Event:
    """A change of an application, which has the given requirements from then on."""

    time_s: float
    kind: Literal["start", "stop", "change"]
    app: AppGoals


@dataclass(frozen=True)
class Churn:
    """The random process of arrivals and departures, and how often an application changes its requirements."""

    __pydantic_config__: ClassVar = STRICT

    name: str = "churn"
    duration_s: Positive = 60.0
    tick_s: Positive = 1.0
    start: Chance = 0.1368  # at each tick
    stop: Chance = 0.1
    least: Count = 2
    most: Annotated[int, Ge(1)] = 6
    change: Chance = 0.0
    priorities: Several = (1.0, 2.0, 4.0)  # a changed priority is drawn from these
    latency_factors: Several = (
        0.5,
        1.0,
        2.0,
    )  # the same for a changed latency goal, as a factor of the first one

    def __post_init__(self) -> None:
        """Refuse impossible parameters."""
        if self.least > self.most:
            raise ValueError(f"least ({self.least}) must not be above most ({self.most})")
        if self.duration_s / self.tick_s > MAX_TICKS:
            raise ValueError(f"tick_s ({self.tick_s:g} s) must be at least {self.duration_s / MAX_TICKS:g} s")
        if self.start + self.stop > 1:
            raise ValueError(f"start + stop is {self.start + self.stop:g}: at a tick one of them happens, at most")


def from_mapping(given: Mapping[str, Any]) -> Churn:
    """Read the process that a user describes."""
    return parse(Churn, "app trace", given)


def draw_trace(apps: Sequence[AppGoals], churn: Churn, rng: np.random.Generator) -> tuple[Event, ...]:
    """Draw the events in order of time; applications that run at the start come at 0 s."""
    check([app.name for app in apps], churn)
    known = {app.name: app for app in apps}
    most = min(churn.most, len(apps))
    running = _first(sorted(known), churn, most, rng)
    events = [Event(0.0, "start", known[name]) for name in running]
    for tick in range(1, round(churn.duration_s / churn.tick_s)):
        time_s, draw = tick * churn.tick_s, rng.random()
        if draw < churn.start and len(running) < most:
            idle = [name for name in sorted(known) if name not in running]
            running.append(idle[rng.integers(len(idle))])
            events.append(Event(time_s, "start", known[running[-1]]))
        elif churn.start <= draw < churn.start + churn.stop and len(running) > churn.least:
            gone = running.pop(rng.integers(len(running)))
            events.append(Event(time_s, "stop", known[gone]))
        if churn.change and rng.random() < churn.change and running:
            changed = known[running[rng.integers(len(running))]]
            events.append(Event(time_s, "change", _changed(changed, churn, rng)))
    return tuple(events)


def check(names: Sequence[str], churn: Churn) -> None:
    """Refuse applications for which no trace can be drawn."""
    if len(set(names)) < len(names) or len(names) < churn.least:
        told = ", ".join(names) or "none"
        raise RequestError(f"An app trace needs at least {churn.least} applications of different names, not: {told}.")


def stationary(churn: Churn, most: int) -> npt.NDArray[np.float64]:
    """Return the share of time with each number of applications, from the least to the most."""
    ups = np.arange(most - churn.least + 1)
    weights: npt.NDArray[np.float64] = churn.start**ups * churn.stop ** ups[::-1]  # in equilibrium: as often up as down
    return weights / weights.sum() if weights.any() else np.full(len(ups), 1 / len(ups))


def _first(names: list[str], churn: Churn, most: int, rng: np.random.Generator) -> list[str]:
    """Draw the applications that run at the start."""
    count = churn.least + int(rng.choice(most - churn.least + 1, p=stationary(churn, most)))
    return [names[i] for i in rng.permutation(len(names))[:count]]


def _changed(app: AppGoals, churn: Churn, rng: np.random.Generator) -> AppGoals:
    """Draw another priority or, with equal probability, another latency goal where the application has one."""
    if app.latency_goal_s is not None and rng.random() < 0.5:
        return replace(app, latency_goal_s=app.latency_goal_s * float(rng.choice(churn.latency_factors)))
    return replace(app, priority=float(rng.choice(churn.priorities)))


def running_apps(events: Sequence[Event], time_s: float) -> tuple[AppGoals, ...]:
    """Return the applications that run at a time, with their requirements then, in order of arrival."""
    apps: dict[str, AppGoals] = {}
    for event in events:
        if event.time_s > time_s:
            break
        if event.kind == "stop":
            apps.pop(event.app.name, None)
        else:
            apps[event.app.name] = event.app
    return tuple(apps.values())
