"""Run a session with Ray Tune: on this machine or a cluster, quietly, until every trial has its row."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray import tune

from driftlab.actors.cluster import Cluster, ClusterConfig, connect
from driftlab.platform.sim import portable
from driftlab.platform.tune.session import TuneSession
from driftlab.platform.tune.trial import Assignment, TrialOutcome
from driftlab.tune_spaces.searching import SessionSearcher
from driftlab.tune_spaces.trainable import TrialTrainable

REDUCTION = 4  # ASHA keeps one of so many trials at each rung
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

Told = Callable[[Assignment, TrialOutcome], None]


@dataclass(frozen=True)
class SearchPlace:
    """Where trials run, and how many at once."""

    workers: int | None = None
    address: str | None = None
    go_on: str = ""


def run_session(session: TuneSession, place: SearchPlace, told: Told, callbacks: Sequence[tune.Callback] = ()) -> None:
    """Run what is left of a session; Ray is started for it and ends with it."""
    if session.over:
        return
    portable.check(session.document.portable)
    os.environ.update(QUIET)
    cluster = connect(ClusterConfig(address=place.address, workers=place.workers, go_on=place.go_on))
    try:
        cluster.run(lambda: _fit(session, cluster, place, told, callbacks))
    finally:
        cluster.close()


def _fit(
    session: TuneSession, cluster: Cluster, place: SearchPlace, told: Told, callbacks: Sequence[tune.Callback]
) -> None:
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # a trial that fails is a row
    workers = min(place.workers or cluster.cpus, cluster.cpus)
    trainable = tune.with_parameters(TrialTrainable, experiment=session.document.experiment)
    tune.Tuner(
        tune.with_resources(trainable, {"cpu": 1}),
        tune_config=tune.TuneConfig(
            search_alg=SessionSearcher(session, told),
            scheduler=_scheduler(session),
            num_samples=-1,
            max_concurrent_trials=workers,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name="search",
            storage_path=str(_storage(session, cluster, callbacks)),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # a trial is short, and its row is kept
            callbacks=list(callbacks),
            verbose=0,
        ),
    ).fit()


def _storage(session: TuneSession, cluster: Cluster, callbacks: Sequence[tune.Callback]) -> Path:
    """Let Tune write where it is cleared away; where a user's logger writes, beside the tables."""
    folder = session.directory if callbacks or cluster.folder is None else cluster.folder
    return folder / "tune"


def _scheduler(session: TuneSession) -> tune.schedulers.TrialScheduler | None:
    """Stop trials that fall behind at a rung, by virtual time, where that was asked for."""
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
