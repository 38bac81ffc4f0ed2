"""Searches on one Ray: it starts for the first search that has trials left, and stops once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from driftlab.actors.cluster import ClusterConfig
from driftlab.tune_spaces import run


@pytest.fixture
def steps(monkeypatch):
    """The starts and stops of Ray, and the searches between them."""
    found = []
    cluster = SimpleNamespace(cpus=2, run=lambda call: call(), close=lambda: found.append("stop"))
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
