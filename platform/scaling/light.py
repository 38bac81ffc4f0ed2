"""Light: a small network of another structure in place of the student's, trained on the same data, whatever the load.

These are the networks that papers put beside theirs: MobileNetV3, ShuffleNet, SqueezeNet, ResNet-18 and a transformer.

Differs from the paper: structures and depths are cut down to pictures of 32 x 32 and to devices that run the student.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt, Le

from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Weights
from driftlab.platform.scaling.base import Size
from driftlab.platform.scaling.single import OfSingle, SingleFamily

if TYPE_CHECKING:
    from torch import nn

    from driftlab.platform.networks.training.training_loop import Data

logger = logging.getLogger(__name__)
LightKind = Literal["mobilenet_v3_small", "mobilenet_v3_large", "shufflenet", "squeezenet", "resnet18", "transformer"]


@dataclass(frozen=True)
class Substitute(OfSingle):
    """Run a light network that was trained from random weights."""

    network: Annotated[LightKind, Means("structure of the network")] = "mobilenet_v3_small"
    epochs: Annotated[int, Ge(0), Means("passes over the data", "epochs")] = 20
    learning_rate: Annotated[float, Gt(0), Le(10), Means("step size at the beginning")] = 0.05
    batch: Annotated[int, Ge(2), Means("frames of a step", "frames")] = 32

    def build(self, model: nn.Module, data: Data | None) -> SingleFamily:
        from driftlab.platform.networks.light import build_like
        from driftlab.platform.networks.training.training_loop import Course, deterministic

        assert data is not None
        with deterministic(data.seed):
            network = build_like(self.network, model, data.example(model))
            found = self.train(network, data, Course(self.epochs, self.learning_rate, self.batch), "light")
        logger.info("Trained %s: %.3f", self.network, found.val_accuracy)
        return found

    def title(self, network: nn.Module) -> str:
        return self.network

    def empty(self, model: nn.Module, arrays: Weights, size: Size) -> nn.Module:
        import torch

        from driftlab.platform.networks.light import build_like

        return build_like(self.network, model, torch.zeros(1, 3, *size))
