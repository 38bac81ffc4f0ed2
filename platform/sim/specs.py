"""The constructor arguments of nodes: plain values that can be sent anywhere and created without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from driftlab.platform.core.records import ModelCost
from driftlab.platform.core.registry import Member
from driftlab.platform.world.hardware import Hardware


@dataclass(frozen=True)
class StreamSpec:
    """The stream of a device: enough to open the same stream anywhere."""

    workload: str
    seed: int
    height: int
    width: int
    fps: float
    duration_s: float
    params: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class StudentSpec:
    """A student network, with its adaptation and scaling members."""

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
    """The application node of a device."""

    device: str
    app: str
    student: StudentSpec
    hardware: Hardware
    cost: ModelCost  # of the student as built
    tracks: bool = False  # whether labels will come, to be warped along optical flow
    chained: bool = True  # whether to warp frame by frame
    picture_times_s: tuple[float, ...] = ()  # frames to keep for the report
    notices: bool = False  # whether the loop asks for its observations
    tells_confidence: bool = False  # whether the loop asks how sure its predictions are
    domains_told: bool = False  # whether it is told the domain of each frame
    detects: bool = False  # whether it finds out by itself where domains begin, and pays for it
    learn_limit_s: float = 60.0  # alone on the device: a longer lesson on the stream is broken off
    member_limit_s: float = 600.0  # of this machine's time, for one call of a member


@dataclass(frozen=True)
class TeacherSpec:
    """The kind of teacher: an oracle (the truth after a virtual cost) or a real network."""

    kind: Literal["oracle", "network"] = "oracle"
    task: str = "segmentation"
    network: str = "teacher"
    classes: int = 8
    border_noise: float = 0.0  # oracle: probability that a pixel at a class border gets its neighbour's label
    flicker: float = 0.0  # oracle: how many pixels outlines move about from frame to frame
    torch_device: str = "cpu"
