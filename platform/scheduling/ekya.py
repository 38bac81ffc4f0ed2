"""Ekya: retraining beside inference for the best accuracy over a window, by micro-profiling and a thief.

Every way to learn is tried out on a part of the samples, and the learning curve is fitted to what comes of it. Then one
way per application and all shares are chosen together: each job in turn steals shares from every other one, as long as
the mean accuracy rises.

Differs from the paper: plans are evaluated exactly where its simulator counts whole seconds.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from math import ceil
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Le

from driftlab.platform.core.parameters import Means
from driftlab.platform.scheduling.base import Allocation, Scheduling, Wants, Window
from driftlab.platform.scheduling.candidates import Candidate, LearningApp, known, read_apps
from driftlab.platform.scheduling.evaluation import Freed, evaluate, multiplier, trainings_of
from driftlab.platform.scheduling.plans import HorizonS, PatienceS, SharePlan, kept, settle

Floats = npt.NDArray[np.float64]
END = 0.95  # accuracy of the seed at its end
SEEDS = 4  # equally spaced points of the seed in the last fit
EPOCHS, EPOCHS_TRIED = 30.0, 5.0  # of the longest way, and of its trial
LATE = "its training ends after the window"
SAME = 1e-12  # scores that differ by less are equal


@dataclass(frozen=True, eq=False)
class Loot:
    """Shares of training and of inference, the candidate of every application, and the mean accuracy."""

    learn: Sequence[float]
    answer: Sequence[float]
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
        return SharePlan(np.array(loot.learn), np.array(loot.answer), loot.chosen)

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
    learn: Sequence[float] = [0.5 / max(1, len(apps))] * len(apps)
    answer = learn
    found: dict[tuple[int | None, ...], Loot] = {}
    loot: Loot | None = None
    for _ in range(iterations):
        chosen = choose_ways(apps, learn, answer, window_s)
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
    half = [0.5] * len(apps)
    chosen = choose_ways(apps, half, half, window_s)
    shares = _start(chosen)
    learn, answer = shares[: len(apps)], shares[len(apps) :]
    return Loot(learn, answer, chosen, evaluate(trainings_of(apps, chosen), learn, answer, window_s, freed))


def choose_ways(
    apps: Sequence[LearningApp], learn: Sequence[float], answer: Sequence[float], window_s: float
) -> tuple[int | None, ...]:
    """Choose, for each application alone at its shares, the candidate of the best mean accuracy, the first of equals.

    Candidates promise more than the current accuracy; where one is left, not to learn is no choice.
    """
    chosen: list[int | None] = []
    for app, share, answers in zip(apps, learn, answer, strict=True):
        ways = [k for k in range(len(app.candidates)) if _promising(app, k)]
        scores = [_score_alone(app, app.candidates[k], share, answers, window_s) for k in ways]
        chosen.append(ways[_first_best(scores)] if ways else None)
    return tuple(chosen)


def _score_alone(app: LearningApp, one: Candidate, learn: float, answer: float, window_s: float) -> float:
    """Return the mean accuracy of one application, whose answers take over the share of its training."""
    assert one.after is not None, "it is promising"
    end_s = min(one.seconds / learn, window_s) if learn else window_s
    before = one.before * multiplier(app.full_share, answer)
    after = one.after * multiplier(app.full_share, answer + learn if answer else 0.0)
    return (before * end_s + after * (window_s - end_s)) / window_s


def _promising(app: LearningApp, k: int) -> bool:
    after = app.candidates[k].after
    return after is not None and (app.state == "running" or after > app.now)


def _steal(
    apps: Sequence[LearningApp], chosen: tuple[int | None, ...], window_s: float, step: float, freed: Freed
) -> Loot:
    """Let every job steal from every other one the share that raises the mean accuracy most, in order."""
    trainings, count, best = trainings_of(apps, chosen), len(apps), _start(chosen)

    def score_of(shares: Sequence[float]) -> float:
        return evaluate(trainings, shares[:count], shares[count:], window_s, freed)

    score, jobs = score_of(best), [job for job, share in enumerate(best) if share]
    for thief, victim in permutations(jobs, 2):
        raids = _raids(best, thief, victim, step)
        scores = [score_of(raid) for raid in raids]
        if max(scores, default=0.0) > score + SAME:
            taken = _first_best(scores)
            best, score = raids[taken], scores[taken]
    return Loot(best[:count], best[count:], chosen, score)


def _raids(best: Sequence[float], thief: int, victim: int, step: float) -> list[list[float]]:
    """Return all shares after a theft of one step, of two, and so on, until the victim has nothing left."""
    held, raids = best[victim], []
    for nth in range(1, ceil(held / step - SAME) + 1):
        amount, raid = min(nth * step, held), [*best]
        raid[victim] -= amount
        raid[thief] += amount
        raids.append(raid)
    return raids


def _start(chosen: Sequence[int | None]) -> list[float]:
    """Give all jobs, trainings first and then inferences, equal shares."""
    trained = [one is not None for one in chosen]
    return [job / max(1, len(chosen) + sum(trained)) for job in (*trained, *(True for _ in chosen))]


def _first_best(scores: Sequence[float]) -> int:
    least = max(scores) - SAME
    return next(place for place, score in enumerate(scores) if score >= least)


def curve(epochs: npt.ArrayLike, b0: float, b1: float, b2: float) -> Floats:
    """Return the accuracy after so many epochs."""
    found: Floats = 1 - (1 / (b0 * np.asarray(epochs, np.float64) + b1) + b2)
    return found


def predict_accuracy(
    start: float, measured: Sequence[tuple[float, float]], at: Sequence[float], end: float = END, epochs: float = 30
) -> Floats:
    """Predict the accuracy after each of `at` epochs from measured (epochs, accuracy).

    Three parameters on two points leave the seed open, so the method and the start of its fit are part of the result. A
    fit that fails, as it usually does where the measured points lie below the start, predicts the start.
    """
    constant: Floats = np.full(len(at), start, np.float64)
    points, values = np.array(measured, np.float64).reshape(-1, 2).T
    seed = _fit([0.0, epochs], [start, end])
    if seed is None or not len(points) or not np.isfinite(values).all():
        return constant
    factor = min(1.0, float(np.mean(values / (curve(points, *seed) * end))))
    bent = _fit([0.0, epochs], [start, factor * end])
    if bent is None:
        return constant
    seeds = np.linspace(0, epochs, SEEDS)  # its ends count twice
    x = np.concatenate([seeds, [0.0, epochs], points])
    last = _fit(x, np.concatenate([curve(seeds, *bent), [start, factor * end], values]))
    found = constant if last is None else curve(at, *last)
    return found if np.isfinite(found).all() else constant


def _fit(x: npt.ArrayLike, y: npt.ArrayLike) -> Floats | None:
    from scipy.optimize import OptimizeWarning, curve_fit

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OptimizeWarning)
        try:
            found: Floats = curve_fit(curve, np.asarray(x), np.asarray(y), p0=(1.0, 1.0, 1.0), method="dogbox")[0]
        except (RuntimeError, ValueError, TypeError):
            return None
    return found
