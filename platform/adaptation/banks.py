"""Memories of frames that are balanced over predicted classes, and the base of members with one.

Every frame is predicted and offered to the memory; every `every_frames` frames a member learns from the memory.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Le

from driftlab.platform.adaptation.base import Batch, Phase
from driftlab.platform.adaptation.batches import (
    NO_SCALES,
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


@dataclass(frozen=True, eq=False)
class Item:
    """A frame in a memory."""

    image: npt.NDArray[np.uint8]
    label: int  # its predicted class
    doubt: float = 0.0  # entropy of the prediction
    age: int = 0  # frames seen since


@dataclass
class Bank(ABC):
    """A memory of at most `capacity` frames."""

    capacity: int
    items: list[Item] = field(default_factory=list)  # in the order of their arrival

    @abstractmethod
    def add(self, item: Item) -> bool:
        """Offer a frame to the memory; return False where it is not stored."""

    def of(self, label: int) -> list[Item]:
        return [item for item in self.items if item.label == label]

    def counts(self) -> dict[int, int]:
        """Count the frames of each class in the memory."""
        labels = [item.label for item in self.items]
        return {label: labels.count(label) for label in sorted(set(labels))}

    def by_class(self) -> list[Item]:
        """List the frames class by class."""
        return sorted(self.items, key=lambda item: item.label)

    def arrays(self) -> Weights:
        """Return the memory as arrays."""
        if not self.items:
            return {}
        held = {name: np.array([getattr(item, name) for item in self.items]) for name in ("label", "doubt", "age")}
        return {"image": np.stack([item.image for item in self.items]), **held}

    def restore(self, held: Weights) -> None:
        """Restore the frames from arrays."""
        self.items = list(_items(held)) if held else []

    def _fullest(self) -> list[int]:
        counts = self.counts()
        return [label for label, count in counts.items() if count == max(counts.values())]


@dataclass
class CategoryBalancedBank(Bank):
    """RoTTA's memory: the same share for each class; old and uncertain frames leave first."""

    classes: int = 1

    def add(self, item: Item) -> bool:
        stays = self._make_room(item)
        if stays:
            self.items.append(item)
        self.items = [replace(each, age=each.age + 1) for each in self.items]
        return stays

    def _make_room(self, new: Item) -> bool:
        if len(self.of(new.label)) >= self.capacity / self.classes:
            candidates = self.of(new.label)
        elif len(self.items) < self.capacity:
            return True
        else:
            candidates = [item for label in self._fullest() for item in self.of(label)]
        worst = max(reversed(candidates), key=self._badness)  # of equals the last one
        if self._badness(worst) <= self._badness(replace(new, age=0)):
            return False
        self.items = [item for item in self.items if item is not worst]
        return True

    def _badness(self, item: Item) -> float:
        return 1 / (1 + math.exp(-item.age / self.capacity)) + item.doubt / math.log(max(self.classes, 2))


@dataclass
class ReservoirBank(Bank):
    """NOTE's memory: prediction-balanced reservoir sampling."""

    rng: np.random.Generator = field(default_factory=np.random.default_rng)
    seen: dict[int, int] = field(default_factory=dict)  # frames of each class so far

    def add(self, item: Item) -> bool:
        self.seen[item.label] = self.seen.get(item.label, 0) + 1
        stays = len(self.items) < self.capacity or self._make_room(item.label)
        if stays:
            self.items.append(item)
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
        elif self.rng.random() <= len(self.of(label)) / self.seen[label]:
            leaves = label
        else:
            return False
        candidates = self.of(leaves)
        gone = candidates[int(self.rng.integers(len(candidates)))]
        self.items = [item for item in self.items if item is not gone]
        return True


def images_of(items: Sequence[Item]) -> npt.NDArray[np.uint8]:
    """Stack the frames."""
    return np.stack([item.image for item in items])


def _items(held: Weights) -> Iterator[Item]:
    for image, label, doubt, age in zip(held["image"], held["label"], held["doubt"], held["age"], strict=True):
        yield Item(image, int(label), float(doubt), int(age))


@dataclass(frozen=True)
class MemoryBankAdaptation(LearningAdaptation, StatefulAdaptation):
    """Base of members that learn scales and shifts of batch norms from a memory of frames (RoTTA, NOTE)."""

    capacity: Annotated[int, Ge(2), Le(4096), Means("frames in the memory", "frames")] = 64
    every_frames: Annotated[int, Ge(1), Means("frames from one step to the next", "frames")] = 64
    learning_rate: Annotated[float, Ge(0), Le(10), Means("step size of adam")] = 1e-3

    tasks = ("classification",)

    @abstractmethod
    def bank(self, classes: int, rng: np.random.Generator) -> Bank:
        """Return an empty memory."""

    @abstractmethod
    def predict_rows(self, run: LearningRun, rows: Rows) -> torch.Tensor:
        """Predict frames of the batch, before they enter the memory."""

    @abstractmethod
    def learn_from(self, run: LearningRun, items: list[Item]) -> None:
        """Make a step on the frames of the memory."""

    def changes(self, model: nn.Module) -> list[str]:
        return norm_entries(model)

    def reject_reason(self, model: nn.Module, batch: Batch, state: Any) -> str:
        why = norms_reject(model, batch) or frames_reject(type(self).__name__, batch)
        return why or ("" if scales_and_shifts(model) else NO_SCALES)

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
        run.names = scales_and_shifts(run.model)
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
        if (bank := run.notes.get("bank")) is None:
            bank = run.notes["bank"] = self.bank(outputs.shape[1], run.batch.rng)
            bank.restore(below("bank", run.held))
        since, stays = int(run.held["since"]), list[bool]()
        doubts, labels = entropies(outputs).tolist(), outputs.argmax(dim=1).tolist()
        for row, label, doubt in zip(rows, labels, doubts, strict=True):
            stays.append(bank.add(Item(run.batch.images[row], label, doubt)))
            since += 1
            if since >= self.every_frames:
                since = 0
                if not run.parameters:
                    run.bind(run.names)
                self.learn_from(run, bank.by_class())
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
