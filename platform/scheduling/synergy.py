"""Synergy: shares of all engines by what each training can use, not by its part of the accelerator.

A training asks for the least of every engine at which its throughput is as good as it gets on its part of the
accelerator. Trainings that ask for little leave room for the others; where it does not suffice, one gets its
proportional share, and those that hold more than that give back.

Differs from the paper: one device takes the place of a cluster, and what is left of an engine is shared in proportion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
import numpy.typing as npt

from driftlab.platform.core.records import Engine
from driftlab.platform.scheduling.candidates import Candidate, LearningApp
from driftlab.platform.scheduling.plans import SharePlan, answering, reserve
from driftlab.platform.scheduling.sizing import Chosen, SharesAmongTrainings

Floats = npt.NDArray[np.float64]
ENGINES: tuple[Engine, ...] = get_args(Engine)  # the accelerator comes first
ROUNDING = 1e-9


@dataclass(frozen=True)
class Synergy(SharesAmongTrainings):
    """Share every engine by the demands of the trainings; each gets at least the proportional part that it can use."""

    def plan(self, apps: Sequence[LearningApp], chosen: Chosen) -> SharePlan:
        answers, learn = reserve(apps, self.answer), np.zeros(len(apps))
        jobs = sorted(
            ((i, apps[i].candidates[k]) for i, k in enumerate(chosen) if k is not None), key=lambda job: job[1].seconds
        )
        parts = {}
        if jobs:
            asked = np.array([best_case(one, 1 / len(jobs)) for _, one in jobs])
            _, held = place(asked, np.ones((1, len(ENGINES))))
            held = held / np.maximum(held.sum(axis=0), ROUNDING)  # what is left is shared in proportion
            parts = {
                i: dict(zip(map(str, ENGINES), row, strict=True))
                for (i, _), row in zip(jobs, held.tolist(), strict=True)
            }
            learn[[i for i, _ in jobs]] = (1 - answers) * held[:, 0]
        return SharePlan(learn, answering(apps, answers), chosen, parts)


def best_case(job: Candidate, share: float) -> list[float]:
    """Return the least of each engine at which a training is as fast as on this share of the accelerator."""
    seconds = job.need.seconds
    main_s = seconds.get("accelerator", 0.0)
    others = [min(1.0, share * seconds.get(engine, 0.0) / main_s) if main_s else share for engine in ENGINES[1:]]
    return [share, *others]


def place(asked: Floats, capacity: Floats) -> tuple[list[int | None], Floats]:
    """Place jobs in order on servers; return the server of each and what it holds. Column 0 is the accelerator.

    A job that finds too few free accelerators is passed over, and later ones may be placed.
    """
    held, servers = np.zeros_like(asked), [None] * len(asked)
    places: list[int | None] = list(servers)
    for job, wish in enumerate(asked):
        free = capacity - np.array([held[[s == server for s in places]].sum(axis=0) for server in range(len(capacity))])
        suits = np.flatnonzero(free[:, 0] >= wish[0] - ROUNDING)
        if not len(suits):
            continue
        order = suits[free[suits, 0].argsort(kind="stable")] if wish[0] <= 1 else suits
        proportional = {int(s): capacity[s] * wish[0] / capacity[s, 0] for s in order}
        tries = [(int(s), want) for want in (wish, None) for s in order]
        for server, want in tries:
            get = proportional[server] if want is None else want
            if (free[server] >= get - ROUNDING).all():
                places[job], held[job] = server, get
                break
        else:
            server = int(order[0])
            _take_back(held, asked, places, server, capacity[server], proportional[server])
            places[job], held[job] = server, proportional[server]
    return places, held


def _take_back(
    held: Floats, asked: Floats, places: Sequence[int | None], server: int, capacity: Floats, wanted: Floats
) -> None:
    """Set peers with more than a proportional share to that share, those with most CPU per accelerator first."""
    peers = [job for job, place in enumerate(places) if place == server]
    for job in sorted(peers, key=lambda j: (-held[j, 1] / held[j, 0], -held[j, 2:].sum() / held[j, 0])):
        if (capacity - held[peers].sum(axis=0) >= wanted - ROUNDING).all():
            return
        proportional = capacity * held[job, 0] / capacity[0]
        if (held[job] > proportional + ROUNDING).any():
            held[job] = np.minimum(held[job], proportional)
