"""The contract of every claim: a statistic of a relation, and the same number on the same tables."""

from __future__ import annotations

import inspect
import json
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tables_factory import Made

from driftlab.platform.results.claims.base import Claim, every_claim, judge, relation
from driftlab.platform.results.claims.statistics import STATISTICS

RECORDED = Path(__file__).resolve().parents[1] / "fixtures" / "claims"  # small tables, and what claims said of them
SAID: dict[str, dict[str, dict[str, Any]]] = json.loads((RECORDED / "claims.json").read_text())  # by set of tables
NEED_DAYS = {"N-9", "N-10"}  # too many windows for a file; test_claims_nestdnn_sharing.py asks for fewer
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
    assert claim.of.keys() <= {"relation", "systems", "where"}
    statistic, options = statistic_of(claim)
    inspect.signature(STATISTICS[statistic]).bind(None, **options)


def test_every_statistic_has_a_claim():
    assert {statistic_of(claim)[0] for claim in every_claim().values() if not claim.not_testable} == set(STATISTICS)


def test_every_claim_that_runs_can_judge_is_recorded():
    recorded = {name for said in SAID.values() for name in said}
    judged = {name for name, claim in every_claim().items() if not claim.not_testable}
    assert judged - recorded == NEED_DAYS and recorded <= judged


@cache
def table(name: str) -> pa.Table:
    return pq.read_table(RECORDED / f"{name}.parquet")


def recorded(name: str) -> Made:
    made = Made(json.loads((RECORDED / "specs.json").read_text())[name])
    for file in RECORDED.glob("*.parquet"):
        own = table(file.stem).filter(pc.equal(table(file.stem)["set"], name)).drop_columns(["set"])
        made._frames[file.stem] = own.to_pandas().reindex(columns=made.frame(file.stem).columns)
    return made


@pytest.mark.parametrize("name", SAID)
def test_claims_say_of_recorded_tables_what_they_said(name: str):
    """Another order of sums may show in the last digits; a number that differs by more is another number."""
    tables = recorded(name)
    for claim_id, said in SAID[name].items():
        claim = every_claim()[claim_id]
        verdict = judge(claim, claim.ask(tables))
        assert (verdict.word, verdict.note) == (said["word"], said["note"]), claim_id
        found = verdict.measured
        assert found is not None
        assert [found.value, found.low, found.high, found.n] == pytest.approx(said["numbers"], rel=1e-12), claim_id
        by_seed = {str(seed): value for seed, value in (found.by_seed or {}).items()}
        assert by_seed == pytest.approx(said["by_seed"] or {}, rel=1e-12), claim_id
