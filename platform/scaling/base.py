"""The scaling family: the choice of a network for a budget."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from driftlab.errors import RequestError
from driftlab.platform.core.records import ModelCost, Passes, Reading, Variant, Weights
from driftlab.platform.networks.tasks.tasks import Task
from driftlab.platform.world.cost import inference_j, inference_s
from driftlab.platform.world.hardware import Hardware
from driftlab.platform.world.load import slowdown

if TYPE_CHECKING:
    from torch import nn

    from driftlab.platform.networks.training.training_loop import Data

MIN_CHANNELS = 2  # of every group, if it has them
Size = tuple[int, int]  # height and width of a frame
WHOLE = "whole"  # name of a network that no member has made: the student's as it is


@dataclass(frozen=True)
class Budget:
    """The limits of one application in a window; None means no limit."""

    memory_bytes: int | None = None
    variant: int | None = None  # the network that was already chosen; the limits are then ignored
    latency_s: float | None = None  # per frame, on the share
    energy_j: float | None = None  # per frame
    accuracy: float | None = None  # minimum, a fraction
    share: float = 1.0  # of the machine's compute
    load: tuple[Reading, ...] = ()  # sensed so far, in order of time; empty: the device senses nothing
    now_s: float = 0.0  # time of the choice
    coming: Reading | None = None  # the true load until the next reading: for members that `foresee`, which are bounds


@dataclass(frozen=True)
class Profile:
    """The properties of one network of a family that do not depend on the machine."""

    name: str
    accuracy: float | None  # validation accuracy, a fraction; None: not measured
    memory_bytes: int  # its weights, and those of its siblings that stay in memory beside them
    cost: ModelCost
    test_accuracy: float | None = None  # test accuracy, a fraction
    parts: tuple[tuple[str, int], ...] = ()  # name and bytes of what networks share; empty: it has no such parts


@dataclass(frozen=True, eq=False)
class Draft:
    """The channels that a network cut for samples keeps, and what multiplies them."""

    kept: Mapping[str, npt.NDArray[np.int64]]  # by group of channels, ascending
    gates: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)  # by group; a group without one: 1
    work: Passes = field(default_factory=Passes)  # of choosing them, in frames through the network that they make


class Scaling(ABC):
    """Base of the family; a member is a frozen dataclass that imports torch inside its methods.

    `build` returns an object of the member's own type, which the other verbs take and none changes. It is stored as
    plain arrays by name, so that it is built once and read everywhere.
    """

    version: ClassVar[int] = 1  # raise it when the member computes something else: what stands on it is made anew
    needs_data: ClassVar[bool]  # True: building learns from labelled data, and takes a while
    nested: ClassVar[bool]  # True: a larger network holds the smaller ones, a switch moves only the difference
    built_as: ClassVar[str] = ""  # the member that builds the same networks, to which this one adds a choice
    leaves_early: ClassVar[bool] = False  # True: frames leave at several exits, and costs are means over frames
    drafts: ClassVar[bool] = (
        False  # True: its networks depend on samples, and each phase of learning begins with a new one
    )

    @abstractmethod
    def build(self, model: nn.Module, data: Data | None) -> Any:
        """Build the family of networks from this model, and measure them; the model stays unchanged."""

    @abstractmethod
    def select(self, family: Any, budget: Budget) -> nn.Module:
        """Return the network to run within the budget."""

    def source(self, family: Any) -> nn.Module:
        """Return the network that runs without limits."""
        return self.select(family, Budget())

    def choose(self, variants: Sequence[Variant], budget: Budget, state: Any = None) -> tuple[int, Any]:
        """Return the network that the budget names, or else the one that the member prefers.

        Asked in every window and at every reading of the load. Pure, for the driver; `state` is the second result of
        the last choice for this application.
        """
        if budget.variant is not None:
            return check_index(budget.variant, len(variants)), state
        return self.prefer(variants, budget, state)

    def prefer(self, variants: Sequence[Variant], budget: Budget, state: Any) -> tuple[int, Any]:
        """Choose the most accurate network within the budget, else the fastest one that fits in the free memory.

        The load is taken to stay as it was sensed; where no network fits, the smallest one is taken.
        """
        held = held_in_memory(variants, range(len(variants)), budget)
        fitting = [which for which in held if _fits(variants[which], budget)]
        if fitting:
            return most_accurate([one.accuracy for one in variants], fitting), state
        return min(held, key=lambda which: (variants[which].latency_s, which)), state

    @property
    def foresees(self) -> bool:
        """Tell whether choices are given the true load until the next reading, as no device could."""
        return False

    def forecast(self, state: Any) -> float | None:
        """Return the CPU load that the last choice expected until the next reading; None where it expects none."""
        return None

    @abstractmethod
    def absorb(self, family: Any, variant: nn.Module) -> Any:
        """Return the family after one of its networks was trained."""

    def draft(self, family: Any, budget: Budget, images: npt.NDArray[np.uint8], task: Task) -> Draft | None:
        """Choose the channels to keep for samples; None where networks do not depend on samples."""
        return None

    def redraft(self, family: Any, budget: Budget, draft: Draft) -> Any:
        """Return the family with the network of this budget cut anew by a draft; without gates, all are 1."""
        raise RequestError(f"{type(self).__name__} has no networks that are cut for samples")

    @abstractmethod
    def profile(self, family: Any, size: Size) -> tuple[Profile, ...]:
        """Return the profile of each network, from the smallest on; `Budget.variant` is an index into it."""

    @abstractmethod
    def store(self, family: Any) -> Weights:
        """Return the family as plain arrays by name."""

    @abstractmethod
    def restore(self, model: nn.Module, arrays: Weights, size: Size) -> Any:
        """Restore a family, given a model of the architecture that it was built from."""


def single_profile(cost: ModelCost) -> tuple[Profile, ...]:
    """Return the profile of a network without siblings, whose accuracy is not measured."""
    return (Profile(WHOLE, None, cost.weight_bytes, cost),)


def variants_on(hardware: Hardware, profile: Sequence[Profile]) -> tuple[Variant, ...]:
    """Return the cost of each network of a family on a machine."""
    return tuple(
        Variant(
            one.name,
            one.accuracy,
            one.memory_bytes,
            inference_s(one.cost, hardware),
            inference_j(one.cost, hardware),
            one.cost.macs,
            one.test_accuracy,
            one.cost.kernel_bytes,
            one.parts,
        )
        for one in profile
    )


def _fits(variant: Variant, budget: Budget) -> bool:
    """Tell whether a network keeps to the limits; unmeasured quantities always do."""
    speed = budget.share * slowdown((*budget.load, *([budget.coming] if budget.coming else ())))
    latency_s = variant.latency_s / speed if speed else float("inf")
    needs = (
        (variant.memory_bytes, budget.memory_bytes),
        (latency_s, budget.latency_s),
        (variant.energy_j, budget.energy_j),
        (budget.accuracy, variant.accuracy),
    )
    return all(has is None or limit is None or has <= limit for has, limit in needs)


def held_in_memory(variants: Sequence[Variant], among: Iterable[int], budget: Budget) -> list[int]:
    """Drop the networks that do not fit in the free memory; where none fits, only the smallest one stays."""
    numbers, limit = list(among), budget.memory_bytes
    held = [which for which in numbers if limit is None or variants[which].memory_bytes <= limit]
    return held or [min(numbers, key=lambda which: (variants[which].memory_bytes, which))]


def most_accurate(accuracies: Sequence[float | None], among: Iterable[int] | None = None) -> int:
    """Return the index of the most accurate network, the smaller of equals; 0 if no accuracy is known."""
    good = range(len(accuracies)) if among is None else among
    return max(good, key=lambda which: (accuracies[which] or 0.0, -which), default=0)


def check_index(which: int, count: int) -> int:
    """Check the index of a network in its family."""
    if not 0 <= which < count:
        raise RequestError(f"variant is {which}, the family has networks 0 to {count - 1}")
    return which


def width_of(size: int, share: float) -> int:
    """Return the number of channels in a share of a group."""
    return min(size, max(MIN_CHANNELS, round(share * size)))
