"""Who gets the machine in this window, and which network each application runs on its share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from driftlab.platform.core.records import Variant


@dataclass(frozen=True)
class Demand:
    """What one application asks for, and what it could run."""

    app: str
    fps: float
    variants: tuple[Variant, ...]  # from the smallest on; one where there is no choice
    running: int | None = None  # which of them is in memory; None: the application has just come
    accuracy_goal: float | None = None  # at least; None: it asks for none
    latency_goal_s: float | None = None  # per frame, at most
    priority: float = 1.0  # how many times as much its cost counts
    nested: bool = False  # a larger variant holds the smaller ones: a switch moves only the difference


@dataclass(frozen=True)
class Window:
    """What a scheduler may know when it shares a device for one window."""

    start_s: float
    window_s: float
    memory_bytes: int  # for all applications together
    demands: tuple[Demand, ...]  # in the order in which the applications came
    state: Any = None  # what the last allocation on this device handed on


@dataclass(frozen=True)
class Allocation:
    """What each application gets, in the order of the demands."""

    shares: tuple[float, ...]  # of the device's compute; 0: it waits for another window
    variants: tuple[int | None, ...] = ()  # None: it waits; empty: the member leaves it to scaling what each one runs
    notes: tuple[str, ...] = ()  # for people: why it waits, which goal cannot be met; empty: nothing to say
    state: Any = None  # for the next window


class Scheduling(ABC):
    """Base of the family; a member is a frozen dataclass and its verb a pure function."""

    @abstractmethod
    def allocate(self, window: Window) -> Allocation:
        """Share the machine among the window's demands."""
