"""Any number of applications that learn on one device, under every scheduler of learners."""

from __future__ import annotations

import itertools
from typing import Any

import learning_factory as factory
import pytest
from loop_factory import FPS, rows, run, uploads

from driftlab.platform.core.records import Passes, TrialScores
from driftlab.platform.core.registry import Member
from driftlab.platform.world.apps import AppGoals, Event

MEMBERS = ("ekya", "elasticdnn", "joint", "recl", "afs", "synergy", "muri", "uniform_learning")
DISTILL = Member("adaptation", "distill", (("step_choices", (10, 20)),))
WORK = Passes((4,) * 10, (4,) * 10)


def ran(name: str, names: tuple[str, ...], after: float = 0.7, work: Passes = WORK, **more: Any) -> tuple[Any, Any]:
    """Run applications whose training configurations all have the same estimated gain."""
    session = factory.on_device(
        run_trials=lambda node, plan, phases: TrialScores(
            0.5, (after,) * len(phases), (work,) * len(phases), Passes((5,))
        )
    )
    given = {"adaptation": DISTILL, "scheduling": Member("scheduling", name), **factory.TEACHER, **more}
    return run(factory.OnDevice(uploads(5.0)), session=session, apps=names, **given)


def several(count: int) -> tuple[str, ...]:
    return tuple(f"app{number:03}" for number in range(count))


@pytest.mark.parametrize("name", MEMBERS)
class TestAnyNumber:
    """`run` also checks that the shares of every instant are of one machine."""

    def test_a_device_without_applications_has_no_shares(self, name):
        _, loop = ran(name, several(2), events=())
        assert rows(loop, "shares") == []

    def test_equal_applications_train_equally(self, name):
        session, loop = ran(name, several(2))
        assert {row["app"] for row in rows(loop, "updates")} == set(several(2))
        assert len(session.of("train")) == 2

    def test_training_without_an_expected_gain_is_declined_by_estimating_members(self, name):
        """Joint declines, and a row states it; curves of Ekya never fall, and an equal end is enough."""
        session, loop = ran(name, several(2), after=0.3)
        assert len(session.of("train")) == (0 if name == "joint" else 2)
        assert all(row["reason"] for row in rows(loop, "updates") if row["train_start_s"] is None)

    def test_an_application_departs_during_training(self, name):
        """Its phase makes no progress; the other one ends."""
        stays, leaves = several(2)
        events = (
            *(Event(0.0, "start", AppGoals(each, FPS)) for each in (stays, leaves)),
            Event(5.05, "stop", AppGoals(leaves, FPS)),
        )
        _, loop = ran(name, several(2), events=events)
        assert [row["app"] for row in rows(loop, "updates") if row["train_end_s"] is not None] == [stays]
        assert factory.seconds(loop, leaves) < factory.seconds(loop, stays) == pytest.approx(30.0)


@pytest.mark.parametrize("name", ["ekya", "elasticdnn"])
def test_trials_may_last_longer_than_the_window_and_the_session(name):
    session, loop = ran(name, several(2), work=Passes((4,) * 4000, (4,) * 4000))
    assert not session.of("train")
    assert {row["reason"] for row in rows(loop, "updates")} == {"the session ended before it was done"}


def test_trainings_alternate_in_micro_windows():
    recl = Member("scheduling", "recl", (("micro_window_s", 0.02),))
    _, loop = ran("recl", several(2), scheduling=recl)
    learns = [row for row in rows(loop, "shares") if row["training_share"]]
    assert [app for app, _ in itertools.groupby(row["app"] for row in learns)] == [*several(2)] * 5
    assert len({row["time_s"] for row in learns}) == len(learns)  # one at a time
    assert max(row["window_s"] for row in learns[:-1]) <= 0.02 + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("name", ["recl", "afs", "joint"])
def test_a_hundred_and_one_applications_train(name):
    _, loop = ran(name, several(101), duration_s=9.0)
    assert {row["app"] for row in rows(loop, "shares")} == set(several(101))
    learned = len(rows(loop, "updates"))
    assert learned == 101 or (name != "afs" and learned > 20)  # one after another, as long as the session lasts
