"""Churn of applications: the birth-death chain, its invariants, and reproducibility by seed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from driftlab.errors import RequestError
from driftlab.platform.world.apps import AppGoals, Churn, Event, draw_trace, from_mapping, running_apps, stationary

SIX = tuple(AppGoals(name, latency_goal_s=0.2) for name in ("VC", "VS", "VG", "RI-50", "RI-100", "RP"))
PAPER = (0.098, 0.127, 0.186, 0.245, 0.343)  # of the time with two to six applications


def drawn(seed: int, churn: Churn | None = None, apps: tuple[AppGoals, ...] = SIX) -> tuple[Event, ...]:
    return draw_trace(apps, churn or Churn(), np.random.default_rng(seed))


@pytest.mark.slow
def test_traces_have_the_time_shares_of_the_paper():
    counts: Counter[int] = Counter()
    apps: Counter[str] = Counter()
    for seed in range(1000):
        events = drawn(seed)
        for tick in range(60):
            now = running_apps(events, tick)
            counts[len(now)] += 1
            apps.update(app.name for app in now)
    assert set(counts) == {2, 3, 4, 5, 6}
    assert [counts[n] / 60_000 for n in range(2, 7)] == pytest.approx(PAPER, abs=0.015)
    assert [apps[app.name] / apps.total() for app in SIX] == pytest.approx([1 / 6] * 6, abs=0.01)


def test_stationary_distribution_is_invariant():
    churn = Churn(arrival_prob=0.3, departure_prob=0.2, min_apps=1, max_apps=4)
    law = stationary(churn, 4)
    step = np.diag([0.3] * 3, 1) + np.diag([0.2] * 3, -1)
    step += np.diag(1 - step.sum(axis=1))
    assert law @ step == pytest.approx(law)
    assert stationary(Churn(arrival_prob=0.0, departure_prob=0.0), 6) == pytest.approx([0.2] * 5)
    assert stationary(Churn(departure_prob=0.0), 6) == pytest.approx([0, 0, 0, 0, 1])


def test_events_are_ordered_and_consistent():
    for seed in range(50):
        events = drawn(seed, Churn(change_prob=0.3))
        assert list(events) == sorted(events, key=lambda event: event.time_s)
        assert events[-1].time_s < 60
        now: set[str] = set()
        for event in events:
            assert (event.app.name in now) == (event.kind != "start")
            now = now - {event.app.name} if event.kind == "stop" else now | {event.app.name}


def test_trace_depends_on_the_seed_and_not_on_the_order_of_applications():
    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert drawn(1, apps=SIX[::-1]) == drawn(1)


def test_goals_change_only_as_the_churn_allows():
    assert {event.kind for seed in range(20) for event in drawn(seed)} == {"start", "stop"}
    changes = [
        event.app for seed in range(50) for event in drawn(seed, Churn(change_prob=0.5)) if event.kind == "change"
    ]
    assert {app.priority for app in changes} == {1.0, 2.0, 4.0}
    assert {app.latency_goal_s for app in changes} == {0.1, 0.2, 0.4}
    without = (AppGoals("a"), AppGoals("b"))
    for event in drawn(0, Churn(change_prob=1.0), without):
        assert event.app.latency_goal_s is None


def test_fewer_applications_than_the_maximum_are_accepted():
    assert max(len(running_apps(drawn(seed, apps=SIX[:3]), tick)) for seed in range(9) for tick in range(60)) == 3


@pytest.mark.parametrize("apps", [(), SIX[:1], (SIX[0], SIX[0])])
def test_too_few_applications_are_refused(apps):
    with pytest.raises(RequestError, match="at least 2 applications of different names"):
        drawn(0, apps=apps)


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"min_apps": 7}, "min_apps \\(7\\) must not be above max_apps \\(6\\)"),
        ({"arrival_prob": 0.7, "departure_prob": 0.7}, "one event per tick"),
        ({"arival_prob": 0.1}, "did you mean 'arrival_prob'"),
        ({"duration_s": 0}, "duration_s"),
    ],
)
def test_wrong_churn_is_refused_with_its_faults(given, part):
    with pytest.raises(RequestError, match=part):
        from_mapping(given)
