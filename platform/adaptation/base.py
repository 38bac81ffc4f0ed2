"""How the weights follow the data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from driftlab.platform.models.tasks import SEGMENTATION, Answers, Task

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, eq=False)
class Batch:
    """What a member may learn from: images, answers where a teacher gave them, and a generator of its own."""

    images: npt.NDArray[np.uint8]  # [n, height, width, 3]
    labels: Answers | None  # one per image, as the task has them
    rng: np.random.Generator
    task: Task = SEGMENTATION


@dataclass(frozen=True)
class Phase:
    """How long one call of `adapt` may go on; None leaves it to the member."""

    iterations: int | None = None
    stop_score: float | None = None  # learn from the whole batch, and stop as soon as it is predicted this well


@dataclass(frozen=True, eq=False)
class Adapted:
    """What one call of `adapt` did: the next state, and which coordinates of the weight vector may have changed."""

    state: Any
    iterations: int = 0
    losses: tuple[float, ...] = ()
    changed: npt.NDArray[np.bool_] | None = None  # over the flat vector of models/vector.py; None means none
    skipped: str = ""  # why nothing was learned
    score: float | None = None  # of the batch at the end, where the phase has a stop_score


class Adaptation(ABC):
    """Base of the family; a member is a frozen dataclass of its parameters, all state is passed in and returned.

    Members import torch inside their methods: the driver reads parameters and must not pay for torch.
    """

    needs_labels: ClassVar[bool]  # True: learns where a teacher's labels are; False: learns on the device, without

    @property
    def phase_iterations(self) -> int:
        """How many steps a phase takes where its plan leaves that open; a member that has them says so."""
        return 0

    @property
    def phase_batch(self) -> int:
        """How many frames each of these steps learns from."""
        return 1

    @abstractmethod
    def prepare(self, model: nn.Module) -> Any:
        """Make the model ready to follow the data and return the first state."""

    @abstractmethod
    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        """Change the model in place by one phase over the batch."""

    @abstractmethod
    def reset(self, model: nn.Module, state: Any) -> Any:
        """Forget what was learned about the data and return a fresh state; the weights stay."""
