"""One price for every training of a site, and the time of codecs, patches and surgery."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import learning_factory as factory
import pytest
from loop_factory import (
    COST,
    DOWN_BYTES,
    PHASE,
    FakeSession,
    FixedMember,
    ScriptedStreaming,
    about,
    begin,
    rows,
    run,
    trained,
    uploads,
)

from driftlab.platform.core.records import LayerCost, Passes, TaskCost, TrialScores
from driftlab.platform.core.registry import Member
from driftlab.platform.scheduling.base import Allocation, Grant, Scheduling
from driftlab.platform.sim.messages import TOO_LATE
from driftlab.platform.sim.setting import TrainingSite
from driftlab.platform.world.cost import auxiliary_cost, task_cost

PHONE = factory.PHONE
SLOW = replace(PHONE, macs_per_s=250.0 * 32 * 48 * 10 / 0.8)  # it encodes the ten frames of an upload in 0.8 s
FED = replace(PHONE, load_s=0.01, prepare_s=0.02)
WORK, SCORING = Passes((4,) * 6, (4,) * 6), Passes((5,))


class TestSites:
    @pytest.mark.parametrize("passes", [WORK, SCORING, Passes((5, 4, 4), (4, 4), kept_bytes=9)])
    def test_a_site_prices_passes_by_network_and_batch_and_adds_the_feeding_of_steps(self, passes):
        cost, bare = TrainingSite(FED, None, None).training_cost(COST, passes), task_cost(COST, FED, passes)
        frames = sum(passes.backward)
        fed_s = {"storage": 0.01 * frames, "cpu": 0.02 * frames} if frames else {}
        assert dict(cost.seconds) == {**bare.seconds, **fed_s}
        assert (cost.joules, cost.memory_bytes) == (bare.joules, bare.memory_bytes)

    def test_a_measured_step_replaces_its_passes_and_no_others(self):
        surgery = LayerCost("cut", "Copy", 0, 0, 10**9, 10**9, 0)
        passes = Passes((4, 5, 4, 7), (4, 4), others=(surgery,))
        cost = TrainingSite(FED, None, 0.25).training_cost(COST, passes)
        outside_s = sum(task_cost(COST, FED, Passes((frames,))).isolated_s for frames in (5, 7))
        outside_s += FED.overhead_s + 2e9 / FED.bytes_per_s
        assert dict(cost.seconds) == {"accelerator": pytest.approx(2 * 0.25 + outside_s)}
        assert cost.joules == task_cost(COST, FED, passes).joules

    @pytest.mark.parametrize("machine", [PHONE, FED])
    def test_a_trial_of_a_phase_costs_what_the_phase_costs(self, machine):
        def costs(config: int | None) -> tuple[float, float]:
            class Chooser(Scheduling):
                uses_observed_accuracy = True

                def initial_trials(self, configs):
                    return range(configs)

                def allocate(self, window):
                    return Allocation((Grant(0.5, training_share=0.5, config=config),) * len(window.demands))

            session = factory.on_device(
                run_trials=lambda node, plan, phases: TrialScores(0.5, (0.7,), (WORK,), Passes()),
                train=lambda node, plan, watched: trained(passes=WORK),
            )
            given = {"adaptation": Member("adaptation", "distill", (("iterations", 6), ("batch", 4)))}
            given |= {"scheduling": FixedMember(Chooser()), "session": session, "machine": machine, **factory.TEACHER}
            _, loop = run(factory.OnDevice(uploads(5.0), phase=replace(PHASE, iterations=6)), **given)
            (update,) = rows(loop, "updates")
            return update["isolated_s"], update["energy_j"]

        labels = (
            10 * task_cost(COST, machine, Passes((1,))).isolated_s,
            10 * task_cost(COST, machine, Passes((1,))).joules,
        )
        declined, chosen = costs(None), costs(0)
        for tried, both, labelled in zip(declined, chosen, labels, strict=True):
            assert both - tried == pytest.approx(tried - labelled)


class TestCodecs:
    def test_a_message_leaves_when_it_is_encoded(self):
        _, loop = run(ScriptedStreaming(uploads(5.0)), machine=SLOW)
        up = rows(loop, "transfers")[0]
        assert [up[name] for name in ("queued_s", "start_s", "sent_s")] == pytest.approx([5.8, 5.8, 6.8])
        assert rows(loop, "devices")[0]["coding_j"] == pytest.approx(250 * 32 * 48 * 10 * 4.6e-12)

    def test_a_device_encodes_one_upload_at_a_time(self):
        _, loop = run(ScriptedStreaming(uploads(5.0)), machine=SLOW, apps=("a", "b"))
        sent = [(row["app"], row["queued_s"]) for row in rows(loop, "transfers") if row["direction"] == "up"]
        assert sent == [("a", pytest.approx(5.8)), ("b", pytest.approx(6.6))]

    def test_load_slows_what_is_encoded(self):
        _, loop = begin(ScriptedStreaming(()))
        device = loop.devices["device-0"]
        device.processor.set_speed(0.25)
        loop.clock.process(device.run_auxiliary(TaskCost({"cpu": 0.5})))
        loop.clock.run()
        assert loop.clock.now == pytest.approx(2.0)

    def test_a_free_bound_encodes_and_patches_in_no_time(self):
        streaming = ScriptedStreaming(uploads(5.0), free=True)
        session, loop = run(streaming, bound="oracle", machine=replace(SLOW, bytes_per_s=1.0))
        assert [note.now_s for note in session.of("apply")] == [5.0]
        assert rows(loop, "devices")[0]["coding_j"] > 0

    def test_what_is_encoded_after_the_end_arrives_too_late(self):
        slow = replace(SLOW, macs_per_s=SLOW.macs_per_s / 100)
        session, loop = run(ScriptedStreaming(uploads(5.0)), machine=slow)
        (up,) = rows(loop, "transfers")
        assert (up["queued_s"], up["refused"]) == (pytest.approx(85.0), TOO_LATE)
        assert not session.of("train")


class TestPatches:
    def applied(self, **options: Any) -> tuple[float, Any, Any]:
        session, loop = run(ScriptedStreaming(uploads(5.0)), **options)
        return [note.now_s for note in session.of("apply")], session.of("apply"), loop

    def test_weights_are_in_use_once_they_are_patched(self):
        moved = 2 * COST.weight_bytes + DOWN_BYTES
        times_s, calls, loop = self.applied(machine=replace(PHONE, bytes_per_s=moved / 1.5))
        assert times_s == about([10.2 + 1.5])
        assert calls[0].args[1] == times_s[0]
        assert rows(loop, "updates")[0]["arrive_s"] == about(10.2)  # on the link
        assert rows(loop, "devices")[0]["patching_j"] == pytest.approx(moved * 80.625e-12)

    def test_weights_that_are_not_patched_by_the_end_are_not_in_use(self):
        times_s, _, loop = self.applied(machine=replace(PHONE, bytes_per_s=1.0))
        assert times_s == []
        assert (rows(loop, "updates")[0]["reason"], rows(loop, "updates")[0]["accepted"]) == (TOO_LATE, None)
        assert rows(loop, "devices")[0]["patching_j"] == 0.0

    def test_a_device_behind_a_server_repeats_the_surgery_of_its_learner(self):
        cutting = LayerCost("cut", "Copy", 0, 0, 10**9, 10**9, 0)
        mixing = LayerCost("feedback", "MatMul", 4 * 10**9, 0, 10, 10, 0)
        session = {"train": lambda node, plan: trained(surgery=(cutting, mixing))}
        times_s, _, loop = self.applied(session=FakeSession(**session))
        assert times_s == about([10.2 + 2e9 / PHONE.bytes_per_s + 4e9 / PHONE.macs_per_s])
        moved = 2 * COST.weight_bytes + DOWN_BYTES + 2 * 10**9 + 20
        assert rows(loop, "devices")[0]["patching_j"] == pytest.approx(moved * 80.625e-12 + 4e9 * 4.6e-12)


def test_auxiliary_work_takes_the_longer_of_computing_and_moving():
    cost = auxiliary_cost(PHONE, macs=1e9, moved_bytes=1e6)
    assert cost.isolated_s == pytest.approx(max(1e9 / PHONE.macs_per_s, 1e6 / PHONE.bytes_per_s))
    assert cost.joules == pytest.approx(1e9 * 4.6e-12 + 1e6 * 80.625e-12)
    assert auxiliary_cost(PHONE, moved_bytes=1e9).isolated_s == pytest.approx(1e9 / PHONE.bytes_per_s)
