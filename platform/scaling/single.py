"""Base of members with one network, which is trained on the source data and never switched."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from driftlab.errors import RequestError
from driftlab.platform.core.records import Weights
from driftlab.platform.scaling.base import Budget, Profile, Scaling, Size, check_index

if TYPE_CHECKING:
    from torch import nn

    from driftlab.platform.networks.training.training_loop import DataSplits, TrainingSchedule


@dataclass(frozen=True, eq=False)
class SingleFamily:
    """One network and its accuracies."""

    network: nn.Module
    val_accuracy: float
    test_accuracy: float


class SingleNetworkScaling(Scaling):
    """Base of members with one network."""

    needs_data = True
    nested = False

    @abstractmethod
    def title(self, network: nn.Module) -> str:
        """Return the name of the network in tables."""

    @abstractmethod
    def empty(self, model: nn.Module, arrays: Weights, size: Size) -> nn.Module:
        """Return the network of stored arrays, with any weights."""

    def describe(self, network: nn.Module) -> Weights:
        """Return the arrays that `empty` requires in addition to the weights."""
        return {}

    def train(self, network: nn.Module, data: DataSplits, schedule: TrainingSchedule, stream: str) -> SingleFamily:
        """Train a network in place, keep its best epoch and measure it; `stream` names the random numbers."""
        from driftlab.platform.core.seeding import rng_for
        from driftlab.platform.networks.training.training_loop import grade, train_best

        val = train_best(network, data, schedule, rng_for(data.seed, "scaling", stream))
        return SingleFamily(network, val, grade(network, data, data.test))

    def select(self, family: SingleFamily, budget: Budget) -> nn.Module:
        check_index(budget.variant or 0, 1)
        return family.network

    def absorb(self, family: SingleFamily, variant: nn.Module) -> SingleFamily:
        if type(variant) is not type(family.network):
            title = self.title(family.network)
            raise RequestError(f"This {type(variant).__name__} is not the family's {title}.")
        return replace(family, network=variant)

    def profile(self, family: SingleFamily, size: Size) -> tuple[Profile, ...]:
        from driftlab.platform.networks.cost_counter import count_cost

        cost, name = count_cost(family.network, *size), self.title(family.network)
        return (Profile(name, family.val_accuracy, cost.weight_bytes, cost, family.test_accuracy),)

    def store(self, family: SingleFamily) -> Weights:
        import numpy as np

        from driftlab.platform.networks.predict import state_of

        return {
            "accuracies": np.array([family.val_accuracy, family.test_accuracy]),
            **self.describe(family.network),
            **{f"network/{name}": array for name, array in state_of(family.network).items()},
        }

    def restore(self, model: nn.Module, arrays: Weights, size: Size) -> SingleFamily:
        from driftlab.platform.networks.predict import load
        from driftlab.platform.networks.training.training_loop import deterministic

        with deterministic(0):  # the random weights are replaced
            network = self.empty(model, arrays, size)
        load(network, {key.partition("/")[2]: array for key, array in arrays.items() if key.startswith("network/")})
        val, test = arrays["accuracies"].tolist()
        return SingleFamily(network, val, test)
