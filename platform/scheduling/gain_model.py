"""Bayesian estimates of accuracy gains from earlier training phases and trials.

A priori, a phase closes a part of the gap between the accuracy of a network and the one that training reaches. Observed
gains of phases and trials correct that line by Bayesian linear regression of gains on accuracies, separately for every
network of an application. The share of the longest configuration's gain that a shorter one yields is estimated too:
each of several learning curves has a separate regression, weighted by the probability of the observed gains under it.
Accuracies that an application offers are corrected by their mean error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from driftlab.platform.scheduling.base import Demand, SchedulerInput, TrainingConfig
from driftlab.platform.scheduling.candidates import Candidate, LearningApp, known

MAX_ERRORS = 8  # number of errors of offered accuracies that are kept per application
PRIOR_GAP_CLOSED = 0.5  # part of the gap that the longest configuration closes
CURVE_EXPONENTS = (0.1, 0.5, 0.9, 0.99)  # bend of learning curves: 0 is linear, at 1 the first step yields all
PRIOR_REACHED, PRIOR_SPEED = 0.6, 1.0  # accuracy that training reaches; speed relative to `PRIOR_GAP_CLOSED`
PRIOR_REACHED_DEVIATION, PRIOR_SPEED_DEVIATION = 0.2, 0.5
GAIN_NOISE = 0.1  # standard deviation of an observed gain, on few samples
RELIABILITY_DECAY = 0.9  # weight of older gains per newer one: the stream drifts
MIN_GAIN = 0.001  # expected gain of labelling or trials if the processor is idle otherwise
DRIFT_PER_SQRT_MIN = 0.2  # standard deviation by which a network's accuracy changes unobserved within a minute

# A gain is (part closed) × (first - second × accuracy). Prior of first and second:
_SPEED_PRECISION, _LEVEL_PRECISION = PRIOR_SPEED_DEVIATION**-2, PRIOR_REACHED_DEVIATION**-2  # second; first / second
PRIOR_PRECISION = (  # first squared, mixed, second squared
    _LEVEL_PRECISION,
    -_LEVEL_PRECISION * PRIOR_REACHED,
    _SPEED_PRECISION + _LEVEL_PRECISION * PRIOR_REACHED**2,
)
PRIOR_PRODUCTS = 0.0, _SPEED_PRECISION * PRIOR_SPEED  # precision times mean


@dataclass(frozen=True)
class GainRegression:
    """Sums over the observed gains of one network: inputs times inputs, and inputs times gains."""

    squares: tuple[float, float, float] = (0.0, 0.0, 0.0)
    products: tuple[float, float] = (0.0, 0.0)

    def add(self, part: float, accuracy: float, gain: float) -> GainRegression:
        """Return the regression with a gain of a configuration that closes a part of the gap."""
        first, second = part / GAIN_NOISE, -part * accuracy / GAIN_NOISE
        squares = zip(self.squares, (first * first, first * second, second * second), strict=True)
        products = zip(self.products, (first * gain / GAIN_NOISE, second * gain / GAIN_NOISE), strict=True)
        return GainRegression(
            tuple(RELIABILITY_DECAY * before + now for before, now in squares),  # type: ignore[arg-type]
            tuple(RELIABILITY_DECAY * before + now for before, now in products),  # type: ignore[arg-type]
        )

    def expect(self, part: float, accuracy: float) -> tuple[float, float]:
        """Return the expected gain of a configuration, and its standard deviation."""
        a, b, c = (observed + prior for observed, prior in zip(self.squares, PRIOR_PRECISION, strict=True))
        first, second = (observed + prior for observed, prior in zip(self.products, PRIOR_PRODUCTS, strict=True))
        determinant = a * c - b * b
        x, y = part, -part * accuracy
        mean = (x * (c * first - b * second) + y * (a * second - b * first)) / determinant
        return mean, math.sqrt((x * x * c - 2 * x * y * b + y * y * a) / determinant)


@dataclass(frozen=True)
class GainModel:
    """A regression per learning curve over the gains of one network, and the log evidence of each curve."""

    curves: tuple[GainRegression, ...] = (GainRegression(),) * len(CURVE_EXPONENTS)
    evidence: tuple[float, ...] = (0.0,) * len(CURVE_EXPONENTS)

    def add(self, length: float, accuracy: float, gain: float) -> GainModel:
        """Return the model with a gain of a configuration of a length, relative to the longest one."""
        parts = [part_closed(length, bend) for bend in CURVE_EXPONENTS]
        expected = [curve.expect(part, accuracy) for curve, part in zip(self.curves, parts, strict=True)]
        logs = [log_normal(gain - mean, math.hypot(deviation, GAIN_NOISE)) for mean, deviation in expected]
        return GainModel(
            tuple(curve.add(part, accuracy, gain) for curve, part in zip(self.curves, parts, strict=True)),
            tuple(RELIABILITY_DECAY * before + now for before, now in zip(self.evidence, logs, strict=True)),
        )

    def expect(self, length: float, accuracy: float) -> tuple[float, float]:
        """Return the expected gain of a configuration and its standard deviation, over all learning curves."""
        highest = max(self.evidence)
        weights = [math.exp(one - highest) for one in self.evidence]
        rows = [
            curve.expect(part_closed(length, bend), accuracy)
            for curve, bend in zip(self.curves, CURVE_EXPONENTS, strict=True)
        ]
        mean = sum(w * one for w, (one, _) in zip(weights, rows, strict=True)) / sum(weights)
        square = sum(w * (one**2 + dev**2) for w, (one, dev) in zip(weights, rows, strict=True)) / sum(weights)
        return mean, math.sqrt(max(0.0, square - mean**2))


@dataclass(frozen=True)
class ExpectedGain:
    """The expectation of a phase at the time of its choice."""

    config: TrainingConfig
    length: float  # relative to the longest configuration
    accuracy_before: float
    accuracy_after: float


@dataclass(frozen=True)
class TrialResult:
    """The result of a trial of a configuration, or of an estimate of it."""

    seconds: float
    now: float  # accuracy of the network that ran
    accuracy_before: float  # accuracy during training
    accuracy_after: float


@dataclass(frozen=True)
class AppHistory:
    """The observations of one application."""

    expected: ExpectedGain | None = None  # of its newest phase; None: the network was observed since
    begun: bool = False  # whether that phase has begun: until then another configuration may be chosen
    ended_s: float | None = None  # first call after the end of that phase
    errors: tuple[float, ...] = ()  # of accuracies that the application offered
    usual_s: float | None = None  # cost of its newest phase
    changed_s: float | None = None  # newest boundary of domains
    boundaries: int = 0  # detected so far
    networks: Mapping[int | None, GainModel] = field(default_factory=dict)  # by variant
    tried: Mapping[str, TrialResult] = field(default_factory=dict)  # newest trial by the name of the configuration

    @property
    def correction(self) -> float:
        """Return the mean error, with one additional error of 0."""
        return sum(self.errors) / (len(self.errors) + 1)

    def of(self, config: TrainingConfig) -> GainModel:
        return self.networks.get(config.variant, GainModel())

    def add(self, config: TrainingConfig, length: float, now: float, after: float) -> AppHistory:
        """Return the history with the gain of a configuration."""
        return replace(self, networks={**self.networks, config.variant: self.of(config).add(length, now, after - now)})


@dataclass(frozen=True)
class AppEstimate:
    """An application with every accuracy filled in, and the standard deviations of the estimates."""

    app: LearningApp
    deviations: tuple[float, ...]
    expected: tuple[ExpectedGain | None, ...]


def review(demand: Demand, history: AppHistory, now_s: float) -> AppHistory:
    """Compare the expectation of the newest phase with the first accuracy that was observed after it.

    After a boundary of domains nothing is expected of that phase any more.
    """
    if demand.changed_s != history.changed_s:
        history = replace(
            history,
            expected=None,
            begun=False,
            ended_s=None,
            tried={},
            changed_s=demand.changed_s,
            boundaries=history.boundaries + 1,
        )
    learning, expected = demand.learning, history.expected
    offered = learning is not None and learning.state == "offered"
    if learning is not None and not offered and learning.config is not None:
        return replace(history, begun=expected is not None, ended_s=None)
    if expected is None or not (history.begun or not offered):
        return history
    ended_s = now_s if history.ended_s is None else history.ended_s
    observed = _observed_since(demand, ended_s)
    if observed is None:
        return replace(history, begun=True, ended_s=ended_s)
    measured = known(expected.config.accuracy) is not None
    history = replace(history, expected=None, begun=False, ended_s=None)
    if not measured:
        return history.add(expected.config, expected.length, expected.accuracy_before, observed)
    return replace(history, errors=(*history.errors, observed - expected.accuracy_after)[-MAX_ERRORS:])


def with_expected_accuracy(app: LearningApp, history: AppHistory) -> LearningApp:
    """Return an application with the expected accuracy of its newest phase, until one is observed."""
    if history.expected is None or history.ended_s is None:
        return app
    return replace(app, now=history.expected.accuracy_after)


def _observed_since(demand: Demand, since_s: float) -> float | None:
    """Return the accuracy of predictions after a time: that of a new offer, or the observed one."""
    if demand.learning is not None and known(demand.learning.accuracy_before) is not None:
        return known(demand.learning.accuracy_before)
    return known(demand.observed) if demand.observed_s is not None and demand.observed_s >= since_s else None


def estimate(
    window: SchedulerInput, app: LearningApp, history: AppHistory, *, drifts: bool = True
) -> tuple[AppEstimate, AppHistory]:
    """Fill in the accuracies of an application, and add the results of its trials to its history.

    Where boundaries of domains are detected, accuracies do not drift between them.
    """
    demand = window.demands[app.index]
    configs = () if demand.learning is None else demand.learning.configs
    waited_s = window.start_s - (demand.observed_s or 0.0) if drifts else 0.0
    rows: list[tuple[Candidate, float, ExpectedGain | None]] = []
    for one in app.candidates:
        if one.config is None:
            rows.append(_estimate_running(demand, app, history, one, waited_s))
            continue
        config = configs[one.config]
        trial = history.tried.get(config.name)
        if one.accuracy_after is None and trial is not None:
            before = known(app.now + trial.accuracy_before - trial.now)
            one = replace(one, seconds=one.seconds or trial.seconds, accuracy_before=before or 0.0)
        length = length_of(app, one)
        if one.accuracy_after is None:
            gain, deviation = history.of(config).expect(length, app.now)
            expected = ExpectedGain(config, length, app.now, known(app.now + gain) or 0.0)
            rows.append((replace(one, accuracy_after=expected.accuracy_after), deviation, expected))
            continue
        result = TrialResult(one.seconds, app.now, one.accuracy_before, one.accuracy_after)
        if result != trial:  # not a repetition of the same offer
            history = replace(
                history.add(config, length, app.now, one.accuracy_after), tried={**history.tried, config.name: result}
            )
        expected = ExpectedGain(config, length, app.now, one.accuracy_after)
        rows.append((replace(one, accuracy_after=known(one.accuracy_after + history.correction)), 0.0, expected))
    candidates, deviations, gains = zip(*rows, strict=True) if rows else ((), (), ())
    return AppEstimate(replace(app, candidates=candidates), deviations, gains), history


def _estimate_running(
    demand: Demand, app: LearningApp, history: AppHistory, one: Candidate, waited_s: float
) -> tuple[Candidate, float, None]:
    """Return a running phase with its expected accuracy; after labelling or trials, training follows.

    The longer a network was not observed, the larger is the deviation: it may have lost more, so a phase may gain more.
    """
    if one.accuracy_after is not None:
        return replace(one, accuracy_after=known(one.accuracy_after + history.correction)), 0.0, None
    trains = demand.learning is not None and demand.learning.config is not None
    if trains and history.expected is not None:
        return replace(one, accuracy_after=history.expected.accuracy_after), 0.0, None
    newest = next(reversed([*history.networks.values()]), GainModel())
    mean, deviation = newest.expect(1.0, app.now)
    deviation = math.hypot(deviation, DRIFT_PER_SQRT_MIN * math.sqrt(waited_s / 60))
    seconds = one.seconds + (history.usual_s or one.seconds)
    gain = max(MIN_GAIN, positive_part(mean, deviation))  # the sum may exceed 1: a perfect network can only have lost
    return replace(one, seconds=seconds, accuracy_after=app.now + gain), 0.0, None


def length_of(app: LearningApp, one: Candidate) -> float:
    """Return the length of a configuration relative to the longest one of its size."""
    longest_s = max(each.seconds for each in app.candidates if each.size == one.size)
    return one.seconds / longest_s if longest_s and one.seconds else 1.0


def part_closed(length: float, bend: float) -> float:
    """Return the part of the gap that a configuration closes on a learning curve."""
    return PRIOR_GAP_CLOSED * (1 - math.pow(1 - bend, length)) / bend


def log_normal(error: float, deviation: float) -> float:
    """Return the logarithm of a normal density, up to a constant."""
    return -((error / deviation) ** 2) / 2 - math.log(deviation)


def trial_value(gain: float, deviation: float, lasts_s: float) -> float:
    """Return the expected value of a trial, in accuracy × seconds, if no training is the alternative.

    It is the expected value of sample information, for normal gains and normal errors of trials.
    """
    resolved = deviation**2 / math.hypot(deviation, GAIN_NOISE)
    return lasts_s * (positive_part(gain, resolved) - max(0.0, gain))


def positive_part(mean: float, deviation: float) -> float:
    """Return the expected value of max(0, x) for a normal variable x."""
    if deviation <= 0:
        return max(0.0, mean)
    ratio = mean / deviation
    density = math.exp(-(ratio**2) / 2) / math.sqrt(2 * math.pi)
    return deviation * density + mean * math.erfc(-ratio / math.sqrt(2)) / 2
