"""A running search in its folder: trials to run, and a row for each finished trial.

The program that runs trials calls `next` and `ended`. After the search, its best settings and the defaults run
on held-out seeds. A session that is opened on a folder with trials goes on where they end.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from driftlab.errors import DataError, RequestError, as_typed
from driftlab.platform.core.documents import as_yaml
from driftlab.platform.core.files import remove_drafts, write_atomically
from driftlab.platform.core.space import Trial, best_of, key
from driftlab.platform.lab import paths
from driftlab.platform.lab.cells import check_files
from driftlab.platform.lab.seal import provenance
from driftlab.platform.results.relations.searches import SearchResults, open_search
from driftlab.platform.results.tables.read import read_spec
from driftlab.platform.results.tables.search import METRICS
from driftlab.platform.results.tables.trials import read_trials, write_trial
from driftlab.platform.tune.document import SpaceDocument, experiment_of, is_idle, validated
from driftlab.platform.tune.study import Study
from driftlab.platform.tune.trial import (
    BEST,
    DEFAULTS,
    DONE,
    FAILED,
    SEARCH,
    Assignment,
    TrialOutcome,
)

BEST_FILE = "best.yaml"


class TuneSession:
    """Assign trials and record their results."""

    def __init__(self, document: SpaceDocument, directory: Path) -> None:
        self.document, self.directory, self.problem = document, directory, document.problem
        self.defaults = document.defaults()
        rows = read_trials(directory).to_pylist()
        past = [self._trial(row) for row in rows if row["stage"] == SEARCH]
        self._accepted = {key(trial.settings) for trial in past if trial.number > 0}  # the defaults are no proposal
        self.study = Study(self.problem, document.searcher, document.trials, self.defaults, self._accepts)
        self._held_out = {row["stage"] for row in rows if row["stage"] != SEARCH}
        self._given = set(self._held_out)
        self._full = {row["trial"] for row in rows if row["stage"] == SEARCH and row["status"] == DONE}
        self.study.replay(past)

    def next(self) -> Assignment | None:
        """Give a trial to run; None while others have to end first, and when all are done."""
        proposal = self.study.ask()
        if proposal is not None:
            return Assignment(SEARCH, *proposal, self.document.seeds)
        return self._next_held_out() if self.searched else None

    @property
    def searched(self) -> bool:
        """Return whether every trial of the search has ended."""
        return self.study.over and len(self.study.history) == self.study.proposed

    @property
    def over(self) -> bool:
        """Return whether the search and the held-out runs have ended."""
        return self.searched and self._held_out >= set(self._stages())

    def ended(self, assignment: Assignment, outcome: TrialOutcome) -> None:
        """Write the rows of a trial that has ended, then pass its outcome to the searcher."""
        write_trial(self.directory, _rows(assignment, outcome))
        if assignment.stage != SEARCH:
            self._held_out.add(assignment.stage)
            return
        if outcome.status == DONE:
            self._full.add(assignment.number)
        self.study.tell(assignment.number, assignment.settings, self._usable(outcome.status, outcome.metrics))

    @property
    def best(self) -> Trial | None:
        """Give the best trial so far that ran to its end."""
        full = [trial for number, trial in sorted(self.study.history.items()) if number in self._full]
        return best_of(full, self.problem)

    def _accepts(self, settings: Mapping[str, Any]) -> bool:
        """Return whether settings contradict neither each other nor the length of the sessions.

        Those of an earlier trial were accepted when they were proposed; to read an experiment again takes milliseconds.
        """
        if key(settings) in self._accepted:
            return True
        try:
            return not is_idle(experiment_of(self.document.experiment, settings, self.document.seeds))
        except RequestError:
            return False

    def _usable(self, status: str, metrics: Mapping[str, float]) -> Mapping[str, float] | None:
        """Return metrics for the sampler; None, a failure, where one that it needs is missing."""
        return metrics if status != FAILED and self.problem.metrics.keys() <= metrics.keys() else None

    def _trial(self, row: Mapping[str, Any]) -> Trial:
        metrics = {name: row[name] for name in METRICS if row[name] is not None}
        return Trial(row["trial"], json.loads(row["settings"]), self._usable(row["status"], metrics))

    def _stages(self) -> dict[str, Mapping[str, Any]]:
        """List the settings for held-out seeds: the defaults, and the best settings if they differ."""
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


@contextmanager
def begin_search(document: SpaceDocument, out: Path | None) -> Iterator[TuneSession]:
    """Make and lock the folder of a new search."""
    path = paths.fresh(f"tune-{document.name}") if out is None else out
    with paths.begin_run(path, document.model_dump(mode="json")) as directory:
        yield _session(document, directory)


@contextmanager
def continue_search(path: Path) -> Iterator[TuneSession]:
    """Open and lock the folder of a search that was begun before."""
    document = document_in(path)
    with paths.locked(path):
        yield _session(document, path.resolve())


def document_in(path: Path) -> SpaceDocument:
    """Read the document of a search from its folder."""
    spec = dict(read_spec(path))
    if "space" not in spec:
        again = as_typed("driftlab", "run", "--resume", path)
        raise DataError(f"'{path}' is no search but a run: continue it with `{again}`.")
    return validated(spec, str(path / paths.SPEC))


def _session(document: SpaceDocument, directory: Path) -> TuneSession:
    remove_drafts(directory)
    paths.keep_info(directory, provenance)
    session = TuneSession(document, directory)
    if not session.over:
        check_files(experiment_of(document.experiment, {}, document.seeds))
    return session


def write_best(directory: Path, file: Path | None = None) -> Path | None:
    """Write the best settings with seeds and budget of their search; None if no trial succeeded."""
    found, file = open_search(directory), file or directory / BEST_FILE
    if found.recommended is None:
        return None
    text = as_yaml(_best(found))
    head = "# The settings that a search recommends. Use them with: driftlab run EXPERIMENT --tuned FILE\n"
    write_atomically(file, head + text)
    return file


def _best(found: SearchResults) -> dict[str, Any]:
    best, spec, budget = found.recommended, found.spec, found.budget
    assert best is not None
    held_out = {
        one.metric: {"best": one.best, "defaults": one.defaults, "verdict": one.verdict} for one in found.held_out()
    }
    return {
        "space": spec["name"],
        "system": spec["system"],
        "settings": dict(best.settings),
        "trial": best.number,
        "keeps_constraints": found.feasible,
        "measured": dict(best.metrics or {}),
        "held_out": held_out,
        "budget": {"trials": budget.trials, "streamed_s": budget.streamed_s, "searcher": spec["searcher"]},
        "seeds": [*spec["seeds"], *spec["held_out"]],
        "streamed_s_per_trial": float(found.searched["streamed_s"].max()),
        "space_digest": hashlib.sha256(json.dumps(spec["space"], sort_keys=True).encode()).hexdigest(),
    }
