"""Searches on one Ray: it starts for the first search that has trials left, and stops once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from command_factory import run_command

from driftlab.actors.cluster import ClusterConfig
from driftlab.errors import RequestError
from driftlab.tune_spaces import run


@pytest.fixture
def steps(monkeypatch):
    """The starts and stops of Ray, and the searches between them."""
    found = []
    cluster = SimpleNamespace(cpus=2, local=object(), run=lambda call: call(), close=lambda: found.append("stop"))
    monkeypatch.setattr(run, "connect", lambda config: found.append("start") or cluster)
    monkeypatch.setattr(run, "_fit", lambda session, *rest: found.append(session.name))
    return found


def search(name, *, over=False):
    return SimpleNamespace(name=name, over=over, document=SimpleNamespace(portable=False))


def test_searches_share_one_ray(steps):
    with run.SearchRunner(ClusterConfig()) as on_ray:
        for one in (search("done", over=True), search("tent"), search("onda")):
            on_ray.run(one, print)
    assert steps == ["start", "tent", "onda", "stop"]


def test_finished_searches_start_no_ray(steps):
    with run.SearchRunner(ClusterConfig()) as on_ray:
        on_ray.run(search("done", over=True), print)
    assert steps == []


def test_ray_stops_after_an_error(steps, monkeypatch):
    def broken(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "_fit", broken)
    with pytest.raises(KeyboardInterrupt), run.SearchRunner(ClusterConfig()) as on_ray:
        on_ray.run(search("tent"), print)
    assert steps == ["start", "stop"]


def test_a_search_that_needs_more_gpus_than_there_are_is_refused_before_ray_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(run.tune, "Tuner", lambda *_, **__: pytest.fail("Ray has started"))
    words = ["tune", "ams", "--set", "experiment.compute.gpus_per_actor=1", "--out", str(tmp_path / "search")]
    refused = run_command(words).exception
    assert isinstance(refused, RequestError)
    assert "compute.gpus_per_actor is 1" in str(refused)


def test_a_cluster_that_may_grow_has_as_many_trials_as_workers():
    """Those above its CPUs wait, so that its autoscaler adds computers; a local Ray has no more."""
    cluster, here = SimpleNamespace(cpus=2, local=None), SimpleNamespace(cpus=2, local=object())
    assert [run.concurrency(cluster, workers) for workers in (None, 1, 9)] == [2, 1, 9]
    assert [run.concurrency(here, workers) for workers in (None, 1, 9)] == [2, 1, 2]


def test_the_process_of_a_trial_imports_the_files_that_travel_with_the_search(monkeypatch):
    given = {}
    monkeypatch.setattr(run, "install_finder", given.update)
    monkeypatch.setattr(run.TrialTrainable, "_begin", lambda self, config: None)
    trainable = run.TrialTrainable.__new__(run.TrialTrainable)
    trainable.setup({}, experiment={}, sources={"/home/mine.py": b"code"}, shelf=None)
    assert given == {"/home/mine.py": b"code"}
