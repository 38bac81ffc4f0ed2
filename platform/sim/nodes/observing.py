"""Observations of a device on frames without labels: statistics of its stream, and domain boundaries.

A stream is described by the entropy of the predictions, and by the distance of its frames from earlier ones. Domains
are detected by a copy of the source network, which receives every predicted frame, so that distances do not depend on
the trained weights. A domain begins where the moving average of the entropy of the copy's predictions, or of the
distance of its features from those at the beginning of the domain, exceeds its usual values in two successive batches.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from driftlab.platform.core.records import ModelCost, Passes, StreamStatistics, TaskCost
from driftlab.platform.networks.tasks.tasks import DETECTION, Task
from driftlab.platform.sim.nodes.frame_results import FrameResult, FrameResults
from driftlab.platform.world.cost import task_cost
from driftlab.platform.world.hardware import Hardware

if TYPE_CHECKING:
    from torch import nn

MAX_FRAMES = 64  # the newest ones represent all


@dataclass
class StreamObserver:
    """Keeps the newest predicted frames, and the feature statistics at the last phase."""

    task: Task
    frames: int = 0
    images: list[npt.NDArray[np.uint8]] = field(default_factory=list)
    scene: int | None = None
    reference: tuple[npt.NDArray[np.float64], float] | None = None  # mean and deviation of features at the last phase
    renews_reference: bool = True  # whether the next frames become the reference of later ones
    unready: list[FrameResult] = field(default_factory=list)  # earlier frames whose predictions were not ready

    def add(self, results: Sequence[FrameResult]) -> None:
        """Take frames into account once their predictions are ready."""
        predicted, self.unready = ready_images([*self.unready, *results])
        self.frames += len(predicted)
        self.images = [*self.images, *predicted][-MAX_FRAMES:]
        self.scene = results[-1].scene if results else self.scene

    def renew_reference(self) -> None:
        """Use the next frames as the new reference, since the network has just adapted to them."""
        self.renews_reference = True

    def summarise(self, model: nn.Module, domain: int | None) -> StreamStatistics:
        """Summarise the frames since the last call; their predictions exist, so this takes no processor time."""
        frames, images = self.frames, self.images
        self.frames, self.images = 0, []
        if not images:
            return StreamStatistics(frames, None, None, domain)
        entropy, features = entropy_and_features(model, np.stack(images), self.task)
        return StreamStatistics(frames, entropy, self._distance(features), domain)

    def _distance(self, features: npt.NDArray[np.float32]) -> float:
        """Return the distance of the feature mean from the reference, in standard deviations of the reference."""
        mean = features.mean(axis=0, dtype=np.float64)
        spread = float(np.sqrt(features.var(axis=0, dtype=np.float64).mean()))
        if self.renews_reference or self.reference is None or len(self.reference[0]) != len(mean):  # another network
            self.reference, self.renews_reference = (mean, spread), False
        then, unit = self.reference
        return float(np.linalg.norm(mean - then) / unit) if unit else 0.0


def entropy_and_features(
    model: nn.Module, images: npt.NDArray[np.uint8], task: Task
) -> tuple[float | None, npt.NDArray[np.float32]]:
    """Return the entropy of the predictions for some images, as `entropy_share` does, and the features."""
    import torch

    from driftlab.platform.networks.features import features
    from driftlab.platform.networks.predict import device_of, evaluating, to_input

    with evaluating(model), torch.inference_mode():
        looked = features(model, to_input(images).to(device_of(model)))
    return entropy_share(looked.outputs.cpu().numpy(), task), looked.features.cpu().numpy()


def entropy_share(output: npt.NDArray[np.float32], task: Task) -> float | None:
    """Return the mean entropy as a share of the maximum; None where outputs are no distribution."""
    classes = output.shape[1]
    if classes < 2 or task is DETECTION:
        return None
    shifted = output.astype(np.float64) - output.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return float(-(np.exp(log_p) * log_p).sum(axis=1).mean() / np.log(classes))


def ready_images(results: Sequence[FrameResult]) -> tuple[list[npt.NDArray[np.uint8]], list[FrameResult]]:
    """Return the images whose predictions are ready, and the frames whose predictions are not."""
    return [result.image for result in results if result.processed and not result.open], [
        result for result in results if result.open
    ]


def mean_confidence(model: nn.Module, images: npt.NDArray[np.uint8], task: Task) -> float | None:
    """Return the mean probability of the predicted classes; None where outputs are no distribution."""
    import torch

    from driftlab.platform.networks.predict import device_of, evaluating, to_input

    if task is DETECTION:
        return None
    with evaluating(model), torch.inference_mode():
        outputs = model(to_input(images).to(device_of(model)))
    return float(outputs.softmax(dim=1).amax(dim=1).mean())


# Domains ------------------------------------------------------------------------------------------------------------

BATCH_FRAMES = 8  # of one batch
WEIGHT = 0.3  # of the newest batch in moving averages
AVERAGED_BATCHES = 20  # newest batches whose averages are the usual values
MIN_BATCHES = 6  # averages that a decision needs
DEVIATIONS = 4.0  # above the mean of the usual values
FLOOR = 0.02  # least standard deviation: few alike batches must not make every next one unusual
STRIKES = 2  # unusual batches in a row
REFERENCE = 3  # batches at the beginning of a domain that form its reference
_BYTES = 4  # of a weight


@dataclass
class UsualRange:
    """A moving average, and its usual values."""

    average: float | None = None
    usual: deque[float] = field(default_factory=lambda: deque(maxlen=AVERAGED_BATCHES))

    def unusual(self, value: float) -> bool:
        """Move the average, and return whether it exceeds its usual values."""
        self.average = value if self.average is None else (1 - WEIGHT) * self.average + WEIGHT * value
        if len(self.usual) < MIN_BATCHES:
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

    def add_batch(self, entropy: float | None, features: npt.NDArray[np.float32]) -> int:
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
    """A copy of the source network that receives frames before the application predicts them."""

    def __init__(self, model: nn.Module, task: Task, cost: ModelCost, hardware: Hardware) -> None:
        self._source, self._task = copy.deepcopy(model).eval(), task
        self._counter, self._pool = DomainCounter(), list[FrameResult]()
        passes = Passes(forward=(1,), trained=(), kept_bytes=_BYTES * cost.parameters)
        self.frame_cost: TaskCost = task_cost(cost, hardware, passes)  # of one frame, and of the copy

    @property
    def domain(self) -> int:
        return self._counter.domain

    def add_frame(self, result: FrameResult, results: FrameResults) -> None:
        """Take a frame into account and charge its pass; a full batch passes the source network at once."""
        results.spend("training", self.frame_cost.joules)
        results.memory_bytes = max(results.memory_bytes, self.frame_cost.memory_bytes)
        self._pool.append(result)
        if len(self._pool) < BATCH_FRAMES:
            return
        images, self._pool = np.stack([pooled.image for pooled in self._pool]), []
        self._counter.add_batch(*entropy_and_features(self._source, images, self._task))
