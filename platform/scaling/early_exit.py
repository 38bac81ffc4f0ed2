"""Early exit (BranchyNet, MSDNet): a frame leaves at the first confident exit.

Stages and exits are those of a supernet without operators. Thresholds are set on validation frames such that the shares
of frames per exit form a geometric series. Every series is a network to select, with the mean cost of a frame.
Under load, the most accurate network that is in time runs. The latency of a frame is that of its exit.

Differs from the paper: confidence is the largest probability; for detection, that of box centres.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Gt, Le

from driftlab.errors import RequestError
from driftlab.platform.core.parameters import BEFORE, CHOOSING, Means
from driftlab.platform.core.records import Weights
from driftlab.platform.networks.paths import BASE
from driftlab.platform.scaling.base import (
    CHOOSER,
    PREDICTOR,
    Budget,
    Chooser,
    Profile,
    Scaling,
    Size,
    check_index,
    most_accurate,
)
from driftlab.platform.scaling.branches import branch_model
from driftlab.platform.scaling.predicting import Predictor

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from torch import nn

    from driftlab.platform.networks.branched import Branched
    from driftlab.platform.networks.early_exit import EarlyExitNetwork
    from driftlab.platform.networks.training.training_loop import DataSplits, LabelledFrames

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class EarlyExitFamily:
    """One network with its thresholds, shares of frames per exit, and accuracies of each series."""

    network: EarlyExitNetwork
    thresholds: npt.NDArray[np.float64]
    leaving: npt.NDArray[np.float64]
    val_accuracies: tuple[float, ...]
    test_accuracies: tuple[float, ...]


@dataclass(frozen=True)
class EarlyExit(Scaling):
    """Early exit (BranchyNet 2016, MSDNet 2018): confidence thresholds per exit, selected by load."""

    exits: Annotated[int, Ge(2), Le(4), Means("stages, each with an exit; at most one per block")] = 4
    stage_epochs: Annotated[int, Ge(0), Means("epochs per stage", "epochs")] = 8
    learning_rate: Annotated[float, Gt(0), Le(10), Means("initial learning rate")] = 0.05
    batch: Annotated[int, Ge(2), Means("batch size", "frames")] = 32
    ratios: Annotated[
        tuple[float, ...],
        Gt(0),
        Le(100),
        Means("ratios of each series: frames at an exit over those at the previous one"),
    ] = (0.2, 0.5, 1.0, 2.0, 5.0)
    chooser: Annotated[Chooser, CHOOSER] = field(default="own", metadata={CHOOSING: True, BEFORE: "own"})
    predictor: Annotated[Predictor, PREDICTOR] = field(default="law", metadata={CHOOSING: True, BEFORE: "law"})

    version = 3
    needs_data = True
    nested = True

    def faults(self) -> list[str]:
        """Return a fault if there are no ratios, or if two networks would have the same name."""
        names = [_series_name(ratio) for ratio in self.ratios]
        valid = names and len(set(names)) == len(names)
        return [] if valid else [f"'ratios' is {self.ratios}, must be one or more that differ"]

    def build(self, model: nn.Module, data: DataSplits | None) -> EarlyExitFamily:
        from driftlab.platform.networks.training.training_loop import TrainingSchedule, deterministic
        from driftlab.platform.scaling import staged

        assert data is not None
        with deterministic(data.seed):
            branched = branch_model(model, data.size, ((BASE,),) * self.exits, self.exits)
            staged.train_stages(branched, data, TrainingSchedule(self.stage_epochs, self.learning_rate, self.batch))
            return self._place_thresholds(_exit_network(branched), data)

    def _place_thresholds(self, network: EarlyExitNetwork, data: DataSplits) -> EarlyExitFamily:
        """Set thresholds for each ratio, and measure the accuracy of the network with them."""
        import numpy as np

        from driftlab.platform.networks.early_exit import geometric_shares, leaving_shares, place_thresholds
        from driftlab.platform.networks.training.training_loop import grade

        confidences, count = _confidences(network, data.val), len(network.heads)
        series = [place_thresholds(confidences, geometric_shares(count, ratio).tolist()) for ratio in self.ratios]
        leaving = np.array([leaving_shares(confidences, thresholds) for thresholds in series])
        val, test = [], []
        for thresholds in series:
            network.thresholds = thresholds
            val.append(grade(network, data, data.val))
            test.append(grade(network, data, data.test))
        logger.info("Set thresholds for %d ratios: %.3f to %.3f", len(val), min(val), max(val))
        return EarlyExitFamily(network, np.array(series), leaving, tuple(val), tuple(test))

    def select(self, family: EarlyExitFamily, budget: Budget) -> nn.Module:
        """Return the network with the budget's thresholds, or else with the most accurate ones."""
        import copy

        which = most_accurate(family.val_accuracies) if budget.variant is None else budget.variant
        network = copy.deepcopy(family.network)
        network.thresholds = tuple(family.thresholds[check_index(which, len(family.thresholds))].tolist())
        return network

    def absorb(self, family: EarlyExitFamily, variant: nn.Module) -> EarlyExitFamily:
        import copy

        from driftlab.platform.networks.early_exit import EarlyExitNetwork

        if not isinstance(variant, EarlyExitNetwork):
            raise RequestError(f"This {type(variant).__name__} is no early-exit network of this family.")
        return replace(family, network=copy.deepcopy(variant))

    def profile(self, family: EarlyExitFamily, size: Size) -> tuple[Profile, ...]:
        from driftlab.platform.networks.early_exit import mean_cost

        costs = [mean_cost(family.network, size, shares) for shares in family.leaving]
        parts = (("whole", costs[0].weight_bytes),)
        return tuple(
            Profile(_series_name(ratio), val, cost.weight_bytes, cost, test, parts)
            for ratio, cost, val, test in zip(
                self.ratios, costs, family.val_accuracies, family.test_accuracies, strict=True
            )
        )

    def store(self, family: EarlyExitFamily) -> Weights:
        import numpy as np

        from driftlab.platform.networks.predict import state_of

        return {
            "accuracies": np.array([family.val_accuracies, family.test_accuracies]),
            "thresholds": family.thresholds,
            "leaving": family.leaving,
            **{f"network/{name}": array for name, array in state_of(family.network).items()},
        }

    def restore(self, model: nn.Module, arrays: Weights, size: Size) -> EarlyExitFamily:
        from driftlab.platform.networks.predict import load
        from driftlab.platform.networks.training.training_loop import deterministic

        with deterministic(0):  # the random weights are replaced
            network = _exit_network(branch_model(model, size, ((BASE,),) * self.exits, self.exits))
        load(network, {key.partition("/")[2]: array for key, array in arrays.items() if key.startswith("network/")})
        val, test = (tuple(row) for row in arrays["accuracies"].tolist())
        return EarlyExitFamily(network, arrays["thresholds"], arrays["leaving"], val, test)


def _series_name(ratio: float) -> str:
    return f"x{ratio:g}"


def _exit_network(branched: Branched) -> EarlyExitNetwork:
    from driftlab.platform.networks.early_exit import EarlyExitNetwork

    stages = [modules[-1] for modules in branched.stages]
    return EarlyExitNetwork(branched.expects, branched.stem, stages, branched.heads).eval()


def _confidences(network: EarlyExitNetwork, frames: LabelledFrames) -> npt.NDArray[np.float64]:
    """Return the confidence of each exit on each frame, [frames, exits]."""
    import numpy as np
    import torch

    from driftlab.platform.networks.predict import inputs_for

    rows = []
    with torch.no_grad():
        for start in range(0, len(frames), 64):
            outputs = network.outputs(inputs_for(network, frames.images[start : start + 64]))
            rows.append(torch.stack([network.confidence(output) for output in outputs], dim=1).double().cpu().numpy())
    return np.concatenate(rows)
