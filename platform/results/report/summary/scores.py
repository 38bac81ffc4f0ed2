"""Scores, traffic and energy per system as means over seeds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from driftlab.platform.results import stats
from driftlab.platform.results.figures.base import View
from driftlab.platform.results.figures.plots import measure
from driftlab.platform.results.report.summary.base import (
    DASH,
    Column,
    Part,
    Row,
    bound_of,
    by_system,
    cells,
    failed,
    mean,
    number,
    score,
)
from driftlab.platform.results.report.summary.gains import Gain, by_setting, reference
from driftlab.platform.results.stats import Estimate
from driftlab.platform.results.tables.columns import LIVE_SCORE, PAPER_SCORE

if TYPE_CHECKING:
    import pandas as pd

TRAFFIC = "kbit/s"
NOTE = (
    "Means over n seeds; ±: half of the 95 % interval (Student’s t). {0}: over the last 10 s, mean over frames (0 to "
    "1); late predictions count as if they were in time. Live {0}: likewise, of the newest predictions that were ready "
    "when a frame was shown, or {2} later. Gain: mean difference in live {0} to {1} over paired seeds. Better or "
    "worse: the 95 % interval excludes 0; inconclusive: it includes 0, or there is one seed. Latency: mean from the "
    "capture of a frame to its prediction, waits for a batch included. Traffic, energy and "
    f"updates: mean per device. Rows named “bound”: limits for comparison. {DASH}: not measured."
)


@dataclass(frozen=True)
class ScoreLine:
    """Means over seeds of one system in one setting."""

    setting: str
    system: str
    bound: str | None
    measure: str  # name of the score
    live: Estimate | None  # score of the live predictions
    score: Estimate | None  # late predictions count as if they were in time
    gain: Gain | None  # over the system that others are compared with
    latency_ms: float | None  # of processed frames, waits for a batch included
    uplink_kbps: float | None
    downlink_kbps: float | None
    energy_j: float | None  # per device
    updates: float | None  # per device
    failed: int


def show(view: View) -> Part | None:
    """Summarise scored frames; None if the run only allocated shares."""
    runs = cells(view)
    if runs.empty or (len(view.runs) and not view.runs["frames"].notna().any()):
        return None
    found = lines(view)
    measures = " or ".join(dict.fromkeys(line.measure for line in found))
    grace_s = view.tables.run.spec.get("grace_s")
    grace = "one frame interval" if grace_s is None else f"{grace_s:g} s"
    note = NOTE.format(measures, reference(view) or "no adaptation", grace) + _same_bound(runs)
    means = {(line.setting, line.system): line.live.mean for line in found if line.bound is None and line.live}
    best = {setting: max(mean for (place, _), mean in means.items() if place == setting) for setting, _ in means}
    rows = [_row(line, best=means.get((line.setting, line.system), -1.0) == best.get(line.setting)) for line in found]
    columns = _columns(measure(runs))
    if not any(line.uplink_kbps or line.downlink_kbps for line in found):
        columns, rows = _without_traffic(columns, rows)
    return Part(columns, rows, (), note, _opinions(runs))


def _opinions(runs: pd.DataFrame) -> list[str]:
    """Name the teacher of each workload without ground truth."""
    found = runs[["workload", "agreement"]].dropna().drop_duplicates()
    return [
        f"{workload} has no ground truth: its scores are the agreement with the teacher {teacher}, a network that was "
        "trained on other pictures and makes mistakes. They do not state how often a prediction is right."
        for workload, teacher in found.itertuples(index=False)
    ]


def _same_bound(runs: pd.DataFrame) -> str:
    """Explain several systems that are one bound, such as `no_custom` and a row of its member `frozen`."""
    names = list(dict.fromkeys(runs[runs["bound"] == "no_adaptation"]["system"]))
    same = f" {' and '.join(names)} are the same bound under {len(names)} names: the student without adaptation."
    return same if len(names) > 1 else ""


def lines(view: View) -> list[ScoreLine]:
    """Summarise each system per setting."""
    gains, waits = by_setting(view), view.tables.frame("frames").groupby("cell")["latency_ms"].mean()
    return by_system(
        view, lambda setting, system, own: _line(setting, system, own, gains.get((setting, system)), waits)
    )


def _line(setting: str, system: str, runs: pd.DataFrame, gain: Gain | None, waits: pd.Series) -> ScoreLine:
    done = runs[runs["status"] == "done"]
    return ScoreLine(
        setting=setting,
        system=system,
        bound=bound_of(runs),
        measure=measure(runs),
        live=stats.mean(done[LIVE_SCORE]),
        score=stats.mean(done[PAPER_SCORE]),
        gain=gain,
        latency_ms=mean(done["cell"].map(waits)),
        uplink_kbps=mean(done["uplink_kbps"]),
        downlink_kbps=mean(done["downlink_kbps"]),
        energy_j=mean(done["energy_j"] / done["devices"]),
        updates=mean(done["updates"] / done["devices"]),
        failed=failed(runs),
    )


def _columns(score_name: str) -> list[Column]:
    return [
        Column(f"live {score_name}", emphasis="strong"),
        Column("gain"),
        Column("verdict", detail=True),
        Column(score_name, detail=True),
        Column("n", emphasis="quiet"),
        Column("latency", "ms"),
        Column("up", TRAFFIC),
        Column("down", TRAFFIC),
        Column("energy", "J"),
        Column("updates"),
    ]


def _without_traffic(columns: list[Column], rows: list[Row]) -> tuple[list[Column], list[Row]]:
    """Leave out the columns of traffic, which are zero on devices without a server."""
    kept = [place for place, column in enumerate(columns) if column.unit != TRAFFIC]
    return [columns[place] for place in kept], [
        replace(row, texts=[row.texts[place] for place in kept]) for row in rows
    ]


def _row(line: ScoreLine, *, best: bool) -> Row:
    texts = [
        score(line.live),
        *((line.gain.text, line.gain.mark) if line.gain else (DASH, DASH)),
        score(line.score),
        str(line.live.n if line.live else 0),
        *map(number, (line.latency_ms, line.uplink_kbps, line.downlink_kbps, line.energy_j, line.updates)),
    ]
    return Row(line.setting, line.system, line.bound, line.failed, texts, best)
