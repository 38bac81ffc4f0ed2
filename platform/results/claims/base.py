"""Define claims, judge them, and format verdicts. The claims are data: one YAML file per source."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from driftlab.errors import RequestError, unknown_name
from driftlab.platform.results import isolation
from driftlab.platform.results.claims.assumed import missing_assumption
from driftlab.platform.results.claims.statistics import STATISTICS, Measured
from driftlab.platform.results.relations.base import Untestable
from driftlab.platform.results.tables.columns import LIVE_SCORE, PAPER_SCORE
from driftlab.platform.results.tables.read import Run, Tables
from driftlab.platform.results.tables.schema import TABLES
from driftlab.renamed import name_hint

if TYPE_CHECKING:
    import pandas as pd

DASH = "–"
NO_RUN = "testable by no run"
RELATIONS = "driftlab.platform.results.relations"
SCORES = {PAPER_SCORE: "score", LIVE_SCORE: "live score"}  # names on pages
NO_TRUTH = "scores are the agreement with a teacher"
DIFFERENCE = "mIoU difference"  # a unit whose numbers are written with their sign
ClaimResult = Literal["reproduced", "not reproduced", "not testable here", "information"]  # the last: rule `info`
CellResult = Literal["same sign", "opposite sign", "sign undecided", "information", "not run"]  # of a paper's table
Strength = Literal["quantitative", "direction", "by construction", "information"]
STRENGTHS: Mapping[str, Strength] = {"sign": "direction", "ge": "direction", "le": "direction", "info": "information"}


@dataclass(frozen=True)
class Claim:
    """A sentence that tables can support or contradict.

    The rule is `exact`, `abs<=x`, `rel<=x`, `sign`, `ge`, `le` or `info`, and compares with the paper's value. The
    one-sided rules (`sign`, `ge`, `le`) hold if the whole interval is on that side, not only the mean.
    """

    id: str
    experiment: str  # the experiment that tests the claim
    source: str
    sentence: str
    paper: float | None
    unit: str
    rule: str
    of: Mapping[str, Any] = field(default_factory=dict)  # relation, systems, other arguments; `take` a side, `at` a row
    statistic: str | Mapping[str, Mapping[str, Any]] = ""  # its name, or its name with options
    needs: str = ""  # the note if the relation has no rows
    not_testable: str = ""  # the reason why no run can judge it
    assumes: Mapping[str, Any] = field(default_factory=dict)  # conditions on the run, by their names in assumed.py
    minimum: float | None = None  # least possible value, where intervals are cut
    by_construction: bool = False  # it follows from the definition of the systems, and fails only by a fault

    @property
    def score(self) -> str:
        """Return the name of the score that it reads: that of the papers or the live one; empty: neither."""
        found = signature(relation(self.of["relation"])).parameters.get("score") if self.of else None
        return "" if found is None else SCORES[self.of.get("where", {}).get("score", found.default)]

    @property
    def strength(self) -> Strength:
        """Return the kind of evidence that a verdict gives: a number, a direction, or a check of the code."""
        return "by construction" if self.by_construction else STRENGTHS.get(self.rule, "quantitative")

    def measure(self, tables: Tables) -> Measured | Untestable:
        """Return the measured value with its interval, or the reason why these tables cannot give one."""
        if self.not_testable:
            return Untestable(self.not_testable)
        try:
            found = self._measure(tables)
        except Untestable as reason:
            return reason
        if found.low is None or self.minimum is None:
            return found
        return replace(found, low=max(found.low, self.minimum))

    def _measure(self, tables: Tables) -> Measured:
        where = self.of.get("where", {})
        try:
            rows = relation(self.of["relation"])(tables, *self.of.get("systems", ()), **where)
        except KeyError as error:
            named = [value for value in where.values() if isinstance(value, str) and f"'{value}'" in str(error)]
            if not named:
                raise
            columns = dict.fromkeys(name for table in TABLES.values() for name in table.names)
            raise RequestError(
                f"Claim '{self.id}': {self.of['relation']} has no column '{named[0]}'.{name_hint(named[0], columns)}"
            ) from error
        if rows.empty:
            raise Untestable(self.needs or rows.attrs.get("needs") or "nothing was measured")
        if "at" in self.of:
            rows = rows.loc[[self.of["at"]]]
        if "take" in self.of:
            rows = rows[[self.of["take"]]].set_axis(["value"], axis=1)
        ((name, options),) = ({self.statistic: {}} if isinstance(self.statistic, str) else self.statistic).items()
        return STATISTICS[name](rows, **options)


@dataclass(frozen=True)
class Verdict:
    """A claim with its measured value and the result of its rule."""

    claim: Claim
    result: ClaimResult | CellResult
    measured: Measured | None
    note: str


def relation(name: str) -> Callable[..., pd.DataFrame]:
    """Return a function of the package `relations` by module and name, such as `scores.received`."""
    module, _, function = name.partition(".")
    found: Callable[..., pd.DataFrame] = getattr(import_module(f"{RELATIONS}.{module}"), function)
    return found


@cache
def every_claim() -> Mapping[str, Claim]:
    """Collect the claims of every file in this folder."""
    from driftlab.platform.core.documents import read_yaml

    found: dict[str, Claim] = {}
    for file in sorted(Path(__file__).parent.glob("*.yaml")):
        for entry in read_yaml(file.read_text(encoding="utf-8")):
            paper = entry.pop("paper")
            claim = Claim(**entry, paper=paper["value"], unit=paper["unit"], rule=paper["rule"])
            assert claim.id not in found, f"two claims are called '{claim.id}'"
            found[claim.id] = claim
    return found


def evaluate(run: Run, only: Iterable[str] = (), *, tables: Tables | None = None) -> list[Verdict]:
    """Judge all claims, or those in `only`, by the tables of a run."""
    defined = every_claim()
    selected = list(only)
    for name in selected:
        if name not in defined:
            raise unknown_name("claim", name, defined)
    source = tables or Tables(run)
    return [judge(defined[name], measure_claim(defined[name], source)) for name in selected or defined]


def measure_claim(claim: Claim, tables: Tables) -> Measured | Untestable:
    """Measure a claim; if it is untestable here, name the experiment that tests it."""
    blind = bool(claim.score and tables.run.info.get("agreement")) and not claim.not_testable
    try:
        found = Untestable(NO_TRUTH) if blind else claim.measure(tables)
    except RequestError:  # the claim's own definition is wrong
        raise
    except Exception as error:
        return Untestable(isolation.describe(error))
    if isinstance(found, Measured) and (unmet := missing_assumption(tables, claim.assumes)):
        found = Untestable(unmet)
    other = tables.run.spec.get("name") != claim.experiment
    if isinstance(found, Untestable) and other and not claim.not_testable:
        return Untestable(f"{found.reason}: run {claim.experiment}")
    return found


def uncomputed(verdicts: Iterable[Verdict]) -> list[str]:
    """Return a line for each claim whose relation raised an exception."""
    return [f"Claim {one.claim.id} {one.note}" for one in verdicts if one.note.startswith(isolation.FAILED)]


def judge(claim: Claim, measured: Measured | Untestable) -> Verdict:
    """Apply a claim's rule."""
    if isinstance(measured, Untestable):
        return Verdict(claim, "not testable here", None, measured.reason)
    if claim.rule == "info":
        return Verdict(claim, "information", measured, measured.note)
    assert claim.paper is not None, f"rule '{claim.rule}' of claim '{claim.id}' needs a value to compare with"
    holds = _holds(claim.rule, claim.paper, measured)
    note = measured.note
    if not note and measured.low is None and claim.rule in ("sign", "ge", "le"):
        note = "one value has no interval"
    return Verdict(claim, "reproduced" if holds else "not reproduced", measured, note)


def _holds(rule: str, paper: float, measured: Measured) -> bool:
    low = measured.value if measured.low is None else measured.low
    high = measured.value if measured.high is None else measured.high
    if rule == "exact":
        return measured.value == paper
    if rule == "ge":
        return low >= paper
    if rule == "le":
        return high <= paper
    if rule == "sign":
        return low > 0 if paper > 0 else high < 0 if paper < 0 else measured.value == 0
    match = re.fullmatch(r"(abs|rel)<=([\d.]+)", rule)
    assert match, f"no rule is written '{rule}'"
    scale = 1.0 if match[1] == "abs" else abs(paper)
    return abs(measured.value - paper) <= float(match[2]) * scale


def as_records(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Return verdicts as plain data, for JSON."""
    return [
        {
            "id": verdict.claim.id,
            "source": verdict.claim.source,
            "claim": verdict.claim.sentence,
            "paper": verdict.claim.paper,
            "ours": verdict.measured.value if verdict.measured else None,
            "low": verdict.measured.low if verdict.measured else None,
            "high": verdict.measured.high if verdict.measured else None,
            "n": verdict.measured.n if verdict.measured else 0,
            "unit": verdict.claim.unit,
            "rule": verdict.claim.rule,
            "score": verdict.claim.score or None,
            "strength": verdict.claim.strength,
            "verdict": verdict.result,
            "note": verdict.note,
        }
        for verdict in verdicts
    ]


COLUMNS = ("claim", "paper", "ours", "95 % CI", "evidence", "verdict")


def as_rows(verdicts: Sequence[Verdict]) -> list[tuple[str, ...]]:
    """Return verdicts as rows of texts; a dash where there is no number."""
    return [
        (
            f"{verdict.claim.id}: {verdict.claim.sentence}",
            format_paper(verdict.claim),
            format_value(verdict),
            format_interval(verdict),
            format_evidence(verdict.claim),
            verdict.result + (f" ({verdict.note})" if verdict.note else ""),
        )
        for verdict in verdicts
    ]


def count_results(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """Count the verdicts by their word; claims that no run can judge are counted separately."""
    return dict(Counter(NO_RUN if verdict.claim.not_testable else verdict.result for verdict in verdicts))


def untestable_by_reason(verdicts: Iterable[Verdict]) -> dict[str, str]:
    """Map identifiers of untestable claims, joined where they share a reason, to that reason."""
    reasons: dict[str, str] = {}
    for verdict in verdicts:
        if verdict.measured is None:
            reasons[verdict.note] = ", ".join(filter(None, (reasons.get(verdict.note), verdict.claim.id)))
    return {names: reason for reason, names in reasons.items()}


def format_evidence(claim: Claim) -> str:
    """Format the kind of evidence, and the score that the claim reads."""
    return claim.strength + (f", by {claim.score}" if claim.score else "")


def format_paper(claim: Claim) -> str:
    """Format the paper's value, or the limit that the rule sets."""
    if claim.paper is None:
        return DASH
    side = {"le": "at most ", "ge": "at least "}.get(claim.rule, "")
    return side + _number(claim.paper, claim)


def format_value(verdict: Verdict) -> str:
    """Format the measured value."""
    return _number(verdict.measured.value, verdict.claim) if verdict.measured else DASH


def format_interval(verdict: Verdict) -> str:
    """Format the interval and the number of its values."""
    found = verdict.measured
    if found is None or found.low is None or found.high is None:
        return DASH
    return f"{_number(found.low, verdict.claim)} to {_number(found.high, verdict.claim)}, n = {found.n}"


def _number(value: float, claim: Claim) -> str:
    """Format a value with its unit; a difference has its sign."""
    share = re.fullmatch(r"share (of .+)|(of the .+)", claim.unit)
    if share:
        text = f"{100 * value:.4g} % {share[1] or share[2]}"
    else:
        text = f"{value:+.3f}" if claim.unit == DIFFERENCE else f"{value:.4g} {claim.unit}".strip()
    return text.replace("-", "\u2212")
