"""Conditional training of stages: the one before goes on learning, as long as its own exit gains by that.

After every epoch the exit before is scored. If it is more accurate than ever, its stage stays as it is now; else it
returns to what it was. Stages further back never change. Differs from the paper: it does not say when accuracy is
checked; here it is after each epoch, on validation data, and the rate falls within every epoch.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from driftlab.platform.core.seeding import rng_for
from driftlab.platform.networks.branched import Branched
from driftlab.platform.networks.predict import to_input
from driftlab.platform.networks.training.training_loop import Course, Data, epochs
from driftlab.platform.scaling.staged import Prefix, Rows, grade_features, run, train_exit

logger = logging.getLogger(__name__)
SLOWER = 0.1  # rate of the stage before, as a share


@dataclass(frozen=True, eq=False)
class Pair:
    """Two stages with their exits, on the frozen features before them."""

    prefix: Prefix
    bodies: tuple[nn.Module, nn.Module]
    heads: tuple[nn.Module, nn.Module]

    @property
    def before(self) -> nn.Module:
        """The earlier stage with its exit."""
        return nn.ModuleList([self.bodies[0], self.heads[0]])

    def learn(self, rows: Rows) -> None:
        """Add up the gradients of both exits; those of the earlier stage count less."""
        data = self.prefix.data
        images, labels = to_input(data.train.images[rows]), data.train.labels[rows]
        between = self.bodies[0](self.prefix.train[rows])
        outputs = self.heads[0](between, images), self.heads[1](self.bodies[1](between), images)
        losses = [loss for output in outputs if (loss := data.task.loss(output, labels)) is not None]
        if losses:
            torch.autograd.backward(torch.stack(losses).sum())
        for parameter in self.before.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(SLOWER)

    def score(self) -> float:
        """Score the earlier exit."""
        self.before.eval()
        data = self.prefix.data
        return grade_features(data, data.val, run(self.bodies[0], self.prefix.val), self.heads[0])


def train_conditionally(branched: Branched, data: Data, course: Course) -> list[float]:
    """Train stage after stage in place, the one before along with it; return the accuracy of each exit."""
    bodies = [nn.Sequential(branched.stem, branched.stages[0][-1]), *(modules[-1] for modules in branched.stages[1:])]
    prefix = Prefix(data, branched)
    scores = [train_exit(prefix, bodies[0], branched.heads[0], course, rng_for(data.seed, "scaling", "stage", 0))]
    for which in range(1, branched.space.stages):
        pair = Pair(prefix, (bodies[which - 1], bodies[which]), (branched.heads[which - 1], branched.heads[which]))
        scores[-1] = list(commits(pair, data, course, scores[-1], which))[-1] if course.epochs else scores[-1]
        prefix.pass_through(bodies[which - 1])
        last = replace(course, epochs=min(1, course.epochs))
        rng = rng_for(data.seed, "scaling", "stage", which, "last")
        scores.append(train_exit(prefix, bodies[which], branched.heads[which], last, rng))
        logger.info("Trained stage %d: %.3f, and the exit before: %.3f", which + 1, scores[-1], scores[-2])
    return scores


def commits(pair: Pair, data: Data, course: Course, best: float, which: int) -> Iterator[float]:
    """Train two stages; yield the best accuracy of the earlier exit after every epoch."""
    kept: dict[str, Any] = copy.deepcopy(pair.before.state_dict())
    both = nn.ModuleList([*pair.bodies, *pair.heads])
    for epoch in range(course.epochs):
        rate = 0.5 * (1 + math.cos(math.pi * epoch / course.epochs)) * course.learning_rate
        rng = rng_for(data.seed, "scaling", "stage", which, epoch)
        for _ in epochs(both, data, replace(course, epochs=1, learning_rate=rate), rng, learn=pair.learn):
            pass
        now = pair.score()
        if now > best:
            best, kept = now, copy.deepcopy(pair.before.state_dict())
        else:
            pair.before.load_state_dict(kept)
        yield best
    both.eval()
