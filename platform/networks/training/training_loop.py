"""Train a network on labelled frames, all of its weights or a part, and score it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from driftlab.datasets.labelled_set import LabelledSet
from driftlab.platform.networks.predict import predict, to_input
from driftlab.platform.networks.strided import make_safe
from driftlab.platform.networks.tasks.tasks import CLASSIFICATION, Task, TaskLabels
from driftlab.platform.networks.training.descent import Descent, Momentum
from driftlab.platform.networks.vector import bind_vector

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
State = dict[str, torch.Tensor]


@dataclass(frozen=True, eq=False)
class LabelledFrames:
    """Frames with labels."""

    images: npt.NDArray[np.uint8]
    labels: TaskLabels

    def __len__(self) -> int:
        return len(self.images)

    def first(self, count: int) -> LabelledFrames:
        return LabelledFrames(self.images[:count], self.labels[:count])

    def part(self, rows: Rows) -> LabelledFrames:
        return LabelledFrames(self.images[rows], self.labels[rows])


@dataclass(frozen=True, eq=False)
class DataSplits:
    """The training, validation and test frames that a family of networks is built from."""

    task: Task
    classes: int
    train: LabelledFrames
    val: LabelledFrames
    test: LabelledFrames
    seed: int = 0
    elsewhere: Callable[[], DataSplits] | None = None  # opens the pre-training set of the network, if any
    plain: LabelledFrames | None = None  # training frames without shifts, if the network was trained on some

    @property
    def size(self) -> tuple[int, int]:
        """Return height and width of a frame."""
        height, width = self.train.images.shape[1:3]
        return height, width

    def example(self, model: nn.Module) -> torch.Tensor:
        """Return one frame as the model's input, on the model's device."""
        return to_input(self.train.images[:1]).to(next(model.parameters()).device)


@dataclass(frozen=True)
class TrainingSchedule:
    """Training with momentum SGD and a cosine learning rate."""

    epochs: int
    learning_rate: float
    batch: int = 32
    momentum: float = 0.9
    weight_decay: float = 5e-4


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread within this context.

    The number of threads changes the order of sums and thus the last bits.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def deterministic(seed: int) -> Iterator[None]:
    """Use one thread and a seeded generator within this context.

    Cached results must not depend on other code.
    """
    with one_thread(), torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)
        yield


def convert_set(labelled: LabelledSet, *, seed: int = 0) -> DataSplits:
    """Return a labelled set as training data."""
    parts = (labelled.train, labelled.val, labelled.test)
    train, val, test = (LabelledFrames(part.images, part.classes) for part in parts)
    return DataSplits(CLASSIFICATION, len(labelled.classes), train, val, test, seed)


def train_best(
    model: nn.Module,
    data: DataSplits,
    schedule: TrainingSchedule,
    rng: np.random.Generator,
    changes: Mask | None = None,
) -> float:
    """Train in place, keep the epoch (or the start) with the best validation score, and return this score.

    Coordinates outside `changes` keep every bit; batch-norm statistics follow the data.
    """
    best, kept = grade(model, data, data.val), _copy_state(model)
    for _ in epochs(model, data, schedule, rng, changes):
        score = grade(model, data, data.val)
        if score > best:
            best, kept = score, _copy_state(model)
    model.load_state_dict(kept)
    model.eval()
    return best


def epochs(
    model: nn.Module,
    data: DataSplits,
    schedule: TrainingSchedule,
    rng: np.random.Generator,
    changes: Mask | None = None,
    learn: Callable[[Rows], None] | None = None,
) -> Iterator[int]:
    """Train and yield after each epoch; the caller may then read the model, but must not change it.

    `learn` computes the gradients of a mini-batch, by default those of the task's loss.
    """
    learn = learn or partial(_learn, make_safe(model), data)
    with bind_vector(model) as flat:
        chosen = slice(None) if changes is None else torch.from_numpy(np.flatnonzero(changes)).to(flat.weights.device)
        optimiser = _optimiser(flat.weights[chosen], schedule)
        each = math.ceil(len(data.train) / schedule.batch)
        for epoch in range(schedule.epochs):
            model.train()
            order = rng.permutation(len(data.train))
            for step, rows in enumerate(np.array_split(order, each), start=epoch * each):
                factor = 0.5 * (1 + math.cos(math.pi * step / (schedule.epochs * each)))
                optimiser.rule = Momentum(factor * schedule.learning_rate, schedule.momentum)
                flat.gradients.zero_()
                learn(rows)
                optimiser.step(flat.gradients[chosen].add_(optimiser.weights, alpha=schedule.weight_decay))
                flat.weights[chosen] = optimiser.weights
            yield epoch


def _optimiser(weights: torch.Tensor, schedule: TrainingSchedule) -> Descent:
    """Return an optimiser of these weights with zero momentum."""
    zeros = np.zeros(len(weights), dtype=np.float32)
    return Descent(Momentum(schedule.learning_rate, schedule.momentum), weights, (zeros,), 0)


def grade(model: nn.Module, data: DataSplits, frames: LabelledFrames) -> float:
    """Return the task's score of the model on frames, a fraction."""
    device = str(next(model.parameters()).device)
    predicted = predict(model, frames.images, task=data.task, batch=64, device=device)
    counts = data.task.counts(predicted, frames.labels, data.classes)
    return float(np.nan_to_num(data.task.score(counts.sum(axis=0))))


def _learn(model: nn.Module, data: DataSplits, rows: Rows) -> None:
    images = to_input(data.train.images[rows]).to(next(model.parameters()).device)
    loss = data.task.loss(model(images), data.train.labels[rows])
    if loss is not None:
        torch.autograd.backward(loss)


def _copy_state(model: nn.Module) -> State:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
