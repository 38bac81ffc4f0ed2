"""Joint: choose training configurations, their order and all shares together.

Gains are estimated from earlier phases and trials (`gain_model.py`); a trial runs only if it is worth more than its
time. `sequencing.py` finds the best sequence of trainings; labelling counts as the first part of a training. Every call
computes a new plan, so that only the first phase of a plan is ever carried out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Gt

from driftlab.platform.core.parameters import Means
from driftlab.platform.scheduling.base import Allocation, SchedulerInput, Scheduling, TrainingOffer
from driftlab.platform.scheduling.candidates import Candidate, LearningApp, Skipped, known, read_apps
from driftlab.platform.scheduling.enumerated import plan_enumerated
from driftlab.platform.scheduling.gain_model import (
    AppEstimate,
    AppHistory,
    estimate,
    review,
    trial_value,
    with_expected_accuracy,
)
from driftlab.platform.scheduling.inference_shares import split_inference_share
from driftlab.platform.scheduling.plans import HorizonS, PatienceS, SharePlan, previous_state, to_grants
from driftlab.platform.scheduling.sequencing import MIN_DURATION_S, PlannedSteps, plan_steps

ENDLESS_S = 1e9  # horizon within which every gain is worth its time
PRIOR_DOMAIN_S = 120.0  # mean length of a domain before any boundary was seen
RECALL_DROP = 0.1  # drop of accuracy from which a learner compares its stored networks


@dataclass(frozen=True)
class JointState:
    """The state between calls."""

    longest_s: float = 0.0  # duration of the longest window so far
    histories: Mapping[str, AppHistory] = field(default_factory=dict)


@dataclass(frozen=True)
class Joint(Scheduling):
    """Choose training configurations, their order and shares jointly; run one training at a time."""

    joule_price: Annotated[float, Ge(0), Means("accuracy × seconds that one joule of training must gain")] = 0.0
    skipped_frames: Annotated[
        Skipped | None,
        Means(
            "score of skipped frames: wrong, or that of the last prediction as in Ekya's table (stale); none: stale "
            "where frames are of a video"
        ),
    ] = None
    horizon_s: HorizonS = None
    boundaries: Annotated[
        bool,
        Means(
            "whether boundaries of domains are detected: the network as built then returns, and gains count until the "
            "next expected boundary"
        ),
    ] = False
    gains: Annotated[
        Literal["learned", "true"],
        Means("accuracies after trainings: learned from earlier ones, or those on later frames, a bound"),
    ] = "learned"
    plans: Annotated[
        Literal["sequences", "enumerated"],
        Means("plans that are compared: sequences of additive gains, or all on a grid of shares, a bound"),
    ] = "sequences"
    labels: Annotated[int | None, Ge(1), Means("samples that a round labels, the newest; none: all", "frames")] = None
    first_s: Annotated[
        float | None,
        Gt(0),
        Means("with boundaries: time after one at which the first samples are taken; none: as streaming plans", "s"),
    ] = None
    patience_s: PatienceS = 600.0

    version = 3
    uses_observed_accuracy = True

    @property
    def uses_estimates(self) -> bool:
        return True

    @property
    def uses_true_gains(self) -> bool:
        return self.gains == "true"

    @property
    def recall_drop(self) -> float:
        return RECALL_DROP

    @property
    def detects_boundaries(self) -> bool:
        return self.boundaries

    @property
    def labels_per_round(self) -> int | None:
        return self.labels

    @property
    def first_samples_s(self) -> float | None:
        return self.first_s

    @property
    def schedules_server(self) -> bool:
        return True

    def allocate(self, window: SchedulerInput) -> Allocation:
        """Compute a new plan, and grant its first phase, a trial, or labelling."""
        own = previous_state(window).own
        state = own if isinstance(own, JointState) else JointState()
        longest_s = max(state.longest_s, window.window_s)
        estimates, histories = [], {}
        for app in read_apps(window):
            app = replace(app, skipped=self.skipped_frames or app.skipped)
            demand = window.demands[app.index]
            history = review(demand, state.histories.get(app.app, AppHistory()), window.start_s)
            if self.uses_true_gains:  # they need no correction
                history = replace(history, errors=())
            if self.boundaries:
                app = with_expected_accuracy(app, history)
            estimated, histories[app.app] = estimate(window, app, history, drifts=not self.boundaries)
            estimates.append(estimated)
        horizon_s = self.horizon_s or (expected_s(window, histories) if self.boundaries else longest_s)
        apps = [one.app for one in estimates]
        trials = dict(self._trials(window, apps, estimates, horizon_s))
        steps = self._plan_started(window, apps, horizon_s)
        if steps.first is None and trials:
            steps = self._plan_trial(apps, min(trials), steps)
        training = np.zeros(len(apps))
        if steps.first is not None:
            training[steps.first] = steps.share
        inference = split_inference_share(apps, 1 - float(training.sum()))
        pairs = zip(estimates, steps.chosen, strict=True)
        after = {one.app.app: _with_expected(histories[one.app.app], one, k) for one, k in pairs}
        plan = SharePlan(training, inference, steps.chosen)
        allocation = to_grants(window, apps, plan, self.patience_s, JointState(longest_s, after))
        grants = list(allocation.grants)
        for index, ways in trials.items():
            grants[index] = replace(grants[index], trials=ways)
        return replace(allocation, grants=tuple(grants))

    def _plan_started(self, window: SchedulerInput, apps: Sequence[LearningApp], horizon_s: float) -> PlannedSteps:
        """Plan the started trainings, or labelling where the expected gain per second is highest.

        Labels age: an application with labelled samples trains at once or not at all.
        """
        begun = [_has_begun(window.demands[app.index].learning) for app in apps]
        first = [app if started else replace(app, candidates=()) for app, started in zip(apps, begun, strict=True)]
        plan = plan_enumerated if self.plans == "enumerated" else plan_steps
        steps = plan(first, horizon_s, self.joule_price)
        if steps.first is not None:
            return steps
        best = max((app for app in apps if app.state == "running" and app.learns), key=_speed, default=None)
        rest = [app if app is best else replace(app, candidates=()) for app in apps]
        return plan(rest, horizon_s if self.boundaries else ENDLESS_S, self.joule_price)

    def _plan_trial(self, apps: Sequence[LearningApp], index: int, steps: PlannedSteps) -> PlannedSteps:
        """Plan the share of a trial in advance: the scheduler is not called when the trial starts."""
        one = Candidate(None, 1.0, 0.0, 1.0)
        single = [replace(app, candidates=(one,) if app.index == index else ()) for app in apps]
        trial = plan_steps(single, ENDLESS_S)
        return replace(steps, first=trial.first, share=trial.share)

    def _trials(
        self, window: SchedulerInput, apps: Sequence[LearningApp], estimates: Sequence[AppEstimate], horizon_s: float
    ) -> list[tuple[int, tuple[int, ...]]]:
        """Return the configurations to try: those of unknown cost, or the best if its trial is worth it."""
        coming = sum(max(0.0, *((one.accuracy_after or 0.0) - app.now for one in app.candidates), 0.0) for app in apps)
        trials = []
        for app, estimated in zip(apps, estimates, strict=True):
            learning = window.demands[app.index].learning
            if app.state != "offered" or not app.learns or learning is None:
                continue
            if any(known(way.accuracy) is not None for way in learning.configs):
                continue
            unpriced = tuple(one.config for one in app.candidates if one.config is not None and not one.seconds)
            pairs = zip(estimated.app.candidates, estimated.deviations, strict=True)
            best, deviation = max(pairs, key=lambda pair: pair[0].accuracy_after or 0.0)
            lasts_s = max(0.0, horizon_s - best.seconds)
            value = trial_value((best.accuracy_after or 0.0) - app.now, deviation, lasts_s)
            if unpriced:
                trials.append((app.index, unpriced))
            elif best.config is not None and value > best.seconds * coming:
                trials.append((app.index, (best.config,)))
        return trials


def expected_s(window: SchedulerInput, histories: Mapping[str, AppHistory]) -> float:
    """Return the expected time until the end of the session or the next boundary, whichever is earlier.

    Boundaries come at random, at the rate of the detected ones and of one more in `PRIOR_DOMAIN_S`.
    """
    seen = sum(history.boundaries for history in histories.values()) / max(1, len(histories))
    mean_s = (PRIOR_DOMAIN_S + window.start_s) / (1 + seen)
    left_s = math.inf if window.left_s is None else window.left_s
    return mean_s * -math.expm1(-left_s / mean_s)


def _speed(app: LearningApp) -> float:
    """Return the expected gain per second of the only candidate."""
    (one,) = app.candidates
    return ((one.accuracy_after or 0.0) - app.now) / max(one.seconds, MIN_DURATION_S)


def _has_begun(learning: TrainingOffer | None) -> bool:
    """Return whether labelling of the newest samples, or training on them, has begun."""
    return learning is not None and (
        learning.state == "offered" or learning.config is not None or learning.left.isolated_s > 0
    )


def _with_expected(history: AppHistory, estimated: AppEstimate, chosen: int | None) -> AppHistory:
    """Return the history with the gain and cost to expect of a chosen phase that has not begun."""
    if estimated.app.state != "offered" or history.begun:
        return history
    if chosen is None:
        return replace(history, expected=None)
    return replace(history, expected=estimated.expected[chosen], usual_s=estimated.app.candidates[chosen].seconds)
