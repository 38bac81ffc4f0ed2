"""Optimal sequence of trainings on one processor, and the inference share during each of them.

Sequential training ends no training later than parallel training, and most of them earlier, so that only one runs at a
time. A training of `w` seconds on the whole processor that has the share R costs, in every second, the gains G that are
still to come and the accuracy L(R) that inference loses: w (G + L(R)) / R in total. The best share of each phase
therefore depends only on the gains to come. Small instances are searched completely; in larger ones a local search
changes the configuration of one application at a time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from driftlab.platform.scheduling.candidates import LearningApp
from driftlab.platform.scheduling.inference_shares import final_factors, lost_accuracy

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
MAX_COMBINATIONS = 1_000  # of configurations that are all evaluated
MAX_ORDERED = 5  # trainings of which all orders are tried
HURRIES = (0.0, 0.1, 0.5, 2.0, 8.0)  # extra cost of a phase to end in time, accuracy per second
POINTS = 200  # of the table over the gains to come
MAX_DIVISIONS = 4  # of an overloaded processor for which plans are compared
SLACK = 1 + 1e-9  # rounding of the time limit
ROUNDING = 1e-9  # a smaller gain is rounding
MIN_DURATION_S = 1e-12


@dataclass(frozen=True, eq=False)
class PlannedSteps:
    """The next training, its share, and the configuration of each application."""

    first: int | None
    share: float
    chosen: tuple[int | None, ...]
    score: float = 0.0  # accuracy × seconds, above that of inference only


@dataclass(frozen=True, eq=False)
class Offers:
    """Axes: applications, their configurations; the last column is no training."""

    gain: Floats
    drop: Floats  # of accuracy during training
    seconds: Floats  # infinite where an application has fewer configurations
    fee: Floats  # price of its energy, accuracy × seconds


@dataclass(frozen=True, eq=False)
class LearningPace:
    """The best training share, and the cost of one second of training, as functions of the gains to come."""

    gains: Floats
    share: Floats
    cost: Floats


@dataclass(frozen=True, eq=False)
class BestSequence:
    """A sequence: its score, the column of each application, their order, and the shares."""

    score: float
    vector: Ints
    order: Ints
    pace: LearningPace


def plan_steps(apps: Sequence[LearningApp], window_s: float, joule_price: float = 0.0) -> PlannedSteps:
    """Return the first phase of the sequence with the highest accuracy over the window.

    An overloaded processor predicts only a part of the frames even after all trainings, so each gain counts in that
    part. The part depends on the accuracies that are reached: plans for several divisions are compared.
    """
    if not apps:
        return PlannedSteps(None, 0.0, ())
    idle, lost = final_factors(apps), lost_accuracy(apps)
    if (idle == 1).all():
        return _plan(apps, idle, lost, window_s, joule_price)
    plans, divisions = [], [np.ones(len(apps)), idle]
    for factors in divisions:  # grows by those that the plans lead to
        steps = _plan(apps, factors, lost, window_s, joule_price)
        reached = _after(apps, steps.chosen)
        final = final_factors(reached)
        plans.append(replace(steps, score=steps.score + window_s * _uncounted(apps, reached, idle, factors, final)))
        if len(divisions) < MAX_DIVISIONS and not any(np.array_equal(final, one) for one in divisions):
            divisions.append(final)
    return max(plans, key=lambda steps: steps.score)


def _uncounted(
    apps: Sequence[LearningApp], reached: Sequence[LearningApp], idle: Floats, factors: Floats, final: Floats
) -> float:
    """Return the final accuracy that a plan did not count, because its factors were not the final ones."""
    now, then = np.array([app.now for app in apps]), np.array([app.now for app in reached])
    return float(final @ then - idle @ now - factors @ (then - now))


def _after(apps: Sequence[LearningApp], chosen: Sequence[int | None]) -> list[LearningApp]:
    """Return the applications with the accuracies that the chosen trainings reach."""
    reached = []
    for app, which in zip(apps, chosen, strict=True):
        then = None if which is None else app.candidates[which].accuracy_after
        reached.append(app if then is None else replace(app, now=then))
    return reached


def _plan(
    apps: Sequence[LearningApp], factors: Floats, lost: Floats, window_s: float, joule_price: float
) -> PlannedSteps:
    """Return the first phase of the best sequence where each gain counts in a part of the frames."""
    offers = _tabulate(apps, factors, joule_price)
    none = offers.gain.shape[1] - 1
    max_gain = float(np.maximum(offers.gain + offers.drop, 0).max(axis=1).sum())
    if max_gain <= 0:
        return PlannedSteps(None, 0.0, (None,) * len(apps))
    paces = [_tabulate_pace(lost, 2 * max_gain, hurry) for hurry in HURRIES]
    best = _best_order(offers, paces, window_s, _search_configs(offers, paces, window_s))
    order = [int(i) for i in best.order if best.vector[i] < none]
    chosen = tuple(int(k) if k < none else None for k in best.vector)
    if not order:
        return PlannedSteps(None, 0.0, chosen)
    rows, columns = np.array(order), best.vector[order]
    coming = offers.gain[rows, columns].sum() + offers.drop[order[0], columns[0]]
    return PlannedSteps(order[0], float(np.interp(coming, best.pace.gains, best.pace.share)), chosen, best.score)


def _tabulate(apps: Sequence[LearningApp], factors: Floats, joule_price: float) -> Offers:
    columns = max((len(app.candidates) for app in apps), default=0) + 1
    gain, drop, fee = (np.zeros((len(apps), columns)) for _ in range(3))
    seconds = np.full((len(apps), columns), np.inf)
    seconds[:, -1] = 0.0
    for i, app in enumerate(apps):
        for k, one in enumerate(app.candidates):
            if one.accuracy_after is not None:
                seconds[i, k], gain[i, k] = one.seconds, factors[i] * (one.accuracy_after - app.now)
                drop[i, k], fee[i, k] = factors[i] * (app.now - one.accuracy_before), joule_price * one.joules
    return Offers(gain, drop, seconds, fee)


def _tabulate_pace(lost: Floats, max_gain: float, hurry: float) -> LearningPace:
    """Return the best share for the gains to come; `hurry` shortens phases at an extra cost."""
    gains, shares = np.linspace(0, max_gain, POINTS), np.arange(1, len(lost)) / (len(lost) - 1)
    units = ((gains[:, None] + lost[1:] + hurry + ROUNDING) / shares).argmin(axis=1)
    return LearningPace(gains, shares[units], (gains + lost[1:][units]) / shares[units])


def _scores(
    offers: Offers, pace: LearningPace, window_s: float, vectors: Ints, orders: Ints | None
) -> tuple[Floats, Ints]:
    """Return the scores, -inf for a late end, and the orders of sequences (default: by gain per second)."""
    apps = np.arange(vectors.shape[1])
    gain, drop, seconds, fee = (one[apps, vectors] for one in (offers.gain, offers.drop, offers.seconds, offers.fee))
    if orders is None:
        orders = (-gain / np.maximum(seconds, MIN_DURATION_S)).argsort(axis=1, kind="stable")
    ordered = np.take_along_axis(gain, orders, axis=1)
    coming = ordered[:, ::-1].cumsum(axis=1)[:, ::-1] + np.take_along_axis(drop, orders, axis=1)
    work_s = np.take_along_axis(seconds, orders, axis=1)
    ends_s = (work_s / np.interp(coming, pace.gains, pace.share)).sum(axis=1)
    cost = (work_s * np.interp(coming, pace.gains, pace.cost)).sum(axis=1)
    scores = window_s * gain.sum(axis=1) - cost - fee.sum(axis=1)
    return np.where(ends_s <= window_s * SLACK, scores, -np.inf), orders


def _best(
    offers: Offers, paces: Sequence[LearningPace], window_s: float, vectors: Ints, orders: Ints | None = None
) -> BestSequence:
    """Return the best of some sequences at any pace; of equals, the first."""
    best: BestSequence | None = None
    for pace in paces:
        scores, sorted_orders = _scores(offers, pace, window_s, vectors, orders)
        place = int(np.flatnonzero(scores >= scores.max() - ROUNDING)[0])
        if best is None or scores[place] > best.score + ROUNDING:
            best = BestSequence(float(scores[place]), vectors[place], sorted_orders[place], pace)
    assert best is not None, "there are paces"
    return best


def _search_configs(offers: Offers, paces: Sequence[LearningPace], window_s: float) -> BestSequence:
    """Return the best of all combinations if they are few, else the result of a local search."""
    apps, none = len(offers.gain), offers.gain.shape[1] - 1
    useful = [[*np.flatnonzero(offers.gain[i, :none] > 0).tolist(), none] for i in range(apps)]
    if math.prod(map(len, useful)) <= MAX_COMBINATIONS:
        return _best(offers, paces, window_s, np.array(list(itertools.product(*useful)), np.int64))
    current = _best(offers, paces, window_s, _prefixes(offers))
    while True:
        vectors = np.array([_with(current.vector, i, k) for i in range(apps) for k in useful[i]])
        better = _best(offers, [current.pace], window_s, vectors)
        if better.score <= current.score + ROUNDING:
            return current
        current = _best(offers, paces, window_s, better.vector[None])


def _prefixes(offers: Offers) -> Ints:
    """Return choices with 0, 1, 2, … trainings, each of the highest gain, in total or per second."""
    apps, none = len(offers.gain), offers.gain.shape[1] - 1
    speed = offers.gain[:, :none] / np.maximum(offers.seconds[:, :none], MIN_DURATION_S)
    choices = []
    for value in (offers.gain[:, :none], speed):
        best = value.argmax(axis=1)
        chosen = np.where(offers.gain[np.arange(apps), best] > 0, best, none)
        rank = np.empty(apps, np.int64)
        rank[(-speed[np.arange(apps), best]).argsort(kind="stable")] = np.arange(apps)
        choices.append(np.where(rank < np.arange(apps + 1)[:, None], chosen, none))
    return np.concatenate(choices)


def _with(vector: Ints, i: int, k: int) -> Ints:
    changed: Ints = vector.copy()
    changed[i] = k
    return changed


def _best_order(offers: Offers, paces: Sequence[LearningPace], window_s: float, start: BestSequence) -> BestSequence:
    """Return the best of all orders of few trainings; `start` is ordered by gain per second."""
    none = offers.gain.shape[1] - 1
    trained = [int(i) for i in start.order if start.vector[i] < none]
    if not 1 < len(trained) <= MAX_ORDERED:
        return start
    rest = [int(i) for i in start.order if start.vector[i] == none]
    orders = np.array([[*order, *rest] for order in itertools.permutations(trained)], np.int64)
    best = _best(offers, paces, window_s, np.repeat(start.vector[None], len(orders), axis=0), orders)
    return best if best.score > start.score + ROUNDING else start
