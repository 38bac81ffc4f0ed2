"""Rules that choose a network at a load reading, for every scaling family.

`expected` weighs being late against being accurate. It predicts the speed during the next frames from the changes of
the load in this session, and chooses the network with the largest accuracy x P(in time) - LATE_COST x P(late). The
other rules are those that it is compared with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from driftlab.platform.core.records import LoadReading, Variant
from driftlab.platform.scaling.base import Budget, Chooser, Scaling, fastest, fit_memory, prefer
from driftlab.platform.scaling.predicting import with_predictions
from driftlab.platform.scaling.selecting import (
    PathObjective,
    PathTable,
    keeps_goals,
    limits_of,
    pick,
    predicted_slowdown,
)
from driftlab.platform.world.load import speeds_of

Floats = npt.NDArray[np.float64]
LATE_COST = 0.1  # lambda: accuracy that a late frame costs besides its own
DRIFT = 0.06  # standard deviation of the CPU load after one reading, before any is known
DRIFT_WEIGHT = 0.3  # of that drift, where the changes in the session have 1
DRAWS = ((-1.2, 0.12), (-0.6, 0.23), (0.0, 0.3), (0.6, 0.23), (1.2, 0.12))  # of a normal distribution, with weights
STARTS = (0.0, 0.25, 0.5, 0.75)  # of frames, as shares of the time between two readings


def select(member: Scaling, variants: Sequence[Variant], budget: Budget, state: Any = None) -> tuple[int, Any]:
    """Return the network that a member chooses by its rule and its predictor, and the next state.

    A network that the budget names is the choice of every rule.
    """
    if budget.variant is None and budget.load and member.predictor != "law":
        variants = with_predictions(member.predictor, variants, budget.load[-1], budget.timed)
    if budget.variant is not None or member.chooser == "own":
        return member.select_variant(variants, budget, state)
    return choose(member.chooser, variants, budget, state)


def choose(rule: Chooser, variants: Sequence[Variant], budget: Budget, state: Any) -> tuple[int, Any]:
    """Return the network that a rule chooses, and the rule's next state."""
    if rule == "adascale":
        from driftlab.platform.scaling.adascale import AdaScale

        return AdaScale().select_within(variants, budget, state)
    if rule == "fastest":
        return fastest(variants, fit_memory(variants, range(len(variants)), budget)), state
    if rule == "paper":
        return literal(variants, budget), state
    if rule == "clairvoyant":
        return clairvoyant(variants, budget), state
    return (expected if rule == "expected" else prefer)(variants, budget), state


def literal(variants: Sequence[Variant], budget: Budget) -> int:
    """Return the network with the least latency and energy within the limits.

    The rule is Eq. 6 and 7 of AdaScale, without a floor.
    """
    limits = limits_of(budget, 0.0)
    return pick(PathTable.of(variants), predicted_slowdown(budget), limits, PathObjective(mode="paper"))[0]


def clairvoyant(variants: Sequence[Variant], budget: Budget) -> int:
    """Return the most accurate network in time under the true load until the next reading."""
    true = budget if budget.coming is None else replace(budget, load=(budget.coming,))
    limits = limits_of(true, 0.0)
    return pick(PathTable.of(variants), predicted_slowdown(true), limits, PathObjective(tolerance=0.0))[0]


def expected(variants: Sequence[Variant], budget: Budget) -> int:
    """Return the network with the largest expected accuracy in time.

    It is within the goals if any network keeps them.
    """
    if not budget.load or budget.latency_s is None:
        return prefer(variants, budget)
    table, limits = PathTable.of(variants), limits_of(budget, 0.0)
    allowed = table.memory_bytes <= limits.memory_bytes
    if not allowed.any():
        return int(table.memory_bytes.argmin())
    goals = allowed & keeps_goals(table, limits)
    in_time = in_time_probabilities(table.latency_s, budget)
    value = table.accuracy * in_time - LATE_COST * (1 - in_time)
    return int(np.where(goals if goals.any() else allowed, value, -np.inf).argmax())


def in_time_probabilities(latency_s: Floats, budget: Budget) -> Floats:
    """Return the probability of each latency to be within the limit for the next frames.

    Latencies are those on the idle processor.
    """
    assert budget.latency_s is not None, "every latency is within no limit"
    newest = budget.load[-1]
    step_s = _interval_s(budget.load)
    steps = math.ceil(max(STARTS) + budget.latency_s / step_s)
    loads, weights = load_distribution([one.cpu for one in budget.load], steps)
    speeds = budget.share * speeds_of(loads, newest.clock, newest.contention)
    found = np.zeros(len(latency_s))
    for start in STARTS:
        done_s = _work_s(speeds, step_s, start * step_s, budget.latency_s)
        order = np.argsort(done_s)
        below = np.concatenate([[0.0], np.cumsum(weights[order])])
        found += 1 - below[np.searchsorted(done_s[order], latency_s - 1e-12)] / below[-1]
    return found / len(STARTS)


def load_distribution(past: Sequence[float], steps: int) -> tuple[Floats, Floats]:
    """Return possible CPU loads of the next steps, one series per row, with weights.

    Each series is a change of the past, moved to the newest load. A normal drift has a small weight compared with
    them, and the whole one before there are enough readings.
    """
    cpu = np.asarray(past, dtype=np.float64)
    offsets, weights = np.array(DRAWS).T
    drift = cpu[-1] + DRIFT * offsets[:, None] * np.sqrt(np.arange(1, steps + 1))
    series, known = [np.clip(drift, 0, 1)], len(cpu) - steps
    shares = [DRIFT_WEIGHT * weights]
    if known >= 1:
        after = np.stack([cpu[1 + k : 1 + k + known] for k in range(steps)], axis=1)
        series.append(np.clip(cpu[-1] + after - cpu[:known, None], 0, 1))
        shares.append(np.full(known, 1 / known))
    return np.concatenate(series), np.concatenate(shares)


def _work_s(speeds: Floats, step_s: float, start_s: float, span_s: float) -> Floats:
    """Return the work that each series of speeds does in a span, in seconds of the idle processor."""
    edges = step_s * np.arange(speeds.shape[1] + 1)
    overlap = np.clip(np.minimum(edges[1:], start_s + span_s) - np.maximum(edges[:-1], start_s), 0, None)
    done: Floats = speeds @ overlap
    return done


def _interval_s(load: Sequence[LoadReading]) -> float:
    """Return the time between the newest readings; half a second before there are two."""
    return load[-1].time_s - load[-2].time_s if len(load) > 1 else 0.5
