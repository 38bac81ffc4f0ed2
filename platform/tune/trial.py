"""Run a trial's cells in this process, all advanced together window by window."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from driftlab.determinism import in_plain_words
from driftlab.errors import DriftlabError
from driftlab.one_process import PlainSession
from driftlab.platform.core.records import Rows
from driftlab.platform.lab.builds import settings_of
from driftlab.platform.lab.cells import cells_of
from driftlab.platform.lab.progress import Progress
from driftlab.platform.lab.read import Experiment
from driftlab.platform.sim.inline import InlineBackend, InlineJob, InlineSession
from driftlab.platform.sim.runner import Runner
from driftlab.platform.sim.session import NodeId, describe
from driftlab.platform.sim.setting import Cell, setup_key
from driftlab.platform.tune.document import experiment_of
from driftlab.platform.tune.measures import mean, measures_of, measures_so_far

SEARCH, BEST, DEFAULTS = "search", "best", "defaults"  # stages
RUNNING, DONE, STOPPED, FAILED = "running", "done", "stopped", "failed"
NETWORKS_KEPT = 16  # in a process, from trial to trial: more than the workloads and sizes of one search


@dataclass(frozen=True)
class Assignment:
    """A trial to run."""

    stage: str
    number: int
    settings: Mapping[str, Any]
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class TrialOutcome:
    """Result of a trial, or its measures so far."""

    status: str
    reason: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    cells: Sequence[Mapping[str, Any]] = ()  # of each: workload, fleet, seed, metrics
    time_s: float = 0.0
    streamed_s: float = 0.0
    host_seconds: float = 0.0
    host_overhead_seconds: float = 0.0
    host_worker: str | None = None


OnTrialEnd = Callable[[Assignment, TrialOutcome], None]
Shared = Callable[[Any], AbstractContextManager[None]]  # exchanges the files of a recipe with other computers


class WarmBackend(InlineBackend):
    """Keeps the networks of a trial, so that the next one in this process finds them."""

    def __init__(self, shared: Shared = nullcontext) -> None:
        super().__init__()
        self._built: dict[str, InlineJob] = {}
        self._shared = shared

    def open(self, session: str) -> InlineSession:
        """Open a session; the session for builds keeps its networks."""
        return _Building(self._built, self._shared) if session == "artefacts" else InlineSession()


class _Building(PlainSession):
    """Makes each artefact once."""

    def __init__(self, built: dict[str, InlineJob], shared: Shared) -> None:
        super().__init__()
        self._built, self._shared = built, shared

    def call(self, node: NodeId, verb: str, *args: Any) -> InlineJob:
        name = f"{verb} {args[0].key()}"
        if name not in self._built:
            with self._shared(args[0]):
                made = super().call(node, verb, *args)
            while len(self._built) >= NETWORKS_KEPT:
                del self._built[next(iter(self._built))]
            self._built[name] = made
        return self._built[name]


class Evaluation:
    """The cells of one trial; iterate over `windows`, and read `measures` at any time."""

    def __init__(self, experiment: Experiment, backend: WarmBackend) -> None:
        self.experiment = experiment
        contexts = settings_of(experiment, backend, Progress())
        self._running = [
            _Running(cell, contexts[setup_key(cell.workload, cell.system.scaling, cell.seed)], backend)
            for cell in cells_of(experiment)
        ]

    @property
    def streamed_s(self) -> float:
        """Add up how much video the devices have seen."""
        return sum(one.time_s * len(one.cell.devices) for one in self._running)

    def windows(self) -> Iterator[float]:
        """Advance all cells by a window and yield the time, until all are at their end."""
        while sum(one.advance() for one in self._running):  # each has to move
            yield max(one.time_s for one in self._running)

    @property
    def over(self) -> bool:
        """Return whether all cells have ended."""
        return all(one.over for one in self._running)

    def measures(self) -> list[dict[str, Any]]:
        """Measure every cell, as far as it has come."""
        return [
            {
                "workload": one.cell.workload,
                "fleet": one.cell.fleet,
                "seed": one.cell.seed,
                "metrics": measures_of(one.rows) if one.over else measures_so_far(one.runner, one.time_s),
            }
            for one in self._running
        ]

    def close(self) -> None:
        """Close the sessions of all cells, also of unfinished ones."""
        for one in self._running:
            one.session.close()


class _Running:
    """One cell while it runs."""

    def __init__(self, cell: Cell, context: Any, backend: WarmBackend) -> None:
        self.cell, self.session = cell, backend.open(cell.id)
        self.runner = Runner(cell, context, self.session)
        self.time_s = 0.0
        self._windows = self.runner.windows()

    def advance(self) -> bool:
        """Run the next window; return False at the end of the session."""
        progress = next(self._windows, None)
        if progress is None:
            self.session.close()
            return False
        self.time_s = progress.time_s
        return True

    @property
    def rows(self) -> Rows:
        return self.runner.ledger.rows

    @property
    def over(self) -> bool:
        """Return whether the cell has ended: it then has a row in `runs`."""
        return "runs" in self.rows


def outcomes(
    experiment: Mapping[str, Any], assignment: Assignment, backend: WarmBackend, *, every_window: bool
) -> Iterator[TrialOutcome]:
    """Run a trial and yield its outcome at the end; with `every_window` also after every window.

    An error, also a plug-in's sys.exit, becomes a failed outcome.
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
        reason = in_plain_words(str(error) if isinstance(error, DriftlabError) else describe(error))
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
