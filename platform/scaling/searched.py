"""Searched: members that find one path of a branched network by training all of them together, and retrain it.

A search begins from random weights, so that no operator is ahead; the path that it finds begins from those of the
student, as the networks of all other members do.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, cast

from annotated_types import Ge, Gt, Le

from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Weights
from driftlab.platform.networks.paths import SPACES
from driftlab.platform.scaling.base import Size
from driftlab.platform.scaling.branches import branch_model
from driftlab.platform.scaling.single import OfSingle, SingleFamily

if TYPE_CHECKING:
    from torch import nn

    from driftlab.platform.networks.branched import Branched, PathNetwork
    from driftlab.platform.networks.paths import Path
    from driftlab.platform.networks.training.training_loop import Course, Data

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class OfSearch(OfSingle):
    """Base of members that search an operator for each stage."""

    space: Annotated[
        Literal["tiny", "small", "paper480", "lego", "supernet"], Means("operators of each stage to choose from")
    ] = "small"
    stages: Annotated[int, Ge(1), Le(4), Means("stages, if there are blocks for so many")] = 4
    search_epochs: Annotated[int, Ge(0), Means("passes over the data of the search", "epochs")] = 8
    epochs: Annotated[int, Ge(0), Means("passes over the data of the found network", "epochs")] = 8
    learning_rate: Annotated[float, Gt(0), Le(10), Means("step size of weights at the beginning")] = 0.025
    batch: Annotated[int, Ge(2), Means("frames of a step", "frames")] = 32

    version = 2

    @abstractmethod
    def find_path(self, branched: Branched, data: Data, course: Course) -> Path:
        """Search the best path to the last exit; its modules may be trained."""

    def build(self, model: nn.Module, data: Data | None) -> SingleFamily:
        from driftlab.platform.networks.training.training_loop import Course, deterministic

        assert data is not None
        with deterministic(data.seed):
            begun = branch_model(model, data.size, SPACES[self.space], self.stages)
            for _, part in begun.parts():
                _begin_anew(part)
            path = self.find_path(begun, data, Course(self.search_epochs, self.learning_rate, self.batch))
            network = branch_model(model, data.size, SPACES[self.space], self.stages).network(path)
            found = self.train(network, data, Course(self.epochs, self.learning_rate, self.batch), "searched")
        logger.info("Found %s: %.3f", self.title(network), found.val_accuracy)
        return found

    def title(self, network: nn.Module) -> str:
        path = cast("PathNetwork", network).path
        return ".".join(names[one] for names, one in zip(SPACES[self.space], path, strict=False))

    def describe(self, network: nn.Module) -> Weights:
        import numpy as np

        return {"path": np.array(cast("PathNetwork", network).path)}

    def empty(self, model: nn.Module, arrays: Weights, size: Size) -> nn.Module:
        return branch_model(model, size, SPACES[self.space], self.stages).network(tuple(arrays["path"].tolist()))


def _begin_anew(part: nn.Module) -> None:
    """Draw new weights wherever a module knows how."""
    for module in part.modules():
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()
