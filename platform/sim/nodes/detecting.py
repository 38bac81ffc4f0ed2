"""Detection of domains on the device, from frames without labels.

A copy of the network as it was built looks at every frame that is answered, so that distances do not move with what is
learned. Another domain has begun where the moving average of the entropy of its predictions, or of the distance of its
features from those at the beginning of this domain, exceeds its usual values in two batches in a row.
"""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from driftlab.platform.core.records import ModelCost, Need, Passes
from driftlab.platform.sim.nodes.frame_results import FrameResult, FrameResults
from driftlab.platform.sim.nodes.observing import entropy_share
from driftlab.platform.world.cost import need_of
from driftlab.platform.world.hardware import Hardware

if TYPE_CHECKING:
    from torch import nn

    from driftlab.platform.networks.tasks.tasks import Task

FRAMES = 8  # of one batch
WEIGHT = 0.3  # of the newest batch in moving averages
USUAL, LEAST = 20, 6  # batches whose averages are usual ones, and how many there must be for a decision
DEVIATIONS = 4.0  # above the mean of the usual values
FLOOR = 0.02  # least standard deviation: few alike batches must not make every next one unusual
STRIKES = 2  # unusual batches in a row
REFERENCE = 3  # batches at the beginning of a domain whose features stand for it
_BYTES = 4  # of a weight


@dataclass
class UsualRange:
    """A moving average, and its usual values."""

    average: float | None = None
    usual: deque[float] = field(default_factory=lambda: deque(maxlen=USUAL))

    def unusual(self, value: float) -> bool:
        """Move the average, and tell whether it exceeds its usual values."""
        self.average = value if self.average is None else (1 - WEIGHT) * self.average + WEIGHT * value
        if len(self.usual) < LEAST:
            return False
        limit = np.mean(self.usual) + DEVIATIONS * max(float(np.std(self.usual)), FLOOR)
        return bool(self.average > limit)

    def keep(self) -> None:
        """Count the average among the usual values."""
        if self.average is not None:
            self.usual.append(self.average)


@dataclass
class DomainCounter:
    """Counts domains from the entropy and the features of batches."""

    domain: int = 0
    unit: float = 0.0  # standard deviation of features in the first domain
    _first: list[npt.NDArray[np.float64]] = field(default_factory=list)
    _centre: npt.NDArray[np.float64] | None = None
    _entropy: UsualRange = field(default_factory=UsualRange)
    _distance: UsualRange = field(default_factory=UsualRange)
    _strikes: int = 0

    def see(self, entropy: float | None, features: npt.NDArray[np.float32]) -> int:
        """Take a batch into account and return the number of the domain it is of."""
        mean = features.mean(axis=0, dtype=np.float64)
        if len(self._first) < REFERENCE:
            self._first.append(mean)
            if not self.unit:
                self.unit = float(np.sqrt(features.var(axis=0, dtype=np.float64).mean())) or 1.0
            self._centre = np.mean(self._first, axis=0)
            return self.domain
        self._centre = mean if self._centre is None else (1 - WEIGHT) * self._centre + WEIGHT * mean
        distance = float(np.linalg.norm(self._centre - np.mean(self._first, axis=0))) / self.unit
        traces = [(self._distance, distance), *([] if entropy is None else [(self._entropy, entropy)])]
        unusual = [trace.unusual(value) for trace, value in traces]  # each moves its average
        if any(unusual):
            self._strikes += 1
        else:
            self._strikes = 0
            for trace, _ in traces:
                trace.keep()
        if self._strikes >= STRIKES:
            self.domain, self._strikes = self.domain + 1, 0
            self._first, self._centre, self._entropy, self._distance = [], None, UsualRange(), UsualRange()
        return self.domain


class DomainDetector:
    """A copy of the source network that looks at frames before they are answered."""

    def __init__(self, model: nn.Module, task: Task, cost: ModelCost, hardware: Hardware) -> None:
        self._source, self._task = copy.deepcopy(model).eval(), task
        self._counter, self._pool = DomainCounter(), list[FrameResult]()
        passes = Passes(forward=(1,), trained=(), kept_bytes=_BYTES * cost.parameters)
        self.need: Need = need_of(cost, hardware, passes)  # of one frame, and of the copy

    @property
    def domain(self) -> int:
        return self._counter.domain

    def look(self, sight: FrameResult, output: FrameResults) -> None:
        """Take a frame into account and charge its pass; a full batch passes the source network at once."""
        output.spend("learning", self.need.joules)
        output.memory_bytes = max(output.memory_bytes, self.need.memory_bytes)
        self._pool.append(sight)
        if len(self._pool) < FRAMES:
            return
        import torch

        from driftlab.platform.networks.features import features
        from driftlab.platform.networks.predict import device_of, to_input

        images, self._pool = np.stack([pooled.image for pooled in self._pool]), []
        with torch.inference_mode():
            looked = features(self._source, to_input(images).to(device_of(self._source)))
        self._counter.see(entropy_share(looked.outputs.cpu().numpy(), self._task), looked.features.cpu().numpy())
