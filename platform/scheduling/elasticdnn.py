"""ElasticDNN's scheduler (TC 2024): one surrogate size per application, for the best mean accuracy.

A size s determines the accuracies A and Ã before and after retraining, the time T of retraining on the whole processor,
and the application's share λ, its part of the sum of all sizes (Eq. 10). A larger surrogate delays all retraining. The
objective is Eq. 8, with one size per application (Eq. 9) and all retraining within the window (Eq. 11).

Differs from the paper: Eq. 8 is printed with its two weights exchanged, which rewards slow retraining; `as_printed`
uses that form. Where no sizes end in time, some applications do not retrain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge

from driftlab.platform.core.parameters import Means
from driftlab.platform.core.seeding import rng_for
from driftlab.platform.scheduling.base import Allocation, SchedulerInput, Scheduling
from driftlab.platform.scheduling.candidates import LearningApp, read_apps
from driftlab.platform.scheduling.plans import (
    HorizonS,
    PatienceS,
    SharePlan,
    equal_inference,
    previous_state,
    to_grants,
)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Eq8 = Literal["corrected", "as_printed"]
MAX_COMBINATIONS = 200_000  # of sizes that are all evaluated
BATCH = 20_000  # combinations per evaluation
IN_TIME = 1 + 1e-12  # limit of Eq. 11 over the window, with rounding
TRAINING_SHARE = 0.5  # of the processor, for all retraining
PENALTY = 10.0  # fitness per window of lateness
POPULATION, ELITE, REDRAW = 32, 8, 0.2
MAX_GENERATIONS, MAX_STALE = 200, 60  # in total; without a better vector


@dataclass(frozen=True, eq=False)
class Sizes:
    """Axes: applications, their sizes; the first column is size 0, which does not retrain."""

    size: Floats  # s, as a share of the full network; infinite where an application has fewer sizes
    before: Floats  # A
    after: Floats  # Ã
    seconds: Floats  # T, of one retraining on the whole processor

    @property
    def counts(self) -> Ints:
        """Return the number of sizes of each application, size 0 excluded."""
        counts: Ints = np.isfinite(self.size).sum(axis=1) - 1
        return counts


@dataclass(frozen=True)
class Rules:
    """Parameters of the objective and of the limits."""

    window_s: float
    eq8: Eq8 = "corrected"
    train_share: float = 1.0
    work_conserving: bool = False
    allow_none: bool = False


@dataclass(frozen=True)
class FilterGrained(Scheduling):
    """ElasticDNN (TC 2024): choose surrogate sizes for mean accuracy over a window (Eq. 8-11)."""

    eq8: Annotated[Eq8, Means("weights of the accuracies in Eq. 8: corrected, or as printed in the paper")] = (
        "corrected"
    )
    solver: Annotated[
        Literal["auto", "exhaustive", "evolution"],
        Means("search of the sizes; auto: exhaustive up to 200 000 combinations"),
    ] = "auto"
    work_conserving: Annotated[bool, Means("whether the share of finished retraining is divided among the others")] = (
        False
    )
    allow_none: Annotated[bool, Means("whether no retraining is always an option")] = False
    horizon_s: HorizonS = None
    patience_s: PatienceS = 600.0
    seed: Annotated[int, Ge(0), Means("random seed of the evolution")] = 0

    @property
    def waits_for_all_offers(self) -> bool:
        return True

    def initial_trials(self, configs: int) -> Sequence[int]:
        """Try every configuration."""
        return range(configs)

    def allocate(self, window: SchedulerInput) -> Allocation:
        """Choose sizes at every call; a running retraining keeps its size, with its remaining time."""
        apps = read_apps(window)
        learners = [app for app in apps if app.learns and not app.lacks_estimates]
        rules = Rules(
            self.horizon_s or window.window_s, self.eq8, TRAINING_SHARE, self.work_conserving, self.allow_none
        )
        running = dict(previous_state(window).own or ())
        sizes = tabulate_sizes(learners, running)
        best = self.solve(sizes, rules)
        chosen: dict[str, int | None] = {
            app.app: int(k) - 1 if k else None for app, k in zip(learners, best, strict=True)
        }
        picked = {app.app: float(sizes.size[i, k]) for i, (app, k) in enumerate(zip(learners, best, strict=True)) if k}
        total = sum(picked.values())
        training = np.array([TRAINING_SHARE * picked.get(app.app, 0.0) / total if total else 0.0 for app in apps])
        inference = equal_inference(apps, 1 - float(training.sum()))
        plan = SharePlan(training, inference, [chosen.get(app.app) for app in apps])
        return to_grants(window, apps, plan, self.patience_s, tuple(sorted(picked.items())))

    def solve(self, sizes: Sizes, rules: Rules) -> Ints:
        """Return the best sizes by exhaustive search if it is set or fast, else by evolution."""
        fast = math.prod((sizes.counts + 1).tolist()) <= MAX_COMBINATIONS
        complete = self.solver == "exhaustive" or (self.solver == "auto" and fast)
        return exhaustive(sizes, rules) if complete or not len(sizes.size) else evolve(sizes, rules, self.seed)


def tabulate_sizes(learners: Sequence[LearningApp], running: dict[str, float]) -> Sizes:
    """Tabulate the candidates of every application as sizes; `running` has the sizes in training."""
    columns = max((len(app.candidates) for app in learners), default=0) + 1
    table = np.full((4, len(learners), columns), np.inf)
    for i, app in enumerate(learners):
        table[:, i, 0] = 0.0, app.now, app.now, 0.0
        for k, one in enumerate(app.candidates, 1):
            size = running.get(app.app, one.size) if app.state == "running" else one.size
            table[:, i, k] = size, one.accuracy_before, one.accuracy_after or 0.0, one.seconds
    return Sizes(*table)


def durations(sizes: Sizes, vectors: Ints, rules: Rules) -> Floats:
    """Return T / λ, the retraining time of each application at its share (Eq. 10), [vectors, apps]."""
    apps = np.arange(vectors.shape[1])
    size, seconds = sizes.size[apps, vectors], sizes.seconds[apps, vectors]
    units = np.divide(seconds, size, out=np.zeros_like(seconds), where=size > 0)  # T / s
    if not rules.work_conserving:
        constant: Floats = units * size.sum(axis=1, keepdims=True) / rules.train_share
        return constant
    order = units.argsort(axis=1, kind="stable")  # a freed share is divided among the others in proportion
    of_size, of_units = np.take_along_axis(size, order, axis=1), np.take_along_axis(units, order, axis=1)
    left = of_size[:, ::-1].cumsum(axis=1)[:, ::-1]
    ends: Floats = (np.diff(of_units, axis=1, prepend=0.0) * left).cumsum(axis=1)
    seconds_at_share: Floats = np.empty_like(ends)
    np.put_along_axis(seconds_at_share, order, ends / rules.train_share, axis=1)
    return seconds_at_share


def objective(sizes: Sizes, vectors: Ints, rules: Rules) -> tuple[Floats, Floats]:
    """Return Eq. 8 of every vector of sizes, and the retraining times over the window (Eq. 11: at most 1)."""
    apps = np.arange(vectors.shape[1])
    before, after = sizes.before[apps, vectors], sizes.after[apps, vectors]
    part = durations(sizes, vectors, rules) / rules.window_s
    early, late = (before, after) if rules.eq8 == "corrected" else (after, before)
    mean: Floats = (early * part + late * (1 - part)).sum(axis=1) / max(1, len(apps))
    return mean, part


def exhaustive(sizes: Sizes, rules: Rules) -> Ints:
    """Return the best of all vectors that end in time; of equals, the lexicographically smallest.

    Size 0 is admitted if `allow_none` is set, or if no other vector ends in time.
    """
    for lowest in (0,) if rules.allow_none else (1, 0):
        best: Ints | None = None
        score = -np.inf
        for vectors in _batches(sizes.counts, lowest):
            scores, part = objective(sizes, vectors, rules)
            scores = np.where((part <= IN_TIME).all(axis=1), scores, -np.inf)
            place = int(scores.argmax())
            if scores[place] > score:
                best, score = vectors[place].copy(), float(scores[place])
        if best is not None:
            return best
    return np.zeros(len(sizes.size), np.int64)


def _batches(counts: Ints, lowest: int) -> Iterator[Ints]:
    """Yield all vectors in lexicographic order; an application without sizes has size 0."""
    low = np.minimum(lowest, counts)
    shape = tuple((counts - low + 1).tolist())
    total = math.prod(shape)
    for start in range(0, total, BATCH):
        places = np.arange(start, min(start + BATCH, total))
        columns = np.unravel_index(places, shape) if shape else ()
        yield low + np.array(columns, np.int64).reshape(len(shape), len(places)).T


def evolve(sizes: Sizes, rules: Rules, seed: int = 0) -> Ints:
    """Return the best vector of sizes of an evolution that ends in time.

    The result does not depend on the order of applications. A vectorised generation takes a hundredth of the time of
    the one-by-one samplers of `driftlab tune`.
    """
    order = np.lexsort([column for one in (sizes.after, sizes.before, sizes.seconds, sizes.size) for column in one.T])
    sorted_sizes = Sizes(*(one[order] for one in (sizes.size, sizes.before, sizes.after, sizes.seconds)))
    for lowest in (0,) if rules.allow_none else (1, 0):
        best = _evolve_from(sorted_sizes, rules, lowest, rng_for(seed, "scheduling", "elasticdnn", lowest))
        if best is not None:
            original_order = np.empty_like(best)
            original_order[order] = best
            return original_order
    return np.zeros(len(sizes.size), np.int64)


def _evolve_from(sizes: Sizes, rules: Rules, lowest: int, rng: np.random.Generator) -> Ints | None:
    """Evolve vectors of sizes from `lowest` on; None if none ends in time."""
    high = sizes.counts + 1
    low = np.minimum(lowest, sizes.counts)
    elite = rng.integers(low, high, (POPULATION, len(high)))
    best, score, stale = None, -np.inf, 0
    for _ in range(MAX_GENERATIONS):
        elite, scores = _fittest(sizes, elite, rules)
        place, stale = int(scores.argmax()), stale + 1
        if scores[place] > score:
            best, score, stale = elite[place], float(scores[place]), 0
        if stale > MAX_STALE:
            break
        elite = np.concatenate([elite[:ELITE], _children(elite[:ELITE], low, high, rng)])
    return best


def _children(elite: Ints, low: Ints, high: Ints, rng: np.random.Generator) -> Ints:
    """Draw half of the children at random; the others are copies with at least one redrawn size."""
    half, apps = POPULATION // 2, len(high)
    copies = elite[rng.integers(len(elite), size=half)]
    redrawn = rng.random((half, apps)) < REDRAW
    redrawn[np.arange(half), rng.integers(apps, size=half)] = True
    fresh = rng.integers(low, high, (2 * half, apps))
    return np.concatenate([fresh[:half], np.where(redrawn, fresh[half:], copies)])


def _fittest(sizes: Sizes, vectors: Ints, rules: Rules) -> tuple[Ints, Floats]:
    """Return distinct vectors by fitness, and Eq. 8 of each, -inf if it does not end in time."""
    vectors = np.unique(vectors, axis=0)
    scores, part = objective(sizes, vectors, rules)
    fitness = scores - PENALTY * np.maximum(0.0, part - 1).sum(axis=1)
    order = (-fitness).argsort(kind="stable")
    in_time = (part <= IN_TIME).all(axis=1)
    return vectors[order], np.where(in_time, scores, -np.inf)[order]
