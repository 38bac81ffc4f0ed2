"""The scaling family: which networks an application has, and which one runs within a budget."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from driftlab.errors import RequestError
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import (
    Columns,
    LayerCost,
    LoadReading,
    ModelCost,
    Passes,
    TimedInference,
    Variant,
    Weights,
)
from driftlab.platform.networks.tasks.tasks import Task
from driftlab.platform.scaling.predicting import Predictor, predicted_factors
from driftlab.platform.world.cost import inference_j, inference_s
from driftlab.platform.world.hardware import Hardware
from driftlab.platform.world.load import slowdown
from driftlab.platform.world.operator_loads import sensitivity_of

if TYPE_CHECKING:
    from torch import nn

    from driftlab.platform.networks.training.training_loop import DataSplits

MIN_CHANNELS = 2  # per group, if it has as many
Size = tuple[int, int]  # height and width of a frame
Chooser = Literal["own", "prefer", "fastest", "adascale", "paper", "expected", "clairvoyant"]
PREDICTOR = Means(
    "prediction of latency under load: law, all networks lose the share of the CPU; learned, corrected by latencies "
    "measured in the session; world, that of the simulated processor, a bound"
)
CHOOSER = Means(
    "rule that chooses at a load reading: own, that of the method; prefer, the most accurate within the limits; "
    "fastest, at any load; adascale; paper, Eq. 7 of AdaScale; expected, by the probability to be in time; "
    "clairvoyant, a bound"
)
WHOLE = "whole"  # name of the student's own network
FEEDBACK = "feedback"  # name of the operation that updates a family by a trained network


@dataclass(frozen=True)
class Budget:
    """The limits of one application; None means no limit."""

    memory_bytes: int | None = None
    variant: int | None = None  # a network that is already selected; the limits are then ignored
    latency_s: float | None = None  # per frame, on the share
    energy_j: float | None = None  # per frame
    accuracy: float | None = None  # minimum, a fraction
    share: float = 1.0  # of the processor
    load: tuple[LoadReading, ...] = ()  # readings so far, in order of time; empty: the device has none
    now_s: float = 0.0  # time of the selection
    timed: tuple[TimedInference, ...] = ()  # latencies measured at the readings so far, in order of time
    coming: LoadReading | None = None  # true load until the next reading, for members with `uses_true_load` (bounds)


@dataclass(frozen=True)
class Profile:
    """The properties of one network of a family that do not depend on the processor."""

    name: str
    accuracy: float | None  # validation accuracy, a fraction; None: not measured
    memory_bytes: int  # of its weights, and of those of other networks that stay in memory
    cost: ModelCost
    test_accuracy: float | None = None  # test accuracy, a fraction
    parts: tuple[tuple[str, int], ...] = ()  # name and bytes of each module; networks share modules of equal name
    operators: Mapping[str, str] = field(default_factory=dict)  # by beginning of the names of its layers; else base


@dataclass(frozen=True, eq=False)
class ChannelMask:
    """The channels selected for samples, and the gates that multiply them."""

    kept: Mapping[str, npt.NDArray[np.int64]]  # by group of channels, ascending
    gates: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)  # by group; missing: 1
    work: Passes = field(default_factory=Passes)  # of the selection
    cutting: tuple[LayerCost, ...] = ()  # operations on weights: to cut the network to these channels,
    feedback: tuple[LayerCost, ...] = ()  # and to update the family by the weights that were trained

    def rows(self, place: Mapping[str, Any]) -> Columns:
        """Return a row per group with its kept channels, each with the values of a place."""
        kept = [" ".join(map(str, kept.tolist())) for kept in self.kept.values()]
        return {**{name: [value] * len(kept) for name, value in place.items()}, "group": list(self.kept), "kept": kept}


class Scaling(ABC):
    """Base of the family; a member is a frozen dataclass that imports torch inside its methods.

    `build` returns a family of the member's own type. The other verbs take it and never change it. It is stored as
    arrays by name, so that it is built once and read everywhere.
    """

    version: ClassVar[int] = 1  # raise it if the member computes something else: dependent results are rebuilt
    needs_data: ClassVar[bool]  # True: building trains on labelled data
    nested: ClassVar[bool]  # True: larger networks contain the smaller ones, a switch moves only the difference
    built_as: ClassVar[str] = ""  # the member that builds the same networks, if this one only selects differently
    chooser: Chooser = "own"  # a parameter of members with several networks
    predictor: Predictor = "law"  # likewise

    @abstractmethod
    def build(self, model: nn.Module, data: DataSplits | None) -> Any:
        """Build the family of networks from a model and measure them; the model stays unchanged."""

    @abstractmethod
    def select(self, family: Any, budget: Budget) -> nn.Module:
        """Return the network to run within the budget."""

    def source(self, family: Any) -> nn.Module:
        """Return the network for a budget without limits."""
        return self.select(family, Budget())

    def select_variant(self, variants: Sequence[Variant], budget: Budget, state: Any = None) -> tuple[int, Any]:
        """Return the number of the budget's network, else the member's choice, and the next state.

        Called in every window and at every load reading; pure. `state` is the second result of the previous call for
        this application.
        """
        if budget.variant is not None:
            return check_index(budget.variant, len(variants)), state
        return self.select_within(variants, budget, state)

    def predict_slowdown(self, network: Variant, reading: LoadReading, timed: Sequence[TimedInference]) -> float:
        """Return the predicted latency of a network under a load, over that on the idle processor."""
        return float(predicted_factors(self.predictor, [network], reading, timed)[0])

    def select_within(self, variants: Sequence[Variant], budget: Budget, state: Any) -> tuple[int, Any]:
        """Return the choice of `prefer`, the rule of members without their own."""
        return prefer(variants, budget), state

    @property
    def cuts_per_domain(self) -> bool:
        """Return whether each training phase first cuts its network for the samples."""
        return False

    @property
    def uses_true_load(self) -> bool:
        """Return whether budgets contain the true load until the next reading; True only for bounds."""
        return self.chooser == "clairvoyant"

    def forecast(self, state: Any) -> float | None:
        """Return the CPU load that the last selection expected until the next reading.

        It is None without a forecast.
        """
        return None

    @abstractmethod
    def absorb(self, family: Any, variant: nn.Module) -> Any:
        """Return the family with the weights of one of its networks, after training."""

    def select_channels(
        self, family: Any, budget: Budget, images: npt.NDArray[np.uint8], task: Task
    ) -> ChannelMask | None:
        """Select the channels to keep for samples; None if networks do not depend on samples."""
        return None

    def apply_mask(self, family: Any, budget: Budget, mask: ChannelMask) -> Any:
        """Return the family with the network of this budget cut to a channel mask; missing gates are 1."""
        raise RequestError(f"{type(self).__name__} has no networks that are cut for samples")

    @abstractmethod
    def profile(self, family: Any, size: Size) -> tuple[Profile, ...]:
        """Return the profile of each network, the smallest first; `Budget.variant` is an index into it."""

    @abstractmethod
    def store(self, family: Any) -> Weights:
        """Return the family as arrays by name."""

    @abstractmethod
    def restore(self, model: nn.Module, arrays: Weights, size: Size) -> Any:
        """Restore a stored family; the model has the architecture that it was built from."""


def single_profile(cost: ModelCost) -> tuple[Profile, ...]:
    """Return the profile of a single network of unknown accuracy."""
    return (Profile(WHOLE, None, cost.weight_bytes, cost),)


def variants_on(hardware: Hardware, profile: Sequence[Profile]) -> tuple[Variant, ...]:
    """Return the networks of a family with their costs on a processor."""
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
            sensitivity=sensitivity_of(one.cost, one.operators, hardware),
        )
        for one in profile
    )


def prefer(variants: Sequence[Variant], budget: Budget) -> int:
    """Return the most accurate network within the budget, else the fastest that fits in the free memory.

    The load is assumed to stay at the newest reading. If no network fits in memory, the smallest is returned.
    """
    in_memory = fit_memory(variants, range(len(variants)), budget)
    fitting = [which for which in in_memory if _fits(variants[which], budget)]
    if fitting:
        return most_accurate([one.accuracy for one in variants], fitting)
    return fastest(variants, in_memory)


def fastest(variants: Sequence[Variant], among: Iterable[int]) -> int:
    """Return the fastest of some networks, of equals the lowest number."""
    return min(among, key=lambda which: (variants[which].latency_s, which))


def _fits(variant: Variant, budget: Budget) -> bool:
    """Return whether a network is within the limits; unmeasured quantities always are."""
    speed = budget.share * slowdown((*budget.load, *([budget.coming] if budget.coming else ())))
    latency_s = variant.latency_s / speed if speed else float("inf")
    limited = (
        (variant.memory_bytes, budget.memory_bytes),
        (latency_s, budget.latency_s),
        (variant.energy_j, budget.energy_j),
        (budget.accuracy, variant.accuracy),
    )
    return all(value is None or limit is None or value <= limit for value, limit in limited)


def fit_memory(variants: Sequence[Variant], among: Iterable[int], budget: Budget) -> list[int]:
    """Return the networks that fit in the free memory; if none fits, the smallest."""
    numbers, limit = list(among), budget.memory_bytes
    fitting = [which for which in numbers if limit is None or variants[which].memory_bytes <= limit]
    return fitting or [min(numbers, key=lambda which: (variants[which].memory_bytes, which))]


def most_accurate(accuracies: Sequence[float | None], among: Iterable[int] | None = None) -> int:
    """Return the index of the most accurate network, of equals the lowest; 0 without candidates."""
    candidates = range(len(accuracies)) if among is None else among
    return max(candidates, key=lambda which: (accuracies[which] or 0.0, -which), default=0)


def check_index(which: int, count: int) -> int:
    """Return the index of a network after a check that the family has it."""
    if not 0 <= which < count:
        raise RequestError(f"variant is {which}, the family has networks 0 to {count - 1}")
    return which


def width_of(size: int, share: float) -> int:
    """Return the number of channels in a share of a group."""
    return min(size, max(MIN_CHANNELS, round(share * size)))
