"""How the weights follow the data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from driftlab.platform.core.records import Passes, Weights
from driftlab.platform.tasks.tasks import SEGMENTATION, Answers, Task

if TYPE_CHECKING:
    from torch import nn

    from driftlab.platform.training.schooling import Data

NOTHING: Mapping[str, npt.NDArray[Any]] = {}  # the pack of a member that needs none


@dataclass(frozen=True, eq=False)
class Batch:
    """What a member may learn from: images, answers where a teacher gave them, and a generator of its own."""

    images: npt.NDArray[np.uint8]  # [n, height, width, 3]
    labels: Answers | None  # one per image, as the task has them
    rng: np.random.Generator
    task: Task = SEGMENTATION
    times_s: npt.NDArray[np.float64] | None = None  # when the images were seen
    domain: int | None = None  # of the newest image, where the experiment tells domains


@dataclass(frozen=True)
class Phase:
    """How one call of `adapt` learns; None leaves it to the member."""

    iterations: int | None = None
    stop_score: float | None = None  # learn from the whole batch, and stop as soon as it is predicted this well
    on_stream: bool = False  # the batch is the newest piece of the stream: learn from all of it, once


@dataclass(frozen=True, eq=False)
class Adapted:
    """What one call of `adapt` did: the next state, and which coordinates of the weight vector may have changed."""

    state: Any
    iterations: int = 0
    losses: tuple[float, ...] = ()
    changed: npt.NDArray[np.bool_] | None = None  # over the flat vector of models/vector.py; None means none
    skipped: str = ""  # why nothing was learned
    score: float | None = None  # of the batch at the end, where the phase has a stop_score
    work: Passes | None = None  # what was computed; None is a fault wherever something was learned
    answers: Answers | None = None  # to the batch before the update, where the same forward pass gave them


@dataclass(frozen=True, eq=False)
class Answered:
    """Answers to a batch, and the next state."""

    answers: Answers
    state: Any
    work: Passes | None = None  # None: each frame went through the network once


class Adaptation(ABC):
    """Base of the family; a member is a frozen dataclass of its parameters, all state is passed in and returned.

    Members import torch inside their methods: the driver reads parameters and must not pay for torch.
    """

    version: ClassVar[int] = 1  # raise it when the member computes something else: what stands on it is made anew
    labels: ClassVar[Literal["none", "teacher"]]  # what it learns from besides images
    packs: ClassVar[bool] = False  # whether `pack` finds something out about the data that the network was built on

    # How a member learns from the stream that its application sees; 0 frames: it learns in phases alone.
    stream_batch: int = 0
    learns: Literal["instead", "beside"] = "instead"  # of answering, or on a share beside it
    answers: Literal["now", "batch"] = "now"  # frame by frame, or when the batch is full, which then is latency
    episodic: bool = False  # whether a told boundary between domains resets it

    def pack(self, model: nn.Module, data: Data) -> Weights:
        """Find out, once, what the member needs to know of the source: Fisher information, features, histograms."""
        return NOTHING

    @abstractmethod
    def prepare(self, model: nn.Module, pack: Weights = NOTHING, *, go_on: Any = None) -> Any:
        """Make the source network ready to follow the data and return the first state.

        `go_on` is the state of before, where the device has changed to another network of the family.
        """

    def answer(self, model: nn.Module, state: Any, batch: Batch) -> Answered:
        """Answer a batch of the stream; most members let the network do it."""
        from driftlab.platform.networks.predict import device_of, predict

        return Answered(predict(model, batch.images, task=batch.task, device=device_of(model)), state)

    @abstractmethod
    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        """Change the model in place by one phase over the batch."""

    @abstractmethod
    def reset(self, model: nn.Module, state: Any) -> Any:
        """Return the model, to the bit, and the state to what `prepare` left."""

    def ways(self, planned: Phase) -> tuple[Phase, ...]:
        """List the phases that a scheduler may choose from instead of the planned one."""
        return (planned,)

    def work_of(self, phase: Phase, frames: int) -> Passes | None:
        """Say before a phase what it will compute over so many frames; None: only the phase itself can tell."""
        return None
