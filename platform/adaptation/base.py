"""The adaptation family: the interface by which weights follow the data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Le

from driftlab.platform.core.records import AccuracyEstimates, Passes, Weights
from driftlab.platform.networks.tasks.tasks import SEGMENTATION, Task, TaskLabels
from driftlab.platform.networks.zoo import ZOO

if TYPE_CHECKING:
    from torch import nn

    from driftlab.platform.networks.training.training_loop import DataSplits
    from driftlab.platform.scaling.base import Scaling

STREAM_BATCH = 32  # frames, unless a member sets another default
MAX_FRAMES = 4096  # of one batch of the stream: all of them pass the network at once
EMPTY_PACK: Mapping[str, npt.NDArray[Any]] = {}  # of a member without a summary of the source
Needs = Literal["", "batch norms", "norms", "a linear head"]
UNFIT: Mapping[Needs, str] = {  # why nothing is learned on a network without it
    "batch norms": "the network has no batch norm",
    "norms": "the network has no norm with a scale or shift that learns",
    "a linear head": "the network has no linear head",
}


@dataclass(frozen=True, eq=False)
class Batch:
    """The data for one call of a member: images, a teacher's labels where there are any, and a generator."""

    images: npt.NDArray[np.uint8]  # [n, height, width, 3]
    labels: TaskLabels | None  # one per image, in the task's form
    rng: np.random.Generator
    task: Task = SEGMENTATION
    times_s: npt.NDArray[np.float64] | None = None  # capture times of the images
    domain: int | None = None  # of the newest image, where the experiment labels domains

    def showing(self, images: npt.NDArray[np.uint8]) -> Batch:
        """Return a batch of other images, which have neither labels nor times."""
        return Batch(images, None, self.rng, self.task, None, self.domain)


@dataclass(frozen=True)
class Phase:
    """The settings of one call of `adapt`; None leaves a value to the member."""

    iterations: int | None = None
    stop_score: float | None = None  # train on the full batch, and stop as soon as its score reaches this
    variant: int | None = None  # the network of the family that it trains; None: the one that runs
    on_stream: bool = False  # the batch is the newest part of the stream: train on all of it, once


@dataclass(frozen=True, eq=False)
class Adapted:
    """The result of one call of `adapt`: the next state, and the coordinates that may have changed."""

    state: Any
    iterations: int = 0
    losses: tuple[float, ...] = ()
    changed: npt.NDArray[np.bool_] | None = None  # over the flat vector of networks/vector.py; None means none
    skipped: str = ""  # why nothing was learned
    score: float | None = None  # of the batch at the end, where the phase has a stop_score
    passes: Passes | None = None  # None is a fault wherever something was learned
    predictions: TaskLabels | None = None  # of the batch, from a forward pass of the call
    accepted: float | None = None  # share of the samples that were learned from, where the member chooses among them
    predicted_by: tuple[int, int] = (1, 0)  # of the passes, the forward and backward ones that lead to `predictions`


@dataclass(frozen=True, eq=False)
class Predicted:
    """Predictions for a batch, and the next state."""

    predictions: TaskLabels
    state: Any
    passes: Passes | None = None  # None: each frame went through the network once


class Adaptation(ABC):
    """Base of the family: a member is a frozen dataclass of its parameters, with all state outside.

    Members import torch inside their methods: the driver reads parameters and must not pay for torch.
    """

    version: ClassVar[int] = (
        1  # raise it when the member computes something else, so that its cached artifacts are rebuilt
    )
    labels: ClassVar[Literal["none", "teacher"]]  # its supervision
    tasks: ClassVar[tuple[str, ...]] = ("segmentation", "classification", "detection")  # on which it works
    needs: ClassVar[Needs] = ""  # the part of a network without which it learns nothing
    learns_on_stream: ClassVar[bool] = True  # whether it learns from batches of the stream; if not, in phases only
    only_on_stream: ClassVar[bool] = False  # whether it changes predictions only, which phases do not use
    has_source_summary: ClassVar[bool] = False  # whether `summarise_source` returns arrays

    estimates: int = 0  # domains on which its accuracy estimator was fitted; 0: it has none

    # Learning from the stream of the application.
    stream_batch: Annotated[int, Ge(1), Le(MAX_FRAMES)] = STREAM_BATCH  # frames of a batch
    training_runs: Literal["exclusive", "concurrent"] = "exclusive"  # without inference, or on a share next to it
    predict_on: Literal["frame", "batch"] = (
        "frame"  # predict frame by frame, or when the batch is full, which adds latency
    )
    episodic: bool | Literal["batch"] = False  # whether announced boundaries of domains, or batches, reset it

    def unfit_reason(self, network: str) -> str:
        """Return why the member learns nothing on a network of the zoo; empty if it can."""
        entry = ZOO[network]
        if entry.task.name not in self.tasks:
            return f"the network's task is {entry.task.name}, the member's {' or '.join(self.tasks)}"
        has = {
            "batch norms": entry.norms == "batch",
            "norms": entry.norms != "none",
            "a linear head": entry.linear_head,
        }
        return "" if has.get(self.needs, True) else UNFIT[self.needs]

    def summarise_source(self, model: nn.Module, data: DataSplits) -> Weights:
        """Summarise the source once: Fisher information, features or histograms."""
        return EMPTY_PACK

    def summarise_source_family(self, scaling: Scaling, family: Any, data: DataSplits) -> Weights:
        """Summarise the source once for a family of networks; by default for the one that runs without limits."""
        return self.summarise_source(scaling.source(family), data)

    @abstractmethod
    def prepare(self, model: nn.Module, pack: Weights = EMPTY_PACK, *, go_on: Any = None) -> Any:
        """Prepare the source network for adaptation and return the first state.

        `go_on` is the previous state, where the device has switched to another network of the family.
        """

    def predict(self, model: nn.Module, state: Any, batch: Batch) -> Predicted:
        """Predict a batch of the stream; by default with the network as it is."""
        from driftlab.platform.networks.predict import predict

        return Predicted(predict(model, batch.images, task=batch.task, device=None), state)

    @abstractmethod
    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        """Change the model in place by one phase over the batch."""

    @abstractmethod
    def reset(self, model: nn.Module, state: Any) -> Any:
        """Reset model and state to those after `prepare`, bit for bit."""

    def estimate(
        self, source: nn.Module, state: Any, batch: Batch, phase: Phase
    ) -> tuple[AccuracyEstimates | None, Any]:
        """Estimate the accuracy of each network of a family on a batch; with the next state. None: it cannot."""
        return None, state

    def monitored(self, state: Any) -> tuple[float, float] | None:
        """Return the monitored accuracies before and after the newest phase; None: it has none."""
        return None

    def training_configs(self, planned: Phase) -> tuple[Phase, ...]:
        """List the phases from which a scheduler may choose instead of the planned one."""
        return (planned,)

    def passes_of(self, phase: Phase, frames: int) -> Passes | None:
        """Return the passes of a phase over `frames` frames in advance; None where they depend on the data."""
        return None
