"""Teach a network from labelled examples, all of its weights or a part of them, and grade what it has learned."""

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

from driftlab.datasets.labelled import LabelledSet
from driftlab.platform.networks.predict import predict, to_input
from driftlab.platform.networks.vector import bound
from driftlab.platform.tasks.tasks import CLASSIFICATION, Answers, Task
from driftlab.platform.training.descent import Descent, Momentum

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
State = dict[str, torch.Tensor]


@dataclass(frozen=True, eq=False)
class Lessons:
    """Frames with their truth."""

    images: npt.NDArray[np.uint8]
    labels: Answers

    def __len__(self) -> int:
        return len(self.images)

    def first(self, count: int) -> Lessons:
        return Lessons(self.images[:count], self.labels[:count])


@dataclass(frozen=True, eq=False)
class Data:
    """What a family of networks is built from: lessons to learn from, to choose by and to judge by."""

    task: Task
    classes: int
    train: Lessons
    val: Lessons
    test: Lessons
    seed: int = 0

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of a frame."""
        height, width = self.train.images.shape[1:3]
        return height, width

    def example(self, model: nn.Module) -> torch.Tensor:
        """Give one frame as the model takes it, where the model is."""
        return to_input(self.train.images[:1]).to(next(model.parameters()).device)


@dataclass(frozen=True)
class Course:
    """How long to learn, and how fast: stochastic gradient descent with momentum along half a cosine."""

    epochs: int
    learning_rate: float
    batch: int = 32
    momentum: float = 0.9
    weight_decay: float = 5e-4


@contextmanager
def alone(seed: int) -> Iterator[None]:
    """Compute on one thread and with random numbers of one's own, as what is kept must not depend on what else runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=()):
            torch.default_generator.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(before)


def data_of(labelled: LabelledSet, *, seed: int = 0) -> Data:
    """Take a labelled set as it is."""
    parts = (labelled.train, labelled.val, labelled.test)
    train, val, test = (Lessons(part.images, part.classes) for part in parts)
    return Data(CLASSIFICATION, len(labelled.classes), train, val, test, seed)


def teach(model: nn.Module, data: Data, course: Course, rng: np.random.Generator, changes: Mask | None = None) -> float:
    """Train in place and keep the epoch that is best on `val`, the untouched start being one of them; return its score.

    Only the coordinates of the flat vector that may change do, to the bit; statistics of batch norms follow the data.
    """
    best, kept = grade(model, data, data.val), _copied(model)
    for _ in epochs(model, data, course, rng, changes):
        score = grade(model, data, data.val)
        if score > best:
            best, kept = score, _copied(model)
    model.load_state_dict(kept)
    model.eval()
    return best


def epochs(
    model: nn.Module,
    data: Data,
    course: Course,
    rng: np.random.Generator,
    changes: Mask | None = None,
    learn: Callable[[Rows], None] | None = None,
) -> Iterator[int]:
    """Train epoch by epoch; between two of them the model may be looked at and not be changed.

    How gradients come from a few lessons may be said by `learn`; otherwise from the task's loss.
    """
    learn = learn or partial(_learn, model, data)
    with bound(model) as flat:
        chosen = slice(None) if changes is None else torch.from_numpy(np.flatnonzero(changes)).to(flat.weights.device)
        walk = _walk(flat.weights[chosen], course)
        each = math.ceil(len(data.train) / course.batch)
        for epoch in range(course.epochs):
            model.train()
            order = rng.permutation(len(data.train))
            for step, rows in enumerate(np.array_split(order, each), start=epoch * each):
                pace = 0.5 * (1 + math.cos(math.pi * step / (course.epochs * each)))
                walk.rule = Momentum(pace * course.learning_rate, course.momentum)
                flat.gradients.zero_()
                learn(rows)
                walk.step(flat.gradients[chosen].add_(walk.weights, alpha=course.weight_decay))
                flat.weights[chosen] = walk.weights
            yield epoch


def _walk(weights: torch.Tensor, course: Course) -> Descent:
    """Begin to descend; there is momentum of what learns and of nothing else."""
    still = np.zeros(len(weights), dtype=np.float32)
    return Descent(Momentum(course.learning_rate, course.momentum), weights, (still,), 0)


def grade(model: nn.Module, data: Data, lessons: Lessons) -> float:
    """Score the model by the task's own measure, a fraction."""
    device = str(next(model.parameters()).device)
    predicted = predict(model, lessons.images, task=data.task, batch=64, device=device)
    counts = data.task.counts(predicted, lessons.labels, data.classes)
    return float(np.nan_to_num(data.task.score(counts.sum(axis=0))))


def _learn(model: nn.Module, data: Data, rows: Rows) -> None:
    images = to_input(data.train.images[rows]).to(next(model.parameters()).device)
    loss = data.task.loss(model(images), data.train.labels[rows])
    if loss is not None:
        torch.autograd.backward(loss)


def _copied(model: nn.Module) -> State:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
