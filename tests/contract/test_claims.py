"""The contract of every claim: a statistic of a relation, and the same number on the same tables."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Iterable
from typing import Any

import pytest
import recorded_factory

from driftlab.platform.results.claims.base import Claim, every_claim, relation
from driftlab.platform.results.claims.statistics import STATISTICS

SAID = recorded_factory.said()  # by set of tables
DAY_LONG_CLAIMS = {"N-9", "N-10"}  # too many windows for a file; test_claims_nestdnn_sharing.py has tables with fewer
EXACT = ("exact", "sign", "ge", "le", "info")


def statistic_of(claim: Claim) -> tuple[str, dict[str, Any]]:
    if isinstance(claim.statistic, str):
        return claim.statistic, {}
    ((name, options),) = claim.statistic.items()
    return name, dict(options)


@pytest.mark.parametrize("name", every_claim())
def test_a_claim_is_a_statistic_of_a_relation_or_says_why_no_run_can_judge_it(name: str):
    claim = every_claim()[name]
    assert claim.rule in EXACT or claim.rule[:5] in ("abs<=", "rel<="), claim.rule
    if claim.not_testable:
        assert not (claim.of or claim.statistic or claim.needs or claim.assumes)
        return
    rows = relation(claim.of["relation"])
    inspect.signature(rows).bind(None, *claim.of.get("systems", ()), **claim.of.get("where", {}))
    assert claim.of.keys() <= {"relation", "systems", "where", "take", "at"}
    statistic, options = statistic_of(claim)
    inspect.signature(STATISTICS[statistic]).bind(None, **options)


def test_every_statistic_has_a_claim():
    assert {statistic_of(claim)[0] for claim in every_claim().values() if not claim.not_testable} == set(STATISTICS)


def relations_of(claims: Iterable[str]) -> set[str]:
    return {every_claim()[name].of["relation"] for name in claims}


def test_every_relation_is_recorded_with_a_number():
    judged = {name for name, claim in every_claim().items() if not claim.not_testable}
    recorded = {name for claims in SAID.values() for name in claims}
    assert recorded <= judged
    assert relations_of(judged) - relations_of(recorded) == relations_of(DAY_LONG_CLAIMS), (
        "recorded_factory.add records tables"
    )


@pytest.mark.parametrize("name", SAID)
def test_verdicts_on_recorded_tables_are_unchanged(name: str):
    """Another order of sums may show in the last digits; a number that differs by more is another number."""
    now = recorded_factory.verdicts_of(recorded_factory.tables_of(name), SAID[name])
    for claim, then in SAID[name].items():
        assert [now[claim][key] for key in ("word", "note")] == [then[key] for key in ("word", "note")], claim
        assert now[claim]["numbers"] == pytest.approx(then["numbers"], rel=1e-12), claim
        assert (now[claim]["by_seed"] or {}) == pytest.approx(then["by_seed"] or {}, rel=1e-12), claim


def test_a_set_of_tables_can_be_added(tmp_path, monkeypatch):
    shutil.copytree(recorded_factory.RECORDED, tmp_path / "claims")
    monkeypatch.setattr(recorded_factory, "RECORDED", tmp_path / "claims")
    recorded_factory._table.cache_clear()
    recorded_factory.add("again", recorded_factory.tables_of("N-2"))
    assert recorded_factory.said() == {**SAID, "again": SAID["N-2"]}
    recorded_factory._table.cache_clear()
