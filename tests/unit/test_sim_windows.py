"""Windows of the loop: sampled frames, a cell's totals, and the places of nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from loop_factory import (
    DOWN_BYTES,
    UP_BYTES,
    FakeSession,
    Labels,
    ScriptedStreaming,
    processed,
    report_of,
    rows,
    run,
    tracking,
    uploads,
)

from driftlab.platform.core.records import Captured, Finished
from driftlab.platform.core.registry import Member


class TestFrames:
    def test_a_window_is_processed_at_its_end_and_read_one_window_later(self):
        session, _ = run(ScriptedStreaming(), duration_s=30.0)
        assert [note.now_s for note in session.of("run_stream")] == [10, 20, 30]
        assert [note.asked_s for note in session.of("run_stream")] == [[20], [30], [30]]

    def test_a_window_without_frames_is_not_watched(self):
        session = FakeSession(capture=lambda node, start_s, stop_s: Captured(int(start_s != 10), has_truth=True))
        session, loop = run(ScriptedStreaming(), session=session)
        assert [note.now_s for note in session.of("run_stream")] == [10, 30]
        assert rows(loop, "runs")[0]["frames"] == 2

    def test_truth_is_taken_from_the_stream_where_it_is(self):
        session, _ = run(ScriptedStreaming())
        assert [note.args[1] for note in session.of("run_stream")] == [None] * 3
        assert not session.of("label")

    def test_frames_without_truth_are_labelled_by_the_teacher(self):
        session = FakeSession(capture=lambda node, start_s, stop_s: Captured(5, has_truth=False))
        session, _ = run(ScriptedStreaming(), session=session)
        asked = session.of("label")
        assert [note.args for note in asked] == [(captured,) for captured in session.of("capture")]
        assert [note.args[1] for note in session.of("run_stream")] == asked

    def test_rows_of_the_nodes_are_in_the_order_of_windows(self):
        _, loop = run(ScriptedStreaming(), devices=2)
        frames = [(row["device"], row["frame"]) for row in rows(loop, "frames")]
        assert len(frames) == 6
        for device in ("device-0", "device-1"):
            numbers = [number for name, number in frames if name == device]
            assert numbers == sorted(numbers)


class TestSums:
    def test_a_run_sums_its_devices(self):
        _, loop = run(ScriptedStreaming(uploads(5.0)), devices=2)
        (whole,), devices = rows(loop, "runs"), rows(loop, "devices")
        assert [row["device"] for row in devices] == ["device-0", "device-1"]
        assert whole["frames"] == sum(row["frames"] for row in devices) == 2 * 60
        assert (whole["score"], whole["score_frame"], whole["score_global"]) == (0.25, 0.5, 1.0)
        assert whole["uplink_bytes"] == 2 * UP_BYTES
        assert whole["downlink_bytes"] == 2 * DOWN_BYTES
        assert whole["uplink_kbps"] == pytest.approx(UP_BYTES * 8 / 1000 / 30)
        assert whole["updates"] == 2
        assert whole["inference_j"] == pytest.approx(2 * 60 * 0.1)

    def test_unscored_frames_give_no_score(self):
        def unscored(*args):
            return replace(processed(*args), scored=0, counts=None)

        def finish(node):
            return Finished("", replace(report_of(0), counts=None))

        _, loop = run(ScriptedStreaming(), session=FakeSession(run_stream=unscored, finish=finish))
        (whole,) = rows(loop, "runs")
        assert whole["score"] is whole["score_frame"] is whole["score_global"] is None


class TestPlacesOfNodes:
    def specs(self, adaptation: Member) -> dict[str, Any]:
        session, _ = run(ScriptedStreaming(uploads(5.0)), adaptation=adaptation)
        return {node.kind: args for _, node, args in session.placed}

    def test_members_with_labels_train_at_the_server_only(self):
        distill = Member("adaptation", "distill")
        placed = self.specs(distill)
        assert placed["application"][0].student.adaptation == Member("adaptation", "frozen")
        assert placed["learner"][0].adaptation == distill
        assert placed["application"][1] == placed["learner"][1] == "the student's weights"

    def test_members_without_labels_run_on_the_device(self):
        assert self.specs(Member("adaptation", "frozen"))["application"][0].student.adaptation.name == "frozen"

    @pytest.mark.parametrize("training_runs", ["exclusive", "concurrent"])
    def test_an_online_member_is_placed_on_the_device(self, training_runs: str):
        tent = Member("adaptation", "tent", (("stream_batch", 4), ("training_runs", training_runs)))
        session, loop = run(Labels(uploads(5.0)), session=tracking(), adaptation=tent)
        placed = {node.kind: args for _, node, args in session.placed}
        assert placed["application"][0].student.adaptation == tent
        assert [device.trains_concurrently for device in loop.devices.values()] == [training_runs == "concurrent"]

    @pytest.mark.parametrize("snapshots", [0, 1, 3])
    def test_snapshots_are_spread_over_the_first_device_on_frames_that_exist(self, snapshots):
        session, _ = run(ScriptedStreaming(), devices=2, snapshots=snapshots)
        first, second = (args[0].snapshot_times_s for _, node, args in session.placed if node.kind == "application")
        assert second == ()
        assert first == {0: (), 1: (15.0,), 3: (5.0, 15.0, 25.0)}[snapshots]
