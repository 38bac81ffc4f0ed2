"""Presets of the sign workloads: labelled sets, and streams with several kinds of drift."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from driftlab.datasets.script import Visit


@dataclass(frozen=True)
class Problem:
    """A labelled set; at its difficulty a network of 70 000 parameters reaches about 90 % accuracy."""

    name: str
    summary: str
    classes: int
    difficulty: float


_SETS = (
    Problem("vc", "10 classes, for a plain network", 10, 1.1),
    Problem("ri50", "20 classes, for a residual network", 20, 0.7),
    Problem("ri100", "40 classes, for a residual network", 40, 0.35),
    Problem("vs", "16 classes, for a plain network", 16, 0.8),
    Problem("vg", "2 classes under much noise, for a plain network", 2, 2.3),
    Problem("rp", "12 classes, for a residual network", 12, 1.0),
)
SETS: Mapping[str, Problem] = MappingProxyType({problem.name: problem for problem in _SETS})


@dataclass(frozen=True)
class SignsPreset:
    """A stream of signs: the time for which each is visible, and the changes of the scene."""

    name: str
    summary: str
    visits: tuple[Visit, ...]
    fresh: int  # increase of scene numbers per round; fewer than the scenes of a round: some recur
    visible_s: float  # time for which a sign is visible
    favour: float  # class imbalance of a scene; 0: all classes equally often
    drift_s: float = 0.0  # time in which the colours change into the next ones; 0: constant colours
    light_swing: float = 0.1  # relative amplitude of the slow change of brightness


_PRESETS = (
    SignsPreset(
        name="depot",
        summary="Signs on a conveyor in constant light; no drift.",
        visits=((0, math.inf),),
        fresh=0,
        visible_s=3.0,
        favour=0.0,
        light_swing=0.03,
    ),
    SignsPreset(
        name="town",
        summary="Signs on a round trip: a new district with other colours every 30 s, some districts twice.",
        visits=((0, 32.0), (1, 26.0), (0, 24.0), (2, 30.0)),
        fresh=2,
        visible_s=2.0,
        favour=1.0,
    ),
    SignsPreset(
        name="motorway",
        summary="Signs that pass fast; a new scene every 15 s, none recurs.",
        visits=((0, 14.0), (1, 16.0), (2, 13.0)),
        fresh=3,
        visible_s=1.0,
        favour=1.5,
    ),
    SignsPreset(
        name="seasons",
        summary="Signs whose colours change continuously.",
        visits=((0, math.inf),),
        fresh=0,
        visible_s=2.0,
        favour=0.0,
        drift_s=45.0,
        light_swing=0.2,
    ),
)
PRESETS: Mapping[str, SignsPreset] = MappingProxyType({preset.name: preset for preset in _PRESETS})
