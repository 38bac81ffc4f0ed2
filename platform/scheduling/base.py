"""Who gets the machine in this window."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True)
class Demand:
    """What one application asks for."""

    app: str
    fps: float
    inference_s: float  # alone on the whole machine
    memory_bytes: int


@dataclass(frozen=True)
class Window:
    """What a scheduler may know when it shares a device for one window."""

    start_s: float
    window_s: float
    memory_bytes: int
    demands: tuple[Demand, ...]


@dataclass(frozen=True)
class Allocation:
    """The share of the device's compute that each application gets, in the order of the demands."""

    shares: tuple[float, ...]


class Scheduling(ABC):
    """Base of the family; a member is a frozen dataclass and its verb a pure function."""

    @abstractmethod
    def allocate(self, window: Window) -> Allocation:
        """Share the machine among the window's demands."""
