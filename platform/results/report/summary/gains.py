"""Gain of each system over the reference system, with verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from driftlab.platform.results import stats
from driftlab.platform.results.claims.base import Verdict
from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import View
from driftlab.platform.results.relations.base import column_of, pairs
from driftlab.platform.results.relations.comparison import compare, cost_ratios, costs_of
from driftlab.platform.results.report.summary.base import DASH, count, score
from driftlab.platform.results.stats import ComparisonResult, Estimate, verdict
from driftlab.platform.results.tables.columns import LIVE_SCORE

MARKS: Mapping[ComparisonResult, str] = {"better": "▲", "worse": "▼", "inconclusive": "≈"}
SHARED = "shares.accuracy"  # compares schedulers if no frame was scored


@dataclass(frozen=True)
class Gain:
    """A mean difference over seeds, and the verdict from its interval."""

    difference: Estimate | None
    verdict: ComparisonResult

    @property
    def text(self) -> str:
        """Format the difference and half of its interval."""
        return plots.difference(self.difference) if self.difference else DASH

    @property
    def mark(self) -> str:
        """Return the verdict with its symbol."""
        return DASH if self.difference is None else f"{MARKS[self.verdict]} {self.verdict}"


def reference(view: View) -> str | None:
    """Return the reference system: no adaptation, else the status quo scheduler."""
    nothing = view.runs[view.runs["bound"] == "no_adaptation"]["system"]
    usual = [*dict.fromkeys(nothing), *view.members("scheduling", "status_quo")]
    return str(usual[0]) if usual else None


def by_setting(view: View) -> dict[tuple[str, str], Gain]:
    """Compare every system with the reference per setting, by live score over paired seeds."""
    against = reference(view)
    found: dict[tuple[str, str], Gain] = {}
    settings = view.runs[["workload", "fleet", "setting"]].drop_duplicates()
    for system in view.styles if against else ():
        if system == against:
            continue
        both = (
            pairs(view.tables, system, str(against), LIVE_SCORE).reset_index().merge(settings, on=["workload", "fleet"])
        )
        for setting, part in both.groupby("setting"):
            own = part.set_index("seed")
            difference = stats.mean(stats.over_seeds(own["ours"] - own["theirs"]))
            found[str(setting), system] = Gain(difference, verdict(difference))
    return found


def headline(view: View, *, but: str = "", known: str = "") -> list[str]:
    """Compare the best method with the reference and with the next method, in at most two sentences.

    If another sentence compares the system `known` with the system `but`, one sentence is added that does not.
    """
    scored = view.runs[LIVE_SCORE].notna().any()
    column, name = (
        (LIVE_SCORE, plots.live_measure(view.runs)) if scored else (SHARED, "accuracy of the networks that run")
    )
    against, means = reference(view), _means(view, column)
    ranked = [name for name in means if name not in (against, but)]
    if not ranked:
        return []
    best, *others = ranked
    ours = f"Of {len(means)} methods, {best} has the highest {name}," if others else f"{best} has a {name} of"
    found = [f"{ours} {score(means[best])}{_over(view, best, against, column)}."]
    found += [_next(view, best, others[0], column)] if others else []
    return found[-1:] if best == known else found[:1] if known else found


def _means(view: View, column: str) -> dict[str, Estimate]:
    """Average a column by method over seeds, the highest first; bounds are left out."""
    table, column = column_of(column)
    runs = view.runs[view.runs["bound"].isna()]
    rows = runs if table == "runs" else view.tables.frame(table).merge(runs[["cell", "system", "seed"]], on="cell")
    found = {name: stats.mean(stats.over_seeds(own.set_index("seed")[column])) for name, own in rows.groupby("system")}
    return dict(sorted(((str(name), one) for name, one in found.items() if one), key=lambda item: -item[1].mean))


def _over(view: View, best: str, against: str | None, column: str) -> str:
    """Format the difference from the reference; empty without one."""
    if against is None or (found := compare(view.tables, best, against, column).rows[-1]).difference is None:
        return ""
    if found.verdict == "inconclusive":
        return f"; this run shows no difference from {against} ({plots.difference(found.difference)})"
    distance = plots.difference(found.difference)[1:]  # without the sign
    return f", which is {distance} {'above' if found.verdict == 'better' else 'below'} {against}"


def _next(view: View, best: str, other: str, column: str) -> str:
    """Compare the best method with the next one, with the ratios of their costs."""
    found = compare(view.tables, best, other, column).rows[-1]
    if found.difference is None:
        return f"Next is {other}; no seed was completed with both."
    ratios = cost_ratios(costs_of(view.runs), best, other)
    costs = " and ".join(f"{plots.factor(ratio)} the {name}" for name, ratio in ratios.items())
    text = f"{plots.difference(found.difference)}{f', for {costs}' if costs else ''}"
    if found.verdict == "inconclusive":
        return f"This run shows no difference between {best} and {other} ({text})."
    return f"Next is {other}: {best} is {found.verdict} ({text})."


def basis(view: View) -> str:
    """Describe the intervals of the sentences: seeds and workloads."""
    seeds, places = view.runs["seed"].nunique(), view.runs["setting"].nunique()
    over = f", averaged over {places} workloads" if places > 1 else ""
    return (
        f"± is half of a 95 % interval over {seeds} paired seeds{over}." if seeds > 1 else "One seed has no interval."
    )


def claims_line(verdicts: Sequence[Verdict]) -> str:
    """Count the reproduced claims, and list those that were not; empty if none was tested."""
    reproduced = [verdict.claim.id for verdict in verdicts if verdict.result == "reproduced"]
    failed = [verdict.claim.id for verdict in verdicts if verdict.result == "not reproduced"]
    if not reproduced and not failed:
        return ""
    text = f"{len(reproduced)} of {count(len(reproduced) + len(failed), 'claim')} reproduced"
    return text + (f"; not reproduced: {', '.join(failed)}." if failed else ".")
