"""One trial as it runs: what comes of it after every window, or why it failed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from driftlab.errors import DriftlabError
from driftlab.platform.sim.session import describe
from driftlab.platform.tune.evaluation import Evaluation, WarmBackend, experiment_of
from driftlab.platform.tune.measures import mean

RUNNING, DONE, STOPPED, FAILED = "running", "done", "stopped", "failed"


@dataclass(frozen=True)
class Assignment:
    """A trial to run."""

    stage: str
    number: int
    settings: Mapping[str, Any]
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class TrialOutcome:
    """What came of a trial, or what it measures so far."""

    status: str
    reason: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    cells: Sequence[Mapping[str, Any]] = ()  # of each: workload, fleet, seed, metrics
    time_s: float = 0.0
    streamed_s: float = 0.0
    host_seconds: float = 0.0
    host_overhead_seconds: float = 0.0
    host_worker: str | None = None


def outcomes(
    experiment: Mapping[str, Any], assignment: Assignment, backend: WarmBackend, *, every_window: bool
) -> Iterator[TrialOutcome]:
    """Run a trial; yield what it measures at its end, before that after every window where that is asked for.

    An error in it, a plugin's sys.exit too, is its outcome.
    """
    started, streamed_s = time.perf_counter(), 0.0
    try:
        with closing(Evaluation(experiment_of(experiment, assignment.settings, assignment.seeds), backend)) as run:
            began = time.perf_counter()
            for time_s in run.windows():
                streamed_s = run.streamed_s
                if every_window and not run.over:
                    yield _outcome(RUNNING, run, time_s, started)
            ended = time.perf_counter()
            done = _outcome(DONE, run, time_s, started)
        overhead_s = began - started + time.perf_counter() - ended
        yield replace(done, host_seconds=time.perf_counter() - started, host_overhead_seconds=overhead_s)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        reason = str(error) if isinstance(error, DriftlabError) else describe(error)
        yield TrialOutcome(FAILED, reason, streamed_s=streamed_s, host_seconds=time.perf_counter() - started)


def _outcome(status: str, run: Evaluation, time_s: float, started: float) -> TrialOutcome:
    cells = run.measures()
    return TrialOutcome(
        status=status,
        metrics=mean([cell["metrics"] for cell in cells]),
        cells=cells,
        time_s=time_s,
        streamed_s=run.streamed_s,
        host_seconds=time.perf_counter() - started,
    )
