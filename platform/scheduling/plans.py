"""Plans of schedulers that share a machine between answering and learning, and the grants that come of them.

Whatever the member decides, three things hold: the shares add up to one machine, an application of whose learning
nothing is known gets a fair share for it, and so does a job that has waited for longer than the member's patience.
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
from driftlab.platform.scheduling.base import Allocation, Grant, Window
from driftlab.platform.scheduling.candidates import LearningApp

Floats = npt.NDArray[np.float64]
HorizonS = Annotated[float | None, Gt(0), Means("time over which a plan is judged; none: until the window ends", "s")]
PatienceS = Annotated[float, Gt(0), Means("time after which a phase without a share gets a fair one", "s")]
DECLINED = "does not learn now: no way is worth its time"
UNTOLD = "nothing is known of its ways: the first one"


@dataclass(frozen=True, eq=False)
class SharePlan:
    """The shares of every application, and the candidate that each would run; in the order of the applications."""

    learn: Floats
    answer: Floats
    chosen: Sequence[int | None]  # index of the candidate; None: it does not learn
    parts: Mapping[int, Mapping[str, float]] = field(default_factory=dict)  # of the machine's engines, for learning
    beside: Mapping[int, str] = field(default_factory=dict)  # name of the group whose stages interleave


@dataclass(frozen=True)
class Kept:
    """What the next call of a scheduler needs: since when each phase waits, and the member's own state."""

    waits: tuple[tuple[str, float], ...] = ()
    own: Any = None


def kept(window: Window) -> Kept:
    """Return the state of the last call; nothing where another member left it."""
    return window.state if isinstance(window.state, Kept) else Kept()


def fair(apps: Sequence[LearningApp]) -> float:
    """Return the share of each job where all jobs have the same: one per application that answers or learns."""
    return 1.0 / max(1, len(apps) + sum(app.learns for app in apps))


def reserve(apps: Sequence[LearningApp], each: float) -> float:
    """Return the share that is kept for answering: so much per application, but at most half of the machine."""
    return min(each * len(apps), 0.5) if any(app.learns for app in apps) else 1.0


def settle(
    window: Window, apps: Sequence[LearningApp], plan: SharePlan, patience_s: float, own: Any = None
) -> Allocation:
    """Turn a plan into grants, in the order of the demands; keep `own` for the member's next call."""
    waits = _waits(window, apps, plan)
    late = {job for job, since_s in waits.items() if window.start_s - since_s >= patience_s}
    learn, answer = _lifted(apps, plan, late)
    parted = float(sum(learn[i] for i in plan.parts))
    grants = [Grant(0.0)] * len(apps)
    for i, app in enumerate(apps):
        way = _way(app, plan.chosen[i])
        note = "; ".join(filter(None, (app.note, _why(app, plan.chosen[i], way))))
        share: Share | None = None if app.state == "idle" else float(learn[i])
        if i in plan.parts and learn[i]:
            share = {engine: parted * part for engine, part in plan.parts[i].items()}  # type: ignore[misc]
        grants[app.index] = Grant(float(answer[i]), share, way, beside=plan.beside.get(i, ""), note=note)
    return Allocation(tuple(grants), Kept(tuple(sorted(waits.items())), own))


def _waits(window: Window, apps: Sequence[LearningApp], plan: SharePlan) -> dict[str, float]:
    """Return since when each job has no share: those that had none before keep their time."""
    before = dict(kept(window).waits)
    idle = []
    for i, app in enumerate(apps):
        if not plan.answer[i]:
            idle.append(f"{app.app}/answer")
        if app.learns and not plan.learn[i] and _way(app, plan.chosen[i]) is not None:
            idle.append(f"{app.app}/learn")
    return {job: before.get(job, window.start_s) for job in idle}


def _lifted(apps: Sequence[LearningApp], plan: SharePlan, late: Collection[str]) -> tuple[Floats, Floats]:
    """Give a fair share where the plan knows nothing of a job, or its patience is over; the rest shrinks alike."""
    unplanned = [app.untold and plan.chosen[i] is None for i, app in enumerate(apps)]
    learns = [unplanned[i] or f"{app.app}/learn" in late for i, app in enumerate(apps)]
    owed = np.array([*learns, *(f"{app.app}/answer" in late for app in apps)], bool)
    shares, each = np.concatenate([plan.learn, plan.answer]), fair(apps)
    total = float(shares[~owed].sum())
    if total > 0:
        shares = shares * (1.0 - each * owed.sum()) / total
    shares[owed] = each
    learn, answer = np.split(shares, 2)
    return learn, answer


def _way(app: LearningApp, chosen: int | None) -> int | None:
    """Return the index of the offered way; of an application that offers none, 0, which nothing reads."""
    if app.state != "offered":
        return 0
    chosen = 0 if app.untold else chosen
    return app.candidates[chosen].way if app.learns and chosen is not None else None


def _why(app: LearningApp, chosen: int | None, way: int | None) -> str:
    if app.state != "offered" or not app.learns:
        return ""
    if way is None:
        return DECLINED
    return UNTOLD if app.untold and chosen is None else ""


def answering(apps: Sequence[LearningApp], share: float) -> Floats:
    """Divide a share among the answers, equally."""
    found: Floats = np.full(len(apps), share / max(1, len(apps)))
    return found
