"""Applications that answer and learn, as a scheduler computes with them: every estimate finite and within [0, 1].

Members plan in the order of names, so that the order of arrival changes nothing. An estimate that is missing or not a
number is unknown; one outside [0, 1] counts as the nearest bound, and a note says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from driftlab.platform.core.records import Need
from driftlab.platform.scheduling.base import Demand, Learning, Way, Window

ASSUMED = 0.5  # accuracy of an application of which none is known
QUARTER = 0.25  # share at which every frame is answered, where a network's latency is unknown


@dataclass(frozen=True)
class Candidate:
    """A way to learn: its time alone on the machine, and the accuracies until it is done and from then on."""

    way: int | None  # index among the offered ways; None: the phase that runs already
    seconds: float
    before: float
    after: float | None  # None: unknown
    size: float = 1.0  # of the network, as a share of the whole one
    joules: float = 0.0
    need: Need = field(default_factory=Need)
    tried: float = 1.0  # share of its steps after which `after` was measured


@dataclass(frozen=True)
class LearningApp:
    """One application: its accuracy, the share at which it answers every frame, and what it could learn."""

    index: int  # among the demands
    app: str
    now: float
    full_share: float = QUARTER
    candidates: tuple[Candidate, ...] = ()  # those with an estimate; all where none has one
    state: Literal["idle", "offered", "running"] = "offered"  # idle: it only answers; running: one candidate is left
    note: str = ""

    @property
    def learns(self) -> bool:
        return bool(self.candidates)

    @property
    def untold(self) -> bool:
        """Tell whether it learns without any estimate: it labels, it tries ways out, or nothing is known."""
        return self.learns and self.candidates[0].after is None


def read_apps(window: Window) -> list[LearningApp]:
    """Read a window's demands, in the order of names."""
    order = sorted(range(len(window.demands)), key=lambda i: window.demands[i].app)
    return [_read(i, window.demands[i], window.memory_bytes) for i in order]


def known(accuracy: float | None) -> float | None:
    """Return an accuracy within [0, 1]; None where it is unknown."""
    return None if accuracy is None or math.isnan(accuracy) else min(1.0, max(0.0, accuracy))


def _read(index: int, demand: Demand, memory_bytes: int) -> LearningApp:
    network = demand.variants[demand.running or 0] if demand.variants else None
    full_share = min(1.0, max(network.latency_s * demand.fps, 1e-6)) if network else QUARTER
    learning = demand.learning
    sources = (learning.now if learning else None, demand.observed, network.accuracy if network else None)
    now = next((one for one in map(known, sources) if one is not None), ASSUMED)
    if learning is None:
        return LearningApp(index, demand.app, now, full_share, state="idle")
    if learning.state == "running":
        left, then = learning.left, known(learning.then)
        rest = Candidate(None, left.alone_s, now, then, joules=left.joules, need=left)
        return LearningApp(index, demand.app, now, full_share, (rest,), "running", _strange(learning))
    fits = [(i, way) for i, way in enumerate(learning.ways) if way.need.memory_bytes <= memory_bytes]
    candidates = tuple(_candidate(i, way, now) for i, way in fits if math.isfinite(way.need.alone_s))
    missing = "" if candidates else f"does not learn: no way fits into {memory_bytes} bytes"
    told = tuple(one for one in candidates if one.after is not None)
    return LearningApp(index, demand.app, now, full_share, told or candidates, note=missing or _strange(learning))


def _candidate(index: int, way: Way, now: float) -> Candidate:
    before = known(way.before)
    return Candidate(
        index,
        way.need.alone_s,
        now if before is None else before,
        known(way.accuracy),
        way.size or 1.0,
        way.need.joules,
        way.need,
        way.tried,
    )


def _strange(learning: Learning) -> str:
    """Name the estimates that are no accuracies."""
    given: Sequence[float | None] = (learning.now, learning.then, *(way.accuracy for way in learning.ways))
    outside = [one for one in given if one is not None and not 0 <= one <= 1 and not math.isnan(one)]
    lost = sum(one is not None and math.isnan(one) for one in given)
    notes = [f"an estimate of {one:g} counts as {min(1.0, max(0.0, one)):g}" for one in outside]
    return "; ".join([*notes, *([f"{lost} estimates are no numbers"] if lost else [])])
