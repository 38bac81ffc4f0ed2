"""Synergy (OSDI 2022): shares of all resources by sensitivity instead of GPU-proportional shares.

A training demands the least of every resource at which it is as fast as its share of the accelerator permits (its
best-case demand). Light trainings leave the rest to the others. If a demand does not fit, the job receives its
proportional share, and jobs that hold more than theirs are reduced (the paper's TUNE policy).

Differs from the paper: one device takes the place of a cluster, and the rest of a resource is shared in proportion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
import numpy.typing as npt

from driftlab.platform.core.records import Resource
from driftlab.platform.scheduling.candidates import Candidate, LearningApp
from driftlab.platform.scheduling.plans import SharePlan, equal_inference, inference_reserve
from driftlab.platform.scheduling.sizing import ChosenConfigs, SharesAmongTrainings

Floats = npt.NDArray[np.float64]
RESOURCES: tuple[Resource, ...] = get_args(Resource)  # the accelerator comes first
ROUNDING = 1e-9


@dataclass(frozen=True)
class Synergy(SharesAmongTrainings):
    """Synergy (OSDI 2022): allocate accelerator, CPU, storage and link by each training's sensitivity."""

    def plan(self, apps: Sequence[LearningApp], chosen: ChosenConfigs) -> SharePlan:
        """Place the jobs by their demands, shortest first, and divide the rest of each resource."""
        reserved, training = inference_reserve(apps, self.inference_share), np.zeros(len(apps))
        jobs = sorted(
            ((i, apps[i].candidates[k]) for i, k in enumerate(chosen) if k is not None), key=lambda job: job[1].seconds
        )
        resources = {}
        if jobs:
            demands = np.array([best_case_demand(one, 1 / len(jobs)) for _, one in jobs])
            _, allocated = tune_placement(demands, np.ones((1, len(RESOURCES))))
            allocated = allocated / np.maximum(allocated.sum(axis=0), ROUNDING)
            resources = {
                i: dict(zip(map(str, RESOURCES), row, strict=True))
                for (i, _), row in zip(jobs, allocated.tolist(), strict=True)
            }
            training[[i for i, _ in jobs]] = (1 - reserved) * allocated[:, 0]
        return SharePlan(training, equal_inference(apps, reserved), chosen, resources)


def best_case_demand(job: Candidate, share: float) -> list[float]:
    """Return the least of each resource at which a training is limited by its accelerator share."""
    seconds = job.cost.seconds
    main_s = seconds.get("accelerator", 0.0)
    others = [min(1.0, share * seconds.get(name, 0.0) / main_s) if main_s else share for name in RESOURCES[1:]]
    return [share, *others]


def tune_placement(demands: Floats, capacity: Floats) -> tuple[list[int | None], Floats]:
    """Place jobs in order; return the server of each (None: it waits) and its resources.

    A job is tried with its demand, then with its proportional share; then peers are reduced to theirs. Column 0 is the
    accelerator.
    """
    allocated = np.zeros_like(demands)
    servers: list[int | None] = [None] * len(demands)
    for job, demand in enumerate(demands):
        used = [allocated[[one == server for one in servers]].sum(axis=0) for server in range(len(capacity))]
        free = capacity - np.array(used)
        suitable = np.flatnonzero(free[:, 0] >= demand[0] - ROUNDING)
        if not len(suitable):
            continue
        order = suitable[free[suitable, 0].argsort(kind="stable")] if demand[0] <= 1 else suitable
        proportional = {int(s): capacity[s] * demand[0] / capacity[s, 0] for s in order}
        attempts = [*((int(s), demand) for s in order), *((int(s), proportional[int(s)]) for s in order)]
        for server, share in attempts:
            if (free[server] >= share - ROUNDING).all():
                servers[job], allocated[job] = server, share
                break
        else:
            server = int(order[0])
            _reduce_peers(allocated, servers, server, capacity[server], proportional[server])
            servers[job], allocated[job] = server, proportional[server]
    return servers, allocated


def _reduce_peers(
    allocated: Floats, servers: Sequence[int | None], server: int, capacity: Floats, required: Floats
) -> None:
    """Reduce peers to proportional shares until `required` is free, most CPU per accelerator first."""
    peers = [job for job, place in enumerate(servers) if place == server]
    for job in sorted(
        peers, key=lambda j: (-allocated[j, 1] / allocated[j, 0], -allocated[j, 2:].sum() / allocated[j, 0])
    ):
        if (capacity - allocated[peers].sum(axis=0) >= required - ROUNDING).all():
            return
        proportional = capacity * allocated[job, 0] / capacity[0]
        if (allocated[job] > proportional + ROUNDING).any():
            allocated[job] = np.minimum(allocated[job], proportional)
