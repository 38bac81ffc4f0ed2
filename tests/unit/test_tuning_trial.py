"""A trial computes the same as `driftlab run`, window by window and with warm caches."""

from __future__ import annotations

import numpy as np
import pytest
import tuning_factory as factory

from driftlab.platform.lab.seal import run
from driftlab.platform.results.tables.read import open_run
from driftlab.platform.results.tables.search import METRICS, SEARCH_TABLES
from driftlab.platform.tune.document import experiment_of, overrides_of
from driftlab.platform.tune.trial import Assignment, WarmBackend, outcomes
from driftlab.tune_spaces import catalogue

SEEDS = (100, 103)
FRAMES = ("times_s", "images", "scenes", "labels")
STREETS = {
    "window_s": 2,
    "snapshots": 0,
    "student": {"network": "half", "pretrain_steps": 2},
    "workloads": [
        {"name": "streets/running", "duration_s": 8, "fps": 2, "height": 32, "width": 48},
        {"name": "streets/interview", "duration_s": 5, "fps": 2, "height": 32, "width": 48},
    ],
}
ON_STREETS = {
    "system": "ams",
    "experiment": STREETS,
    "space": {"systems.0.streaming.interval_s": [2, 3], "systems.0.adaptation.iterations": [2, 3]},
}


@pytest.fixture(scope="module")
def backend():
    return WarmBackend()


def outcome_of(document, settings, backend, seeds=SEEDS, every_window=False):
    return list(
        outcomes(document.experiment, Assignment("search", 0, settings, seeds), backend, every_window=every_window)
    )


SMALLEST = (
    "experiment.student.pretrain_steps=2",
    "experiment.systems.0.scaling={name: nas, exits: 2, stage_epochs: 0, operator_epochs: 0, path_epochs: 0}",
    "experiment.workloads.0.duration_s=4",
    "experiment.workloads.0.height=16",
    "experiment.workloads.0.width=16",
)


@pytest.mark.slow
def test_a_search_of_architectures_runs_other_paths_of_the_same_network(backend):
    """The smallest space `nas`: its default path consumes more than the one with thinner operators."""
    document = catalogue.load("nas", SMALLEST)
    thin = dict.fromkeys(document.problem.space.domains, "svd")
    (found, other) = (outcome_of(document, one, backend, SEEDS[:1])[0] for one in (document.defaults(), thin))
    assert [found.reason, other.reason] == [None, None]
    assert other.metrics["energy_j"] < 0.8 * found.metrics["energy_j"]


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, ON_STREETS], ids=["signs", "streets"])
def test_trial_metrics_equal_tables_of_a_run(changes, backend, tmp_path):
    document = factory.document(**changes)
    settings = {path: domain.at(1.0) for path, domain in document.problem.space.domains.items()}
    (found,) = outcome_of(document, settings, backend)
    experiment = experiment_of(document.experiment, settings, SEEDS).model_dump(mode="json")
    ran = open_run(run(experiment, out=tmp_path / "run").directory)
    rows, frames, devices = (ran.frame(name) for name in ("runs", "frames", "devices"))
    assert found.status == "done"
    assert len(found.cells) == len(rows)
    for name in ("score", "score_frame", "uplink_kbps", "downlink_kbps", "energy_j"):
        assert found.metrics[name] == pytest.approx(rows[name].mean(), rel=1e-12), name
    assert found.metrics["kbps"] == pytest.approx((rows["uplink_kbps"] + rows["downlink_kbps"]).mean(), rel=1e-12)
    late = frames.dropna(subset=["latency_ms"]).groupby("cell")["latency_ms"]
    assert found.metrics["latency_p50_ms"] == pytest.approx(late.median().mean(), rel=1e-12)
    assert found.metrics["latency_p95_ms"] == pytest.approx(late.quantile(0.95).mean(), rel=1e-12)
    assert found.metrics["memory_bytes"] == devices.groupby("cell")["peak_memory_bytes"].max().mean()
    assert found.streamed_s == rows["duration_s"].sum()
    for cell in found.cells:
        row = rows[(rows["workload"] == cell["workload"]) & (rows["seed"] == cell["seed"])].iloc[0]
        assert cell["metrics"]["score"] == row["score"]


def test_the_defaults_as_settings_are_the_defaults(backend):
    document = factory.document()
    (given,), (plain,) = (outcome_of(document, settings, backend) for settings in (document.defaults(), {}))
    assert given.metrics == plain.metrics


@pytest.mark.slow
def test_a_trial_reports_after_every_window_and_ends_as_without(backend):
    document = factory.document(**ON_STREETS)
    settings = document.defaults()
    *during, last = outcome_of(document, settings, backend, every_window=True)
    (whole,) = outcome_of(document, settings, backend)
    assert [one.time_s for one in during] == [2.0, 4.0, 6.0]
    assert [one.status for one in (*during, last)] == ["running"] * 3 + ["done"]
    assert last.metrics == whole.metrics
    assert during[-1].streamed_s == 22.0  # the short stream is over at 5 s
    assert set(during[-1].metrics) == set(METRICS) - {"memory_bytes"}


@pytest.mark.slow
def test_measures_of_a_trial_at_a_window_equal_those_of_a_shorter_run(backend):
    document = factory.document(**ON_STREETS)
    two = [{**part, "duration_s": length} for part, length in zip(STREETS["workloads"], (6, 5), strict=True)]
    shorter = factory.document(**{**ON_STREETS, "experiment": {**STREETS, "workloads": two}})
    during = outcome_of(document, {}, backend, every_window=True)[2]
    (short,) = outcome_of(shorter, {}, backend)
    assert during.metrics["kbps"] == pytest.approx(short.metrics["kbps"], rel=0.35)
    assert during.metrics["score"] == pytest.approx(short.metrics["score"], abs=0.05)
    for cell, ended in zip(during.cells, short.cells, strict=True):
        rest = 8 / 6 if cell["workload"] == "running" else 1.0  # the other one is over
        assert cell["metrics"]["energy_j"] == pytest.approx(rest * ended["metrics"]["energy_j"], rel=0.1)


def test_a_stopped_trial_releases_its_nodes(backend):
    document = factory.document(**ON_STREETS)
    running = outcomes(document.experiment, Assignment("search", 0, {}, SEEDS), backend, every_window=True)
    next(running)
    run_ = running.gi_frame.f_locals["run"]
    assert all(one.session.nodes for one in run_._running)
    running.close()
    assert not any(one.session.nodes for one in run_._running)


def test_errors_become_the_reason_of_the_trial(backend, monkeypatch):
    document = factory.document()
    (refused,) = outcome_of(document, {factory.BATCH: -5}, backend)
    assert (refused.status, refused.streamed_s) == ("failed", 0.0)
    assert "-5" in refused.reason

    from driftlab.platform.sim import runner

    def broken(*args, **kwargs):
        raise SystemExit("out of luck")

    monkeypatch.setattr(runner, "run_row", broken)
    (failed,) = outcome_of(document, {}, backend)
    assert failed.status == "failed"
    assert "out of luck" in failed.reason
    assert failed.streamed_s > 0


@pytest.mark.slow
def test_networks_and_frames_are_kept_from_trial_to_trial(backend, monkeypatch):
    from driftlab.datasets.signs.stream import SignsStream
    from driftlab.platform.sim.nodes.networks import Builder

    document = factory.document()
    outcome_of(document, {}, backend)
    monkeypatch.setattr(Builder, "build", lambda *args: pytest.fail("it was built again"))
    monkeypatch.setattr(SignsStream, "_frame", lambda *args: pytest.fail("it was drawn again"))
    (again,) = outcome_of(document, {factory.BATCH: 5}, backend)
    assert (again.status, again.reason) == ("done", None)


def test_settings_are_written_as_the_command_line_takes_them():
    settings = {"a.b": 1e-5, "c": [1.0, 0.5], "d": "x", "e": None, "f": True}
    assert overrides_of(settings) == ["a.b=1e-05", "c=[1.0, 0.5]", 'd="x"', "e=null", "f=true"]
    assert np.isfinite(1e-5)


def test_every_metric_has_a_column():
    assert set(METRICS) <= set(SEARCH_TABLES["trials"].names)
