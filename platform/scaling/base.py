"""Which network fits the budget."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from driftlab.errors import RequestError
from driftlab.platform.core.records import ModelCost, Variant, Weights
from driftlab.platform.world.cost import inference_j, inference_s
from driftlab.platform.world.hardware import Hardware

if TYPE_CHECKING:
    from torch import nn

    from driftlab.platform.training.schooling import Data

Size = tuple[int, int]  # height and width of a frame


@dataclass(frozen=True)
class Budget:
    """What one application may use in a window; None means that nothing limits it."""

    memory_bytes: int | None = None
    variant: int | None = None  # the network that was already chosen; the limits then say nothing more
    latency_s: float | None = None  # per frame, on the share
    energy_j: float | None = None  # per frame
    accuracy: float | None = None  # at least, a fraction
    share: float = 1.0  # of the machine's compute


@dataclass(frozen=True)
class Profile:
    """What is known of one network of a family, whatever the machine."""

    name: str
    accuracy: float | None  # a fraction, on data to choose by; None: nobody has measured it
    memory_bytes: int  # its weights, and what of its siblings' stays in memory beside them
    cost: ModelCost
    judged: float | None = None  # a fraction, on data that nothing is chosen by


class Scaling(ABC):
    """Base of the family; a member is a frozen dataclass that imports torch inside its methods.

    What `build` makes is the member's own business: the other verbs take it and none changes it. It survives as plain
    arrays by name, so that it is built once and read everywhere.
    """

    version: ClassVar[int] = 1  # raise it when the member computes something else: what stands on it is made anew
    needs_data: ClassVar[bool]  # True: building learns from labelled data, and takes a while
    nested: ClassVar[bool]  # True: a larger network holds the smaller ones, a switch moves only the difference

    @abstractmethod
    def build(self, model: nn.Module, data: Data | None) -> Any:
        """Make the family of networks that this model can become, and measure them; the model stays as it is."""

    @abstractmethod
    def select(self, family: Any, budget: Budget) -> nn.Module:
        """Make the network to run within the budget."""

    def source(self, family: Any) -> nn.Module:
        """Make the network that runs where nothing limits it."""
        return self.select(family, Budget())

    def choose(self, variants: Sequence[Variant], budget: Budget, state: Any = None) -> tuple[int, Any]:
        """Choose what a scheduler leaves open: the most accurate network within the budget, else the fastest one.

        Pure, for the driver; `state` is what the last choice for this application handed on.
        """
        if budget.variant is not None:
            return checked(budget.variant, len(variants)), state
        fitting = [which for which, one in enumerate(variants) if _fits(one, budget)]
        if fitting:
            return most_accurate([one.accuracy for one in variants], fitting), state
        return min(range(len(variants)), key=lambda which: (variants[which].latency_s, which)), state

    @abstractmethod
    def absorb(self, family: Any, variant: nn.Module) -> Any:
        """Return the family after one of its networks has learned something."""

    @abstractmethod
    def profile(self, family: Any, size: Size) -> tuple[Profile, ...]:
        """Say what is known of each network, from the smallest on; `Budget.variant` counts in this order."""

    @abstractmethod
    def store(self, family: Any) -> Weights:
        """Write the family as plain arrays by name."""

    @abstractmethod
    def restore(self, model: nn.Module, arrays: Weights, size: Size) -> Any:
        """Read a family again, given a model of the architecture that it was built from."""


def single(cost: ModelCost) -> tuple[Profile, ...]:
    """Say what is known of a network that has no siblings and that nobody has measured."""
    return (Profile("whole", None, cost.weight_bytes, cost),)


def variants_on(hardware: Hardware, profile: Sequence[Profile]) -> tuple[Variant, ...]:
    """Say what each network of a family costs on a machine."""
    return tuple(
        Variant(
            one.name,
            one.accuracy,
            one.memory_bytes,
            inference_s(one.cost, hardware),
            inference_j(one.cost, hardware),
            one.cost.macs,
            one.judged,
            one.cost.kernel_bytes,
        )
        for one in profile
    )


def _fits(variant: Variant, budget: Budget) -> bool:
    """Tell whether a network keeps to the limits; what nobody has measured keeps to them."""
    latency_s = variant.latency_s / budget.share if budget.share else float("inf")
    needs = (
        (variant.memory_bytes, budget.memory_bytes),
        (latency_s, budget.latency_s),
        (variant.energy_j, budget.energy_j),
        (budget.accuracy, variant.accuracy),
    )
    return all(has is None or limit is None or has <= limit for has, limit in needs)


def most_accurate(accuracies: Sequence[float | None], among: Iterable[int] | None = None) -> int:
    """Find the best of some networks, or of all, the smaller of equals; of none the smallest there is."""
    good = range(len(accuracies)) if among is None else among
    return max(good, key=lambda which: (accuracies[which] or 0.0, -which), default=0)


def checked(which: int, count: int) -> int:
    """Refuse a network that a family does not have."""
    if not 0 <= which < count:
        raise RequestError(f"variant is {which}, the family has networks 0 to {count - 1}")
    return which
