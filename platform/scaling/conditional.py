"""AdaScale's Algorithm 1 with option (b): stage i trains together with stage i-1.

The update of stage i-1 is conditional.

After every epoch exit i-1 is scored. If Acc_{i-1} rises above its maximum, w_{i-1} is saved, else the saved weights
are loaded. Earlier stages never change.

Differs from the paper: the paper does not say when accuracy is checked; here after each epoch, on validation data. The
learning rate falls within every epoch.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from driftlab.platform.core.seeding import rng_for
from driftlab.platform.networks.branched import Branched
from driftlab.platform.networks.predict import inputs_for
from driftlab.platform.networks.training.training_loop import DataSplits, TrainingSchedule, epochs
from driftlab.platform.scaling.staged import Prefix, Rows, goal_of, grade_features, run, train_exit

logger = logging.getLogger(__name__)
PREVIOUS_RATE_FACTOR = 0.1  # learning rate of stage i-1 over that of stage i


@dataclass(frozen=True, eq=False)
class Pair:
    """Stages i-1 and i with their exits, on the frozen input features of stage i-1."""

    prefix: Prefix
    bodies: tuple[nn.Module, nn.Module]
    heads: tuple[nn.Module, nn.Module]

    @property
    def previous(self) -> nn.Module:
        """Return stage i-1 with its exit."""
        return nn.ModuleList([self.bodies[0], self.heads[0]])

    def learn(self, rows: Rows) -> None:
        """Accumulate the gradients of both exits; those of stage i-1 are scaled down."""
        data = self.prefix.data
        images, labels = inputs_for(self.heads[0], data.train.images[rows]), data.train.labels[rows]
        between = self.bodies[0](self.prefix.train[rows])
        outputs = self.heads[0](between, images), self.heads[1](self.bodies[1](between), images)
        losses = [loss for output in outputs if (loss := data.task.loss(output, labels)) is not None]
        if losses:
            torch.autograd.backward(torch.stack(losses).sum())
        for parameter in self.previous.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(PREVIOUS_RATE_FACTOR)

    def score(self) -> float:
        """Return the validation score of exit i-1."""
        self.previous.eval()
        data = self.prefix.data
        return grade_features(data, data.val, run(self.bodies[0], self.prefix.val), self.heads[0])

    def score_last(self) -> float:
        """Return the validation score of exit i."""
        data, between = self.prefix.data, run(self.bodies[0], self.prefix.val)
        return grade_features(data, data.val, run(self.bodies[1], between), self.heads[1])


def train_conditionally(
    branched: Branched, data: DataSplits, schedule: TrainingSchedule, goals: Sequence[float] = ()
) -> list[float]:
    """Train the stages in place and return the accuracy of each exit.

    Each stage trains together with the previous one, until it reaches its goal if there are any; see `goal_of`.
    """
    bodies = [nn.Sequential(branched.stem, branched.stages[0][-1]), *(modules[-1] for modules in branched.stages[1:])]
    prefix = Prefix(data, branched)
    rng = rng_for(data.seed, "scaling", "stage", 0)
    scores = [train_exit(prefix, bodies[0], branched.heads[0], schedule, rng, goal_of(goals, 0))]
    for which in range(1, branched.space.stages):
        pair = Pair(prefix, (bodies[which - 1], bodies[which]), (branched.heads[which - 1], branched.heads[which]))
        if schedule.epochs:
            *_, scores[-1] = commits(pair, data, schedule, scores[-1], which, goal_of(goals, which))
        prefix.pass_through(bodies[which - 1])
        last = replace(schedule, epochs=min(1, schedule.epochs))
        rng = rng_for(data.seed, "scaling", "stage", which, "last")
        scores.append(train_exit(prefix, bodies[which], branched.heads[which], last, rng, goal_of(goals, which)))
        logger.info("Trained stage %d: %.3f, previous exit: %.3f", which + 1, scores[-1], scores[-2])
    return scores


def commits(
    pair: Pair, data: DataSplits, schedule: TrainingSchedule, best: float, which: int, goal: float | None = None
) -> Iterator[float]:
    """Train two stages from Acc_{i-1} = `best` on; yield it per epoch, until exit i reaches a goal."""
    saved: dict[str, Any] = copy.deepcopy(pair.previous.state_dict())
    both = nn.ModuleList([*pair.bodies, *pair.heads])
    for epoch in range(schedule.epochs):
        rate = 0.5 * (1 + math.cos(math.pi * epoch / schedule.epochs)) * schedule.learning_rate
        rng = rng_for(data.seed, "scaling", "stage", which, epoch)
        for _ in epochs(both, data, replace(schedule, epochs=1, learning_rate=rate), rng, learn=pair.learn):
            pass
        new = pair.score()
        if new > best:
            best, saved = new, copy.deepcopy(pair.previous.state_dict())
        else:
            pair.previous.load_state_dict(saved)
        yield best
        if goal is not None and pair.score_last() >= goal:
            break
    both.eval()
