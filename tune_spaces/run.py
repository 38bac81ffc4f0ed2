"""Run searches with Ray Tune: on this machine or a cluster, quietly, until every trial has its row."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray import tune
from ray.tune.search import Searcher

from driftlab.actors.cluster import Cluster, ClusterConfig, connect, gpu_share
from driftlab.actors.pool import CELL_BYTES
from driftlab.determinism import make_deterministic
from driftlab.platform.core.plugins import install_finder
from driftlab.platform.lab.placement import sources_of
from driftlab.platform.networks.training.states import cache_folder
from driftlab.platform.sim import portable
from driftlab.platform.tune.document import experiment_of
from driftlab.platform.tune.trial import (
    FAILED,
    RUNNING,
    SEARCH,
    STOPPED,
    Assignment,
    OnTrialEnd,
    TrialOutcome,
    WarmBackend,
    outcomes,
)
from driftlab.tune_spaces.sharing import Sharing, start_shelf

if TYPE_CHECKING:  # Optuna, which the processes of trials do without
    from driftlab.platform.tune.session import TuneSession

log = logging.getLogger(__name__)

OUTCOME = "outcome"  # where a result holds everything that the ledger takes
ATTEMPTS = 3  # at a trial whose process is killed
LOST = f"its process ended {ATTEMPTS} times: it was killed, memory was short, or a library crashed"
RAYS_NAMES = {"cpu": "CPU", "gpu": "GPU"}
GIB = 2**30
SHORTAGE_S = 60.0  # without a running trial, before a warning; a trial's process starts within 10 s
REDUCTION = 4  # ASHA keeps 1 of REDUCTION trials at each rung
FIRST_RUNG = 1 / REDUCTION**2  # of the session; the next one is a quarter of it
QUIET = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a score is not there before the first frames were compared
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",  # nothing is restored from there
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}


class SearchRunner:
    """Runs several searches on one Ray.

    Ray starts for the first search that has trials left, and stops at the end of the block.
    """

    def __init__(self, config: ClusterConfig) -> None:
        self.config = config
        self._cluster: Cluster | None = None
        self._shelf: Any = None  # of trained networks, on a cluster

    def __enter__(self) -> SearchRunner:
        return self

    def __exit__(self, *error: object) -> None:
        if self._cluster is not None:
            self._cluster.close()

    def run(self, session: TuneSession, on_end: OnTrialEnd, callbacks: Sequence[tune.Callback] = ()) -> None:
        """Run the remaining trials of a session."""
        if session.over:
            return
        portable.check(session.document.portable)
        if self._cluster is None:
            os.environ.update(QUIET)
            self._cluster = connect(self.config)
            self._shelf = None if self._cluster.local else self._cluster.run(start_shelf)
        cluster, shelf = self._cluster, self._shelf
        workers = concurrency(cluster, self.config.workers)
        cluster.run(lambda: _fit(session, cluster, workers, shelf, on_end, callbacks))


def _fit(
    session: TuneSession,
    cluster: Cluster,
    workers: int,
    shelf: Any,
    on_end: OnTrialEnd,
    callbacks: Sequence[tune.Callback],
) -> None:
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # a trial that fails is a row
    document = session.document
    sources = sources_of(experiment_of(document.experiment, document.defaults(), document.seeds))
    trainable = tune.with_parameters(TrialTrainable, experiment=document.experiment, sources=sources, shelf=shelf)
    required = trial_resources(document.experiment, cluster, workers)
    tune.Tuner(
        tune.with_resources(trainable, required),
        tune_config=tune.TuneConfig(
            search_alg=SessionSearcher(session, on_end),
            scheduler=_scheduler(session),
            num_samples=-1,
            max_concurrent_trials=workers,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name="search",
            storage_path=str(_storage(session, cluster, callbacks)),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # a trial is short, and its row is kept
            callbacks=[ShortageWarning(required), *callbacks],
            verbose=0,
        ),
    ).fit()


def concurrency(cluster: Cluster, workers: int | None) -> int:
    """Return the maximum of trials at a time; those above the CPUs of a cluster wait until it has grown."""
    return min(workers or cluster.cpus, cluster.cpus) if cluster.local else workers or cluster.cpus


def trial_resources(experiment: Mapping[str, Any], cluster: Cluster, workers: int) -> dict[str, float]:
    """Return the resources of a trial: a CPU, on a cluster memory, and on a GPU the stated share.

    Without a stated share all GPUs are divided among the trials that run at the same time.
    """
    compute = experiment.get("compute") or {}
    share = compute.get("gpus_per_actor") or 0.0
    if compute.get("torch_device") == "cuda":
        share = share or gpu_share(cluster.gpus, workers)
    memory = {} if cluster.local else {"memory": float(CELL_BYTES)}
    return {"cpu": 1.0, **memory, **({"gpu": share} if share else {})}


def _storage(session: TuneSession, cluster: Cluster, callbacks: Sequence[tune.Callback]) -> Path:
    """Return the search's own folder of Ray Tune: temporary, or with loggers in the folder of the search."""
    folder = session.directory if callbacks or cluster.folder is None else cluster.folder / session.directory.name
    return folder / "tune"


def _scheduler(session: TuneSession) -> tune.schedulers.TrialScheduler | None:
    """Return an ASHA scheduler over simulated time if the document enables early stopping."""
    if not session.document.early_stopping:
        return None
    length_s: Any = max(workload["duration_s"] or 0.0 for workload in session.document.experiment["workloads"])
    first = session.problem.objectives[0]
    return tune.schedulers.ASHAScheduler(
        time_attr="time_s",
        metric=first.metric,
        mode=first.better,
        max_t=length_s,
        grace_period=length_s * FIRST_RUNG,
        reduction_factor=REDUCTION,
    )


class ShortageWarning(tune.Callback):
    """Warn once if no trial runs for a time: a cluster where no computer has room for one may never grow."""

    def __init__(self, required: Mapping[str, float], after_s: float = SHORTAGE_S) -> None:
        self._required = {RAYS_NAMES.get(name, name): amount for name, amount in required.items()}
        self._after_s = after_s
        self._idle_since_s, self._warned = time.monotonic(), False

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Check whether a trial runs; Tune calls this several times a second."""
        now_s = time.monotonic()
        if any(trial.status == trial.RUNNING for trial in trials):
            self._idle_since_s = now_s
        elif not self._warned and now_s - self._idle_since_s > self._after_s:
            self._warned, free = True, ray.available_resources()
            log.warning(
                "No trial has run for %.0f s. A trial requires %s on one computer, and free in the whole cluster are "
                "%s. The search waits; add a computer, or end it with Ctrl-C and resume it later.",
                self._after_s,
                _amounts(self._required),
                _amounts({name: free.get(name, 0.0) for name in self._required}),
            )


def _amounts(resources: Mapping[str, float]) -> str:
    return ", ".join(
        f"{amount / GIB:.1f} GiB of memory" if name == "memory" else f"{amount:g} {name}"
        for name, amount in resources.items()
    )


class SessionSearcher(Searcher):
    """The searcher of Ray Tune that gives out the trials of a session, and records each when it ends."""

    def __init__(self, session: TuneSession, on_end: OnTrialEnd) -> None:
        super().__init__()
        self._session, self._on_end = session, on_end
        self._under_way: dict[str, Assignment] = {}
        self._again: list[Assignment] = []  # trials whose process was lost
        self._lost: Counter[tuple[str, int]] = Counter()  # how often, by stage and number

    def suggest(self, trial_id: str) -> Any:
        """Give a trial its configuration; None while others have to end first."""
        assignment = self._again.pop(0) if self._again else self._session.next()
        if assignment is None:
            return self.FINISHED if self._session.over else None
        self._under_way[trial_id] = assignment
        early = self._session.document.early_stopping and assignment.stage == SEARCH
        return {**asdict(assignment), "every_window": early}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Ignore intermediate results."""

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Record a trial that has ended; one that was running was stopped by the scheduler."""
        assignment = self._under_way.pop(trial_id, None)
        if assignment is None:
            return
        lost = error or not result or OUTCOME not in result
        if lost and self._try_again(assignment):
            return
        outcome = TrialOutcome(FAILED, LOST) if lost or not result else outcome_of(result)
        if outcome.status == RUNNING:
            outcome = replace(outcome, status=STOPPED)
        self._session.ended(assignment, outcome)
        self._on_end(assignment, outcome)

    def _try_again(self, assignment: Assignment) -> bool:
        """Take a trial up again whose process was lost, in another one and from its beginning; not for ever.

        Tune would do so for trials that run, but not for one that has just been given to a process.
        """
        name = (assignment.stage, assignment.number)
        self._lost[name] += 1
        if self._lost[name] >= ATTEMPTS:
            return False
        self._again.append(assignment)
        return True

    def save(self, checkpoint_path: str) -> None:
        """Keep nothing here: the tables of the session are its state."""

    def restore(self, checkpoint_path: str) -> None:
        """Read nothing here: a session goes on from its tables."""

    def __getstate__(self) -> dict[str, Any]:
        """Exclude the session from Tune's pickles, from which nothing is restored."""
        return {}


class TrialTrainable(tune.Trainable):
    """One trial after another in one process, which keeps the networks that it has loaded."""

    def setup(self, config: dict[str, Any], **shared: Any) -> None:
        """Start the first trial of this process; `shared` values are not passed to loggers."""
        self._experiment = shared["experiment"]
        install_finder(shared["sources"])  # makes the files of users' members importable on other computers
        make_deterministic((self._experiment.get("compute") or {}).get("torch_device", "cpu"))
        shelf = shared["shelf"]
        self._backend = WarmBackend(Sharing(shelf, cache_folder())) if shelf is not None else WarmBackend()
        self._outcomes = self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Begin the next trial here; the one before may have been stopped."""
        self._outcomes.close()
        self._outcomes = self._begin(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """Run to the next report: one after each window where trials may be stopped, else the end."""
        outcome = next(self._outcomes)
        record = asdict(outcome) | {"host_worker": f"{socket.gethostname()}:{os.getpid()}"}
        return {**outcome.metrics, "time_s": outcome.time_s, OUTCOME: [record], "done": outcome.status != RUNNING}

    def cleanup(self) -> None:
        """Close the cells of a stopped trial."""
        self._outcomes.close()

    def _begin(self, config: dict[str, Any]) -> Any:
        assignment = Assignment(**{field.name: config[field.name] for field in fields(Assignment)})
        return outcomes(self._experiment, assignment, self._backend, every_window=config["every_window"])


def outcome_of(result: dict[str, Any]) -> TrialOutcome:
    """Read the outcome out of a result."""
    (record,) = result[OUTCOME]  # in a list: Tune flattens mappings
    return TrialOutcome(**record)
