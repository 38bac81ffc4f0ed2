"""The steps of training a branched network: stage by stage, then each operator, then operators along random paths."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from driftlab.platform.core.seeding import rng_for
from driftlab.platform.networks.branched import Branched
from driftlab.platform.networks.chain import Chain
from driftlab.platform.networks.predict import to_input
from driftlab.platform.networks.training.training_loop import Course, Data, Lessons, epochs
from driftlab.platform.scaling.slimming import distillation_loss

logger = logging.getLogger(__name__)
Rows = npt.NDArray[np.int64]
CHUNK = 128  # frames that pass a module at a time without gradients


@dataclass(frozen=True)
class StagedCourse:
    """Lengths and rates of the three steps."""

    stage: Course  # of each stage with its exit
    operator_epochs: int
    path_epochs: int
    rate: float = 3e-3  # of operators


@dataclass(eq=False)
class Prefix:
    """What reaches a stage: the frozen part before it computes the features of every frame once."""

    data: Data
    network: Branched | Chain
    train: Tensor = field(init=False)
    val: Tensor = field(init=False)

    def __post_init__(self) -> None:
        """Begin with the pictures."""
        self.train, self.val = (self._pictures(part) for part in (self.data.train, self.data.val))

    def pass_through(self, module: nn.Module) -> None:
        """Freeze one more module, and go on behind it."""
        self.train, self.val = run(module, self.train), run(module, self.val)

    def _pictures(self, lessons: Lessons) -> Tensor:
        return self.network.expects.convert(to_input(lessons.images))


def run(module: nn.Module, x: Tensor) -> Tensor:
    """Run a module in evaluation mode, some frames at a time."""
    module.eval()
    with torch.no_grad():
        return torch.cat([module(part) for part in torch.split(x, CHUNK)])


def train_stages(branched: Branched, data: Data, course: Course) -> list[float]:
    """Train stage after stage with its exit, in place; what was trained before is frozen, its batch norms as well.

    Return the accuracy of each exit. No gradient flows into the frozen part, so its activations are not kept: training
    takes less memory from stage to stage.
    """
    prefix, scores = Prefix(data, branched), list[float]()
    for which, (modules, head) in enumerate(zip(branched.stages, branched.heads, strict=True)):
        begin = [branched.stem] if which == 0 else []
        body = nn.Sequential(*begin, modules[-1])
        rng = rng_for(data.seed, "scaling", "stage", which)
        scores.append(train_exit(prefix, body, head, course, rng))
        prefix.pass_through(body)
        logger.info("Trained stage %d with its exit: %.3f", which + 1, scores[-1])
    return scores


def train_exit(prefix: Prefix, body: nn.Module, head: nn.Module, course: Course, rng: np.random.Generator) -> float:
    """Train a stage with its exit on the frozen features before it, and keep the best epoch."""
    part, data = nn.ModuleList([body, head]), prefix.data

    def learn(rows: Rows) -> None:
        images = to_input(data.train.images[rows])
        loss = data.task.loss(head(body(prefix.train[rows]), images), data.train.labels[rows])
        if loss is not None:
            torch.autograd.backward(loss)

    def score() -> float:
        part.eval()
        return grade_features(data, data.val, run(body, prefix.val), head)

    return keep_best(part, data, course, rng, learn, score)


def keep_best(
    part: nn.Module,
    data: Data,
    course: Course,
    rng: np.random.Generator,
    learn: Callable[[Rows], None],
    score: Callable[[], float],
) -> float:
    """Train in place, keep the epoch (or the start) with the best score, and return that score."""
    best, kept = score(), copy.deepcopy(part.state_dict())
    for _ in epochs(part, data, course, rng, learn=learn):
        now = score()
        if now > best:
            best, kept = now, copy.deepcopy(part.state_dict())
    part.load_state_dict(kept)
    part.eval()
    return best


def grade_features(data: Data, lessons: Lessons, features: Tensor, head: nn.Module) -> float:
    """Score an exit on the features that reach it."""
    counts = count_features(data, lessons, features, head)
    return float(np.nan_to_num(data.task.score(counts.sum(axis=0))))


def count_features(data: Data, lessons: Lessons, features: Tensor, head: nn.Module) -> npt.NDArray[np.int64]:
    """Count, frame by frame, what an exit answers on the features that reach it."""
    height, width = data.size
    answers = data.task.blank(len(lessons), height, width)
    head.eval()
    with torch.no_grad():
        for start in range(0, len(lessons), CHUNK):
            part = slice(start, start + CHUNK)
            output = head(features[part], to_input(lessons.images[part]))
            answers[part] = data.task.answers(output, height, width)
    return data.task.counts(answers, lessons.labels, data.classes)


def train_operators(branched: Branched, data: Data, course: StagedCourse) -> None:
    """Train each operator to compute what its stage computes, given the same input (block distillation)."""
    prefix = Prefix(data, branched)
    prefix.pass_through(branched.stem)
    for which, modules in enumerate(branched.stages):
        base = modules[-1]
        goal = run(base, prefix.train)
        for one, module in enumerate(modules[:-1]):
            rng = rng_for(data.seed, "scaling", "operator", which, one)
            loss = _imitate(module, prefix.train, goal, course, rng)
            logger.info("Fitted operator %d of stage %d: error %.4f", one + 1, which + 1, loss)
        prefix.train, prefix.val = goal, run(base, prefix.val)


def _imitate(module: nn.Module, given: Tensor, goal: Tensor, course: StagedCourse, rng: np.random.Generator) -> float:
    """Fit a module to given outputs by the mean squared error; return the last epoch's mean."""
    parameters, error = list(module.parameters()), math.nan
    if not parameters:
        return error
    walk = torch.optim.Adam(parameters, lr=course.rate)
    for _ in range(course.operator_epochs):
        module.train()
        errors = []
        for rows in _batches(len(given), course.stage.batch, rng):
            walk.zero_grad()
            loss = F.mse_loss(module(given[rows]), goal[rows])
            torch.autograd.backward(loss)
            walk.step()
            errors.append(float(loss.detach()))
        error = float(np.mean(errors))
    module.eval()
    return error


def _batches(count: int, size: int, rng: np.random.Generator) -> Iterator[Rows]:
    yield from np.array_split(rng.permutation(count), math.ceil(count / size))


def train_paths(branched: Branched, data: Data, course: StagedCourse) -> None:
    """Train operators along random paths to random exits: on the truth, and on the whole network's own outputs.

    Stages and exits stay as they are, so that the paths without operators do not change.
    """
    operators = nn.ModuleList(module for modules in branched.stages for module in modules[:-1])
    parameters = list(operators.parameters())
    if not parameters or not course.path_epochs:
        return
    rng, space = rng_for(data.seed, "scaling", "paths"), branched.space
    walk = torch.optim.Adam(parameters, lr=course.rate)
    for _ in range(course.path_epochs):
        for rows in _batches(len(data.train), course.stage.batch, rng):
            stages = int(rng.integers(space.stages)) + 1
            path = tuple(int(rng.integers(count)) for count in space.counts[:stages])
            walk.zero_grad()
            if (loss := _path_loss(branched, data, path, rows)) is not None and loss.requires_grad:
                torch.autograd.backward(loss)
                walk.step()
    for _, module in branched.parts():
        module.eval().zero_grad(set_to_none=True)


def _path_loss(branched: Branched, data: Data, path: tuple[int, ...], rows: Rows) -> Tensor | None:
    """Return the loss of a path: that of the task, and the distance to the whole network's outputs."""
    images, labels = to_input(data.train.images[rows]), data.train.labels[rows]
    begun = branched.stem(branched.expects.convert(images)).detach()
    x, whole = begun, begun
    for which, one in enumerate(path):
        modules = branched.stages[which]
        modules[one].train(one + 1 < len(modules))
        x = modules[one](x)
    output = branched.heads[len(path) - 1](x, images)
    loss = data.task.loss(output, labels)
    if loss is None or labels.dtype == object:
        return loss
    with torch.no_grad():
        for modules in branched.stages:
            whole = modules[-1].eval()(whole)
        teacher_logits = branched.heads[-1](whole, images)
    return loss + distillation_loss(output, teacher_logits)


def grade_paths(branched: Branched, data: Data, lessons: Lessons) -> tuple[float, ...]:
    """Score every path, computing the features behind each prefix once."""
    space = branched.space
    scores = [math.nan] * len(space)
    held = [run(branched.stem, branched.expects.convert(to_input(lessons.images)))]
    for path in space.walk():
        del held[len(path) :]
        held.append(run(branched.stages[len(path) - 1][path[-1]], held[-1]))
        scores[space.encode(path)] = grade_features(data, lessons, held[-1], branched.heads[len(path) - 1])
    return tuple(scores)
