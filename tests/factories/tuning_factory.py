"""A search that takes seconds, and trials whose outcome is made up from their settings."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np

from driftlab.platform.tune.document import SpaceDocument, parse
from driftlab.platform.tune.trial import DONE, FAILED, Assignment, TrialOutcome

RATE, BATCH = "systems.0.adaptation.learning_rate", "systems.0.adaptation.stream_batch"
SPACE: dict[str, Any] = {
    "name": "small",
    "summary": "A search for tests.",
    "system": "tent",
    "experiment": {
        "window_s": 1,
        "snapshots": 0,
        "student": {"network": "tiny_classifier", "pretrain_steps": 2},
        "workloads": [{"name": "signs/seasons", "duration_s": 3, "fps": 10, "height": 16, "width": 16}],
    },
    "space": {
        RATE: {"from": 1e-4, "to": 1e-1, "scale": "log", "why": "around the default"},
        BATCH: [5, 10, 15, 20],
    },
    "objectives": {"score": "max", "energy_j": "min"},
    "seeds": [100],
    "held_out": [200, 201],
    "trials": 10,
    "searcher": "random",
}


def raw(**changes: Any) -> dict[str, Any]:
    """Give the document with some keys changed."""
    return {**copy.deepcopy(SPACE), **changes}


def document(*overrides: str, **changes: Any) -> SpaceDocument:
    """Read it."""
    return parse(raw(**changes), overrides)


def made_up(assignment: Assignment, *, failing: tuple[int, ...] = ()) -> TrialOutcome:
    """Score the logarithm of the rate; larger batches draw less. Some trials fail."""
    if assignment.number in failing and assignment.stage == "search":
        return TrialOutcome(FAILED, "it broke", host_seconds=1.0)
    rate, batch = float(assignment.settings[RATE]), int(assignment.settings[BATCH])
    score = 1 - (np.log10(rate) + 2) ** 2 / 4
    cells = [
        {
            "workload": "seasons",
            "fleet": "one",
            "seed": seed,
            "metrics": {"score": score + seed % 7 / 1000, "energy_j": 1 / batch + seed % 3 / 1000},
        }
        for seed in assignment.seeds
    ]
    metrics = {name: float(np.mean([cell["metrics"][name] for cell in cells])) for name in ("score", "energy_j")}
    return TrialOutcome(DONE, None, metrics, cells, 3.0, 3.0 * len(cells), 1.0, 0.1, "here:1")


def play(session: Any, most: int | None = None, **how: Any) -> list[Assignment]:
    """Run the remaining trials of a session, or at most this number, sequentially."""
    played: list[Assignment] = []
    while (most is None or len(played) < most) and (assignment := session.next()) is not None:
        session.ended(assignment, made_up(assignment, **how))
        played.append(assignment)
    return played


def settings_by_number(session: Any) -> dict[int, str]:
    """List the settings of every trial of a search."""
    return {number: json.dumps(dict(one.settings)) for number, one in sorted(session.study.history.items())}


def make_search(folder: Any, trials: int = 24, objectives: Any = None, **how: Any) -> Any:
    """Make the folder of a search whose trials are made up."""
    from driftlab.platform.tune.session import begin_search

    changes = {"objectives": objectives} if objectives else {}
    with begin_search(document(f"trials={trials}", **changes), folder) as session:
        play(session, **how)
    return session.directory
