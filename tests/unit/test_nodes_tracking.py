"""The cost of tracking for an application: flows counted by hand, in seconds and joules."""

from __future__ import annotations

from typing import Any

import pytest
from stream_factory import ENERGY, HEIGHT, WIDTH, application, columns, cut_schedule, run_app, spent, stream

from driftlab.platform.core.registry import Member
from driftlab.platform.networks.tasks.tasks import SEGMENTATION

FROZEN = Member("adaptation", "frozen")
PIXELS = HEIGHT * WIDTH * 21 / 16
WARP_MACS, WARP_BYTES = 2 * 4, (2 + 2 + 2) * 4 + 2 * 4 + 1 + 1  # two maps of two floats into one; a map, a label map
FLOW_MACS = PIXELS * (200 + 5 * (50 + 10 * 9)) + HEIGHT * WIDTH * WARP_MACS  # windows of nine pixels
FLOW_BYTES = PIXELS * 5 * 4 * 12 + HEIGHT * WIDTH * WARP_BYTES
FLOW_J = FLOW_MACS * ENERGY.mac_pj * 1e-12 + FLOW_BYTES * ENERGY.dram_pj_per_byte * 1e-12
INFERENCE_J = 4.748e-3
LABELS = SEGMENTATION.pack(stream().labels[0])


def tracked(keyframes: list[tuple[float, float]], macs_per_s: float, *, chained: bool = True) -> dict[str, list[Any]]:
    node = application(FROZEN, macs_per_s, tracks=True, chained=chained)
    for captured_s, arrive_s in keyframes:
        assert node.track(LABELS, captured_s, arrive_s).facts.accepted
    return run_app(node, stream(6.0), (0.0, 2.9, 6.0))


def flows(found: dict[str, list[Any]], macs_per_s: float) -> list[float | None]:
    """Count flows by the latency that they add to a prediction."""
    return [
        None if latency is None else round((latency / 1e3 * macs_per_s - 4e6) / FLOW_MACS, 6)
        for latency in found["frames.latency_ms"]
    ]


def test_a_chain_of_flows_is_computed_once_and_extended_frame_by_frame():
    """Labels of 1 s arrive at 2.2 s: 3 flows to 2.5 s. Those of 3 s arrive at 4.2 s and reuse the chain."""
    found = tracked([(1.0, 2.2), (3.0, 4.2)], 40e6)
    assert flows(found, 40e6) == [0, 0, 0, 0, 0, 3, 1, 1, 1, 1, 1, 1]
    assert spent(found, "tracking") == pytest.approx(9 * FLOW_J, rel=1e-9)
    assert spent(found, "inference") == pytest.approx(12 * INFERENCE_J, rel=1e-9)


def test_a_flow_straight_to_the_labels_is_one_for_each_frame():
    found = tracked([(1.0, 2.2), (3.0, 4.2)], 40e6, chained=False)
    assert flows(found, 40e6) == [0] * 5 + [1] * 7
    assert spent(found, "tracking") == pytest.approx(7 * FLOW_J, rel=1e-9)


def test_frames_that_are_missed_are_not_tracked():
    """Inference takes 0.6 s: every other frame is missed, and flows skip the missed frames."""
    found = tracked([(1.0, 2.2)], 4e6 / 0.6)
    assert found["frames.processed"] == [True, False] * 6
    assert flows(found, 4e6 / 0.6)[::2] == [0, 0, 0, 2, 1, 1]
    assert spent(found, "tracking") == pytest.approx(4 * FLOW_J, rel=1e-9)
    assert spent(found, "inference") == pytest.approx(6 * INFERENCE_J, rel=1e-9)
    assert sum(facts.busy_s for facts in found["facts"]) == pytest.approx(6 * 0.6 + 4 * FLOW_MACS / 4e6 * 0.6)


def test_flows_that_take_long_cost_the_next_frames():
    """Three flows at once last until 2.5 s + 0.505 s; the frame of 3 s is missed."""
    macs_per_s = (4e6 + 3 * FLOW_MACS) / 0.505
    found = tracked([(1.0, 2.2)], macs_per_s)
    assert [which for which, flag in enumerate(found["frames.processed"]) if not flag] == [6]
    assert flows(found, macs_per_s)[5:9] == [3, None, 1, 1]


def test_torn_labels_are_refused_and_cost_no_energy():
    node = application(FROZEN, 40e6, tracks=True)
    assert node.track(LABELS[:-9], 1.0, 1.2).facts.reason.startswith("torn")
    reply = node.run_stream(stream(4.0), None, 4.0, cut_schedule(((0.0, 1.0),), 0.0, 4.0))
    assert reply.facts.joules["tracking"] == 0.0
    assert columns([reply.rows])["frames.processed"] == [True] * 8
