"""Systems that learn, and sessions of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from loop_factory import (
    COST,
    FakeSession,
    ScriptedStreaming,
    rows,
    stored,
)

from driftlab.platform.core.records import Uploaded
from driftlab.platform.core.registry import Member
from driftlab.platform.scaling.base import single_profile
from driftlab.platform.sim.setting import BuiltNetwork, TeacherSpec
from driftlab.platform.world import hardware
from driftlab.platform.world.cost import inference_j, inference_s

PHONE = hardware.find("phone-hi")


ON_SERVER = Member("streaming", "ams", (("codec", "jpeg"), ("interval_s", 5.0), ("control", "fixed")))


ON_DEVICE = Member("streaming", "on_device", (("period_s", 5.0),))


FROM_TEACHER = Member("adaptation", "distill", (("iterations", 2), ("batch", 2)))


# Sharing --------------------------------------------------------------------------------------------------------------


class OnDevice(ScriptedStreaming):
    """Learns on the device."""

    learner_site = "device"


TEACHER = {
    "teacher": BuiltNetwork("teacher", single_profile(COST), "digest", "the teacher's weights"),
    "teacher_spec": TeacherSpec(kind="network"),
}


FORWARD_S = inference_s(COST, PHONE, batch=4)


LABEL_S, LABEL_J = 10 * inference_s(COST, PHONE), 10 * inference_j(COST, PHONE)


def taken(node: Any, sampling: Any) -> Uploaded:
    return Uploaded(len(sampling.times_s), 0, 0, sampling.times_s[-1], 0.0)


def on_device(**script: Callable[..., Any]) -> FakeSession:
    given = {"sample": taken, "store": lambda node, frames, labels, stamp_s: stored(frames.facts), **script}
    return FakeSession(**given)


def seconds(loop: Any, app: str) -> float:
    return sum(row["window_s"] for row in rows(loop, "shares") if row["app"] == app)
