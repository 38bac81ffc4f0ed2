"""Gain of each system over the reference system, with verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from driftlab.platform.results import stats
from driftlab.platform.results.claims.base import Verdict
from driftlab.platform.results.figures.base import View
from driftlab.platform.results.figures.plots import live_measure, signed
from driftlab.platform.results.relations.base import pairs
from driftlab.platform.results.relations.comparison import Comparison, compare
from driftlab.platform.results.report.summary.base import DASH, count, half
from driftlab.platform.results.stats import ComparisonResult, Estimate, verdict
from driftlab.platform.results.tables.columns import LIVE_SCORE

MARKS: Mapping[ComparisonResult, str] = {"better": "▲", "worse": "▼", "inconclusive": "≈"}
AGAINST: Mapping[ComparisonResult, str] = {
    "better": "Better than",
    "worse": "Worse than",
    "inconclusive": "Not significantly different from",
}
NAMED = 4  # systems listed per verdict; the table holds all
SHARED = "shares.accuracy"  # compares schedulers if no frame was scored


@dataclass(frozen=True)
class Gain:
    """A mean difference over seeds, and the verdict from its interval."""

    difference: Estimate | None
    verdict: ComparisonResult

    @property
    def text(self) -> str:
        """Format the difference and half of its interval."""
        return signed(self.difference.mean, 3) + half(self.difference) if self.difference else DASH

    @property
    def mark(self) -> str:
        """Return the verdict with its symbol."""
        return DASH if self.difference is None else f"{MARKS[self.verdict]} {self.verdict}"


@dataclass(frozen=True)
class HeadlineLine:
    """One line of a headline."""

    mark: str
    text: str


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


def headline(view: View, verdicts: Sequence[Verdict] = ()) -> list[HeadlineLine]:
    """Return the main results in a few lines: verdicts against the reference, reproduced claims."""
    return [*_compared(view), *_claims_line(verdicts)]


def _compared(view: View) -> list[HeadlineLine]:
    scored = view.runs[LIVE_SCORE].notna().any()
    if not scored and not view.tables.frame("shares")["accuracy"].notna().any():
        return []
    column, name = (LIVE_SCORE, live_measure(view.runs)) if scored else (SHARED, "accuracy of the networks that run")
    methods = [name for name in view.styles if name in set(view.runs[view.runs["bound"].isna()]["system"])]
    against = reference(view)
    if against is None:
        return _best(view, methods, name) if scored else []
    compared = [compare(view.tables, name, against, column) for name in methods if name != against]
    listed = {result: _listed(compared, result) for result in AGAINST}
    found = [
        HeadlineLine(MARKS[result], f"{AGAINST[result]} {against}: {text}.") for result, text in listed.items() if text
    ]
    return [*found, HeadlineLine("", _basis(view, compared, name))] if found else []


def _listed(compared: Sequence[Comparison], result: ComparisonResult) -> str:
    """List the systems of one verdict by gain, without those that share no seed with the reference."""
    means = {one.ours: difference.mean for one in compared if (difference := one.rows[-1].difference)}
    own = sorted(
        (one for one in compared if one.ours in means and one.verdict == result), key=lambda one: -means[one.ours]
    )
    more = [f"{len(own) - NAMED} more"] if len(own) > NAMED else []
    return ", ".join([*map(_named, own[:NAMED]), *more])


def _named(one: Comparison) -> str:
    """Format a system with its overall gain, and the workloads of the verdict if not all."""
    places = [row.verdict == one.verdict for row in one.rows[:-1]]
    part = "" if all(places) or one.verdict == "inconclusive" else f", on {sum(places)} of {len(places)} workloads"
    return f"{one.ours} ({Gain(one.rows[-1].difference, one.verdict).text}{part})"


def _best(view: View, methods: Sequence[str], name: str) -> list[HeadlineLine]:
    """Compare the two systems with the highest means if the run has no reference."""
    means = view.runs[view.runs["system"].isin(list(methods))].groupby("system")[LIVE_SCORE].mean().dropna()
    if len(means) < 2:
        return []
    first, second = map(str, means.sort_values(ascending=False, kind="stable").index[:2])
    one = compare(view.tables, first, second)
    text = f"{first} has the highest mean. {AGAINST[one.verdict]} {second}, the next: {_named(one)}."
    return [HeadlineLine(MARKS[one.verdict], text), HeadlineLine("", _basis(view, [one], name))]


def _basis(view: View, compared: Sequence[Comparison], name: str) -> str:
    """Describe the differences: measure, workloads, and seeds of the intervals."""
    places = count(view.runs["setting"].nunique(), "workload")
    seeds = max(difference.n for one in compared if (difference := one.rows[-1].difference))
    interval = "one seed gives no interval" if seeds == 1 else f"± is half of the 95 % interval over {seeds} seeds"
    return f"Differences in {name}, averaged over {places}; {interval}."


def _claims_line(verdicts: Sequence[Verdict]) -> list[HeadlineLine]:
    """Count the reproduced claims, and list those that were not."""
    reproduced = [verdict.claim.id for verdict in verdicts if verdict.result == "reproduced"]
    failed = [verdict.claim.id for verdict in verdicts if verdict.result == "not reproduced"]
    if not reproduced and not failed:
        return []
    text = f"{len(reproduced)} of {count(len(reproduced) + len(failed), 'claim')} reproduced"
    return [
        HeadlineLine("✓" if not failed else "✗", text + (f"; not reproduced: {', '.join(failed)}." if failed else "."))
    ]
