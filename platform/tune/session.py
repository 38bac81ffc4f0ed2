"""A search under way in a run folder: which trials are to do, and a row for each that has ended.

The program that runs trials asks `next`, and tells `ended`. After the search, its best settings and the defaults run
on held-out seeds. A session that is opened on a folder with trials goes on where they end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from driftlab.platform.core.space import Trial, best_of, key
from driftlab.platform.results.tables.search import METRICS
from driftlab.platform.results.tables.trials import read_trials, write_trial
from driftlab.platform.tune.document import SpaceDocument
from driftlab.platform.tune.samplers import searcher_of
from driftlab.platform.tune.study import Search
from driftlab.platform.tune.trial import DONE, FAILED, Assignment, TrialOutcome

SEARCH, BEST, DEFAULTS = "search", "best", "defaults"  # stages


class TuneSession:
    """Gives out trials and records them."""

    def __init__(self, document: SpaceDocument, directory: Path) -> None:
        self.document, self.directory, self.problem = document, directory, document.problem
        self.defaults = document.defaults()
        self.search = Search(searcher_of(document.searcher), self.problem, document.trials, self.defaults)
        rows = read_trials(directory).to_pylist()
        past = [self._trial(row) for row in rows if row["stage"] == SEARCH]
        self._held_out = {row["stage"] for row in rows if row["stage"] != SEARCH}
        self._given = set(self._held_out)
        self._full = {row["trial"] for row in rows if row["stage"] == SEARCH and row["status"] == DONE}
        self.search.replay(past)

    def next(self) -> Assignment | None:
        """Give a trial to run; None while others have to end first, and when all are done."""
        asked = self.search.ask()
        if asked is not None:
            return Assignment(SEARCH, *asked, self.document.seeds)
        return self._next_held_out() if self.searched else None

    @property
    def searched(self) -> bool:
        """Tell whether every trial of the search has ended."""
        return self.search.over and len(self.search.history) == self.search.asked

    @property
    def over(self) -> bool:
        """Tell whether there is nothing left to do."""
        return self.searched and self._held_out >= set(self._stages())

    def ended(self, assignment: Assignment, outcome: TrialOutcome) -> None:
        """Write the rows of a trial that has ended, then tell the searcher."""
        write_trial(self.directory, _rows(assignment, outcome))
        if assignment.stage != SEARCH:
            self._held_out.add(assignment.stage)
            return
        if outcome.status == DONE:
            self._full.add(assignment.number)
        self.search.tell(assignment.number, assignment.settings, self._told(outcome.status, outcome.metrics))

    @property
    def best(self) -> Trial | None:
        """Give the best trial so far that ran to its end."""
        full = [trial for number, trial in sorted(self.search.history.items()) if number in self._full]
        return best_of(full, self.problem)

    def _told(self, status: str, metrics: Mapping[str, float]) -> Mapping[str, float] | None:
        """Give the searcher what a trial measured; for it, a trial that lacks one of its metrics has failed."""
        return metrics if status != FAILED and self.problem.metrics.keys() <= metrics.keys() else None

    def _trial(self, row: Mapping[str, Any]) -> Trial:
        metrics = {name: row[name] for name in METRICS if row[name] is not None}
        return Trial(row["trial"], json.loads(row["settings"]), self._told(row["status"], metrics))

    def _stages(self) -> dict[str, Mapping[str, Any]]:
        """List what runs on held-out seeds; the best settings only where they are not the defaults."""
        best = self.best
        if not self.document.held_out or best is None:
            return {}
        own = {BEST: best.settings} if key(best.settings) != key(self.defaults) else {}
        return {**own, DEFAULTS: self.defaults}

    def _next_held_out(self) -> Assignment | None:
        for stage, settings in self._stages().items():
            if stage not in self._given:
                self._given.add(stage)
                return Assignment(stage, 0, settings, self.document.held_out)
        return None


def _rows(assignment: Assignment, outcome: TrialOutcome) -> dict[str, list[dict[str, Any]]]:
    trial = {
        "stage": assignment.stage,
        "trial": assignment.number,
        "status": outcome.status,
        "reason": outcome.reason,
        "settings": json.dumps(dict(assignment.settings)),
        "seeds": ",".join(map(str, assignment.seeds)),
        "cells": len(outcome.cells),
        "time_s": outcome.time_s,
        "streamed_s": outcome.streamed_s,
        **{name: outcome.metrics.get(name) for name in METRICS},
        "host_seconds": outcome.host_seconds,
        "host_overhead_seconds": outcome.host_overhead_seconds,
        "host_worker": outcome.host_worker,
    }
    settings = [
        {"path": path, "value": json.dumps(value), "number": _number(value)}
        for path, value in assignment.settings.items()
    ]
    measures = [
        {**{name: cell[name] for name in ("workload", "fleet", "seed")}, "metric": metric, "value": value}
        for cell in outcome.cells
        for metric, value in cell["metrics"].items()
    ]
    return {"trials": [trial], "settings": settings, "measures": measures}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
