"""AFS: elastic sharing among trainings, for short completion times.

The machine is divided into equal slots. Every training gets one; each further slot goes to the shorter training if its
relative speed-up exceeds that of the longer one. Accuracy plays no part, so slots that train are simply slots.

Differs from the paper: the slots are parts of one device, where it has whole accelerators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
from annotated_types import Ge

from driftlab.platform.core.parameters import Means
from driftlab.platform.scheduling.candidates import LearningApp
from driftlab.platform.scheduling.plans import SharePlan, answering, reserve
from driftlab.platform.scheduling.sizing import Chosen, SharesAmongTrainings

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Afs(SharesAmongTrainings):
    """Give each next slot of the machine to the training whose completion time gains most."""

    slots: Annotated[int, Ge(1), Means("equal parts into which the share for learning is divided")] = 10

    def plan(self, apps: Sequence[LearningApp], chosen: Chosen) -> SharePlan:
        answers, learn = reserve(apps, self.answer), np.zeros(len(apps))
        jobs = [(i, k) for i, k in enumerate(chosen) if k is not None]
        if jobs:
            work = [apps[i].candidates[k].seconds for i, k in jobs]
            speed = np.repeat(np.arange(1.0, self.slots + 1)[None] / self.slots, len(jobs), axis=0)
            learn[[i for i, _ in jobs]] = (1 - answers) * np.array(divide_slots(work, speed, self.slots)) / self.slots
        return SharePlan(learn, answering(apps, answers), chosen)


def divide_slots(work: Sequence[float], speed: Floats, slots: int) -> list[int]:
    """Return the slots of each job; `speed` is its throughput on 1, 2, … slots, [jobs, slots].

    With fewer slots than jobs, the shortest jobs get one each.
    """
    jobs, most = range(len(work)), speed.shape[1]
    if slots < len(work):
        first = sorted(jobs, key=lambda j: work[j] / speed[j, 0])[:slots]
        return [int(j in first) for j in jobs]
    held = [1] * len(work)

    def left_s(j: int, more: int = 0) -> float:
        return float(work[j] / speed[j, held[j] + more - 1])

    for _ in range(slots - len(work)):
        open_jobs = [j for j in jobs if held[j] < most]
        if not open_jobs:
            break
        taker = open_jobs[0]
        for other in open_jobs[1:]:
            short, long = (other, taker) if left_s(other) < left_s(taker) else (taker, other)
            gain = speed[short, held[short]] / speed[short, held[short] - 1]
            loss = speed[long, held[long] - 1] / speed[long, held[long]]
            taker = short if gain + loss > 2 else long
        held[taker] += 1
    return held
