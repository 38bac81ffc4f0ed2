"""Share plans of schedulers that divide a processor between inference and training.

Three properties hold for every member: the shares add up to one processor, training without an estimate receives an
equal share, and so does a job that has waited for longer than the member's patience.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Gt

from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Share
from driftlab.platform.scheduling.base import Allocation, Grant, SchedulerInput
from driftlab.platform.scheduling.candidates import LearningApp

Floats = npt.NDArray[np.float64]
HorizonS = Annotated[float | None, Gt(0), Means("time over which a plan is evaluated; none: to the window's end", "s")]
PatienceS = Annotated[float, Gt(0), Means("waiting time after which a phase receives an equal share", "s")]
DECLINED = "does not learn now: no way is worth its time"
UNESTIMATED = "nothing is known of its ways: the first one"


@dataclass(frozen=True, eq=False)
class SharePlan:
    """Shares and chosen candidates, in the order of the applications."""

    training: Floats
    inference: Floats
    chosen: Sequence[int | None]  # index of the candidate; None: no training
    resources: Mapping[int, Mapping[str, float]] = field(default_factory=dict)  # shares per resource, for training
    groups: Mapping[int, str] = field(default_factory=dict)  # name of the group whose stages interleave


@dataclass(frozen=True)
class SchedulerState:
    """The input of a scheduler's next call: since when each job waits, and the member's own state."""

    waits: tuple[tuple[str, float], ...] = ()
    own: Any = None


def previous_state(window: SchedulerInput) -> SchedulerState:
    """Return the state of the last call; an empty one if another member left its state."""
    return window.state if isinstance(window.state, SchedulerState) else SchedulerState()


def equal_share(apps: Sequence[LearningApp]) -> float:
    """Return the share of each job if all are equal: one job per inference, one per training."""
    return 1.0 / max(1, len(apps) + sum(app.learns for app in apps))


def inference_reserve(apps: Sequence[LearningApp], each: float) -> float:
    """Return the share reserved for inference: `each` per application, at most half; 1 if none trains."""
    return min(each * len(apps), 0.5) if any(app.learns for app in apps) else 1.0


def equal_inference(apps: Sequence[LearningApp], share: float) -> Floats:
    """Divide a share equally among the inferences."""
    shares: Floats = np.full(len(apps), share / max(1, len(apps)))
    return shares


def to_grants(
    window: SchedulerInput, apps: Sequence[LearningApp], plan: SharePlan, patience_s: float, own: Any = None
) -> Allocation:
    """Convert a plan into grants, in the order of the demands; `own` is kept for the member's next call."""
    waits = _waits(window, apps, plan)
    late = {job for job, since_s in waits.items() if window.start_s - since_s >= patience_s}
    training, inference = _with_equal_shares(apps, plan, late)
    divided = float(sum(training[i] for i in plan.resources))
    grants = [Grant(0.0)] * len(apps)
    for i, app in enumerate(apps):
        config = _config(app, plan.chosen[i])
        note = "; ".join(filter(None, (app.note, _note(app, plan.chosen[i], config))))
        share: Share | None = None if app.state == "idle" else float(training[i])
        if i in plan.resources and training[i]:
            share = {name: divided * part for name, part in plan.resources[i].items()}  # type: ignore[misc]
        grants[app.index] = Grant(
            float(inference[i]), share, config, interleave_group=plan.groups.get(i, ""), note=note
        )
    return Allocation(tuple(grants), SchedulerState(tuple(sorted(waits.items())), own))


def _waits(window: SchedulerInput, apps: Sequence[LearningApp], plan: SharePlan) -> dict[str, float]:
    """Return since when each job has no share; a job that already waited keeps its time."""
    before = dict(previous_state(window).waits)
    waiting = []
    for i, app in enumerate(apps):
        if not plan.inference[i]:
            waiting.append(f"{app.app}/answer")
        if app.learns and not plan.training[i] and _config(app, plan.chosen[i]) is not None:
            waiting.append(f"{app.app}/learn")
    return {job: before.get(job, window.start_s) for job in waiting}


def _with_equal_shares(apps: Sequence[LearningApp], plan: SharePlan, late: Collection[str]) -> tuple[Floats, Floats]:
    """Return the shares with an equal one for each unestimated or late job; the others shrink."""
    unplanned = [app.lacks_estimates and plan.chosen[i] is None for i, app in enumerate(apps)]
    trains = [unplanned[i] or f"{app.app}/learn" in late for i, app in enumerate(apps)]
    owed = np.array([*trains, *(f"{app.app}/answer" in late for app in apps)], bool)
    shares, each = np.concatenate([plan.training, plan.inference]), equal_share(apps)
    total = float(shares[~owed].sum())
    if total > 0:
        shares = shares * (1.0 - each * owed.sum()) / total
    shares[owed] = each
    training, inference = np.split(shares, 2)
    return training, inference


def _config(app: LearningApp, chosen: int | None) -> int | None:
    """Return the index of the offered configuration; 0, which is not read, if none is offered."""
    if app.state != "offered":
        return 0
    chosen = 0 if app.lacks_estimates else chosen
    return app.candidates[chosen].config if app.learns and chosen is not None else None


def _note(app: LearningApp, chosen: int | None, config: int | None) -> str:
    if app.state != "offered" or not app.learns:
        return ""
    if config is None:
        return DECLINED
    return UNESTIMATED if app.lacks_estimates and chosen is None else ""
