"""ENAS: paths with shared weights, and a controller that learns which of them answer well.

In turn, the shared weights are trained along paths that the controller draws, for a pass over the data, and the
controller learns from the scores of paths on validation frames (Pham et al., ICML 2018). Of some paths that it draws
in the end the best one is retrained.

Differs from the paper: a path has an operator for each stage; batch norms answer by statistics that all paths share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Gt, Le

from driftlab.platform.core.parameters import Means
from driftlab.platform.core.seeding import rng_for
from driftlab.platform.scaling.searched import OfSearch

if TYPE_CHECKING:
    from driftlab.platform.networks.branched import Branched
    from driftlab.platform.networks.paths import Path
    from driftlab.platform.networks.training.training_loop import Course, Data, Rows


@dataclass(frozen=True)
class Enas(OfSearch):
    """Search operators by a controller over shared weights, and run the best network that it draws."""

    steps: Annotated[int, Ge(0), Means("paths that the controller learns from after each pass over the data")] = 30
    controller_rate: Annotated[float, Gt(0), Le(10), Means("step size of the controller")] = 0.02
    candidates: Annotated[int, Ge(1), Means("paths that are drawn in the end and compared")] = 10

    def find_path(self, branched: Branched, data: Data, course: Course) -> Path:
        import torch
        from torch import nn

        from driftlab.platform.networks.predict import to_input
        from driftlab.platform.networks.training.training_loop import epochs, grade
        from driftlab.platform.scaling.controller import Controller

        rng = rng_for(data.seed, "scaling", "enas")
        controller = Controller(branched.space.counts, int(rng.integers(2**31)), self.controller_rate)

        def learn(rows: Rows) -> None:
            network = branched.shared(controller.draw(rng))
            loss = data.task.loss(network(to_input(data.train.images[rows])), data.train.labels[rows])
            if loss is not None:
                torch.autograd.backward(loss)

        parts = nn.ModuleList(module for name, module in branched.parts() if not name.startswith("exit."))
        for _ in epochs(nn.ModuleList([parts, branched.heads[-1]]), data, course, rng, learn=learn):
            for _ in range(self.steps):
                path = controller.draw(rng)
                some = data.val.part(rng.integers(len(data.val), size=min(self.batch, len(data.val))))
                controller.learn(path, grade(branched.shared(path), data, some))
        drawn = dict.fromkeys(controller.draw(rng) for _ in range(self.candidates))
        return max(drawn, key=lambda path: grade(branched.shared(path), data, data.val))
