"""Results of a search: Pareto front, best trial, its scores on held-out seeds, importance of settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from driftlab.platform.core.space import (
    Domain,
    Objective,
    OneOf,
    Range,
    SearchProblem,
    Space,
    Trial,
    best_of,
    constraint_of,
    leading,
)
from driftlab.platform.results import stats
from driftlab.platform.results.stats import ComparisonResult, Estimate, Floats, verdict
from driftlab.platform.results.tables.read import Run, open_run
from driftlab.platform.results.tables.search import METRICS

if TYPE_CHECKING:
    import pandas as pd

SEARCH, BEST, DEFAULTS = "search", "best", "defaults"  # stages
FEWEST = 10  # trials for the importance of settings
DONE, STOPPED, FAILED = "done", "stopped", "failed"  # states of a trial


@dataclass(frozen=True)
class HeldOut:
    """A metric on held-out seeds: the best settings, the defaults, and the mean difference over seeds."""

    metric: str
    better: str  # max or min
    best: float | None
    defaults: float | None
    difference: Estimate | None
    verdict: ComparisonResult


@dataclass(frozen=True)
class SearchBudget:
    """Trials and time that a search has spent on a system."""

    trials: int
    failed: int
    stopped: int
    streamed_s: float
    host_seconds: float


class SearchResults:
    """Results of a search, read from its tables."""

    def __init__(self, run: Run) -> None:
        self.run, self.spec = run, run.spec
        self.trials = run.frame("trials")
        self.measures = run.frame("measures")
        self.objectives = tuple(Objective(metric, better) for metric, better in self.spec["objectives"].items())
        constraints = tuple(map(constraint_of, self.spec["constraints"]))
        self.space = Space({path: _domain(part) for path, part in self.spec["space"].items()})
        self.problem = SearchProblem(self.space, self.objectives, constraints)

    @property
    def searched(self) -> pd.DataFrame:
        """List the trials of the search itself, in their order."""
        return self.trials[self.trials["stage"] == SEARCH]

    @property
    def full(self) -> list[Trial]:
        """List the completed trials that measured all objectives and constraints."""
        done = self.searched[self.searched["status"] == DONE].dropna(subset=list(self.problem.metrics))
        return [_trial(row) for row in done.to_dict("records")]

    @property
    def best(self) -> Trial | None:
        """Return the trial that was best in the search."""
        return best_of(self.full, self.problem)

    @property
    def supported(self) -> bool:
        """Return whether held-out seeds show an objective better and the first not worse, or there are none."""
        verdicts = [row.verdict for row in self.held_out() if row.metric in {one.metric for one in self.objectives}]
        return not self.spec["held_out"] or ("better" in verdicts and verdicts[0] != "worse")

    @property
    def recommended(self) -> Trial | None:
        """Return the best trial if held-out seeds support it, else that with the defaults."""
        defaults = next((trial for trial in self.full if trial.number == 0), None)
        return self.best if self.supported or defaults is None else defaults

    @property
    def front(self) -> list[Trial]:
        """List the Pareto-optimal trials."""
        return leading(self.full, self.problem)

    @property
    def feasible(self) -> bool:
        """Return whether the recommended trial satisfies every constraint."""
        return self.recommended is not None and self.recommended.violation(self.problem) == 0

    @property
    def budget(self) -> SearchBudget:
        """Add up the trials and times of the search; runs on held-out seeds do not count."""
        rows = self.searched
        states = rows["status"].value_counts()
        return SearchBudget(
            trials=len(rows),
            failed=int(states.get(FAILED, 0)),
            stopped=int(states.get(STOPPED, 0)),
            streamed_s=float(rows["streamed_s"].sum()),
            host_seconds=float(rows["host_seconds"].sum()),
        )

    def held_out(self) -> list[HeldOut]:
        """Compare the best settings with the defaults on held-out seeds, pair by pair."""
        return [self._compared(metric, better) for metric, better in self.problem.metrics.items()]

    def _compared(self, metric: str, better: str) -> HeldOut:
        rows = self.measures[self.measures["metric"] == metric]
        both = stats.pairs(rows, BEST, DEFAULTS, "value", ["workload", "fleet", "seed"], "stage")
        difference = stats.paired_difference(both)
        sides = {stage: rows[rows["stage"] == stage]["value"] for stage in (BEST, DEFAULTS)}
        means = {stage: float(own.mean()) if len(own) else None for stage, own in sides.items()}
        judged = verdict(difference, less_is_better=better == "min")
        return HeldOut(metric, better, means[BEST], means[DEFAULTS], difference, judged)


def open_search(path: str | Path) -> SearchResults:
    """Open the folder of a search."""
    return SearchResults(open_run(path))


def is_search(run: Run) -> bool:
    """Return whether a run folder is that of a search."""
    return "space" in run.spec


def _domain(part: Mapping[str, Any]) -> Domain:
    """Read a domain from the spec of a search."""
    if part["values"] is not None:
        return OneOf(tuple(part["values"]), part["ordered"])
    return Range(part["from"], part["to"], part["scale"] == "log", part["integer"])


def _trial(row: Mapping[str, Any]) -> Trial:
    metrics = {name: row[name] for name in METRICS if row[name] == row[name]}  # a missing one is NaN
    return Trial(row["trial"], json.loads(row["settings"]), metrics)


def importance(trials: Sequence[Trial], space: Space, metric: str) -> Mapping[str, float]:
    """Return the share of a metric's variance over trials that each setting explains, the largest first.

    Ordered values are fitted by a parabola over the position in the domain, categories by one mean each. The share,
    from 0 to 1, is adjusted for the number of coefficients, so that noise explains nothing on average. Interactions of
    settings are not included, and a searcher that converges early leaves little variance to explain. Empty if there
    are too few trials.
    """
    inside = [trial for trial in trials if trial.metrics and space.positions(trial.settings) is not None]
    values = np.array([(trial.metrics or {})[metric] for trial in inside])
    if len(inside) < FEWEST or not np.ptp(values):
        return {}
    points = np.array([space.positions(trial.settings) for trial in inside])
    shares = {path: _explained(points[:, k], domain, values) for k, (path, domain) in enumerate(space.domains.items())}
    return dict(sorted(shares.items(), key=lambda pair: -pair[1]))


def _explained(positions: Floats, domain: Domain, values: Floats) -> float:
    """Compute the adjusted coefficient of determination, 0 where it is below."""
    terms = _terms(positions, domain)
    count, coefficients = len(values), int(np.linalg.matrix_rank(terms))
    if count <= coefficients:
        return 0.0
    fitted = terms @ np.linalg.lstsq(terms, values, rcond=None)[0]
    left = ((values - fitted) ** 2).sum() / ((values - values.mean()) ** 2).sum()
    return max(0.0, 1.0 - float(left) * (count - 1) / (count - coefficients))


def _terms(positions: Floats, domain: Domain) -> Floats:
    if isinstance(domain, OneOf) and not domain.ordered:
        names: Floats = (positions[:, None] == np.unique(positions)[None]).astype(np.float64)
        return names
    return np.stack([np.ones_like(positions), positions, positions**2], axis=1)
