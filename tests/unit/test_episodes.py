"""Members that are reset before each batch of the stream: every batch begins from the source."""

from __future__ import annotations

import numpy as np
import pytest
from stream_factory import member, real_app, run_app, stream

from driftlab.errors import RequestError
from driftlab.platform.core.registry import Member
from driftlab.platform.core.systems import System


def test_a_batch_resets_the_member():
    steps = {}
    for episodic in (False, "batch"):
        node = real_app(member("tent", stream_batch=4, learning_rate=0.1, episodic=episodic), frame_s=0.01)
        found = run_app(node, stream(10.0), np.arange(0, 11, 5.0))
        steps[episodic] = (sum(found["adaptations.iterations"]), node._adapter.memory.steps)
    assert steps[False] == (5, 5)
    assert steps["batch"] == (5, 1)


def test_phases_refuse_a_reset_before_each_batch():
    slots = {"streaming": Member("streaming", "on_device"), "scaling": Member("scaling", "fixed")}
    system = System("mine", "", adaptation=Member("adaptation", "shot", (("episodic", "batch"),)),
                    scheduling=Member("scheduling", "uniform"), **slots)  # fmt: skip
    assert "episodic: batch" in system.faults()[0]
    with pytest.raises(RequestError):
        Member("adaptation", "tent", (("episodic", "sometimes"),)).make()
