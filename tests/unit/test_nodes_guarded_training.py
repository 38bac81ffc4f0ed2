"""The net beneath a member: limits of time, members that fail, and the network as it was before."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from stream_factory import CLASSES, HEIGHT, WIDTH, Steps, application, run_app, steps, stream

from driftlab.platform.adaptation.base import Adapted, Batch, Phase
from driftlab.platform.core.limits import TookTooLong, time_limit
from driftlab.platform.core.records import Passes
from driftlab.platform.networks import state
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.sim.nodes.guarded_training import adapt_guarded
from driftlab.platform.sim.nodes.metering import CallMeter


def endless() -> None:
    """Continue after any exception, as code that catches all of them."""
    while True:
        try:
            sum(range(100))
        except Exception:
            continue


def guarded(member: Any, model: Any, *args: Any) -> Adapted:
    return adapt_guarded(member, model, *args, CallMeter(0, {}), count_cost(model, HEIGHT, WIDTH))


def in_thread(call: Any) -> list[Any]:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join(200)
    return found


class TestTimeLimit:
    def interrupted(self) -> bool:
        started = time.monotonic()
        with pytest.raises(TookTooLong), time_limit(0.2):
            endless()
        return 0.1 < time.monotonic() - started < 10

    def test_it_ends_an_endless_loop(self):
        assert self.interrupted()

    def test_in_a_thread_as_well(self):
        assert in_thread(self.interrupted) == [True]

    def test_it_interrupts_its_thread_only(self):
        reached = []

        def other() -> bool:
            while not reached:
                time.sleep(0.001)
            time.sleep(0.2)
            return True

        found: list[bool] = []
        thread = threading.Thread(target=lambda: found.append(other()))
        thread.start()
        assert self.interrupted()
        reached.append(1)
        thread.join(200)
        assert found == [True]

    @pytest.mark.slow
    @pytest.mark.parametrize("where", ["main", "thread"])
    def test_it_never_fires_after_its_block(self, where):
        """Blocks that end about when their time does: either they are interrupted inside, or not at all."""

        def race() -> int:
            inside = 0
            for number in range(150):
                try:
                    with time_limit(0.002):
                        until = time.perf_counter() + 0.002 + (number % 11 - 2) * 1e-3
                        while time.perf_counter() < until:
                            pass
                except TookTooLong:
                    inside += 1
                for _ in range(200):  # a late exception is raised here
                    sum(range(10))
            time.sleep(0.05)
            return inside

        (inside,) = [race()] if where == "main" else in_thread(race)
        assert 0 < inside < 150

    @pytest.mark.slow
    def test_an_interruption_at_the_edge_of_another_block_leaves_no_lock(self):
        def nested() -> int:
            hits = 0
            for _ in range(400):
                try:
                    with time_limit(0.0005):
                        while True:
                            with time_limit(60):
                                pass
                except TookTooLong:
                    hits += 1
            return hits

        found: list[int] = []
        thread = threading.Thread(target=lambda: found.append(nested()), daemon=True)
        thread.start()
        thread.join(200)
        assert found == [400]

    def test_exceptions_of_the_block_are_raised(self):
        with pytest.raises(KeyError), time_limit(10):
            raise KeyError

    def test_its_timers_end_with_their_blocks(self):
        before = threading.active_count()
        for _ in range(20):
            with time_limit(60):
                pass
        time.sleep(0.1)
        assert threading.active_count() <= before + 1


@dataclass(frozen=True)
class Faulty(Steps):
    """Change the network, and then do something wrong."""

    wrong: str = ""

    def adapt(self, model: Any, memory: Any, batch: Batch, phase: Phase) -> Any:
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                tensor.add_(float("nan") if self.wrong == "weights" and tensor.is_floating_point() else 1)
        if self.wrong == "raises":
            raise ValueError("no idea")
        if self.wrong == "endless":
            endless()
        if self.wrong == "type":
            return None
        losses = (1.0, float("inf")) if self.wrong == "loss" else (1.0,)
        predictions = np.zeros((1, HEIGHT, WIDTH), np.uint8) if self.wrong == "answers" else None
        work = None if self.wrong in ("work", "skipped") else Passes((4,))
        skipped = "nothing to do" if self.wrong == "skipped" else ""
        return Adapted("after", 1, losses, skipped=skipped, passes=work, predictions=predictions)


REASONS = {
    "raises": "ValueError: no idea",
    "endless": "did not end within 0.3 s",
    "type": "returned NoneType",
    "loss": "not finite (1, inf)",
    "answers": "1 predictions for 4 frames",
    "work": "passes is None",
    "weights": "weights or buffers that are not finite",
}


@pytest.mark.parametrize("wrong", REASONS)
def test_a_failing_member_leaves_a_reason_and_the_network_unchanged(wrong):
    model = build("half", CLASSES, seed=1)
    before = state.read(model)
    batch = Batch(stream(2.0).images, None, np.random.default_rng(0))
    limit_s = 0.3 if wrong == "endless" else 60.0
    done = guarded(Faulty(wrong=wrong), model, "before", batch, Phase(on_stream=True), limit_s)
    assert REASONS[wrong] in done.skipped
    assert done.state == "before"
    assert done.passes is not None
    assert replace(done.passes, others=()) == Passes()
    after = state.read(model)
    assert after.vector.tobytes() == before.vector.tobytes()
    assert state.changed_buffers(before.buffers, after.buffers) == ()


def test_a_skipping_member_keeps_its_reason():
    """It needs no work: there was none."""
    batch = Batch(stream(2.0).images, None, np.random.default_rng(0))
    done = guarded(Faulty(wrong="skipped"), build("half", CLASSES, seed=1), None, batch, Phase(), 10)
    assert done.skipped == "nothing to do"


def test_a_member_over_the_time_limit_is_not_called_again(monkeypatch):
    tried = []

    def adapt(member: Any, model: Any, memory: Any, batch: Batch, phase: Phase) -> None:
        tried.append(len(batch.images))
        endless()

    monkeypatch.setattr("stream_factory.Steps.adapt", adapt)
    found = run_app(application(steps(), member_limit_s=0.3), stream(10.0), (0.0, 10.0))
    assert tried == [4]
    assert len(found["adaptations.skipped"]) == 1
    assert all(found["frames.processed"])
