"""Tables of claims in the documentation are those of the ledger."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import ledger_factory as factory
import pytest

from driftlab.errors import DataError
from driftlab.platform.lab.read import names
from driftlab.platform.results.claims import pages
from driftlab.platform.results.claims.base import Claim, every_claim
from driftlab.platform.results.claims.cells import PaperCell, every_table, verdict_of
from driftlab.platform.results.claims.ledger import LEDGER, Line, append, newest, read_ledger
from driftlab.platform.results.claims.pages import PLACE, Evidence, evidence_of, fill_tables, main, of_place, sizes_in

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = "before\n<!-- claims ONCE -->\n| old |\n<!-- end of claims -->\nafter\n"
needs_ledger = pytest.mark.skipif(not LEDGER.is_file(), reason="evidence/ is not beside this copy of driftlab")


def held(*lines: Line, sizes: tuple[tuple[str, str], ...] = ()) -> Evidence:
    return Evidence(newest(lines), frozenset(sizes), factory.TODAY)


def line(claim: str, value: float, experiment: str = "ams-table1", **more: Any) -> Line:
    return factory.line(claim, value, experiment=experiment, **more)


@needs_ledger
def test_pages_agree_with_the_ledger():
    evidence = evidence_of(DOCS)
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        assert fill_tables(text, evidence) == text, (
            f"{page.name}: python -m driftlab.platform.results.claims.pages docs"
        )


def test_every_claim_is_on_a_page_and_names_an_existing_experiment():
    places = [place for page in DOCS.rglob("*.md") for place in PLACE.findall(page.read_text(encoding="utf-8"))]
    claims = every_claim()
    known = set(claims) | {name.partition("-")[0] for name in claims}
    assert {name for _, found, *_ in places for name in found.split()} <= known
    assert {claim.id for _, found, *_ in places for claim in of_place(found)} == set(claims)
    assert {claim.experiment for claim in claims.values()} <= set(names())


def test_claims_stand_in_the_order_of_papers():
    found = [claim.id for claim in of_place("NEST N-13b N-2 N-13 N-10 N-14")]
    assert found == ["NEST-1", "NEST-2", "NEST-3", "NEST-4", "NEST-5", "N-2", "N-10", "N-13", "N-13b", "N-14"]


def recordable() -> dict[str, Claim]:
    """Return the claims, and the cells of the papers' tables, by their names in the ledger."""
    return {**every_claim(), **{cell.id: cell for table in every_table().values() for cell in table.cells}}


@needs_ledger
def test_every_line_is_of_a_claim_or_cell_and_names_no_host():
    known = recordable()
    for found in read_ledger(LEDGER):
        assert found["claim"] in known
        assert found["value"] is not None
        assert found["commit"]
        assert not {"run", "host", "command"} & found.keys()


@needs_ledger
def test_lines_of_the_words_of_today_are_judged_as_they_were():
    known = recordable()
    for found in newest(read_ledger(LEDGER)).values():
        claim = known[found["claim"]]
        judged = verdict_of if isinstance(claim, PaperCell) else pages.verdict_of
        if (found["rule"], found["paper"], found["unit"]) == (claim.rule, claim.paper, claim.unit):
            assert judged(claim, found).result == found["verdict"]


@needs_ledger
def test_every_recorded_run_is_on_a_page():
    text, sizes = "".join(page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md")), evidence_of(DOCS).sizes
    for _, experiment, size in newest(read_ledger(LEDGER)):
        run = f"`driftlab run {experiment}" + (f" --set size={size}`" if (experiment, size) in sizes else "")
        assert (f"| {experiment}" if experiment.startswith("benchmarks/") else run) in text


def test_the_experiment_of_a_claim_gives_the_row_on_its_page():
    evidence = held(line("ONCE-1", 0.1, "a"), line("ONCE-1", 0.2), line("ONCE-2", 0.3))
    head, table = fill_tables(PAGE, evidence).split("|---|---|---|---|---|---|---|\n")
    assert head.startswith("before\n<!-- claims ONCE -->\n| claim |")
    first, second, third, *rest = table.splitlines()
    own = "ams-table1 |"
    assert first.split(" | ")[1:] == ["+0.155", "+0.200", "+0.190 to +0.210, n = 2", "direction", "reproduced", own]
    assert second.split(" | ")[2:] == ["+0.300", "+0.290 to +0.310, n = 2", "direction", "not reproduced", own]
    assert third.split(" | ")[2:] == ["–", "–", "direction", "not testable here: no value is recorded", own]
    assert rest == [
        "",
        "* `driftlab run ams-table1 --set size=full`: 2 seeds, commit 0123456789",
        "<!-- end of claims -->",
        "after",
    ]
    assert fill_tables(PAGE, held()).count("not testable here: no value is recorded") == 3


def test_a_claim_that_no_table_can_judge_gives_its_reason():
    name, claim = next((name, claim) for name, claim in every_claim().items() if claim.not_testable)
    page = fill_tables(PAGE.replace("ONCE", f"{name} ONCE"), held())
    assert f"not testable here: {claim.not_testable} |" in page
    assert "* 1 of these 4 claims: testable by no run\n<!--" in page and "testable by" not in fill_tables(PAGE, held())


def test_the_line_that_was_added_last_counts():
    found = fill_tables(PAGE, held(line("ONCE-1", 0.1), line("ONCE-1", 0.2)))
    assert "| +0.200 |" in found and "| +0.100 |" not in found


def test_stale_lines_are_marked_with_the_reason():
    evidence = held(line("ONCE-1", 0.1), line("ONCE-2", 0.3, code_digest=None))
    first, second, _, _, fresh, old, *_ = fill_tables(PAGE, evidence).splitlines()[4:]
    assert first.endswith("| reproduced | ams-table1 |")
    assert second.endswith("| not reproduced | ams-table1, *stale* |")
    assert (fresh + "; *stale*: recorded without digests") == old


def test_sizes_named_in_marks_have_separate_tables():
    """A size of the same name of another experiment does not."""
    city, elsewhere = ("ams-table1", "city"), ("ams-table2", "city")
    marked = PAGE.replace("ONCE", "ONCE AMS-5 of size city")
    assert sizes_in([PAGE, marked]) == {city, ("ams-fig4", "city")}
    lines = [line("ONCE-1", 0.1), line("ONCE-1", 0.2, size="city")]
    table = fill_tables(marked, held(*lines, sizes=(city,)))
    assert [row.partition(":")[0] for row in table.splitlines() if "ams-" in row] == [
        *("| ONCE-1", "| ONCE-2", "| ONCE-3"),
        "* `driftlab run ams-table1 --set size=city`",
    ]
    assert "| +0.200 |" in table
    assert "| +0.100 |" in fill_tables(PAGE, held(*lines, sizes=(city,)))
    assert "| +0.200 |" in fill_tables(PAGE, held(*lines, sizes=(elsewhere,)))
    assert "| +0.200 |" in fill_tables(PAGE, held(*lines))  # the newest of the sizes that no mark names


def test_another_experiment_may_tell_of_a_claim():
    evidence = held(line("ONCE-1", 0.1), line("ONCE-1", 0.2, "ams-table2"))
    first, *_, origin, _, _ = fill_tables(PAGE.replace("ONCE", "ONCE-1 by ams-table2"), evidence).splitlines()[4:]
    assert first.endswith("| reproduced | ams-table2 |") and "| +0.200 |" in first
    assert origin.startswith("* `driftlab run ams-table2 --set size=full`")


def test_a_page_is_written_once_and_others_stay(tmp_path):
    (tmp_path / "docs").mkdir()
    page, other = tmp_path / "docs/page.md", tmp_path / "docs/other.md"
    page.write_text(PAGE)
    other.write_text("nothing")
    with pytest.raises(DataError, match=r"There is no ledger .* the pages stay as they are"):
        main(tmp_path / "docs")
    append(factory.ledger(tmp_path), [line("ONCE-1", 0.1)])
    main(tmp_path / "docs")
    once = page.read_text()
    assert re.search(r"^\| ONCE-1: .* \| reproduced \| ams-table1, \*stale\* \|$", once, re.MULTILINE)
    main(tmp_path / "docs")
    assert (page.read_text(), other.read_text()) == (once, "nothing")
