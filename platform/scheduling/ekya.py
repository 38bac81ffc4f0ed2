"""Ekya (NSDI 2022): divide a processor between retraining and inference for the best mean accuracy.

In the order of the paper: the micro-profiler runs each training configuration on a part of the samples and extrapolates
its learning curve; the thief scheduler (Algorithm 1) then alternates between the choice of configurations at the
current shares (PickConfigs, Algorithm 2) and the shares for these configurations: each job steals from every other job
the share that raises the mean accuracy most (EstimateAccuracy, `evaluation.py`), as in the authors' code.

Differs from the paper: plans are evaluated exactly where its simulator counts whole seconds.
"""

from __future__ import annotations

import sys
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
from driftlab.platform.scheduling.base import Allocation, Demand, SchedulerInput, Scheduling, TrainingOffer
from driftlab.platform.scheduling.candidates import Candidate, LearningApp, known, read_apps
from driftlab.platform.scheduling.evaluation import Freed, accuracy_factor, evaluate, trainings_of
from driftlab.platform.scheduling.plans import HorizonS, PatienceS, SharePlan, previous_state, to_grants

Floats = npt.NDArray[np.float64]
CURVE_END = 0.95  # accuracy of the seed curve at its end
SEED_POINTS = 4  # equally spaced points of the seed curve in the last fit
MAX_EPOCHS, TRIAL_EPOCHS = 30.0, 5.0  # of the longest configuration, and of its trial
LATE = "its training ends after the window"
ROUNDING = 1e-12  # scores that differ by less are equal


@dataclass(frozen=True, eq=False)
class ThiefState:
    """Training and inference shares, the candidate of each application, and the mean accuracy."""

    training: Sequence[float]
    inference: Sequence[float]
    chosen: tuple[int | None, ...]
    score: float


@dataclass(frozen=True)
class Ekya(Scheduling):
    """Ekya (NSDI 2022): micro-profile training configurations, divide shares by the thief algorithm."""

    step: Annotated[float, Gt(0), Le(1), Means("share that one theft moves (Δ)")] = 0.1
    iterations: Annotated[int, Ge(1), Means("number of times that configurations and shares are chosen in turn")] = 3
    start: Annotated[Literal["thief", "fair"], Means("thief: steal from equal shares; fair: keep equal shares")] = (
        "thief"
    )
    freed: Annotated[Freed, Means("jobs that receive the share of a training that ends")] = "all"
    horizon_s: HorizonS = None
    patience_s: PatienceS = 200.0
    max_apps: Annotated[int, Ge(1), Means("maximum number of applications for the thief; more keep equal shares")] = 16

    version = 2

    @property
    def waits_for_all_offers(self) -> bool:
        return True

    @property
    def trial_fraction(self) -> float:
        return TRIAL_EPOCHS / MAX_EPOCHS

    def initial_trials(self, configs: int) -> Sequence[int]:
        """Try every configuration."""
        return range(configs)

    def expected_accuracies(self, offer: TrainingOffer) -> tuple[float | None, ...]:
        """Extrapolate the trials of an offer, as `allocate` does."""
        window = SchedulerInput(0.0, 1.0, sys.maxsize, (Demand("", 1.0, (), learning=offer),))
        (app,) = map(profile, read_apps(window))
        found = {one.config: one.accuracy_after for one in app.candidates}
        return tuple(found.get(index) for index in range(len(offer.configs)))

    def allocate(self, window: SchedulerInput) -> Allocation:
        """Compute a new plan; at the end of a training, only split its share if nothing else changed."""
        apps = [profile(app) for app in read_apps(window)]
        if not apps:
            return Allocation((), None)
        plan = self._split_freed(window, apps) if window.reason == "end" else None
        horizon_s = self.horizon_s or window.window_s
        plan = plan or self.plan(apps, horizon_s)
        apps = [_with_note(app, plan.chosen[i], float(plan.training[i]), horizon_s) for i, app in enumerate(apps)]
        shares = tuple(zip([app.app for app in apps], plan.training.tolist(), plan.inference.tolist(), strict=True))
        return to_grants(window, apps, plan, self.patience_s, shares)

    def plan(self, apps: Sequence[LearningApp], window_s: float) -> SharePlan:
        """Plan for applications with estimates; `to_grants` adds the shares of the others."""
        if self.start == "fair" or len(apps) > self.max_apps:
            thief = share_fairly(apps, window_s, self.freed)
        else:
            thief = run_thief(apps, window_s, self.step, self.iterations, self.freed)
        return SharePlan(np.array(thief.training), np.array(thief.inference), thief.chosen)

    def _split_freed(self, window: SchedulerInput, apps: Sequence[LearningApp]) -> SharePlan | None:
        """Split the shares of finished trainings equally; None if a new plan is required."""
        before = {app: shares for app, *shares in previous_state(window).own or ()}
        if any(app.app not in before or app.state == "offered" for app in apps):
            return None
        training, inference = np.array([before[app.app] for app in apps]).T
        continues = np.array([app.learns for app in apps]) & (training > 0)
        receivers = len(apps) + (int(continues.sum()) if self.freed == "all" else 0)
        each = float(training[~continues].sum()) / receivers
        training = np.where(continues, training + (each if self.freed == "all" else 0.0), 0.0)
        chosen = [0 if app.learns and not app.lacks_estimates else None for app in apps]
        return SharePlan(training, inference + each, chosen)


def _with_note(app: LearningApp, chosen: int | None, share: float, horizon_s: float) -> LearningApp:
    """Add a note to an application whose training ends after the horizon, as after long trials."""
    late = chosen is not None and app.state == "offered" and app.candidates[chosen].seconds > share * horizon_s
    return replace(app, note="; ".join(filter(None, (app.note, LATE)))) if late else app


# Micro-profiler -------------------------------------------------------------------------------------------------------


def profile(app: LearningApp) -> LearningApp:
    """Extrapolate the accuracy after each configuration from that after its trial, on a learning curve."""
    longest_s = max((one.seconds for one in app.candidates), default=0.0)

    def extrapolated(one: Candidate) -> Candidate:
        if one.accuracy_after is None or one.trial_fraction >= 1 or not longest_s:
            return one
        epochs = MAX_EPOCHS * one.seconds / longest_s
        (after,) = predict_accuracy(app.now, [(one.trial_fraction * epochs, one.accuracy_after)], [epochs])
        return replace(one, accuracy_after=known(float(after)))

    return replace(app, candidates=tuple(map(extrapolated, app.candidates)))


def curve(epochs: npt.ArrayLike, b0: float, b1: float, b2: float) -> Floats:
    """Return the accuracy 1 - (1 / (b0 k + b1) + b2) after k epochs."""
    accuracy: Floats = 1 - (1 / (b0 * np.asarray(epochs, np.float64) + b1) + b2)
    return accuracy


def predict_accuracy(
    start: float,
    measured: Sequence[tuple[float, float]],
    at: Sequence[float],
    end: float = CURVE_END,
    epochs: float = MAX_EPOCHS,
) -> Floats:
    """Return the accuracy after each of `at` epochs, predicted from measured (epochs, accuracy).

    Three parameters on two points leave the seed curve open, so that the method and the start of its fit determine the
    result. A fit that fails, as it usually does if the measured points lie below the start, predicts the start.
    """
    constant: Floats = np.full(len(at), start, np.float64)
    points, values = np.array(measured, np.float64).reshape(-1, 2).T
    seed = _fit([0.0, epochs], [start, end])
    if seed is None or not len(points) or not np.isfinite(values).all():
        return constant
    factor = min(1.0, float(np.mean(values / (curve(points, *seed) * end))))
    lowered = _fit([0.0, epochs], [start, factor * end])
    if lowered is None:
        return constant
    seeds = np.linspace(0, epochs, SEED_POINTS)  # its ends count twice
    x = np.concatenate([seeds, [0.0, epochs], points])
    last = _fit(x, np.concatenate([curve(seeds, *lowered), [start, factor * end], values]))
    accuracy = constant if last is None else curve(at, *last)
    return accuracy if np.isfinite(accuracy).all() else constant


def _fit(x: npt.ArrayLike, y: npt.ArrayLike) -> Floats | None:
    """Fit a learning curve; None if the optimiser fails."""
    from scipy.optimize import OptimizeWarning, curve_fit

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OptimizeWarning)
        try:
            found: Floats = curve_fit(curve, np.asarray(x), np.asarray(y), p0=(1.0, 1.0, 1.0), method="dogbox")[0]
        except (RuntimeError, ValueError, TypeError):
            return None
    return found


# Thief scheduler ------------------------------------------------------------------------------------------------------


def run_thief(
    apps: Sequence[LearningApp], window_s: float, step: float = 0.1, iterations: int = 3, freed: Freed = "all"
) -> ThiefState:
    """Return the last result of choosing configurations and shares in turn (Algorithm 1).

    The loop stops early once the same configurations are chosen at the same shares.
    """
    training: Sequence[float] = [0.5 / max(1, len(apps))] * len(apps)
    inference = training
    stolen: dict[tuple[int | None, ...], ThiefState] = {}
    thief: ThiefState | None = None
    for _ in range(iterations):
        chosen = pick_configs(apps, training, inference, window_s)
        if thief is not None and chosen == thief.chosen:
            break
        if chosen not in stolen:
            stolen[chosen] = _steal_shares(apps, chosen, window_s, step, freed)
        thief = stolen[chosen]
        training, inference = thief.training, thief.inference
    assert thief is not None, "there is an iteration"
    return thief


def share_fairly(apps: Sequence[LearningApp], window_s: float, freed: Freed = "all") -> ThiefState:
    """Choose each application's configuration at half of the processor for training, then share equally."""
    half = [0.5] * len(apps)
    chosen = pick_configs(apps, half, half, window_s)
    shares = _equal_shares(chosen)
    training, inference = shares[: len(apps)], shares[len(apps) :]
    score = evaluate(trainings_of(apps, chosen), training, inference, window_s, freed)
    return ThiefState(training, inference, chosen, score)


def pick_configs(
    apps: Sequence[LearningApp], training: Sequence[float], inference: Sequence[float], window_s: float
) -> tuple[int | None, ...]:
    """Choose each application's candidate of the best mean accuracy at its shares (Algorithm 2).

    The first of equals wins. A candidate must reach the current accuracy unless its training runs; None: none does.
    """
    chosen: list[int | None] = []
    for app, training_share, inference_share in zip(apps, training, inference, strict=True):
        promising = [k for k in range(len(app.candidates)) if _is_promising(app, k)]
        scores = [
            _estimate_single(app, app.candidates[k], training_share, inference_share, window_s) for k in promising
        ]
        chosen.append(promising[_first_best(scores)] if promising else None)
    return tuple(chosen)


def _is_promising(app: LearningApp, k: int) -> bool:
    after = app.candidates[k].accuracy_after
    return after is not None and (app.state == "running" or after >= app.now)


def _estimate_single(app: LearningApp, one: Candidate, training: float, inference: float, window_s: float) -> float:
    """Return the mean accuracy of one application; its inference receives its finished training's share."""
    assert one.accuracy_after is not None, "it is promising"
    end_s = min(one.seconds / training, window_s) if training else window_s
    before = one.accuracy_before * accuracy_factor(app.full_share, inference)
    after = one.accuracy_after * accuracy_factor(app.full_share, inference + training)
    return (before * end_s + after * (window_s - end_s)) / window_s


def _steal_shares(
    apps: Sequence[LearningApp], chosen: tuple[int | None, ...], window_s: float, step: float, freed: Freed
) -> ThiefState:
    """Move, for each thief and each victim in order, the share that raises the mean accuracy most."""
    trainings, count, best = trainings_of(apps, chosen), len(apps), _equal_shares(chosen)

    def score_of(shares: Sequence[float]) -> float:
        return evaluate(trainings, shares[:count], shares[count:], window_s, freed)

    score, jobs = score_of(best), [job for job, share in enumerate(best) if share]
    for thief, victim in permutations(jobs, 2):
        moves = _share_moves(best, thief, victim, step)
        scores = [score_of(move) for move in moves]
        if max(scores, default=0.0) > score + ROUNDING:
            index = _first_best(scores)
            best, score = moves[index], scores[index]
    return ThiefState(best[:count], best[count:], chosen, score)


def _share_moves(best: Sequence[float], thief: int, victim: int, step: float) -> list[list[float]]:
    """Return all shares after a theft of one step, of two, and so on, until the victim has nothing left."""
    available, moves = best[victim], []
    for nth in range(1, ceil(available / step - ROUNDING) + 1):
        amount, move = min(nth * step, available), [*best]
        move[victim] -= amount
        move[thief] += amount
        moves.append(move)
    return moves


def _equal_shares(chosen: Sequence[int | None]) -> list[float]:
    """Return equal shares for all jobs: trainings first, then inferences."""
    trained = [one is not None for one in chosen]
    return [job / max(1, len(chosen) + sum(trained)) for job in (*trained, *(True for _ in chosen))]


def _first_best(scores: Sequence[float]) -> int:
    lowest = max(scores) - ROUNDING
    return next(place for place, score in enumerate(scores) if score >= lowest)
