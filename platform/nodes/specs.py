"""What nodes are made from: plain values that can be sent anywhere, and that the driver can make without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from driftlab.platform.core.catalogue import Member
from driftlab.platform.core.records import ModelCost
from driftlab.platform.world.hardware import Hardware


@dataclass(frozen=True)
class StreamSpec:
    """What a device looks at: enough to open the same stream anywhere."""

    workload: str
    seed: int
    height: int
    width: int
    fps: float
    duration_s: float
    params: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class StudentSpec:
    """A student network, and how it is adapted and scaled where it lives."""

    network: str
    classes: int
    height: int
    width: int
    adaptation: Member
    scaling: Member
    seed: int
    torch_device: str = "cpu"


@dataclass(frozen=True)
class AppNodeSpec:
    """An application on a device."""

    device: str
    app: str
    student: StudentSpec
    hardware: Hardware
    cost: ModelCost  # of the student as it was built
    tracks: bool = False  # whether labels will come, to be carried along with the motion
    chained: bool = True  # and that frame by frame
    picture_times_s: tuple[float, ...] = ()  # keep what was seen at these times, for the report
    notices: bool = False  # whether the loop asks what it has noticed
    told: bool = False  # whether it is told which domain a frame is of
    learn_limit_s: float = 60.0  # alone on the device: a longer lesson on the stream is broken off
    member_limit_s: float = 600.0  # of this machine's time, for one call of a member


@dataclass(frozen=True)
class TeacherSpec:
    """Which teacher: the truth itself after a virtual cost, or a real network."""

    kind: Literal["oracle", "network"] = "oracle"
    task: str = "segmentation"
    network: str = "teacher"
    classes: int = 8
    border_noise: float = 0.0  # oracle: chance that a pixel at a class border carries its neighbour's label
    torch_device: str = "cpu"
