"""Early exit: each frame leaves a network at the first exit that is sure of it (BranchyNet, MSDNet).

The stages and exits are those of a branched network without operators. Thresholds are placed on validation frames, so
that the shares of frames that leave at each exit form a geometric series; every series is a network to choose, with the
mean cost of a frame. Under a load the most accurate one in time runs, and each frame takes the time of its own exit.

Differs from the paper: confidence is the largest probability, or that of the centres of boxes.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Gt, Le

from driftlab.errors import RequestError
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Weights
from driftlab.platform.networks.paths import BASE
from driftlab.platform.scaling.base import Budget, Profile, Scaling, Size, check_index, most_accurate
from driftlab.platform.scaling.branches import branch_model

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from torch import nn

    from driftlab.platform.networks.branched import Branched
    from driftlab.platform.networks.early_exit import LeavingNetwork
    from driftlab.platform.networks.training.training_loop import Data, Lessons

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class LeavingFamily:
    """One network, and by series the thresholds, the shares that leave at each exit, and the accuracies."""

    network: LeavingNetwork
    thresholds: npt.NDArray[np.float64]
    leaving: npt.NDArray[np.float64]
    val_accuracies: tuple[float, ...]
    test_accuracies: tuple[float, ...]


@dataclass(frozen=True)
class EarlyExit(Scaling):
    """Let each frame leave where an exit is sure, with thresholds for the load."""

    exits: Annotated[int, Ge(2), Le(4), Means("stages, each with an exit, if there are blocks for so many")] = 4
    stage_epochs: Annotated[int, Ge(0), Means("passes over the data for each stage", "epochs")] = 8
    learning_rate: Annotated[float, Gt(0), Le(10), Means("step size at the beginning")] = 0.05
    batch: Annotated[int, Ge(2), Means("frames of a step", "frames")] = 32
    ratios: Annotated[
        tuple[float, ...], Gt(0), Le(100), Means("how many times as many frames leave at an exit as at the one before")
    ] = (0.2, 0.5, 1.0, 2.0, 5.0)

    version = 3
    needs_data = True
    nested = True
    leaves_early = True

    def faults(self) -> list[str]:
        """Refuse a list of ratios that is empty, or that gives two networks one name."""
        names = [_name(ratio) for ratio in self.ratios]
        good = names and len(set(names)) == len(names)
        return [] if good else [f"'ratios' is {self.ratios}, must be one or more that differ"]

    def build(self, model: nn.Module, data: Data | None) -> LeavingFamily:
        from driftlab.platform.networks.training.training_loop import Course, deterministic
        from driftlab.platform.scaling import staged

        assert data is not None
        with deterministic(data.seed):
            branched = branch_model(model, data.size, ((BASE,),) * self.exits, self.exits)
            staged.train_stages(branched, data, Course(self.stage_epochs, self.learning_rate, self.batch))
            return self._placed(_network(branched), data)

    def _placed(self, network: LeavingNetwork, data: Data) -> LeavingFamily:
        """Place thresholds for each ratio, and grade the network with them."""
        import numpy as np

        from driftlab.platform.networks.early_exit import geometric_shares, leaving_shares, place_thresholds
        from driftlab.platform.networks.training.training_loop import grade

        sure, count = _confidences(network, data.val), len(network.heads)
        placed = [place_thresholds(sure, geometric_shares(count, ratio).tolist()) for ratio in self.ratios]
        leaving = np.array([leaving_shares(sure, one) for one in placed])
        val, test = [], []
        for thresholds in placed:
            network.thresholds = thresholds
            val.append(grade(network, data, data.val))
            test.append(grade(network, data, data.test))
        logger.info("Placed thresholds for %d ratios: %.3f to %.3f", len(val), min(val), max(val))
        return LeavingFamily(network, np.array(placed), leaving, tuple(val), tuple(test))

    def select(self, family: LeavingFamily, budget: Budget) -> nn.Module:
        """Return the network with the chosen thresholds; without a choice the most accurate ones."""
        import copy

        which = most_accurate(family.val_accuracies) if budget.variant is None else budget.variant
        network = copy.deepcopy(family.network)
        network.thresholds = tuple(family.thresholds[check_index(which, len(family.thresholds))].tolist())
        return network

    def absorb(self, family: LeavingFamily, variant: nn.Module) -> LeavingFamily:
        import copy

        from driftlab.platform.networks.early_exit import LeavingNetwork

        if not isinstance(variant, LeavingNetwork):
            raise RequestError(f"This {type(variant).__name__} has no exits that frames leave at.")
        return replace(family, network=copy.deepcopy(variant))

    def profile(self, family: LeavingFamily, size: Size) -> tuple[Profile, ...]:
        from driftlab.platform.networks.early_exit import mean_cost

        costs = [mean_cost(family.network, size, shares) for shares in family.leaving]
        parts = (("whole", costs[0].weight_bytes),)
        return tuple(
            Profile(_name(ratio), val, cost.weight_bytes, cost, test, parts)
            for ratio, cost, val, test in zip(
                self.ratios, costs, family.val_accuracies, family.test_accuracies, strict=True
            )
        )

    def store(self, family: LeavingFamily) -> Weights:
        import numpy as np

        from driftlab.platform.networks.predict import state_of

        return {
            "accuracies": np.array([family.val_accuracies, family.test_accuracies]),
            "thresholds": family.thresholds,
            "leaving": family.leaving,
            **{f"network/{name}": array for name, array in state_of(family.network).items()},
        }

    def restore(self, model: nn.Module, arrays: Weights, size: Size) -> LeavingFamily:
        from driftlab.platform.networks.predict import load
        from driftlab.platform.networks.training.training_loop import deterministic

        with deterministic(0):  # the weights drawn are replaced
            network = _network(branch_model(model, size, ((BASE,),) * self.exits, self.exits))
        load(network, {key.partition("/")[2]: array for key, array in arrays.items() if key.startswith("network/")})
        val, test = (tuple(row) for row in arrays["accuracies"].tolist())
        return LeavingFamily(network, arrays["thresholds"], arrays["leaving"], val, test)


def _name(ratio: float) -> str:
    return f"x{ratio:g}"


def _network(branched: Branched) -> LeavingNetwork:
    from driftlab.platform.networks.early_exit import LeavingNetwork

    stages = [modules[-1] for modules in branched.stages]
    return LeavingNetwork(branched.expects, branched.stem, stages, branched.heads).eval()


def _confidences(network: LeavingNetwork, lessons: Lessons) -> npt.NDArray[np.float64]:
    """Return how sure each exit is of each frame."""
    import numpy as np
    import torch

    from driftlab.platform.networks.predict import to_input

    rows = []
    with torch.no_grad():
        for start in range(0, len(lessons), 64):
            outputs = network.outputs(to_input(lessons.images[start : start + 64]))
            rows.append(torch.stack([network.confidence(output) for output in outputs], dim=1).double().numpy())
    return np.concatenate(rows)
