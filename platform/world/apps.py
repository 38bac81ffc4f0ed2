"""Churn of applications on a device: random arrivals, departures and changes of goals.

As in NestDNN's benchmark, at every tick one of the stopped applications may start, or one of the running ones may stop,
each chosen uniformly. The number of running applications is then a birth-death chain, and a trace begins in its
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
    """An application and its goals."""

    __pydantic_config__: ClassVar = STRICT

    name: str
    fps: Positive = 30.0
    accuracy_goal: Chance | None = None
    latency_goal_s: Annotated[float, Ge(0), Lt(math.inf)] | None = None
    priority: Positive = 1.0
    energy_goal_j: Positive | None = None


@dataclass(frozen=True)
class Event:
    """A start, stop or change of an application, with its goals from then on."""

    time_s: float
    kind: Literal["start", "stop", "change"]
    app: AppGoals


@dataclass(frozen=True)
class Churn:
    """The random process of arrivals, departures and changes of goals."""

    __pydantic_config__: ClassVar = STRICT

    name: str = "churn"
    duration_s: Positive = 60.0
    tick_s: Positive = 1.0
    arrival_prob: Chance = 0.1368  # per tick
    departure_prob: Chance = 0.1  # per tick
    min_apps: Count = 2
    max_apps: Annotated[int, Ge(1)] = 6
    change_prob: Chance = 0.0  # of a goal, per tick
    priorities: Several = (1.0, 2.0, 4.0)  # from which a changed priority is drawn
    latency_factors: Several = (
        0.5,
        1.0,
        2.0,
    )  # from which the factor on a changed latency goal is drawn

    def __post_init__(self) -> None:
        """Refuse impossible parameters."""
        if self.min_apps > self.max_apps:
            raise ValueError(f"min_apps ({self.min_apps}) must not be above max_apps ({self.max_apps})")
        if self.duration_s / self.tick_s > MAX_TICKS:
            raise ValueError(f"tick_s ({self.tick_s:g} s) must be at least {self.duration_s / MAX_TICKS:g} s")
        if self.arrival_prob + self.departure_prob > 1:
            total = self.arrival_prob + self.departure_prob
            raise ValueError(f"arrival_prob + departure_prob is {total:g}; it must be at most 1: one event per tick")


def from_mapping(given: Mapping[str, Any]) -> Churn:
    """Parse the churn of a spec."""
    return parse(Churn, "app trace", given)


def draw_trace(apps: Sequence[AppGoals], churn: Churn, rng: np.random.Generator) -> tuple[Event, ...]:
    """Draw the events in order of time; applications that run from the beginning start at 0 s."""
    check([app.name for app in apps], churn)
    by_name = {app.name: app for app in apps}
    max_apps = min(churn.max_apps, len(apps))
    running = _draw_first(sorted(by_name), churn, max_apps, rng)
    events = [Event(0.0, "start", by_name[name]) for name in running]
    for tick in range(1, round(churn.duration_s / churn.tick_s)):
        time_s, draw = tick * churn.tick_s, rng.random()
        if draw < churn.arrival_prob and len(running) < max_apps:
            idle = [name for name in sorted(by_name) if name not in running]
            running.append(idle[rng.integers(len(idle))])
            events.append(Event(time_s, "start", by_name[running[-1]]))
        elif churn.arrival_prob <= draw < churn.arrival_prob + churn.departure_prob and len(running) > churn.min_apps:
            stopped = running.pop(rng.integers(len(running)))
            events.append(Event(time_s, "stop", by_name[stopped]))
        if churn.change_prob and rng.random() < churn.change_prob and running:
            app = by_name[running[rng.integers(len(running))]]
            events.append(Event(time_s, "change", _draw_change(app, churn, rng)))
    return tuple(events)


def check(names: Sequence[str], churn: Churn) -> None:
    """Refuse applications for which no trace can be drawn."""
    if len(set(names)) < len(names) or len(names) < churn.min_apps:
        listed = ", ".join(names) or "none"
        raise RequestError(
            f"An app trace needs at least {churn.min_apps} applications of different names, not: {listed}."
        )


def stationary(churn: Churn, max_apps: int) -> npt.NDArray[np.float64]:
    """Return the share of time with each number of applications, from `churn.min_apps` to `max_apps`."""
    ups = np.arange(max_apps - churn.min_apps + 1)
    weights: npt.NDArray[np.float64] = (
        churn.arrival_prob**ups * churn.departure_prob ** ups[::-1]
    )  # in equilibrium: arrivals are as frequent as departures
    return weights / weights.sum() if weights.any() else np.full(len(ups), 1 / len(ups))


def _draw_first(names: list[str], churn: Churn, max_apps: int, rng: np.random.Generator) -> list[str]:
    """Draw the applications that run from the beginning."""
    count = churn.min_apps + int(rng.choice(max_apps - churn.min_apps + 1, p=stationary(churn, max_apps)))
    return [names[i] for i in rng.permutation(len(names))[:count]]


def _draw_change(app: AppGoals, churn: Churn, rng: np.random.Generator) -> AppGoals:
    """Draw a new priority or, with equal probability, a new latency goal if the application has one."""
    if app.latency_goal_s is not None and rng.random() < 0.5:
        return replace(app, latency_goal_s=app.latency_goal_s * float(rng.choice(churn.latency_factors)))
    return replace(app, priority=float(rng.choice(churn.priorities)))


def running_apps(events: Sequence[Event], time_s: float) -> tuple[AppGoals, ...]:
    """Return the applications that run at a time, with their goals then, in order of arrival."""
    apps: dict[str, AppGoals] = {}
    for event in events:
        if event.time_s > time_s:
            break
        if event.kind == "stop":
            apps.pop(event.app.name, None)
        else:
            apps[event.app.name] = event.app
    return tuple(apps.values())
