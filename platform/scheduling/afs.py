"""AFS (NSDI 2021): elastic sharing of slots among trainings, for a short mean completion time.

The share for training is divided into equal slots. Every training receives one; each further slot is allocated to the
shorter training if its relative speed-up exceeds that of the longer one. Accuracy is not used.

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
from driftlab.platform.scheduling.plans import SharePlan, equal_inference, inference_reserve
from driftlab.platform.scheduling.sizing import ChosenConfigs, SharesAmongTrainings

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Afs(SharesAmongTrainings):
    """AFS (NSDI 2021): allocate each next slot by its effect on mean completion time."""

    slots: Annotated[int, Ge(1), Means("number of equal slots of the training share")] = 10

    def plan(self, apps: Sequence[LearningApp], chosen: ChosenConfigs) -> SharePlan:
        reserved, training = inference_reserve(apps, self.inference_share), np.zeros(len(apps))
        jobs = [(i, k) for i, k in enumerate(chosen) if k is not None]
        if jobs:
            work_s = [apps[i].candidates[k].seconds for i, k in jobs]
            speed = np.repeat(np.arange(1.0, self.slots + 1)[None] / self.slots, len(jobs), axis=0)
            slots = np.array(divide_slots(work_s, speed, self.slots))
            training[[i for i, _ in jobs]] = (1 - reserved) * slots / self.slots
        return SharePlan(training, equal_inference(apps, reserved), chosen)


def divide_slots(work_s: Sequence[float], speed: Floats, slots: int) -> list[int]:
    """Return the slots of each job; `speed` is the throughput p(a) on a = 1, 2, … slots, [jobs, slots]."""
    jobs, max_slots = range(len(work_s)), speed.shape[1]
    if slots < len(work_s):  # one slot each to the shortest jobs
        first = sorted(jobs, key=lambda j: work_s[j] / speed[j, 0])[:slots]
        return [int(j in first) for j in jobs]
    allocated = [1] * len(work_s)

    def left_s(j: int) -> float:
        return float(work_s[j] / speed[j, allocated[j] - 1])

    for _ in range(slots - len(work_s)):
        open_jobs = [j for j in jobs if allocated[j] < max_slots]
        if not open_jobs:
            break
        receiver = open_jobs[0]
        for other in open_jobs[1:]:  # to the shorter job if (p' - p) / p of it exceeds (p' - p) / p' of the longer one
            short, long = (other, receiver) if left_s(other) < left_s(receiver) else (receiver, other)
            speed_up = speed[short, allocated[short]] / speed[short, allocated[short] - 1]
            slow_down = speed[long, allocated[long] - 1] / speed[long, allocated[long]]
            receiver = short if speed_up + slow_down > 2 else long
        allocated[receiver] += 1
    return allocated
