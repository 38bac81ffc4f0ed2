"""ElasticDNN: one size of the surrogate for every application, for the best accuracy over a window.

A size decides all: how accurate the network is before and after it is retrained, how long that takes alone, and the
application's share for it, which is its part of the sum of all sizes (Eq. 10). A larger surrogate delays all of them.

Differs from the paper: Eq. 8 is printed with its two weights exchanged, which rewards slow retraining; `as_printed` has
it like that. Where no sizes end in time, some applications do not retrain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Le

from driftlab.platform.core.parameters import Means
from driftlab.platform.core.seeding import rng_for
from driftlab.platform.scheduling.base import Allocation, Scheduling, Wants, Window
from driftlab.platform.scheduling.candidates import LearningApp, read_apps
from driftlab.platform.scheduling.plans import HorizonS, PatienceS, SharePlan, answering, kept, settle

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Eq8 = Literal["corrected", "as_printed"]
MOST = 200_000  # combinations of sizes that are all evaluated
BATCH = 20_000  # combinations at a time
IN_TIME = 1 + 1e-12  # rounding of the limit
PENALTY = 10.0  # per window of lateness
POPULATION, ELITE, REDRAW = 32, 8, 0.2
GENERATIONS, STALE = 200, 60  # at most; without a better one


@dataclass(frozen=True, eq=False)
class Sizes:
    """Axes: applications, their sizes; the first column is size 0, which does not retrain."""

    size: Floats  # as a share of the whole network; infinite where an application has fewer sizes
    before: Floats
    after: Floats
    seconds: Floats  # of one retraining alone on the device

    @property
    def counts(self) -> Ints:
        """Return how many sizes each application has, without size 0."""
        found: Ints = np.isfinite(self.size).sum(axis=1) - 1
        return found


@dataclass(frozen=True)
class Rules:
    """What the objective and the limits are."""

    window_s: float
    eq8: Eq8 = "corrected"
    train_share: float = 1.0
    work_conserving: bool = False
    allow_none: bool = False


@dataclass(frozen=True)
class FilterGrained(Scheduling):
    """Choose every application's size for the best accuracy over a window; its share follows from the size."""

    eq8: Annotated[Eq8, Means("weights of the two accuracies: by meaning, or as printed")] = "corrected"
    solver: Annotated[
        Literal["auto", "exhaustive", "evolution"],
        Means("how sizes are searched; auto: all of them where that is quick"),
    ] = "auto"
    train_share: Annotated[float, Gt(0), Le(1), Means("share of the machine for all retraining together")] = 0.5
    work_conserving: Annotated[bool, Means("whether retraining that ends leaves its share to the others")] = False
    allow_none: Annotated[bool, Means("whether an application may always decline to retrain")] = False
    horizon_s: HorizonS = None
    patience_s: PatienceS = 600.0
    seed: Annotated[int, Ge(0), Means("of the evolution")] = 0

    wants = Wants(trials=True, together=True)

    def allocate(self, window: Window) -> Allocation:
        """Choose sizes whenever something changes; those that run stay, with what is left of them."""
        apps = read_apps(window)
        learners = [app for app in apps if app.learns and not app.untold]
        rules = Rules(
            self.horizon_s or window.window_s, self.eq8, self.train_share, self.work_conserving, self.allow_none
        )
        known = dict(kept(window).own or ())
        sizes = tabulate_sizes(learners, known)
        best = self.solve(sizes, rules)
        chosen: dict[str, int | None] = {
            app.app: int(k) - 1 if k else None for app, k in zip(learners, best, strict=True)
        }
        picked = {app.app: float(sizes.size[i, k]) for i, (app, k) in enumerate(zip(learners, best, strict=True)) if k}
        total = sum(picked.values())
        learn = np.array([self.train_share * picked.get(app.app, 0.0) / total if total else 0.0 for app in apps])
        plan = SharePlan(learn, answering(apps, 1 - float(learn.sum())), [chosen.get(app.app) for app in apps])
        return settle(window, apps, plan, self.patience_s, tuple(sorted(picked.items())))

    def solve(self, sizes: Sizes, rules: Rules) -> Ints:
        """Search all sizes where that is asked for or quick, else breed them."""
        every = self.solver == "exhaustive" or (
            self.solver == "auto" and math.prod((sizes.counts + 1).tolist()) <= MOST
        )
        return exhaustive(sizes, rules) if every or not len(sizes.size) else evolve(sizes, rules, self.seed)


def tabulate_sizes(learners: Sequence[LearningApp], known: dict[str, float]) -> Sizes:
    """List the candidates of every application as sizes; a running one has the size that it was given."""
    most = max((len(app.candidates) for app in learners), default=0)
    table = np.full((4, len(learners), most + 1), np.inf)
    for i, app in enumerate(learners):
        table[:, i, 0] = 0.0, app.now, app.now, 0.0
        for k, one in enumerate(app.candidates, 1):
            size = known.get(app.app, one.size) if app.state == "running" else one.size
            table[:, i, k] = size, one.before, one.after or 0.0, one.seconds
    return Sizes(*table)


def durations(sizes: Sizes, vectors: Ints, rules: Rules) -> Floats:
    """Return how long each application retrains at its share (Eq. 10), [vectors, apps]."""
    apps = np.arange(vectors.shape[1])
    size, seconds = sizes.size[apps, vectors], sizes.seconds[apps, vectors]
    units = np.divide(seconds, size, out=np.zeros_like(seconds), where=size > 0)  # time alone per size
    if not rules.work_conserving:
        plain: Floats = units * size.sum(axis=1, keepdims=True) / rules.train_share
        return plain
    order = units.argsort(axis=1, kind="stable")  # a share that becomes free goes to the others in proportion
    of_size, of_units = np.take_along_axis(size, order, axis=1), np.take_along_axis(units, order, axis=1)
    left = of_size[:, ::-1].cumsum(axis=1)[:, ::-1]
    ends: Floats = (np.diff(of_units, axis=1, prepend=0.0) * left).cumsum(axis=1)
    found: Floats = np.empty_like(ends)
    np.put_along_axis(found, order, ends / rules.train_share, axis=1)
    return found


def objective(sizes: Sizes, vectors: Ints, rules: Rules) -> tuple[Floats, Floats]:
    """Return Eq. 8 of every vector of sizes, and the durations over the window."""
    apps = np.arange(vectors.shape[1])
    before, after = sizes.before[apps, vectors], sizes.after[apps, vectors]
    part = durations(sizes, vectors, rules) / rules.window_s
    early, late = (before, after) if rules.eq8 == "corrected" else (after, before)
    mean: Floats = (early * part + late * (1 - part)).sum(axis=1) / max(1, len(apps))
    return mean, part


def exhaustive(sizes: Sizes, rules: Rules) -> Ints:
    """Return the best of all vectors that end in time, the lexicographically smallest of equals.

    Size 0 is admitted where that is allowed, or where no other vector ends in time.
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
    """List all vectors in lexicographic order; an application without sizes has size 0."""
    low = np.minimum(lowest, counts)
    shape = tuple((counts - low + 1).tolist())
    total = math.prod(shape)
    for start in range(0, total, BATCH):
        places = np.arange(start, min(start + BATCH, total))
        columns = np.unravel_index(places, shape) if shape else ()
        yield low + np.array(columns, np.int64).reshape(len(shape), len(places)).T


def evolve(sizes: Sizes, rules: Rules, seed: int = 0) -> Ints:
    """Breed vectors of sizes, and return the best that ended in time; the order of applications changes nothing.

    The lab's searchers breed settings one by one; a whole generation at a time takes a hundredth of their time.
    """
    order = np.lexsort([column for one in (sizes.after, sizes.before, sizes.seconds, sizes.size) for column in one.T])
    turned = Sizes(*(one[order] for one in (sizes.size, sizes.before, sizes.after, sizes.seconds)))
    for lowest in (0,) if rules.allow_none else (1, 0):
        best = _bred(turned, rules, lowest, rng_for(seed, "scheduling", "elasticdnn", lowest))
        if best is not None:
            found = np.empty_like(best)
            found[order] = best
            return found
    return np.zeros(len(sizes.size), np.int64)


def _bred(sizes: Sizes, rules: Rules, lowest: int, rng: np.random.Generator) -> Ints | None:
    high = sizes.counts + 1
    low = np.minimum(lowest, sizes.counts)
    elite = rng.integers(low, high, (POPULATION, len(high)))
    best, score, stale = None, -np.inf, 0
    for _ in range(GENERATIONS):
        elite, plain = _fittest(sizes, elite, rules)
        place, stale = int(plain.argmax()), stale + 1
        if plain[place] > score:
            best, score, stale = elite[place], float(plain[place]), 0
        if stale > STALE:
            break
        elite = np.concatenate([elite[:ELITE], _children(elite[:ELITE], low, high, rng)])
    return best


def _children(elite: Ints, low: Ints, high: Ints, rng: np.random.Generator) -> Ints:
    """Draw half of the children anew; the others are copies with at least one size drawn again."""
    half, apps = POPULATION // 2, len(high)
    copies = elite[rng.integers(len(elite), size=half)]
    redrawn = rng.random((half, apps)) < REDRAW
    redrawn[np.arange(half), rng.integers(apps, size=half)] = True
    fresh = rng.integers(low, high, (2 * half, apps))
    return np.concatenate([fresh[:half], np.where(redrawn, fresh[half:], copies)])


def _fittest(sizes: Sizes, vectors: Ints, rules: Rules) -> tuple[Ints, Floats]:
    """Sort distinct vectors by fitness; with Eq. 8 of each, -inf where one does not end in time."""
    vectors = np.unique(vectors, axis=0)
    scores, part = objective(sizes, vectors, rules)
    fitness = scores - PENALTY * np.maximum(0.0, part - 1).sum(axis=1)
    order = (-fitness).argsort(kind="stable")
    in_time = (part <= IN_TIME).all(axis=1)
    return vectors[order], np.where(in_time, scores, -np.inf)[order]
