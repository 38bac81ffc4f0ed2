"""Acts of the demo: a method and its baseline, compared in one sentence from a run's tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from driftlab.platform.results import stats
from driftlab.platform.results.figures.plots import decimals, margin, signed
from driftlab.platform.results.relations.base import CELL
from driftlab.platform.results.relations.lateness import right_in_time
from driftlab.platform.results.stats import ComparisonResult, Estimate
from driftlab.platform.results.tables.columns import LIVE_SCORE
from driftlab.platform.results.tables.read import Tables

if TYPE_CHECKING:
    import pandas as pd

FACTOR = 2.0  # from here on a cost is given as a factor


class Named(NamedTuple):
    """A system of an act, and its description in plain words."""

    system: str
    words: str


@dataclass(frozen=True)
class Act:
    """The words of an act; `{}` in `reaches` is the place of the score, in points of 100."""

    scene: str
    ours: Named
    reaches: str
    unadapted: Named  # the level without a method; a bound, never the baseline
    baseline: Named
    cost: str  # bytes or joules
    in_time: bool = False  # whether late frames count as wrong, by the latency goal


@dataclass(frozen=True)
class ActResult:
    """The sentence of an act, its verdict and its numbers; scores are between 0 and 1."""

    sentence: str
    verdict: ComparisonResult
    score: float | None = None
    difference: Estimate | None = None
    cost_share: float | None = None  # cost / cost of the baseline


ACTS: Mapping[str, Act] = MappingProxyType(
    {
        "streaming": Act(
            scene="Streaming: on a street that changes",
            ours=Named("ams", "a camera that receives small updates all the time"),
            reaches="scores {} of 100",
            unadapted=Named("no_custom", "without updates"),
            baseline=Named("one_time", "one that is taught once"),
            cost="bytes",
        ),
        "adaptation": Act(
            scene="Adaptation on the device: where digits change their look and have no labels",
            ours=Named("cut+adabn", "a smaller network that follows the statistics of its pictures"),
            reaches="reads {} of 100 right",
            unadapted=Named("no_custom", "without adaptation"),
            baseline=Named("elasticdnn", "one of the same size that trains in phases"),
            cost="joules",
        ),
        "scaling": Act(
            scene="Scaling: where other programs slow the device down",
            ours=Named("adascale", "a network that becomes smaller under load"),
            reaches="names {} of 100 signs right and in time",
            unadapted=Named("whole", "with the whole network"),
            baseline=Named("exit-1", "the same network with its first exit alone"),
            cost="joules",
            in_time=True,
        ),
        "sharing": Act(
            scene="Sharing: where three applications predict and learn on one slow device",
            ours=Named("joint", "a scheduler that divides the device among all six tasks together"),
            reaches="leads to {} of 100 right predictions",
            unadapted=Named("no_custom", "without learning"),
            baseline=Named("ekya", "the scheduler of the Ekya paper"),
            cost="joules",
        ),
    }
)
COSTS: Mapping[str, Callable[[pd.DataFrame], pd.Series]] = MappingProxyType(
    {"bytes": lambda runs: runs["uplink_bytes"] + runs["downlink_bytes"], "joules": lambda runs: runs["energy_j"]}
)


def result_of(act: Act, tables: Tables) -> ActResult:
    """Compare the two systems of an act over the seeds that both completed."""
    runs = tables.frame("runs")
    runs = runs[runs["status"] == "done"]
    ours, baseline = act.ours.system, act.baseline.system
    values = runs["cell"].map(right_in_time(tables)) if act.in_time and len(runs) else runs[LIVE_SCORE]
    runs = runs.assign(value=values, cost=COSTS[act.cost](runs))
    both, costs = (stats.pairs(runs, ours, baseline, of, CELL, "system") for of in ("value", "cost"))
    difference = stats.paired_difference(both)
    if difference is None:
        reason = f"no result, as no seed was completed with {ours} and {baseline}"
        return ActResult(f"{act.scene}: {reason}.", "inconclusive")
    spent, other = costs.mean()
    share = spent / other if other else None
    score, verdict = float(both["ours"].mean()), stats.verdict(difference)
    level = runs[runs["system"] == act.unadapted.system]["value"].mean()
    without = "" if level != level else f" ({100 * level:.0f} {act.unadapted.words})"
    sentence = (
        f"{act.scene}, {act.ours.words} ({act.ours.system}) {act.reaches.format(f'{100 * score:.0f}')}{without}: "
        f"{_compared(difference, verdict)} {act.baseline.words} ({act.baseline.system}){_costing(share, act.cost)}."
    )
    return ActResult(sentence, verdict, score, difference, share)


def _compared(difference: Estimate, verdict: ComparisonResult) -> str:
    """Format a difference in points of 100; an inconclusive one is called no difference."""
    interval, digits = margin(difference, 100, 1, -1.0), decimals(difference, 1, 100)
    if verdict == "inconclusive":
        return f"no difference that this run can show ({signed(100 * difference.mean, digits)}{interval} points) from"
    return f"{100 * abs(difference.mean):.{digits}f}{interval} points {'more' if verdict == 'better' else 'fewer'} than"


def _costing(share: float | None, cost: str) -> str:
    if share is None:
        return ""
    return f", for {share:.1f} times its {cost}" if share >= FACTOR else f", for {100 * share:.0f} % of its {cost}"
