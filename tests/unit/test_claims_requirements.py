"""The requirements of claims: a run that lacks one cannot judge the claim, and the reason names it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from claims_factory import SEEDS, part, run_row
from tables_factory import Made, numbers_in

from driftlab.platform.results.claims import base
from driftlab.platform.results.claims.assumed import missing_assumption
from driftlab.platform.results.claims.base import Claim, every_claim, judge
from driftlab.platform.results.claims.statistics import Measured


def taught(updates: int, refused: int = 0, first_s: float = 10.0, duration_s: float = 100.0) -> Made:
    """Make one application train this often in a stream; the rest of its updates is refused."""
    rows = [run_row("ams", seed, duration_s=duration_s) for seed in SEEDS]
    place = [{"cell": row["cell"], "device": "d", "app": "a"} for row in rows]
    arrived: list[dict[str, Any]] = [
        {**one, "accepted": number < updates, "arrive_s": first_s * (number + 1)}
        for one in place
        for number in range(updates + refused)
    ]
    return Made(spec={"systems": [part("ams", "ams", streaming={})]}, runs=rows, frames=place, updates=arrived)


@pytest.mark.parametrize(
    ("assumes", "enough", "too_little", "says"),
    [
        ({"stream_s": 100}, taught(1), taught(1, duration_s=99.0), [100, 99]),
        ({"updates": {"ams": 5}}, taught(5), taught(4, refused=3), [5, 4]),
        ({"updates": {"ams": 1}}, taught(1), taught(0), [1, 0]),
        ({"warm_up": 0.25}, taught(3, first_s=25.0), taught(3, first_s=30.0), [25, 30]),
        ({"stream_s": 10, "updates": {"ams": 5}}, taught(5), taught(1), [5, 1]),
    ],
)
def test_a_run_without_a_requirement_has_a_note_with_the_missing_part(assumes, enough, too_little, says):
    assert missing_assumption(enough, assumes) == ""
    assert numbers_in(missing_assumption(too_little, assumes)) == says


def test_members_outside_the_run_are_not_required():
    assert missing_assumption(taught(0), {"updates": {"just_in_time": 5}}) == ""


def test_a_claim_is_not_judged_by_a_run_without_its_requirements(monkeypatch):
    claim = Claim("X-1", "here", "s", "it holds", 1.0, "s", "ge", assumes={"stream_s": 150})
    monkeypatch.setattr(Claim, "_measure", lambda claim, tables: Measured(2.0, 1.5, 2.5, 3))
    monkeypatch.setattr(base, "every_claim", lambda: {"X-1": claim})
    words = {}
    for duration_s in (149.0, 150.0):
        tables = taught(1, duration_s=duration_s)
        tables.run.spec["name"] = "here"
        (verdict,) = base.evaluate(tables.run, tables=tables)
        words[duration_s] = verdict.result
    assert words == {149.0: "not testable here", 150.0: "reproduced"}


def test_an_interval_is_cut_at_the_possible_values(monkeypatch):
    claim = Claim("X-1", "here", "s", "it takes little", 3.0, "s", "le", minimum=0.0)
    monkeypatch.setattr(Claim, "_measure", lambda claim, tables: Measured(1.0, -0.5, 2.5, 3))
    found = claim.measure(taught(1))
    assert isinstance(found, Measured)
    assert (found.low, found.high) == (0.0, 2.5)


@pytest.mark.parametrize(
    ("rule", "strength"),
    [("exact", "quantitative"), ("abs<=1", "quantitative"), ("sign", "direction"), ("le", "direction"),
     ("info", "information")],
)  # fmt: skip
def test_the_rule_determines_the_strength_of_a_verdict(rule, strength):
    claim = Claim("X-1", "here", "s", "it holds", 1.0, "s", rule)
    assert claim.strength == strength
    assert replace(claim, by_construction=True).strength == "by construction"
    assert judge(claim, Measured(1.0)).claim.strength == strength


@pytest.mark.slow
def test_every_claim_has_requirements_that_a_long_run_meets():
    tables = taught(100, duration_s=10_000.0)
    for claim in every_claim().values():
        assert missing_assumption(tables, claim.assumes) == "", claim.id
