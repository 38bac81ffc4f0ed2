"""ENAS (Pham et al., ICML 2018): an RL controller searches the paths of a weight-sharing supernet.

Two phases alternate: the shared weights train for an epoch on paths drawn by the controller, then the controller trains
on the validation scores of paths. Finally the best of several drawn paths is retrained.

Differs from the paper: a path has one operator per stage; batch-norm statistics are shared by all paths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge

from driftlab.platform.core.parameters import Means
from driftlab.platform.core.seeding import rng_for
from driftlab.platform.scaling.searched import PathSearchScaling

if TYPE_CHECKING:
    from driftlab.platform.networks.branched import Branched
    from driftlab.platform.networks.paths import Path
    from driftlab.platform.networks.training.training_loop import DataSplits, Rows, TrainingSchedule

CONTROLLER_LEARNING_RATE = 0.02


@dataclass(frozen=True)
class Enas(PathSearchScaling):
    """ENAS (ICML 2018): RL controller over a weight-sharing supernet; run the best sampled path."""

    steps: Annotated[int, Ge(0), Means("controller steps after each epoch, one path each")] = 30
    candidates: Annotated[int, Ge(1), Means("paths drawn and compared at the end")] = 10

    def find_path(self, branched: Branched, data: DataSplits, schedule: TrainingSchedule) -> Path:
        import torch
        from torch import nn

        from driftlab.platform.networks.predict import inputs_for
        from driftlab.platform.networks.training.training_loop import epochs, grade
        from driftlab.platform.scaling.controller import Controller

        rng = rng_for(data.seed, "scaling", "enas")
        controller = Controller(branched.space.counts, int(rng.integers(2**31)), CONTROLLER_LEARNING_RATE)

        def learn(rows: Rows) -> None:
            network = branched.shared(controller.draw(rng))
            loss = data.task.loss(network(inputs_for(network, data.train.images[rows])), data.train.labels[rows])
            if loss is not None:
                torch.autograd.backward(loss)

        parts = nn.ModuleList(module for name, module in branched.parts() if not name.startswith("exit."))
        for _ in epochs(nn.ModuleList([parts, branched.heads[-1]]), data, schedule, rng, learn=learn):
            for _ in range(self.steps):
                path = controller.draw(rng)
                sample = data.val.part(rng.integers(len(data.val), size=min(self.batch, len(data.val))))
                controller.learn(path, grade(branched.shared(path), data, sample))
        drawn = dict.fromkeys(controller.draw(rng) for _ in range(self.candidates))
        return max(drawn, key=lambda path: grade(branched.shared(path), data, data.val))
