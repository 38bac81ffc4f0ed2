"""Memories of frames that stay balanced over predicted classes while the stream does not."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from driftlab.platform.core.records import Weights


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
        """Show a frame to the memory; False where it does not stay."""

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
        """Take the frames back from arrays."""
        self.items = list(_items(held)) if held else []

    def _fullest(self) -> list[int]:
        counts = self.counts()
        return [label for label, count in counts.items() if count == max(counts.values())]


@dataclass
class TimelyBank(Bank):
    """RoTTA's memory: each class has the same part of it, and old and doubtful frames leave first."""

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
    """NOTE's memory: a reservoir in which a frame of a rare class takes the place of one of the most frequent."""

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
