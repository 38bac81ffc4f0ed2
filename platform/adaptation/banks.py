"""Memories of frames that are balanced over predicted classes, and the base of members with one.

Every frame is predicted and offered to the memory; every `every_frames` frames a member learns from the memory.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Le

from driftlab.platform.adaptation.base import UNFIT, Batch, Phase
from driftlab.platform.adaptation.batches import (
    Rows,
    frames_reject,
    norm_entries,
    norms_reject,
    scales_and_shifts,
    split_groups,
)
from driftlab.platform.adaptation.learn import LearningAdaptation, StatefulAdaptation
from driftlab.platform.adaptation.memory import below, under
from driftlab.platform.adaptation.objectives import entropies
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Weights
from driftlab.platform.networks.training.descent import Adam

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.adaptation.run import LearningRun
    from driftlab.platform.networks.module_utils import NormRecord

Frame = npt.NDArray[np.uint8]
Places = npt.NDArray[np.intp]


@dataclass
class Bank(ABC):
    """A memory of at most `capacity` frames, in the order of their arrival."""

    capacity: int

    def __post_init__(self) -> None:
        """Make arrays for all frames that fit."""
        self.images: list[Frame] = []
        self._labels = np.empty(self.capacity, dtype=np.int64)
        self._doubts = np.empty(self.capacity)
        self._ages = np.empty(self.capacity, dtype=np.int64)

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """The predicted class of each frame."""
        return self._labels[: len(self.images)]

    @property
    def doubts(self) -> npt.NDArray[np.float64]:
        """The entropy of each prediction."""
        return self._doubts[: len(self.images)]

    @property
    def ages(self) -> npt.NDArray[np.int64]:
        """The number of frames seen since each one."""
        return self._ages[: len(self.images)]

    @abstractmethod
    def add(self, image: Frame, label: int, doubt: float) -> bool:
        """Offer a frame to the memory; return False where it is not stored."""

    def by_class(self) -> Places:
        """List the places of all frames class by class."""
        return np.argsort(self.labels, kind="stable")

    def arrays(self) -> Weights:
        """Return the memory as arrays."""
        if not self.images:
            return {}
        columns = {"label": self.labels, "doubt": self.doubts, "age": self.ages}
        return {"image": np.stack(self.images), **{name: value.copy() for name, value in columns.items()}}

    def restore(self, held: Weights) -> None:
        """Restore the frames from arrays."""
        self.images = list(held["image"]) if held else []
        if held:
            self.labels[:], self.doubts[:], self.ages[:] = held["label"], held["doubt"], held["age"]

    def _of(self, label: int) -> Places:
        return np.flatnonzero(self.labels == label)

    def _fullest(self) -> list[int]:
        counts = np.bincount(self.labels)
        found: list[int] = np.flatnonzero(counts == counts.max()).tolist()
        return found

    def _append(self, image: Frame, label: int, doubt: float) -> None:
        self.images.append(image)
        self.labels[-1], self.doubts[-1], self.ages[-1] = label, doubt, 0

    def _drop(self, place: int) -> None:
        for column in (self.labels, self.doubts, self.ages):
            column[place:-1] = column[place + 1 :]
        del self.images[place]


@dataclass
class CategoryBalancedBank(Bank):
    """RoTTA's memory: the same share for each class; old and uncertain frames leave first."""

    classes: int = 1

    def add(self, image: Frame, label: int, doubt: float) -> bool:
        if stays := self._make_room(label, doubt):
            self._append(image, label, doubt)
        ages = self.ages
        ages += 1
        return stays

    def _make_room(self, label: int, doubt: float) -> bool:
        candidates = self._of(label)
        if len(candidates) < self.capacity / self.classes:
            if len(self.images) < self.capacity:
                return True
            candidates = np.concatenate([self._of(each) for each in self._fullest()])
        ages, doubts = (*self.ages[candidates].tolist(), 0), (*self.doubts[candidates].tolist(), doubt)
        capacity, widest = self.capacity, math.log(max(self.classes, 2))
        *badness, of_new = [
            1 / (1 + math.exp(-age / capacity)) + each / widest for age, each in zip(ages, doubts, strict=True)
        ]
        worst = max(reversed(range(len(badness))), key=badness.__getitem__)  # of equals the last one
        if badness[worst] <= of_new:
            return False
        self._drop(int(candidates[worst]))
        return True


@dataclass
class ReservoirBank(Bank):
    """NOTE's memory: prediction-balanced reservoir sampling."""

    rng: np.random.Generator = field(default_factory=np.random.default_rng)
    seen: dict[int, int] = field(default_factory=dict)  # frames of each class so far

    def add(self, image: Frame, label: int, doubt: float) -> bool:
        self.seen[label] = self.seen.get(label, 0) + 1
        if stays := len(self.images) < self.capacity or self._make_room(label):
            self._append(image, label, doubt)
        return stays

    def arrays(self) -> Weights:
        seen = np.array(sorted(self.seen.items()), dtype=np.int64)
        return {**super().arrays(), "seen": seen} if self.seen else {}

    def restore(self, held: Weights) -> None:
        self.seen = {int(label): int(count) for label, count in held["seen"]} if held else {}
        super().restore({name: value for name, value in held.items() if name != "seen"})

    def _make_room(self, label: int) -> bool:
        """Draw the frame that leaves: first its class where several are the most frequent, then the frame."""
        fullest = self._fullest()
        if label not in fullest:
            leaves = fullest[int(self.rng.integers(len(fullest)))]
        elif self.rng.random() <= len(self._of(label)) / self.seen[label]:
            leaves = label
        else:
            return False
        candidates = self._of(leaves)
        self._drop(int(candidates[int(self.rng.integers(len(candidates)))]))
        return True


@dataclass(frozen=True)
class MemoryBankAdaptation(LearningAdaptation, StatefulAdaptation):
    """Base of members that learn scales and shifts of batch norms from a memory of frames (RoTTA, NOTE)."""

    capacity: Annotated[int, Ge(2), Le(4096), Means("frames in the memory", "frames")] = 64
    every_frames: Annotated[int, Ge(1), Means("frames from one step to the next", "frames")] = 64
    learning_rate: Annotated[float, Ge(0), Le(10), Means("step size of adam")] = 1e-3

    tasks, needs = ("classification",), "batch norms"

    @abstractmethod
    def bank(self, classes: int, rng: np.random.Generator) -> Bank:
        """Return an empty memory."""

    @abstractmethod
    def predict_rows(self, run: LearningRun, rows: Rows) -> torch.Tensor:
        """Predict frames of the batch, before they enter the memory."""

    @abstractmethod
    def learn_from(self, run: LearningRun, images: Frame, ages: npt.NDArray[np.int64]) -> None:
        """Make a step on the frames of the memory, which are sorted by class."""

    def changes(self, model: nn.Module) -> list[str]:
        return norm_entries(model)

    def reject_reason(self, model: nn.Module, batch: Batch, state: Any) -> str:
        why = norms_reject(model, batch) or frames_reject(type(self).__name__, batch)
        return why or ("" if scales_and_shifts(model, batch_only=True) else UNFIT["norms"])

    def training_batches(self, model: nn.Module, batch: Batch, phase: Phase) -> list[Rows]:
        return split_groups(len(batch.images), phase, self.stream_batch)

    def rule(self) -> Adam:
        return Adam(self.learning_rate)

    @contextmanager
    def normalising(self, run: LearningRun) -> Iterator[NormRecord]:
        """Leave batch norms as they are; each pass sets their statistics."""
        from driftlab.platform.networks.module_utils import NormRecord, record_layers

        with record_layers(run.model) as ran:
            yield NormRecord(ran=ran)

    def start(self, run: LearningRun) -> str:
        """Bind nothing before the first step: most calls make none."""
        run.names = scales_and_shifts(run.model, batch_only=True)
        run.held.setdefault("since", np.array(0))
        return ""

    def train_step(self, run: LearningRun, rows: Rows) -> None:
        """Predict frames and offer them to the memory; learn from it every `every_frames` frames."""
        import torch

        with torch.no_grad():
            outputs = self.predict_rows(run, rows)
        if not bool(outputs.isfinite().all()):
            run.stop("its predictions are not finite")
            return
        run.show(outputs)
        if (bank := run.notes.get("bank")) is None:
            bank = run.notes["bank"] = self.bank(outputs.shape[1], run.batch.rng)
            bank.restore(below("bank", run.held))
        since, stays = int(run.held["since"]), list[bool]()
        doubts, labels = entropies(outputs).tolist(), outputs.argmax(dim=1).tolist()
        for row, label, doubt in zip(rows, labels, doubts, strict=True):
            stays.append(bank.add(run.batch.images[row], label, doubt))
            since += 1
            if since >= self.every_frames:
                since = 0
                if not run.parameters:
                    run.bind(run.names)
                places = bank.by_class()
                self.learn_from(run, np.stack([bank.images[place] for place in places]), bank.ages[places])
        run.held["since"] = np.array(since)
        run.judge(torch.tensor(stays))
        run.waits = "" if run.made else f"the memory fills; it learns after {self.every_frames - since} more frames"

    def step(self, run: LearningRun, loss: torch.Tensor) -> None:
        """Make a step along a loss, or undo the call where it is not finite."""
        if not run.learn(loss):
            run.stop(f"its loss is {run.losses[-1]}")

    def next_state(self, run: LearningRun, *, carries: bool) -> Any:
        kept = {name: value for name, value in run.held.items() if not name.startswith("bank/")}
        run.held = {**kept, **under("bank", run.notes["bank"].arrays() if "bank" in run.notes else {})}
        return super().next_state(run, carries=carries)
