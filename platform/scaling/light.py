"""Lightweight baselines: a small published architecture in place of the student.

It is trained on the same data.

The architectures are the baselines of papers: MobileNetV3, ShuffleNet, SqueezeNet, ResNet-18 and a transformer.

Differs from the paper: structures and depths are reduced for images of 32 x 32 and the devices of the student.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt, Le

from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Weights
from driftlab.platform.scaling.base import Size
from driftlab.platform.scaling.single import SingleFamily, SingleNetworkScaling

if TYPE_CHECKING:
    from torch import nn

    from driftlab.platform.networks.training.training_loop import DataSplits

logger = logging.getLogger(__name__)
LightKind = Literal["mobilenet_v3_small", "mobilenet_v3_large", "shufflenet", "squeezenet", "resnet18", "transformer"]


@dataclass(frozen=True)
class Substitute(SingleNetworkScaling):
    """Lightweight baseline: run a published small architecture trained from scratch."""

    network: Annotated[LightKind, Means("architecture of the network")] = "mobilenet_v3_small"
    epochs: Annotated[int, Ge(0), Means("training epochs", "epochs")] = 20
    learning_rate: Annotated[float, Gt(0), Le(10), Means("initial learning rate")] = 0.05
    batch: Annotated[int, Ge(2), Means("batch size", "frames")] = 32

    def build(self, model: nn.Module, data: DataSplits | None) -> SingleFamily:
        from driftlab.platform.networks.light import build_like
        from driftlab.platform.networks.training.training_loop import TrainingSchedule, deterministic

        assert data is not None
        with deterministic(data.seed):
            network = build_like(self.network, model, data.example(model))
            family = self.train(network, data, TrainingSchedule(self.epochs, self.learning_rate, self.batch), "light")
        logger.info("Trained %s: %.3f", self.network, family.val_accuracy)
        return family

    def title(self, network: nn.Module) -> str:
        return self.network

    def empty(self, model: nn.Module, arrays: Weights, size: Size) -> nn.Module:
        import torch

        from driftlab.platform.networks.light import build_like
        from driftlab.platform.networks.predict import device_of

        return build_like(self.network, model, torch.zeros(1, 3, *size, device=device_of(model)))
