"""Training of AdaScale's supernet.

Algorithm 1 with option (a), then each operator, then operators on random paths.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from driftlab.platform.core.seeding import rng_for
from driftlab.platform.networks.branched import Branched
from driftlab.platform.networks.chain import Chain
from driftlab.platform.networks.predict import inputs_for
from driftlab.platform.networks.training.descent import Adam, Optimiser
from driftlab.platform.networks.training.training_loop import DataSplits, LabelledFrames, TrainingSchedule, epochs
from driftlab.platform.scaling.slimming import distillation_loss

logger = logging.getLogger(__name__)
Rows = npt.NDArray[np.int64]
CHUNK = 128  # frames per pass without gradients


@dataclass(frozen=True)
class StagedSchedule:
    """Epochs and learning rates of the three steps."""

    stage: TrainingSchedule  # of each stage with its exit
    operator_epochs: int
    path_epochs: int
    rate: float = 3e-3  # of operators


@dataclass(eq=False)
class Prefix:
    """The input features of a stage: the frozen part before it computes them once per frame."""

    data: DataSplits
    network: Branched | Chain
    train: Tensor = field(init=False)
    val: Tensor = field(init=False)

    def __post_init__(self) -> None:
        """Start with the images."""
        splits = self.data.train, self.data.val
        self.train, self.val = (
            self.network.expects.convert(inputs_for(self.network.stem, split.images)) for split in splits
        )

    def pass_through(self, module: nn.Module) -> None:
        """Replace the features by the outputs of one more frozen module."""
        self.train, self.val = run(module, self.train), run(module, self.val)


def run(module: nn.Module, x: Tensor) -> Tensor:
    """Run a module in evaluation mode, `CHUNK` frames at a time."""
    module.eval()
    with torch.no_grad():
        return torch.cat([module(part) for part in torch.split(x, CHUNK)])


def train_stages(
    branched: Branched, data: DataSplits, schedule: TrainingSchedule, goals: Sequence[float] = ()
) -> list[float]:
    """Train the partitions p_1 ... p_n with their exits, in place, and return the accuracy of each exit.

    Algorithm 1 with option (a): earlier partitions are frozen, batch norms included. No gradient flows into them, so
    their activations are not stored, and training memory falls from stage to stage. `goals` are the Acc_i at which
    stages stop; see `goal_of`.
    """
    prefix, scores = Prefix(data, branched), list[float]()
    for which, (modules, head) in enumerate(zip(branched.stages, branched.heads, strict=True)):
        body = nn.Sequential(*([branched.stem] if which == 0 else []), modules[-1])
        rng = rng_for(data.seed, "scaling", "stage", which)
        scores.append(train_exit(prefix, body, head, schedule, rng, goal_of(goals, which)))
        prefix.pass_through(body)
        logger.info("Trained stage %d with its exit: %.3f", which + 1, scores[-1])
    return scores


def goal_of(goals: Sequence[float], which: int) -> float | None:
    """Return Acc_i of a stage, the last one for all later stages; None without goals: all epochs run."""
    return goals[min(which, len(goals) - 1)] if goals else None


def train_exit(
    prefix: Prefix,
    body: nn.Module,
    head: nn.Module,
    schedule: TrainingSchedule,
    rng: np.random.Generator,
    goal: float | None = None,
) -> float:
    """Train a stage with its exit on frozen input features, keep the best epoch and return its accuracy."""
    part, data = nn.ModuleList([body, head]), prefix.data

    def learn(rows: Rows) -> None:
        images = inputs_for(head, data.train.images[rows])
        loss = data.task.loss(head(body(prefix.train[rows]), images), data.train.labels[rows])
        if loss is not None:
            torch.autograd.backward(loss)

    def score() -> float:
        part.eval()
        return grade_features(data, data.val, run(body, prefix.val), head)

    return keep_best(part, data, schedule, rng, learn, score, goal)


def keep_best(
    part: nn.Module,
    data: DataSplits,
    schedule: TrainingSchedule,
    rng: np.random.Generator,
    learn: Callable[[Rows], None],
    score: Callable[[], float],
    goal: float | None = None,
) -> float:
    """Train in place, keep the epoch (or the start) with the best score, and return this score.

    No further epoch begins once the score has reached a goal.
    """
    best, kept = score(), copy.deepcopy(part.state_dict())
    most = math.inf if goal is None else goal
    for _ in epochs(part, data, schedule, rng, learn=learn) if best < most else ():
        now = score()
        if now > best:
            best, kept = now, copy.deepcopy(part.state_dict())
        if best >= most:
            break
    part.load_state_dict(kept)
    part.eval()
    return best


def grade_features(data: DataSplits, frames: LabelledFrames, features: Tensor, head: nn.Module) -> float:
    """Return the score of an exit on its input features."""
    counts = count_features(data, frames, features, head)
    return float(np.nan_to_num(data.task.score(counts.sum(axis=0))))


def count_features(
    data: DataSplits, frames: LabelledFrames, features: Tensor, head: nn.Module
) -> npt.NDArray[np.int64]:
    """Return the task's counts per frame of an exit's predictions on its input features."""
    height, width = data.size
    predictions = data.task.blank(len(frames), height, width)
    head.eval()
    with torch.no_grad():
        for start in range(0, len(frames), CHUNK):
            part = slice(start, start + CHUNK)
            output = head(features[part], inputs_for(head, frames.images[part]))
            predictions[part] = data.task.predictions(output, height, width)
    return data.task.counts(predictions, frames.labels, data.classes)


def train_operators(branched: Branched, data: DataSplits, schedule: StagedSchedule) -> None:
    """Train each operator to reproduce the output of its stage on the same input (block distillation)."""
    prefix = Prefix(data, branched)
    prefix.pass_through(branched.stem)
    for which, modules in enumerate(branched.stages):
        base = modules[-1]
        target = run(base, prefix.train)
        for number, module in enumerate(modules[:-1]):
            rng = rng_for(data.seed, "scaling", "operator", which, number)
            loss = _distil(module, prefix.train, target, schedule, rng)
            logger.info("Distilled operator %d of stage %d: error %.4f", number + 1, which + 1, loss)
        prefix.train, prefix.val = target, run(base, prefix.val)


def _distil(
    module: nn.Module, inputs: Tensor, target: Tensor, schedule: StagedSchedule, rng: np.random.Generator
) -> float:
    """Fit a module to target outputs by mean squared error; return the mean error of the last epoch."""
    parameters, error = list(module.parameters()), math.nan
    if not parameters:
        return error
    optimiser = Optimiser(parameters, Adam(schedule.rate))
    for _ in range(schedule.operator_epochs):
        module.train()
        errors = []
        for rows in _batches(len(inputs), schedule.stage.batch, rng):
            optimiser.zero_grad()
            loss = F.mse_loss(module(inputs[rows]), target[rows])
            torch.autograd.backward(loss)
            optimiser.step()
            errors.append(loss.detach())
        error = float(np.mean(torch.stack(errors).tolist()))
    module.eval()
    return error


def _batches(count: int, size: int, rng: np.random.Generator) -> Iterator[Rows]:
    yield from np.array_split(rng.permutation(count), math.ceil(count / size))


def train_paths(branched: Branched, data: DataSplits, schedule: StagedSchedule) -> None:
    """Train operators along random paths to random exits.

    The loss is on labels and by distillation from the full network.

    Stages and exits are frozen, so that paths without operators do not change.
    """
    operators = nn.ModuleList(module for modules in branched.stages for module in modules[:-1])
    parameters = list(operators.parameters())
    if not parameters or not schedule.path_epochs:
        return
    rng, space = rng_for(data.seed, "scaling", "paths"), branched.space
    optimiser = Optimiser(parameters, Adam(schedule.rate))
    for _ in range(schedule.path_epochs):
        for rows in _batches(len(data.train), schedule.stage.batch, rng):
            stages = int(rng.integers(space.stages)) + 1
            path = tuple(int(rng.integers(count)) for count in space.counts[:stages])
            optimiser.zero_grad()
            if (loss := _path_loss(branched, data, path, rows)) is not None and loss.requires_grad:
                torch.autograd.backward(loss)
                optimiser.step()
    for _, module in branched.parts():
        module.eval().zero_grad(set_to_none=True)


def _path_loss(branched: Branched, data: DataSplits, path: tuple[int, ...], rows: Rows) -> Tensor | None:
    """Return the loss of a path.

    It is the task's, plus the distillation loss from the full network if labels allow it.
    """
    images, labels = inputs_for(branched.stem, data.train.images[rows]), data.train.labels[rows]
    x = whole = branched.stem(branched.expects.convert(images)).detach()
    for which, operator in enumerate(path):
        modules = branched.stages[which]
        modules[operator].train(operator + 1 < len(modules))
        x = modules[operator](x)
    output = branched.heads[len(path) - 1](x, images)
    loss = data.task.loss(output, labels)
    if loss is None or labels.dtype == object:
        return loss
    with torch.no_grad():
        for modules in branched.stages:
            whole = modules[-1].eval()(whole)
        teacher_logits = branched.heads[-1](whole, images)
    return loss + distillation_loss(output, teacher_logits)


def grade_paths(branched: Branched, data: DataSplits, frames: LabelledFrames) -> tuple[float, ...]:
    """Return the score of every path; the features behind a common prefix are computed once."""
    space = branched.space
    scores = [math.nan] * len(space)
    features = [
        run(branched.stem, branched.expects.convert(inputs_for(branched.stem, frames.images)))
    ]  # behind each stage of a path
    for path in space.walk():
        del features[len(path) :]
        features.append(run(branched.stages[len(path) - 1][path[-1]], features[-1]))
        scores[space.encode(path)] = grade_features(data, frames, features[-1], branched.heads[len(path) - 1])
    return tuple(scores)
