"""What a scheduler believes of applications that learn, from what earlier phases and trials brought.

Without any experience, a phase closes a part of the gap between the accuracy of a network and the one that learning
reaches. What phases and trials then bring corrects that line, by Bayesian linear regression of gains on accuracies, for
every network of an application by itself. How much of the longest way's gain a shorter one brings is learned too: each
of some learning curves has a regression of its own, and counts by the probability of the gains under it. Estimates that
an application offers are corrected by their mean error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from driftlab.platform.scheduling.base import Demand, Way, Window
from driftlab.platform.scheduling.candidates import Candidate, LearningApp, known

ERRORS = 8  # of told estimates, per application, that are remembered
CLOSED = 0.5  # part of the gap that the longest way closes, as far as is known
BENDS = (0.1, 0.5, 0.9, 0.99)  # of learning curves: 0 is a straight line, with 1 the first step brings everything
REACHED, SPEED = 0.6, 1.0  # accuracy that learning reaches, and how much faster than that a phase closes the gap
UNSURE_REACHED, UNSURE_SPEED = 0.2, 0.5  # their standard deviations
NOISE = 0.1  # standard deviation of what is seen of a gain, on few samples
FADES = 0.9  # weight of older experience per newer one: what is seen changes
LEAST = 0.001  # gain for which samples are labelled, or ways tried out, where nothing else is to be done
DRIFT = 0.2  # standard deviation by which the accuracy of a network changes unseen within a minute

# A gain is the part that is closed times (first - second * accuracy); of first and second are known, before anything:
_SPEED, _LEVEL = UNSURE_SPEED**-2, UNSURE_REACHED**-2  # precisions of the second alone, and of first / second
PRECISION = _LEVEL, -_LEVEL * REACHED, _SPEED + _LEVEL * REACHED**2  # of both: first squared, mixed, second squared
EXPECTED = 0.0, _SPEED * SPEED  # precision times mean


@dataclass(frozen=True)
class Regression:
    """Sums over the gains seen of one network: of inputs times inputs, and of inputs times gains."""

    squares: tuple[float, float, float] = (0.0, 0.0, 0.0)
    products: tuple[float, float] = (0.0, 0.0)

    def see(self, part: float, accuracy: float, gain: float) -> Regression:
        """Add a gain that a way brought which closes a part of the gap."""
        first, second = part / NOISE, -part * accuracy / NOISE
        squares = zip(self.squares, (first * first, first * second, second * second), strict=True)
        products = zip(self.products, (first * gain / NOISE, second * gain / NOISE), strict=True)
        return Regression(
            tuple(FADES * before + now for before, now in squares),  # type: ignore[arg-type]
            tuple(FADES * before + now for before, now in products),  # type: ignore[arg-type]
        )

    def expect(self, part: float, accuracy: float) -> tuple[float, float]:
        """Return the expected gain of a way, and its standard deviation."""
        a, b, c = (seen + before for seen, before in zip(self.squares, PRECISION, strict=True))
        first, second = (seen + before for seen, before in zip(self.products, EXPECTED, strict=True))
        whole = a * c - b * b
        x, y = part, -part * accuracy
        mean = (x * (c * first - b * second) + y * (a * second - b * first)) / whole
        return mean, math.sqrt((x * x * c - 2 * x * y * b + y * y * a) / whole)


@dataclass(frozen=True)
class Experience:
    """The gains seen of one network, under each learning curve, and the logarithm of their probability under it."""

    curves: tuple[Regression, ...] = (Regression(),) * len(BENDS)
    evidence: tuple[float, ...] = (0.0,) * len(BENDS)

    def see(self, length: float, accuracy: float, gain: float) -> Experience:
        """Add a gain that a way brought, whose length is a share of that of the longest way."""
        parts = [part_closed(length, bend) for bend in BENDS]
        expected = [curve.expect(part, accuracy) for curve, part in zip(self.curves, parts, strict=True)]
        found = [log_normal(gain - mean, math.hypot(deviation, NOISE)) for mean, deviation in expected]
        return Experience(
            tuple(curve.see(part, accuracy, gain) for curve, part in zip(self.curves, parts, strict=True)),
            tuple(FADES * before + now for before, now in zip(self.evidence, found, strict=True)),
        )

    def expect(self, length: float, accuracy: float) -> tuple[float, float]:
        """Return the expected gain of a way, and its standard deviation, over all learning curves."""
        most = max(self.evidence)
        weights = [math.exp(one - most) for one in self.evidence]
        rows = [
            curve.expect(part_closed(length, bend), accuracy) for curve, bend in zip(self.curves, BENDS, strict=True)
        ]
        mean = sum(w * one for w, (one, _) in zip(weights, rows, strict=True)) / sum(weights)
        spread = sum(w * (one**2 + dev**2) for w, (one, dev) in zip(weights, rows, strict=True)) / sum(weights)
        return mean, math.sqrt(max(0.0, spread - mean**2))


@dataclass(frozen=True)
class Promise:
    """What was expected of a phase when it was chosen."""

    way: Way
    length: float  # as a share of that of the longest way
    now: float
    after: float


@dataclass(frozen=True)
class TriedWay:
    """What a trial of a way showed, or an estimate of it."""

    seconds: float
    now: float  # accuracy of the network that ran
    before: float  # accuracy until it is done
    after: float


@dataclass(frozen=True)
class Past:
    """What is known of one application."""

    promise: Promise | None = None  # of its newest phase; None: the network was seen since
    begun: bool = False  # whether that phase has begun: until then another way may be chosen
    ended_s: float | None = None  # when the phase was first seen to have ended
    errors: tuple[float, ...] = ()  # of estimates that the application told
    usual_s: float | None = None  # time alone of its newest phase
    networks: Mapping[int | None, Experience] = field(default_factory=dict)  # by variant
    tried: Mapping[str, TriedWay] = field(default_factory=dict)  # newest trial by the name of the way

    @property
    def correction(self) -> float:
        """Return the mean error, as if one more estimate had been right."""
        return sum(self.errors) / (len(self.errors) + 1)

    def of(self, way: Way) -> Experience:
        return self.networks.get(way.variant, Experience())

    def see(self, way: Way, length: float, now: float, after: float) -> Past:
        """Add what a way brought."""
        return replace(self, networks={**self.networks, way.variant: self.of(way).see(length, now, after - now)})


@dataclass(frozen=True)
class Outlook:
    """An application with every accuracy filled in, and the standard deviation of those that nothing told."""

    app: LearningApp
    deviations: tuple[float, ...]
    promises: tuple[Promise | None, ...]


def review(demand: Demand, past: Past, now_s: float) -> Past:
    """Compare what the newest phase promised with the next known accuracy after it."""
    learning, promise = demand.learning, past.promise
    offered = learning is not None and learning.state == "offered"
    if learning is not None and not offered and learning.way is not None:
        return replace(past, begun=promise is not None, ended_s=None)
    if promise is None or not (past.begun or not offered):
        return past
    ended_s = now_s if past.ended_s is None else past.ended_s
    seen = _known_since(demand, ended_s)
    if seen is None:
        return replace(past, begun=True, ended_s=ended_s)
    told, past = promise.way.accuracy, replace(past, promise=None, begun=False, ended_s=None)
    if known(told) is None:
        return past.see(promise.way, promise.length, promise.now, seen)
    return replace(past, errors=(*past.errors, seen - promise.after)[-ERRORS:])


def _known_since(demand: Demand, since_s: float) -> float | None:
    """Return an accuracy of predictions after a time: of a new offer, or observed."""
    if demand.learning is not None and known(demand.learning.now) is not None:
        return known(demand.learning.now)
    return known(demand.observed) if demand.observed_s is not None and demand.observed_s >= since_s else None


def outlook(window: Window, app: LearningApp, past: Past) -> tuple[Outlook, Past]:
    """Fill in what is not known of an application, and remember what its trials showed."""
    demand = window.demands[app.index]
    ways = () if demand.learning is None else demand.learning.ways
    waited_s = window.start_s - (demand.observed_s or 0.0)
    rows: list[tuple[Candidate, float, Promise | None]] = []
    for one in app.candidates:
        if one.way is None:
            rows.append(_running(demand, app, past, one, waited_s))
            continue
        way = ways[one.way]
        trial = past.tried.get(way.name)
        if one.after is None and trial is not None:
            before = known(app.now + trial.before - trial.now)
            one = replace(one, seconds=one.seconds or trial.seconds, before=before or 0.0)
        length = length_of(app, one)
        if one.after is None:
            gain, deviation = past.of(way).expect(length, app.now)
            promise = Promise(way, length, app.now, known(app.now + gain) or 0.0)
            rows.append((replace(one, after=promise.after), deviation, promise))
            continue
        shown = TriedWay(one.seconds, app.now, one.before, one.after)
        if shown != trial:  # not the same offer again
            past = replace(past.see(way, length, app.now, one.after), tried={**past.tried, way.name: shown})
        promise = Promise(way, length, app.now, one.after)
        rows.append((replace(one, after=known(one.after + past.correction)), 0.0, promise))
    candidates, deviations, promises = zip(*rows, strict=True) if rows else ((), (), ())
    return Outlook(replace(app, candidates=candidates), deviations, promises), past


def _running(
    demand: Demand, app: LearningApp, past: Past, one: Candidate, waited_s: float
) -> tuple[Candidate, float, None]:
    """Expect of a running phase what it promised; what labels or tries out will train after that, if that gains.

    The longer a network was not seen, the more it may have lost and a phase may gain.
    """
    if one.after is not None:
        return replace(one, after=known(one.after + past.correction)), 0.0, None
    trains = demand.learning is not None and demand.learning.way is not None
    if trains and past.promise is not None:
        return replace(one, after=past.promise.after), 0.0, None
    newest = next(reversed([*past.networks.values()]), Experience())
    mean, deviation = newest.expect(1.0, app.now)
    deviation = math.hypot(deviation, DRIFT * math.sqrt(waited_s / 60))
    seconds = one.seconds + (past.usual_s or one.seconds)
    gain = max(LEAST, positive_part(mean, deviation))  # may lead above 1: one that was always right can only have lost
    return replace(one, seconds=seconds, after=app.now + gain), 0.0, None


def length_of(app: LearningApp, one: Candidate) -> float:
    """Return the length of a way as a share of that of the longest one of its size."""
    longest_s = max(each.seconds for each in app.candidates if each.size == one.size)
    return one.seconds / longest_s if longest_s and one.seconds else 1.0


def part_closed(length: float, bend: float) -> float:
    """Return the part of the gap that a way closes on a learning curve."""
    return CLOSED * (1 - math.pow(1 - bend, length)) / bend


def log_normal(error: float, deviation: float) -> float:
    """Return the logarithm of a normal density, but for a constant."""
    return -((error / deviation) ** 2) / 2 - math.log(deviation)


def worth_of_trial(gain: float, deviation: float, lasts_s: float) -> float:
    """Return what a trial is expected to gain, in accuracy times seconds, where not to learn is the other choice.

    It is the expected value of sample information: gains, and what a trial shows of them, are normal.
    """
    shown = deviation**2 / math.hypot(deviation, NOISE)
    return lasts_s * (positive_part(gain, shown) - max(0.0, gain))


def positive_part(mean: float, deviation: float) -> float:
    """Return the expected value of a normal variable where it is positive, with 0 elsewhere."""
    if deviation <= 0:
        return max(0.0, mean)
    ratio = mean / deviation
    density = math.exp(-(ratio**2) / 2) / math.sqrt(2 * math.pi)
    return deviation * density + mean * math.erfc(-ratio / math.sqrt(2)) / 2
