"""Ekya: retraining beside inference for the best accuracy over a window, by micro-profiling and a thief.

Every way to learn is tried out on a part of the samples, and the learning curve is fitted to what comes of it. Then one
way per application and all shares are chosen together: each job in turn steals shares from every other one, as long as
the mean accuracy rises.

Differs from the paper: plans are evaluated exactly where its simulator counts whole seconds, and many at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Le

from driftlab.platform.core.parameters import Means
from driftlab.platform.scheduling.base import Allocation, Scheduling, Wants, Window
from driftlab.platform.scheduling.candidates import Candidate, LearningApp, known, read_apps
from driftlab.platform.scheduling.curves import predict_accuracy
from driftlab.platform.scheduling.evaluation import AnswerScale, Freed, Trainings, evaluate, trainings_of
from driftlab.platform.scheduling.plans import HorizonS, PatienceS, SharePlan, kept, settle

Floats = npt.NDArray[np.float64]
EPOCHS, EPOCHS_TRIED = 30.0, 5.0  # of the longest way, and of its trial
LATE = "its training ends after the window"
SAME = 1e-12  # scores that differ by less are equal


@dataclass(frozen=True, eq=False)
class Loot:
    """Shares of training and of inference, the candidate of every application, and the mean accuracy."""

    learn: Floats
    answer: Floats
    chosen: tuple[int | None, ...]
    score: float


@dataclass(frozen=True)
class Ekya(Scheduling):
    """Choose a way to learn and all shares for the best accuracy over a window: micro-profiles and the thief."""

    step: Annotated[float, Gt(0), Le(1), Means("share that the thief steals at a time")] = 0.1
    iterations: Annotated[int, Ge(1), Means("times that ways and shares are chosen in turn")] = 3
    start: Annotated[Literal["thief", "fair"], Means("thief: steal from equal shares; fair: keep them")] = "thief"
    freed: Annotated[Freed, Means("jobs among which the share of a training that ends is split")] = "all"
    horizon_s: HorizonS = None
    patience_s: PatienceS = 200.0
    most: Annotated[int, Ge(1), Means("applications among which the thief steals; more keep equal shares")] = 16

    wants = Wants(trials=True, part=EPOCHS_TRIED / EPOCHS, together=True)

    def allocate(self, window: Window) -> Allocation:
        """Plan anew whenever something is offered, comes or goes; at the end of a training its share is split."""
        apps = [profile(app) for app in read_apps(window)]
        if not apps:
            return Allocation((), None)
        plan = self._inherit(window, apps) if window.reason == "end" else None
        horizon_s = self.horizon_s or window.window_s
        plan = plan or self.plan(apps, horizon_s)
        apps = [_noted(app, plan.chosen[i], float(plan.learn[i]), horizon_s) for i, app in enumerate(apps)]
        own = tuple(zip([app.app for app in apps], plan.learn.tolist(), plan.answer.tolist(), strict=True))
        return settle(window, apps, plan, self.patience_s, own)

    def plan(self, apps: Sequence[LearningApp], window_s: float) -> SharePlan:
        """Plan for applications whose estimates are known; the others are served by `settle`."""
        if self.start == "fair" or len(apps) > self.most:
            loot = share_fairly(apps, window_s, self.freed)
        else:
            loot = steal(apps, window_s, self.step, self.iterations, self.freed)
        return SharePlan(loot.learn, loot.answer, loot.chosen)

    def _inherit(self, window: Window, apps: Sequence[LearningApp]) -> SharePlan | None:
        """Split the shares of trainings that have ended equally; None where there is more to decide."""
        before = {app: shares for app, *shares in kept(window).own or ()}
        if any(app.app not in before or app.state == "offered" for app in apps):
            return None
        learn, answer = np.array([before[app.app] for app in apps]).T
        lives = np.array([app.learns for app in apps]) & (learn > 0)
        takers = int((answer > 0).sum()) + (int(lives.sum()) if self.freed == "all" else 0)
        each = float(learn[~lives].sum()) / max(1, takers)
        learn = np.where(lives, learn + (each if self.freed == "all" else 0.0), 0.0)
        chosen = [0 if app.learns and not app.untold else None for app in apps]
        return SharePlan(learn, np.where(answer > 0, answer + each, 0.0), chosen)


def _noted(app: LearningApp, chosen: int | None, share: float, horizon_s: float) -> LearningApp:
    """Say where a training begins that gains nothing in time, as after long trials."""
    late = chosen is not None and app.state == "offered" and app.candidates[chosen].seconds > share * horizon_s
    return replace(app, note="; ".join(filter(None, (app.note, LATE)))) if late else app


def profile(app: LearningApp) -> LearningApp:
    """Predict the accuracy after each whole way from that after its trial, on a learning curve."""
    longest_s = max((one.seconds for one in app.candidates), default=0.0)

    def predicted(one: Candidate) -> Candidate:
        if one.after is None or one.tried >= 1 or not longest_s:
            return one
        epochs = EPOCHS * one.seconds / longest_s
        (after,) = predict_accuracy(app.now, [(one.tried * epochs, one.after)], [epochs])
        return replace(one, after=known(float(after)))

    return replace(app, candidates=tuple(map(predicted, app.candidates)))


def steal(
    apps: Sequence[LearningApp], window_s: float, step: float = 0.1, iterations: int = 3, freed: Freed = "all"
) -> Loot:
    """Choose ways at the current shares, then shares for these ways, so many times; the last result counts."""
    learn = answer = np.full(len(apps), 0.5 / max(1, len(apps)))
    found: dict[tuple[int | None, ...], Loot] = {}
    loot: Loot | None = None
    for _ in range(iterations):
        chosen = choose_ways(apps, learn, answer, window_s, freed)
        if loot is not None and chosen == loot.chosen:
            break  # the same ways at the same shares: nothing changes any more
        if chosen not in found:
            found[chosen] = _steal(apps, chosen, window_s, step, freed)
        loot = found[chosen]
        learn, answer = loot.learn, loot.answer
    assert loot is not None, "there is an iteration"
    return loot


def share_fairly(apps: Sequence[LearningApp], window_s: float, freed: Freed = "all") -> Loot:
    """Choose each application's way as if half of the machine trained it and half answered; then share equally."""
    half = np.full(len(apps), 0.5)
    chosen = choose_ways(apps, half, half, window_s, freed)
    shares, score_of = _start(chosen), _scorer(apps, chosen, window_s, freed)
    learn, answer = np.split(shares, 2)
    return Loot(learn, answer, chosen, float(score_of(shares[None])[0]))


def choose_ways(
    apps: Sequence[LearningApp], learn: Floats, answer: Floats, window_s: float, freed: Freed
) -> tuple[int | None, ...]:
    """Choose, for each application alone at its shares, the candidate of the best mean accuracy, the first of equals.

    Candidates promise more than the current accuracy; where one is left, not to learn is no choice.
    """
    rows = [(i, k) for i, app in enumerate(apps) for k, one in enumerate(app.candidates) if _promising(app, k)]
    if not rows:
        return (None,) * len(apps)
    of, which = np.array(rows).T
    trainings = trainings_of([apps[i] for i in of], which.tolist())
    alone = Trainings(trainings.now[:, None], trainings.then[:, None], trainings.seconds[:, None])
    full_share = np.array([apps[i].full_share for i in of])[:, None]
    scores = evaluate(alone, learn[of, None], answer[of, None], window_s, AnswerScale(full_share), freed)
    chosen: list[int | None] = [None] * len(apps)
    for i in np.unique(of):
        mine = np.flatnonzero(of == i)
        chosen[i] = int(which[mine[_first_best(scores[mine])]])
    return tuple(chosen)


def _promising(app: LearningApp, k: int) -> bool:
    after = app.candidates[k].after
    return after is not None and (app.state == "running" or after > app.now)


def _steal(
    apps: Sequence[LearningApp], chosen: tuple[int | None, ...], window_s: float, step: float, freed: Freed
) -> Loot:
    """Let every job steal from every other one what raises the mean accuracy most, in order."""
    score_of, best = _scorer(apps, chosen, window_s, freed), _start(chosen)
    score, jobs = float(score_of(best[None])[0]), np.flatnonzero(best)
    for thief in jobs:
        victims = jobs[jobs != thief]
        while len(victims):
            raids, victim_of = _raids(best, int(thief), victims, step)
            if not len(raids):
                break
            scores = score_of(raids)
            better = np.flatnonzero(scores > score + SAME)
            if not len(better):
                break
            place = victim_of[better[0]]  # the first victim that it gains from; the next ones lose of what is left
            mine = np.flatnonzero(victim_of == place)
            taken = mine[_first_best(scores[mine])]
            best, score, victims = raids[taken], float(scores[taken]), victims[place + 1 :]
    learn, answer = np.split(best, 2)
    return Loot(learn, answer, chosen, score)


def _raids(
    best: Floats, thief: int, victims: npt.NDArray[np.int64], step: float
) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Return all shares after a theft from each victim, of each amount, and the place of that victim."""
    counts = np.ceil(best[victims] / step - SAME).astype(np.int64)
    victim_of = np.repeat(np.arange(len(victims)), counts)
    nth = np.arange(len(victim_of)) - np.repeat(np.cumsum(counts) - counts, counts) + 1
    held = best[victims][victim_of]
    amounts = np.minimum(nth * step, held)
    raids = np.repeat(best[None], len(amounts), axis=0)
    raids[np.arange(len(amounts)), victims[victim_of]] = held - amounts
    raids[:, thief] += amounts
    return raids, victim_of


def _start(chosen: Sequence[int | None]) -> Floats:
    """Give all jobs, trainings first and then inferences, equal shares."""
    there = np.array([*(one is not None for one in chosen), *(True for _ in chosen)], np.float64)
    shares: Floats = there / max(1.0, there.sum())
    return shares


def _scorer(
    apps: Sequence[LearningApp], chosen: Sequence[int | None], window_s: float, freed: Freed
) -> Callable[[Floats], Floats]:
    """Return a function from shares [plans, jobs] to mean accuracies."""
    trainings, scale = trainings_of(apps, chosen), AnswerScale(np.array([app.full_share for app in apps]))
    count = len(apps)
    return lambda shares: evaluate(trainings, shares[:, :count], shares[:, count:], window_s, scale, freed)


def _first_best(scores: Floats) -> int:
    return int(np.flatnonzero(scores >= scores.max() - SAME)[0])
