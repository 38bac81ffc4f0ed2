"""What frames scored and what that took: means over seeds, the bounds beside the methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from driftlab.platform.core.metrics import Interval, interval, paired
from driftlab.platform.results.figures.base import View
from driftlab.platform.results.figures.plots import measure
from driftlab.platform.results.report.summary.base import (
    BOUNDS,
    DASH,
    TOLD,
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
    signed,
    span,
)

if TYPE_CHECKING:
    import pandas as pd

NOTE = (
    "Means over n seeds. A score is the {} over the last seconds, averaged over frames (0 to 1); its interval is "
    f"Student’s t. The gain is over the system that does nothing, seed by seed. Traffic, energy and updates are per "
    f"device. Grey rows are bounds, not methods. {DASH} means not measured."
)


@dataclass(frozen=True)
class ScoreLine:
    """One system in one setting, as means over seeds."""

    setting: str
    system: str
    bound: str | None
    measure: str  # what the score is
    score: Interval | None
    gain: Interval | None  # over doing nothing, seed by seed
    uplink_kbps: float | None
    downlink_kbps: float | None
    energy_j: float | None  # per device
    updates: float | None  # per device
    failed: int


def show(view: View) -> Part | None:
    """Sum up the frames that models saw; where applications were only given shares there are none."""
    runs = cells(view)
    if runs.empty or (len(view.runs) and not view.runs["frames"].notna().any()):
        return None
    found = lines(view)
    words = [_in_words([line for line in found if line.setting == setting]) for setting in view.settings()[:TOLD]]
    what = " or ".join(dict.fromkeys(line.measure for line in found))
    return Part(_columns(measure(runs)), list(map(_row, found)), list(filter(None, words)), NOTE.format(what))


def lines(view: View) -> list[ScoreLine]:
    """Sum up each system in each setting."""
    runs = cells(view)
    nothing = {setting: _by_seed(here[here["bound"] == "do_nothing"]) for setting, here in runs.groupby("setting")}
    return by_system(view, lambda setting, system, own: _line(setting, system, own, nothing[setting]))


def _line(setting: str, system: str, runs: pd.DataFrame, nothing: Mapping[int, float]) -> ScoreLine:
    done = runs[runs["status"] == "done"]
    bound = bound_of(runs)
    return ScoreLine(
        setting=setting,
        system=system,
        bound=bound,
        measure=measure(runs),
        score=interval(done["score"]),
        gain=None if bound == "do_nothing" else paired(_by_seed(done), nothing),
        uplink_kbps=mean(done["uplink_kbps"]),
        downlink_kbps=mean(done["downlink_kbps"]),
        energy_j=mean(done["energy_j"] / done["devices"]),
        updates=mean(done["updates"] / done["devices"]),
        failed=failed(runs),
    )


def _by_seed(runs: pd.DataFrame) -> dict[int, float]:
    return dict(runs.dropna(subset=["score"])[["seed", "score"]].itertuples(index=False))


def _columns(what: str) -> list[Column]:
    return [
        Column(what, look="strong"),
        Column("95 % interval", look="quiet"),
        Column("n", look="quiet"),
        Column("gain"),
        Column("up", "kbit/s"),
        Column("down", "kbit/s"),
        Column("energy", "J"),
        Column("updates"),
    ]


def _row(line: ScoreLine) -> Row:
    texts = [
        score(line.score),
        span(line.score) or DASH,
        str(line.score.n if line.score else 0),
        signed(line.gain.mean) if line.gain else DASH,
        *map(number, (line.uplink_kbps, line.downlink_kbps, line.energy_j, line.updates)),
    ]
    return Row(line.setting, line.system, line.bound, line.failed, texts)


def _in_words(here: Sequence[ScoreLine]) -> str:
    scored = [line for line in here if line.score is not None]
    methods = [line for line in scored if line.bound is None]
    if not methods:
        return ""
    best = max(methods, key=lambda line: line.score.mean if line.score else 0.0)
    lead = f"On {best.setting}, {best.system}" + (", the best method," if len(methods) > 1 else "")
    parts = [f"{lead} scores {score(best.score)} ({best.measure})"]
    if best.gain:
        parts[0] += f", {signed(best.gain.mean)} against doing nothing{span(best.gain, ' (95 % interval {} to {})')}"
    parts += [
        f"the {BOUNDS[line.bound]} scores {score(line.score)}"
        for line in scored
        if line.bound in ("best_static", "oracle")
    ]
    traffic = (
        f"For that, each device sends {number(best.uplink_kbps)} kbit/s and receives {number(best.downlink_kbps)}."
    )
    return f"{parts[0]}. {traffic}" + (f" In comparison, {' and '.join(parts[1:])}." if parts[1:] else "")
