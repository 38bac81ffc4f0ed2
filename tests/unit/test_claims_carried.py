"""Verdicts stay valid after a change of the code that altered no table, in one step or several."""

from __future__ import annotations

import json

import ledger_factory as factory

from driftlab.platform.results.claims import carried, ledger
from driftlab.platform.results.claims.base import every_claim
from driftlab.platform.results.claims.carried import changed
from driftlab.platform.results.claims.ledger import stale

CLAIM, LINE = every_claim()["ONCE-1"], factory.line("ONCE-1", 0.1)


def test_only_digests_of_valid_lines_that_differ_are_carried():
    new = factory.digests(code="newer")
    invalid, benchmark = {"spec_digest": "other"}, {"experiment": "benchmarks/choices.py"}
    assert changed([LINE, LINE], factory.TODAY, new) == [("code", "newer")]
    assert changed([{**LINE, **invalid}, {**LINE, **benchmark}, {**LINE, "claim": "GONE-1"}], factory.TODAY, new) == []
    assert changed([LINE], factory.TODAY, factory.digests(measure="m")) == [("measure", "m")]
    assert changed([LINE], factory.TODAY, factory.TODAY) == []


def test_a_line_is_valid_after_two_changes_and_stale_after_a_third(tmp_path):
    file = tmp_path / "carried.jsonl"
    steps = [("code", "second"), ("second", "third"), ("third", "second")]  # the last one reverts a change
    file.write_text("".join(json.dumps({"from": old, "to": new, "since": "abc"}) + "\n" for old, new in steps))
    assert stale(LINE, CLAIM, factory.digests(file, "third")) == ""
    assert stale({**LINE, "code_digest": "third"}, CLAIM, factory.digests(file, "second")) == ""
    assert stale(LINE, CLAIM, factory.digests(file, "fourth")) == "other code since"
    assert stale(LINE, CLAIM, factory.digests(file, "third", "newer")) == "other measures since"
    assert stale({**LINE, "code_digest": "fourth"}, CLAIM, factory.digests(file, "third")) == "other code since"
    assert changed([LINE], factory.digests(file, "third"), factory.digests(file, "fourth")) == [("third", "fourth")]


def test_the_command_appends_to_the_file_next_to_the_ledger(tmp_path, monkeypatch, capsys):
    kept = factory.ledger(tmp_path)
    ledger.append(kept, [LINE])
    monkeypatch.setattr(ledger, "LEDGER", kept)
    monkeypatch.setattr(ledger, "CARRIED", kept.with_name("carried.jsonl"))
    ours = iter(2 * [factory.TODAY, factory.digests(code="newer")])
    monkeypatch.setattr(carried, "Digests", lambda package: next(ours))
    carried.main(["older", "abc"])
    carried.main(["older", "abc"])  # a second comparison adds no second line
    assert json.loads(kept.with_name("carried.jsonl").read_text()) == {"from": "code", "to": "newer", "since": "abc"}
    assert "Carried 1 digests" in capsys.readouterr().out
