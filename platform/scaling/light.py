"""Light: a small network of another structure in place of the student's, trained on the same data, whatever the load.

These are the networks that papers put beside theirs: MobileNetV3, ShuffleNet, SqueezeNet, ResNet-18 and a transformer.

Differs from the paper: structures and depths are cut down to pictures of 32 x 32 and to devices that run the student.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt, Le

from driftlab.errors import RequestError
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Weights
from driftlab.platform.scaling.base import Budget, Profile, Scaling, Size, check_index

if TYPE_CHECKING:
    from torch import nn

    from driftlab.platform.networks.light import LightNetwork
    from driftlab.platform.training.schooling import Data

logger = logging.getLogger(__name__)
LightKind = Literal["mobilenet_v3_small", "mobilenet_v3_large", "shufflenet", "squeezenet", "resnet18", "transformer"]


@dataclass(frozen=True, eq=False)
class LightFamily:
    """One network and its accuracies."""

    network: LightNetwork
    val_accuracy: float
    test_accuracy: float


@dataclass(frozen=True)
class Substitute(Scaling):
    """Run a light network that was trained from random weights."""

    network: Annotated[LightKind, Means("structure of the network")] = "mobilenet_v3_small"
    epochs: Annotated[int, Ge(0), Means("passes over the data", "epochs")] = 20
    learning_rate: Annotated[float, Gt(0), Le(10), Means("step size at the beginning")] = 0.05
    batch: Annotated[int, Ge(2), Means("frames of a step", "frames")] = 32

    needs_data = True
    nested = False

    def build(self, model: nn.Module, data: Data | None) -> LightFamily:
        from driftlab.platform.core.seeding import rng_for
        from driftlab.platform.networks.light import build_like
        from driftlab.platform.training.schooling import Course, deterministic, grade, train_best

        assert data is not None
        with deterministic(data.seed):
            network = build_like(self.network, model, data.example(model))
            course = Course(self.epochs, self.learning_rate, self.batch)
            val = train_best(network, data, course, rng_for(data.seed, "scaling", "light"))
            logger.info("Trained %s: %.3f", self.network, val)
            return LightFamily(network, val, grade(network, data, data.test))

    def select(self, family: LightFamily, budget: Budget) -> nn.Module:
        check_index(budget.variant or 0, 1)
        return family.network

    def absorb(self, family: LightFamily, variant: nn.Module) -> LightFamily:
        from driftlab.platform.networks.light import LightNetwork

        if not isinstance(variant, LightNetwork):
            raise RequestError(f"This {type(variant).__name__} is not the {self.network} that the family holds.")
        return replace(family, network=variant)

    def profile(self, family: LightFamily, size: Size) -> tuple[Profile, ...]:
        from driftlab.platform.networks.account import count_cost

        cost = count_cost(family.network, *size)
        return (Profile(self.network, family.val_accuracy, cost.weight_bytes, cost, family.test_accuracy),)

    def store(self, family: LightFamily) -> Weights:
        import numpy as np

        from driftlab.platform.networks.predict import state_of

        arrays = {f"network/{name}": array for name, array in state_of(family.network).items()}
        return {"accuracies": np.array([family.val_accuracy, family.test_accuracy]), **arrays}

    def restore(self, model: nn.Module, arrays: Weights, size: Size) -> LightFamily:
        import torch

        from driftlab.platform.networks.light import build_like
        from driftlab.platform.networks.predict import load
        from driftlab.platform.training.schooling import deterministic

        with deterministic(0):  # the weights drawn are replaced
            network = build_like(self.network, model, torch.zeros(1, 3, *size))
        load(network, {key.partition("/")[2]: array for key, array in arrays.items() if key.startswith("network/")})
        val, test = arrays["accuracies"].tolist()
        return LightFamily(network, val, test)
