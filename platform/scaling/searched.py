"""Base of one-shot architecture search: train a supernet, select one path, retrain it.

The search starts from random weights, so that no operator has an advantage; the selected path starts from the weights
of the student, as the networks of all other members do.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, cast

from annotated_types import Ge, Gt, Le

from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Weights
from driftlab.platform.networks.spaces import SPACES, find_space, stages_faults
from driftlab.platform.scaling.base import Size
from driftlab.platform.scaling.branches import branch_model
from driftlab.platform.scaling.single import SingleFamily, SingleNetworkScaling

if TYPE_CHECKING:
    from torch import nn

    from driftlab.platform.networks.branched import Branched, PathNetwork
    from driftlab.platform.networks.paths import Path
    from driftlab.platform.networks.training.training_loop import DataSplits, TrainingSchedule

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PathSearchScaling(SingleNetworkScaling):
    """Base of members that search one operator per stage."""

    space: Annotated[
        str, Means("search space: operators per stage, by name or in a YAML file", names=tuple(SPACES))
    ] = "small"
    stages: Annotated[int, Ge(1), Le(4), Means("stages; at most one per block")] = 4
    search_epochs: Annotated[int, Ge(0), Means("epochs of the search", "epochs")] = 8
    epochs: Annotated[int, Ge(0), Means("epochs of retraining the selected path", "epochs")] = 8
    learning_rate: Annotated[float, Gt(0), Le(10), Means("initial learning rate of the weights")] = 0.025
    batch: Annotated[int, Ge(2), Means("batch size", "frames")] = 32

    version = 2

    def faults(self) -> list[str]:
        """Return the faults of the space, or that it has too few stages."""
        return stages_faults(self.space, "stages", self.stages)

    @abstractmethod
    def find_path(self, branched: Branched, data: DataSplits, schedule: TrainingSchedule) -> Path:
        """Return the best path to the last exit; the modules of the supernet may be trained in place."""

    def build(self, model: nn.Module, data: DataSplits | None) -> SingleFamily:
        from driftlab.platform.networks.predict import device_of
        from driftlab.platform.networks.training.training_loop import TrainingSchedule, deterministic

        assert data is not None
        with deterministic(data.seed):
            supernet = branch_model(model, data.size, find_space(self.space), self.stages)
            for _, part in supernet.parts():
                _reset_parameters(part.cpu())  # whose generator is the same on every computer
                part.to(device_of(model))
            path = self.find_path(supernet, data, TrainingSchedule(self.search_epochs, self.learning_rate, self.batch))
            network = branch_model(model, data.size, find_space(self.space), self.stages).network(path)
            family = self.train(
                network, data, TrainingSchedule(self.epochs, self.learning_rate, self.batch), "searched"
            )
        logger.info("Selected %s: %.3f", self.title(network), family.val_accuracy)
        return family

    def title(self, network: nn.Module) -> str:
        path = cast("PathNetwork", network).path
        return ".".join(names[operator] for names, operator in zip(find_space(self.space), path, strict=False))

    def describe(self, network: nn.Module) -> Weights:
        import numpy as np

        return {"path": np.array(cast("PathNetwork", network).path)}

    def empty(self, model: nn.Module, arrays: Weights, size: Size) -> nn.Module:
        return branch_model(model, size, find_space(self.space), self.stages).network(tuple(arrays["path"].tolist()))


def _reset_parameters(part: nn.Module) -> None:
    """Draw new weights for every module with `reset_parameters`."""
    for module in part.modules():
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()
