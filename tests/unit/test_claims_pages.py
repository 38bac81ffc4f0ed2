"""Tables of claims in the documentation are those of the stored runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from driftlab.errors import DataError
from driftlab.platform.lab.experiment import names
from driftlab.platform.results.claims.base import Measured, Untestable, as_records, every_claim, judge
from driftlab.platform.results.claims.pages import PLACE, main, stored, verdict_of, written

DOCS = Path(__file__).resolve().parents[2] / "docs"
RUNS = stored(DOCS / "claims")
PAGE = "before\n<!-- claims ONCE from a b -->\n| old |\n<!-- end of claims -->\nafter\n"


def run(experiment: str, **measured: float | None) -> dict[str, Any]:
    """Make what the command line prints of a run with these measurements."""
    verdicts = []
    for name, claim in every_claim().items():
        value = measured.get(name.replace("-", "_"))
        found = Untestable("why") if value is None else Measured(value, value - 0.01, value + 0.01, 5)
        verdicts.append(judge(claim, found))
    origin = {"run": f"runs/{experiment}", "experiment": experiment, "seeds": [0, 1], "commit": "0123456789abcdef"}
    return json.loads(json.dumps({**origin, "claims": as_records(verdicts)}))


def test_pages_hold_what_the_stored_runs_say():
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        assert written(text, RUNS) == text, f"{page.name}: python -m driftlab.platform.results.claims.pages docs"


def test_every_claim_stands_on_one_page_and_asks_experiments_that_are_there():
    places = [place for page in DOCS.rglob("*.md") for place in PLACE.findall(page.read_text(encoding="utf-8"))]
    families = [family for _, found, _, _ in places for family in found.split()]
    assert sorted(families) == sorted({name.rpartition("-")[0] for name in every_claim()})
    assert {name for _, _, asked, _ in places for name in asked.split()} <= set(names())


def test_stored_runs_are_judged_as_their_claims_are_today_and_name_no_machine():
    for stored_run in RUNS.values():
        assert not Path(stored_run["run"]).is_absolute()
        assert stored_run["commit"]
        for record in stored_run["claims"]:
            claim = every_claim()[record["id"]]
            assert (record["rule"], record["paper"], record["unit"]) == (claim.rule, claim.paper, claim.unit)
            if record["ours"] is not None:
                assert verdict_of(claim, stored_run).word == record["verdict"]


def test_the_first_run_that_can_tell_is_taken():
    page = written(PAGE, {"b": run("b", ONCE_1=0.2, ONCE_2=0.3), "a": run("a", ONCE_1=0.1)})
    head, table = page.split("|---|---|---|---|---|---|\n")
    assert head.startswith("before\n<!-- claims ONCE from a b -->\n| claim |")
    first, second, third, *rest = table.splitlines()
    assert first.split(" | ")[1:] == ["+0.155", "+0.100", "+0.090 to +0.110, n = 5", "reproduced", "a |"]
    assert second.split(" | ")[2:] == ["+0.300", "+0.290 to +0.310, n = 5", "not reproduced", "b |"]
    assert third.split(" | ")[2:] == ["–", "–", "not testable here: no stored run can tell", "– |"]
    origins = ["* `a`: 2 seeds, commit 0123456789", "* `b`: 2 seeds, commit 0123456789"]
    assert rest == ["", *origins, "<!-- end of claims -->", "after"]
    assert written(page, {}).count("not testable here") == 3


def test_a_page_is_written_once_and_others_stay(tmp_path):
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims/a.json").write_text(json.dumps(run("a", ONCE_1=0.1)))
    (tmp_path / "page.md").write_text(PAGE)
    (tmp_path / "other.md").write_text("nothing")
    main(tmp_path)
    once = (tmp_path / "page.md").read_text()
    assert re.search(r"^\| ONCE-1: .* \| reproduced \| a \|$", once, re.MULTILINE)
    main(tmp_path)
    assert (tmp_path / "page.md").read_text() == once
    assert (tmp_path / "other.md").read_text() == "nothing"


def test_a_run_under_the_name_of_another_is_refused(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(run("b")))
    with pytest.raises(DataError, match="holds a run of 'b'"):
        stored(tmp_path)
