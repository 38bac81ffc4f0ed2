"""Tables of claims in the documentation are those of the stored runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from driftlab.errors import DataError
from driftlab.platform.lab.read import names
from driftlab.platform.results.claims.base import as_records, every_claim, judge
from driftlab.platform.results.claims.pages import PLACE, main, of_place, stored, verdict_of, written
from driftlab.platform.results.relations.measured import Measured, Untestable

DOCS = Path(__file__).resolve().parents[2] / "docs"
RUNS = stored(DOCS / "claims")
PAGE = "before\n<!-- claims ONCE -->\n| old |\n<!-- end of claims -->\nafter\n"


def run(experiment: str, **measured: float | None) -> dict[str, Any]:
    """Make what the command line prints of a run with these measurements."""
    verdicts = []
    for name, claim in every_claim().items():
        value = measured.get(name.replace("-", "_"))
        found = Untestable("why") if value is None else Measured(value, value - 0.01, value + 0.01, 5)
        verdicts.append(judge(claim, found))
    origin = {"run": f"runs/{experiment}", "experiment": experiment, "size": "full"}
    origin |= {"seeds": [0, 1], "commit": "0123456789abcdef"}
    return json.loads(json.dumps({**origin, "claims": as_records(verdicts)}))


def test_pages_hold_what_the_stored_runs_say():
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        assert written(text, RUNS) == text, f"{page.name}: python -m driftlab.platform.results.claims.pages docs"


def test_every_claim_stands_on_a_page_and_asks_an_experiment_that_is_there():
    places = [place for page in DOCS.rglob("*.md") for place in PLACE.findall(page.read_text(encoding="utf-8"))]
    claims = every_claim()
    known = set(claims) | {name.partition("-")[0] for name in claims}
    assert {name for _, found, *_ in places for name in found.split()} <= known
    assert {claim.id for _, found, *_ in places for claim in of_place(found)} == set(claims)
    assert {claim.experiment for claim in claims.values()} <= set(names())


def test_claims_stand_in_the_order_of_papers():
    found = [claim.id for claim in of_place("NEST N-13b N-2 N-13 N-10 N-14")]
    assert found == ["NEST-1", "NEST-2", "NEST-3", "N-2", "N-10", "N-13", "N-13b", "N-14"]


def test_stored_runs_are_judged_as_their_claims_are_today_and_name_no_machine():
    for stored_run in RUNS.values():
        assert not Path(stored_run["run"]).is_absolute()
        assert stored_run["commit"]
        for record in stored_run["claims"]:
            claim = every_claim()[record["id"]]
            assert (record["rule"], record["paper"], record["unit"]) == (claim.rule, claim.paper, claim.unit)
            if record["ours"] is not None:
                assert verdict_of(claim, stored_run).word == record["verdict"]


def test_a_claim_is_told_by_the_experiment_that_was_made_for_it():
    runs = {"a": run("a", ONCE_1=0.1), "ams-table1": run("ams-table1", ONCE_1=0.2, ONCE_2=0.3)}
    head, table = written(PAGE, runs).split("|---|---|---|---|---|---|---|\n")
    assert head.startswith("before\n<!-- claims ONCE -->\n| claim |")
    first, second, third, *rest = table.splitlines()
    own = "ams-table1 |"
    assert first.split(" | ")[1:] == ["+0.155", "+0.200", "+0.190 to +0.210, n = 5", "direction", "reproduced", own]
    assert second.split(" | ")[2:] == ["+0.300", "+0.290 to +0.310, n = 5", "direction", "not reproduced", own]
    assert third.split(" | ")[2:] == ["–", "–", "direction", "not testable here: why", own]
    assert rest == [
        "",
        "* `driftlab run ams-table1 --set size=full`: 2 seeds, commit 0123456789",
        "<!-- end of claims -->",
        "after",
    ]
    assert written(PAGE, {}).count("not testable here: no run is stored") == 3


def test_runs_of_a_size_have_a_table_of_their_own():
    runs = {"ams-table1": run("ams-table1", ONCE_1=0.1), "ams-table1.city": run("ams-table1", ONCE_1=0.2)}
    table = written(PAGE.replace("ONCE", "ONCE AMS-5 of size city"), runs)
    assert [line.partition(":")[0] for line in table.splitlines() if "ams-" in line] == [
        *("| ONCE-1", "| ONCE-2", "| ONCE-3"),
        "* `driftlab run ams-table1 --set size=full`",
    ]
    assert "| +0.200 |" in table
    assert "| +0.100 |" in written(PAGE, runs)


def test_another_experiment_may_tell_of_a_claim():
    runs = {"ams-table1": run("ams-table1", ONCE_1=0.1), "ams-table2": run("ams-table2", ONCE_1=0.2)}
    first, *_, origin, _, _ = written(PAGE.replace("ONCE", "ONCE-1 by ams-table2"), runs).splitlines()[4:]
    assert first.endswith("| reproduced | ams-table2 |") and "| +0.200 |" in first
    assert origin.startswith("* `driftlab run ams-table2 --set size=full`")


def test_every_stored_run_stands_on_a_page():
    text = "".join(page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md"))
    for name, stored_run in RUNS.items():
        size = "" if name == stored_run["experiment"] else f" --set size={stored_run['size']}`"
        assert f"`driftlab run {stored_run['experiment']}{size}" in text, name


def test_a_page_is_written_once_and_others_stay(tmp_path):
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims/ams-table1.json").write_text(json.dumps(run("ams-table1", ONCE_1=0.1)))
    (tmp_path / "page.md").write_text(PAGE)
    (tmp_path / "other.md").write_text("nothing")
    main(tmp_path)
    once = (tmp_path / "page.md").read_text()
    assert re.search(r"^\| ONCE-1: .* \| reproduced \| ams-table1 \|$", once, re.MULTILINE)
    main(tmp_path)
    assert (tmp_path / "page.md").read_text() == once
    assert (tmp_path / "other.md").read_text() == "nothing"


def test_a_run_is_stored_under_its_experiment_and_size(tmp_path):
    (tmp_path / "b.full.json").write_text(json.dumps(run("b")))
    assert set(stored(tmp_path)) == {"b.full"}
    (tmp_path / "a.json").write_text(json.dumps(run("b")))
    with pytest.raises(DataError, match="holds a run of 'b'"):
        stored(tmp_path)
