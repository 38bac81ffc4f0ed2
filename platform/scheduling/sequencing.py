"""The best sequence of trainings on one machine, and the share that answers meanwhile.

Training one network after another ends no training later than training them side by side, and most of them earlier. So
only one trains at a time. A training of `w` seconds alone that has the share R costs, in every second, the gains G that
are still to come and the answers L(R) that are lost: w (G + L(R)) / R in all. The best share of each phase therefore
depends on nothing but the gains to come. Small instances are searched completely; in others one application's way is
changed at a time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from driftlab.platform.scheduling.candidates import LearningApp
from driftlab.platform.scheduling.inference_shares import Skipped, lost_accuracy

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
MOST = 1_000  # combinations of ways that are all evaluated
ORDERED = 5  # trainings whose orders are all tried
HURRIES = (0.0, 0.1, 0.5, 2.0, 8.0)  # accuracy per second that a phase may cost more, to end in time
POINTS = 200  # of the table over the gains to come
SLACK = 1 + 1e-9  # rounding of the time limit
BETTER = 1e-9  # a smaller gain is rounding
SHORT_S = 1e-12


@dataclass(frozen=True, eq=False)
class PlannedSteps:
    """The next training, the share for it, and the way of each application."""

    first: int | None
    share: float
    chosen: tuple[int | None, ...]
    score: float = 0.0  # accuracy times seconds above that of only answering


@dataclass(frozen=True, eq=False)
class Offers:
    """Axes: applications, their ways; the last column is not to learn."""

    gain: Floats
    drop: Floats  # of accuracy while it trains
    seconds: Floats  # infinite where an application has fewer ways
    fee: Floats  # accuracy times seconds that its energy must gain


@dataclass(frozen=True, eq=False)
class LearningPace:
    """The best share of learning, and the cost of a second of work, by the gains still to come."""

    gains: Floats
    share: Floats
    cost: Floats


@dataclass(frozen=True, eq=False)
class BestSequence:
    """A sequence: its score, the column of each application, their order, and the pace."""

    score: float
    vector: Ints
    order: Ints
    pace: LearningPace


def plan_steps(
    apps: Sequence[LearningApp], window_s: float, joule_price: float = 0.0, skipped: Skipped = "held"
) -> PlannedSteps:
    """Choose ways and their order for the highest accuracy over the window; return the first phase."""
    offers = _tabulate(apps, joule_price)
    none = offers.gain.shape[1] - 1
    most = float(np.maximum(offers.gain + offers.drop, 0).max(axis=1).sum()) if len(apps) else 0.0
    if most <= 0:
        return PlannedSteps(None, 0.0, (None,) * len(apps))
    lost = lost_accuracy(apps, skipped)
    paces = [_pace(lost, 2 * most, hurry) for hurry in HURRIES]
    found = _ordered(offers, paces, window_s, _searched(offers, paces, window_s))
    order = [int(i) for i in found.order if found.vector[i] < none]
    chosen = tuple(int(k) if k < none else None for k in found.vector)
    if not order:
        return PlannedSteps(None, 0.0, chosen)
    rows, columns = np.array(order), found.vector[order]
    coming = offers.gain[rows, columns].sum() + offers.drop[order[0], columns[0]]
    return PlannedSteps(order[0], float(np.interp(coming, found.pace.gains, found.pace.share)), chosen, found.score)


def _tabulate(apps: Sequence[LearningApp], joule_price: float) -> Offers:
    most = max((len(app.candidates) for app in apps), default=0)
    gain, drop, fee = (np.zeros((len(apps), most + 1)) for _ in range(3))
    seconds = np.full((len(apps), most + 1), np.inf)
    seconds[:, -1] = 0.0
    for i, app in enumerate(apps):
        for k, one in enumerate(app.candidates):
            if one.after is not None:
                seconds[i, k], gain[i, k] = one.seconds, one.after - app.now
                drop[i, k], fee[i, k] = app.now - one.before, joule_price * one.joules
    return Offers(gain, drop, seconds, fee)


def _pace(lost: Floats, most: float, hurry: float) -> LearningPace:
    """Tabulate the best share for the gains to come; a hurry shortens phases at some cost."""
    gains, shares = np.linspace(0, most, POINTS), np.arange(1, len(lost)) / (len(lost) - 1)
    units = ((gains[:, None] + lost[1:] + hurry + BETTER) / shares).argmin(axis=1)
    return LearningPace(gains, shares[units], (gains + lost[1:][units]) / shares[units])


def _scores(
    offers: Offers, pace: LearningPace, window_s: float, vectors: Ints, orders: Ints | None
) -> tuple[Floats, Ints]:
    """Return the gain of each sequence, -inf where it ends too late, and its order: by default gain per second."""
    apps = np.arange(vectors.shape[1])
    gain, drop, seconds, fee = (one[apps, vectors] for one in (offers.gain, offers.drop, offers.seconds, offers.fee))
    if orders is None:
        orders = (-gain / np.maximum(seconds, SHORT_S)).argsort(axis=1, kind="stable")
    turned = np.take_along_axis(gain, orders, axis=1)
    coming = turned[:, ::-1].cumsum(axis=1)[:, ::-1] + np.take_along_axis(drop, orders, axis=1)
    work = np.take_along_axis(seconds, orders, axis=1)
    ends = (work / np.interp(coming, pace.gains, pace.share)).sum(axis=1)
    cost = (work * np.interp(coming, pace.gains, pace.cost)).sum(axis=1)
    scores = window_s * gain.sum(axis=1) - cost - fee.sum(axis=1)
    return np.where(ends <= window_s * SLACK, scores, -np.inf), orders


def _best(
    offers: Offers, paces: Sequence[LearningPace], window_s: float, vectors: Ints, orders: Ints | None = None
) -> BestSequence:
    """Return the best of some sequences at any pace, the first of equals."""
    best: BestSequence | None = None
    for pace in paces:
        scores, found = _scores(offers, pace, window_s, vectors, orders)
        place = int(np.flatnonzero(scores >= scores.max() - BETTER)[0])
        if best is None or scores[place] > best.score + BETTER:
            best = BestSequence(float(scores[place]), vectors[place], found[place], pace)
    assert best is not None, "there are paces"
    return best


def _searched(offers: Offers, paces: Sequence[LearningPace], window_s: float) -> BestSequence:
    """Search all ways of all applications where they are few, else climb from those of most gain per second."""
    apps, none = len(offers.gain), offers.gain.shape[1] - 1
    there = [[*np.flatnonzero(offers.gain[i, :none] > 0).tolist(), none] for i in range(apps)]
    if math.prod(map(len, there)) <= MOST:
        return _best(offers, paces, window_s, np.array(list(itertools.product(*there)), np.int64))
    here = _best(offers, paces, window_s, _prefixes(offers))
    while True:
        vectors = np.array([_with(here.vector, i, k) for i in range(apps) for k in there[i]])
        better = _best(offers, [here.pace], window_s, vectors)
        if better.score <= here.score + BETTER:
            return here
        here = _best(offers, paces, window_s, better.vector[None])


def _prefixes(offers: Offers) -> Ints:
    """List choices in which more and more applications learn, each in its way of most gain, or most per second."""
    apps, none = len(offers.gain), offers.gain.shape[1] - 1
    speed = offers.gain[:, :none] / np.maximum(offers.seconds[:, :none], SHORT_S)
    found = []
    for of_way in (offers.gain[:, :none], speed):
        ways = of_way.argmax(axis=1)
        chosen = np.where(offers.gain[np.arange(apps), ways] > 0, ways, none)
        place = np.empty(apps, np.int64)
        place[(-speed[np.arange(apps), ways]).argsort(kind="stable")] = np.arange(apps)
        found.append(np.where(place < np.arange(apps + 1)[:, None], chosen, none))
    return np.concatenate(found)


def _with(vector: Ints, i: int, k: int) -> Ints:
    changed: Ints = vector.copy()
    changed[i] = k
    return changed


def _ordered(offers: Offers, paces: Sequence[LearningPace], window_s: float, found: BestSequence) -> BestSequence:
    """Try all orders of few trainings; the order by gain per second is best where answers lose nothing."""
    none = offers.gain.shape[1] - 1
    learn = [int(i) for i in found.order if found.vector[i] < none]
    if not 1 < len(learn) <= ORDERED:
        return found
    rest = [int(i) for i in found.order if found.vector[i] == none]
    orders = np.array([[*order, *rest] for order in itertools.permutations(learn)], np.int64)
    best = _best(offers, paces, window_s, np.repeat(found.vector[None], len(orders), axis=0), orders)
    return best if best.score > found.score + BETTER else found
