"""Claims: rules at both sides of their limits, built-in claims on streams with known verdicts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import results_factory as factory
from claims_factory import measured
from tables_factory import Made, run_row

from driftlab.errors import RequestError
from driftlab.platform.results.claims.base import (
    Claim,
    as_records,
    as_rows,
    count_results,
    evaluate,
    every_claim,
    format_evidence,
    judge,
    untestable_by_reason,
)
from driftlab.platform.results.claims.statistics import Measured
from driftlab.platform.results.relations.base import Untestable
from driftlab.platform.results.tables.read import Tables, open_run

ONCE = ("ONCE-1", "ONCE-2", "ONCE-3")


def verdict(rule, paper, measured):
    return judge(Claim("X-1", "x", "here", "it holds", paper, "s", rule), measured).result


@pytest.mark.parametrize(
    ("rule", "paper", "good", "bad"),
    [
        ("exact", 3.0, Measured(3.0), Measured(3.0000001)),
        ("abs<=2", 10.0, Measured(12.0), Measured(12.1)),
        ("rel<=.15", 10.0, Measured(8.5), Measured(8.4)),
        ("rel<=.15", -10.0, Measured(-8.5), Measured(-8.4)),
        ("sign", 0.2, Measured(0.01), Measured(-0.01)),
        ("sign", -0.2, Measured(-0.01), Measured(0.01)),
        ("sign", 0.2, Measured(0.1, 0.01, 0.19, 3), Measured(0.1, -0.01, 0.21, 3)),
        ("ge", 5.0, Measured(6.0, 5.0, 7.0, 3), Measured(6.0, 4.9, 7.1, 3)),
        ("le", 1.0, Measured(0.5), Measured(1.5)),
        ("le", 1.0, Measured(0.9, 0.8, 1.0, 3), Measured(0.9, 0.7, 1.1, 3)),
    ],
)
def test_rules(rule, paper, good, bad):
    assert verdict(rule, paper, good) == "reproduced"
    assert verdict(rule, paper, bad) == "not reproduced"


def test_a_single_value_is_judged_and_marked():
    claim = Claim("X-1", "x", "here", "it holds", 1.0, "s", "le")
    assert judge(claim, Measured(0.5)).note == "one value has no interval"
    assert judge(claim, Measured(0.5, 0.4, 0.6, 3)).note == ""


def test_a_claim_about_an_old_column_is_an_error_with_the_new_name(tmp_path):
    tables = Tables(open_run(factory.make_run(tmp_path, seeds=(0,), snapshots=False)))
    of = {"relation": "scores.scores", "systems": ["one_time", "no_custom"], "where": {"traffic_column": "answering_j"}}
    with pytest.raises(RequestError, match=r"Unknown column of 'runs' 'answering_j'\. It is now 'inference_j'"):
        replace(every_claim()["ONCE-1"], of=of).measure(tables)


class TestScores:
    """A claim reads the score of the papers unless it names the live one, and says which."""

    def claim(self, relation="scores.scores", **where):
        of = {"relation": relation, "systems": ["one_time", "no_custom"], "where": where}
        return replace(every_claim()["ONCE-1"], of=of, statistic="difference", assumes={})

    @pytest.mark.parametrize(
        ("where", "difference", "named"),
        [({}, 0.25, "score"), ({"score": "score"}, 0.25, "score"), ({"score": "score_live"}, 0.125, "live score")],
    )
    def test_the_value_and_the_name_are_those_of_one_column(self, where, difference, named):
        scores = {"one_time": {"score": 0.75, "score_live": 0.5}, "no_custom": {"score": 0.5, "score_live": 0.375}}
        runs = [run_row(system, seed, **own) for system, own in scores.items() for seed in (0, 1)]
        claim = self.claim(**where)
        assert measured(claim.measure(Made({}, runs=runs))).value == difference
        (record,), (row,) = as_records([judge(claim, Measured(0.1))]), as_rows([judge(claim, Measured(0.1))])
        assert (record["score"], row[4]) == (named, f"{claim.strength}, by {named}")

    def test_a_claim_about_traffic_reads_none(self):
        claim = every_claim()["AMS-7"]
        assert (claim.score, format_evidence(claim)) == ("", claim.strength)


def test_an_untestable_measure_is_not_judged():
    assert verdict("sign", 1.0, Untestable("no such system")) == "not testable here"
    assert verdict("info", None, Measured(3.0)) == "information"
    with pytest.raises(AssertionError):
        verdict("roughly", 1.0, Measured(1.0))


@pytest.mark.slow
def test_a_scene_whose_light_and_weather_move_on_is_not_one_that_stays(tmp_path):
    names = ("streets/interview", "streets/drift")
    part = {"systems": ("no_custom", "one_time"), "snapshots": False}
    (both,) = evaluate(open_run(factory.make_run(tmp_path, workloads=names, **part)), ["ONCE-1"])
    assert both.measured.value == pytest.approx(0.26 * 100 / 120, abs=0.01)
    only = evaluate(open_run(factory.make_run(tmp_path / "drift", workloads=names[1:], **part)), ["ONCE-1"])
    assert only[0].result == "not testable here"


@pytest.mark.slow
def test_claims_of_a_run_with_known_verdicts(tmp_path):
    run = open_run(factory.make_run(tmp_path, systems=("no_custom", "one_time"), snapshots=False))
    verdicts = {x.claim.id: x for x in evaluate(run, ONCE)}
    assert {name: x.result for name, x in verdicts.items()} == dict.fromkeys(ONCE, "reproduced")
    # The made-up stream: 0.42 without and 0.68 with specialisation from 20 of 120 s on; 0.34 on the strange scene.
    assert verdicts["ONCE-1"].measured.value == pytest.approx(0.26 * 100 / 120, abs=0.01)
    assert verdicts["ONCE-2"].measured.value == pytest.approx(-0.08, abs=0.01)
    assert verdicts["ONCE-3"].measured.value == pytest.approx(-0.08 - 0.26, abs=0.02)
    assert verdicts["ONCE-2"].measured.n == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("systems", "workloads", "testable"),
    [
        (("no_custom",), ("streets/interview", "streets/driving_la"), set()),
        (("no_custom", "one_time"), ("streets/interview",), {"ONCE-1"}),
        (("no_custom", "one_time"), ("streets/driving_la",), {"ONCE-2", "ONCE-3"}),
        ((), (), set()),
    ],
)
def test_claims_are_untestable_where_tables_lack_their_rows(tmp_path, systems, workloads, testable):
    run = factory.make_run(tmp_path, systems=systems, workloads=workloads, seeds=(0, 1), snapshots=False)
    verdicts = evaluate(open_run(run), ONCE)
    assert {x.claim.id for x in verdicts if x.result != "not testable here"} == testable
    assert all(x.note for x in verdicts if x.result == "not testable here")


@pytest.mark.slow
def test_rendering_and_choice(tmp_path):
    run = open_run(factory.make_run(tmp_path, workloads=("streets/interview",), seeds=(0,), snapshots=False))
    verdicts = evaluate(run, ["ONCE-2", "ONCE-1"])
    first, second = json.loads(json.dumps(as_records(verdicts)))
    assert (first["id"], first["verdict"], first["ours"]) == ("ONCE-2", "not testable here", None)
    assert (second["id"], second["verdict"], second["n"]) == ("ONCE-1", "not testable here", 0)
    assert "more seeds" in second["note"]
    assert as_rows(verdicts)[0][1:4] == ("−" + "0.113", "–", "–")
    assert list(untestable_by_reason(verdicts).values()) == [verdict.note for verdict in verdicts]
    assert untestable_by_reason([*verdicts, *verdicts[:1]]) == {
        "ONCE-2, ONCE-2": first["note"],
        "ONCE-1": second["note"],
    }
    with pytest.raises(RequestError, match="ONCE-1"):
        evaluate(run, ["ONCE-l"])


def test_claims_that_no_run_can_judge_are_counted_apart():
    never = replace(every_claim()["ONCE-1"], id="X-1", not_testable="no table tells")
    judged = [judge(never, never.measure(Made())), *(judge(every_claim()["ONCE-1"], Measured(0.1 * k)) for k in (1, 2))]
    assert count_results([*judged, judge(every_claim()["ONCE-2"], Untestable("why"))]) == {
        "testable by no run": 1, "reproduced": 2, "not testable here": 1
    }  # fmt: skip


def test_every_claim_is_written_down_in_full():
    for name, claim in every_claim().items():
        assert name == claim.id
        assert claim.source
        assert claim.sentence
        assert claim.unit
