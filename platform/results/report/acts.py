"""The acts of the demo: each compares a method with a rival, in one sentence that is computed from the tables of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from driftlab.platform.results import stats
from driftlab.platform.results.figures.plots import signed
from driftlab.platform.results.relations.base import CELL
from driftlab.platform.results.relations.lateness import right_in_time
from driftlab.platform.results.report.summary.base import half
from driftlab.platform.results.stats import ComparisonResult, Estimate
from driftlab.platform.results.tables.columns import LIVE_SCORE
from driftlab.platform.results.tables.read import Tables

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Act:
    """A method, its rival, and the words for both; `driftlab demo` runs the experiment `demo-NAME`."""

    scene: str
    ours: str
    ours_in_words: str
    theirs: str
    theirs_in_words: str
    reaches: str  # the verb, with a place for the score in points of 100
    cost: str  # bytes or joules
    in_time: bool = False  # whether only frames count that were right by their deadline


@dataclass(frozen=True)
class Outcome:
    """The sentence of an act with its numbers, which are shares from 0 to 1."""

    sentence: str
    verdict: ComparisonResult
    score: float | None = None
    difference: Estimate | None = None
    cost_share: float | None = None  # cost / the rival's


ACTS: Mapping[str, Act] = MappingProxyType(
    {
        "streaming": Act(
            scene="Streaming: on a street that changes",
            ours="ams",
            ours_in_words="a camera that receives small updates all the time",
            theirs="one_time",
            theirs_in_words="one that is taught once",
            reaches="labels its pictures with {} of 100 points",
            cost="bytes",
        ),
        "adaptation": Act(
            scene="Adaptation on the device: where the look of digits changes and nobody labels them",
            ours="cut+adabn",
            ours_in_words="a smaller network that follows the statistics of its pictures",
            theirs="elasticdnn",
            theirs_in_words="one of the same size that trains in phases",
            reaches="reads {} of 100 right",
            cost="joules",
        ),
        "scaling": Act(
            scene="Scaling: where other programs slow the device down",
            ours="adascale",
            ours_in_words="a network that becomes smaller under load",
            theirs="exit-1",
            theirs_in_words="the best network of one size",
            reaches="names {} of 100 signs right and in time",
            cost="joules",
            in_time=True,
        ),
        "sharing": Act(
            scene="Sharing: where three applications answer and learn on one device",
            ours="joint",
            ours_in_words="shares that are decided together with the training",
            theirs="ekya",
            theirs_in_words="those of a known scheduler",
            reaches="lead to {} of 100 right answers",
            cost="joules",
        ),
    }
)
NOTHING = "no_custom"
COSTS: Mapping[str, Callable[[pd.DataFrame], pd.Series]] = MappingProxyType(
    {
        "bytes": lambda runs: runs["uplink_bytes"] + runs["downlink_bytes"],
        "joules": lambda runs: runs["energy_j"],
    }
)


def outcome_of(act: Act, tables: Tables) -> Outcome:
    """Compare the two systems of an act over the seeds that both completed."""
    runs = tables.frame("runs")
    runs = runs[(runs["status"] == "done") & runs["system"].isin([act.ours, act.theirs])]
    if set(runs["system"]) < {act.ours, act.theirs}:
        return Outcome(f"{act.scene}: no result, {act.ours} or {act.theirs} completed no cell.", "inconclusive")
    values = right_in_time(tables).reindex(runs["cell"]).to_numpy() if act.in_time else runs[LIVE_SCORE]
    runs = runs.assign(value=values, cost=COSTS[act.cost](runs))
    both, costs = (stats.pairs(runs, act.ours, act.theirs, of, CELL, "system") for of in ("value", "cost"))
    difference = stats.paired_difference(both)
    if difference is None:
        return Outcome(f"{act.scene}: no result, {act.ours} and {act.theirs} share no seed.", "inconclusive")
    spent, other = costs.mean()
    share = spent / other if other else None
    score, verdict = float(both["ours"].mean()), stats.verdict(difference)
    sentence = (
        f"{act.scene}, {act.ours_in_words} ({act.ours}) {act.reaches.format(f'{100 * score:.0f}')}{_unadapted(runs, act)}: "
        f"{_compared(difference, verdict)} {act.theirs_in_words} ({act.theirs})"
    )
    cost = "" if share is None else f", for {_share(share)} {act.cost}"
    return Outcome(f"{sentence}{cost}.", verdict, score, difference, share)


def _compared(difference: Estimate, verdict: ComparisonResult) -> str:
    """Format a difference in points of 100; one that is not decided is called that."""
    points = f"{100 * abs(difference.mean):.1f}{half(difference, 100, 1)}"
    if verdict == "inconclusive":
        return f"no difference that this run can show ({signed(100 * difference.mean, 1)}{half(difference, 100, 1)}) from"
    return f"{points} points {'more' if verdict == 'better' else 'fewer'} than"


def _share(share: float) -> str:
    """Format a cost relative to the rival's: a percentage, or a factor from 2 on."""
    return f"{share:.1f} times its" if share >= 2 else f"{100 * share:.0f} % of its"
