"""Train a network on labelled examples, all of its weights or a part, and score it."""

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
from driftlab.platform.networks.tasks.tasks import CLASSIFICATION, Answers, Task
from driftlab.platform.networks.training.descent import Descent, Momentum
from driftlab.platform.networks.vector import bind_vector

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

    def part(self, rows: Rows) -> Lessons:
        return Lessons(self.images[rows], self.labels[rows])


@dataclass(frozen=True, eq=False)
class Data:
    """The data from which a family of networks is built: training, validation and test examples."""

    task: Task
    classes: int
    train: Lessons
    val: Lessons
    test: Lessons
    seed: int = 0
    elsewhere: Callable[[], Data] | None = None  # draws the labelled set that the network learned before, if any

    @property
    def size(self) -> tuple[int, int]:
        """Return height and width of a frame."""
        height, width = self.train.images.shape[1:3]
        return height, width

    def example(self, model: nn.Module) -> torch.Tensor:
        """Return one frame as the model's input, on the model's device."""
        return to_input(self.train.images[:1]).to(next(model.parameters()).device)


@dataclass(frozen=True)
class Course:
    """Length and rate of training: stochastic gradient descent with momentum along half a cosine."""

    epochs: int
    learning_rate: float
    batch: int = 32
    momentum: float = 0.9
    weight_decay: float = 5e-4


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: the number of threads changes the order of sums, and with it the last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def deterministic(seed: int) -> Iterator[None]:
    """Compute on one thread with a generator of its own: cached results must not depend on other code."""
    with one_thread(), torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)
        yield


def convert_set(labelled: LabelledSet, *, seed: int = 0) -> Data:
    """Convert a labelled set."""
    parts = (labelled.train, labelled.val, labelled.test)
    train, val, test = (Lessons(part.images, part.classes) for part in parts)
    return Data(CLASSIFICATION, len(labelled.classes), train, val, test, seed)


def train_best(
    model: nn.Module, data: Data, course: Course, rng: np.random.Generator, changes: Mask | None = None
) -> float:
    """Train in place, keep the epoch (or the start) with the best validation score, and return that score.

    Only the coordinates in `changes` change, to the bit; statistics of batch norms follow the data.
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
    """Train epoch by epoch; between epochs the caller may read the model and must not change it.

    `learn` computes the gradients of a mini-batch; by default those of the task's loss.
    """
    learn = learn or partial(_learn, make_safe(model), data)
    with bind_vector(model) as flat:
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
    """Return an optimiser over these weights, without momentum at the start."""
    still = np.zeros(len(weights), dtype=np.float32)
    return Descent(Momentum(course.learning_rate, course.momentum), weights, (still,), 0)


def grade(model: nn.Module, data: Data, lessons: Lessons) -> float:
    """Score the model by the task's measure, a fraction."""
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
