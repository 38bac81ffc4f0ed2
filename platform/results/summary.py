"""A run in a table and in words: means over seeds, the bounds beside the methods, and nothing that was not measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from driftlab.platform.core.metrics import Interval, interval, paired
from driftlab.platform.results.plots import Style, measure, short

if TYPE_CHECKING:
    import pandas as pd

DASH = "–"
BOUNDS: Mapping[str, str] = {
    "do_nothing": "does nothing",
    "best_static": "best static choice",
    "oracle": "per-window oracle",
}
TOLD = 3  # settings told in words; the table holds the others


@dataclass(frozen=True)
class Line:
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
    done: int
    failed: int


def lines(runs: pd.DataFrame, looks: Mapping[str, Style]) -> list[Line]:
    """Sum up each system in each setting, methods first and bounds last."""
    found = []
    for setting in sorted(set(runs["setting"])):
        here = runs[runs["setting"] == setting]
        nothing = _by_seed(here[here["bound"] == "do_nothing"])
        found += [_line(setting, system, here[here["system"] == system], nothing) for system in looks]
    return [line for line in found if line.done or line.failed]


def _line(setting: str, system: str, runs: pd.DataFrame, nothing: Mapping[int, float]) -> Line:
    done = runs[runs["status"] == "done"]
    bounds = runs["bound"].dropna()
    bound = None if bounds.empty else str(bounds.iloc[0])
    return Line(
        setting=setting,
        system=system,
        bound=bound,
        measure=measure(runs),
        score=interval(done["score"]),
        gain=None if bound == "do_nothing" else paired(_by_seed(done), nothing),
        uplink_kbps=_mean(done["uplink_kbps"]),
        downlink_kbps=_mean(done["downlink_kbps"]),
        energy_j=_mean(done["energy_j"] / done["devices"]),
        updates=_mean(done["updates"] / done["devices"]),
        done=len(done),
        failed=len(runs) - len(done),
    )


def _by_seed(runs: pd.DataFrame) -> dict[int, float]:
    return dict(runs.dropna(subset=["score"])[["seed", "score"]].itertuples(index=False))


def _mean(values: Iterable[float]) -> float | None:
    found = interval(values)
    return None if found is None else found.mean


def in_words(runs: pd.DataFrame, summary: Sequence[Line]) -> list[str]:
    """Say in a few sentences what was run and what came out."""
    if runs.empty:
        return ["No cell of this run is complete yet."]
    failed = int((runs["status"] == "failed").sum())
    methods = {line.system for line in summary if line.bound is None}
    bounds = {line.system for line in summary if line.bound is not None}
    parties = [_count(len(methods), "method"), _count(len(bounds), "bound")]
    text = (
        f"{' and '.join(parties)} on {_count(runs['setting'].nunique(), 'workload')}, "
        f"{_count(runs['seed'].nunique(), 'seed')}: {_count(len(runs), 'cell')}, "
        + (f"of which {failed} failed." if failed else "all of them complete.")
    )
    settings = list(dict.fromkeys(line.setting for line in summary))
    told = [_setting_in_words([line for line in summary if line.setting == setting]) for setting in settings[:TOLD]]
    return [text, *(sentence for sentence in told if sentence)]


def _setting_in_words(here: Sequence[Line]) -> str:
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


def score(found: Interval | None) -> str:
    """Write a score with three decimals, or a dash."""
    return DASH if found is None else f"{found.mean:.3f}"


def signed(value: float) -> str:
    """Write a difference with its sign."""
    return f"{value:+.3f}".replace("-", "\u2212")


def span(found: Interval | None, form: str = "{} to {}") -> str:
    """Write an interval, or nothing where one value has none."""
    if found is None or found.low is None or found.high is None:
        return ""
    return form.format(*(f"{end:.3f}".replace("-", "\u2212") for end in (found.low, found.high)))


def number(value: float | None) -> str:
    """Write a plain number with three digits, or a dash."""
    return DASH if value is None else short(value)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
