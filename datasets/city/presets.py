"""Parameters of city streets: conditions with their ranges, and the settings of each preset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Condition:
    """Something that may change over time: its usual and its greatest severity."""

    default: float
    high: float
    neutral: float  # where the condition is absent
    summary: str


CONDITIONS: Mapping[str, Condition] = MappingProxyType(
    {
        "motion": Condition(1.0, 10.0, 1.0, "how many times as much the camera shakes and turns"),
        "passers": Condition(0.0, 4.0, 0.0, "how many people pass close before the camera: three for each unit"),
        "shadows": Condition(0.6, 1.0, 0.0, "how dark shadows on the ground are"),
        "rain": Condition(0.0, 1.0, 0.0, "rain: a grey sky, a wet road and streaks"),
        "fog": Condition(0.0, 1.0, 0.0, "fog: the far fades, down to some 15 m"),
        "snow": Condition(0.0, 1.0, 0.0, "snow: flakes, and white on the ground, roofs and trees"),
        "night": Condition(0.0, 1.0, 0.0, "night: little light, lamps, lit windows and more noise"),
        "exposure": Condition(0.0, 1.0, 0.0, "how far the camera's exposure hunts"),
        "white_balance": Condition(0.0, 1.0, 0.0, "how far the camera's white balance wanders"),
        "blur": Condition(0.0, 1.0, 0.0, "how far the picture is out of focus"),
        "noise": Condition(1.0, 5.0, 1.0, "how many times the usual noise of the sensor"),
        "compression": Condition(0.0, 1.0, 0.0, "how strongly frames are compressed, as JPEG of quality 90 to 10"),
    }
)
# Settings by which generic students and tracked labels score as the paper's do; docs/calibration.md says how near.
SETTINGS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "walking_paris": {"variety": 0.5, "passers": 1.0, "motion": 2.0},
        "walking_ny": {"variety": 1.3, "passers": 2.0, "motion": 2.0},
        "driving_la": {"variety": 0.8, "motion": 0.0, "crowd": 0.5},
        "running": {"variety": 0.3, "motion": 1.7},
        "dance": {"variety": 0.7, "motion": 0.3, "crowd": 0.5},
        "interview": {"variety": 0.45},
        "street_comedian": {"variety": 0.85, "passers": 2.0, "motion": 3.0},
        "drift": {"variety": 1.0},
    }
)
# Settings of pre-training streams: plainer than every preset, so that the presets are shifted from them.
PRETRAINING: Mapping[str, float] = MappingProxyType({"variety": 0.7, "passers": 0.0, "motion": 1.0, "crowd": 1.0})
