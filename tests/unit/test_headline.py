"""The headline of a report: verdicts of paired differences, status of claims, and unused links."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from tables_factory import Made

from driftlab.platform.results.figures.base import View, view_of
from driftlab.platform.results.report.summary import scores
from driftlab.platform.results.report.summary.gains import MARKS, by_setting, claims_line, headline, reference
from driftlab.platform.results.report.summary.table import summarise, unsent

LEVELS = {
    "no_custom": (0.40, 0.50, 0.60),
    "up": (0.50, 0.61, 0.70),
    "down": (0.30, 0.41, 0.50),
    "same": (0.5, 0.4, 0.6),
}
SPEC = {"name": "x", "summary": "Everything gains a lot.", "systems": ["up", "down", "same"]}


def run_row(system: str, seed: int, score: float | None, **more: Any) -> dict[str, Any]:
    usual = {"workload": "w", "fleet": "one", "devices": 1, "status": "done", "frames": 9, "student": "tiny"}
    cell = f"{system}/{more.get('workload', 'w')}/{seed}"
    usual |= {"cell": cell, "system": system, "seed": seed, "score_live": score}
    usual |= {"bound": "no_adaptation" if system == "no_custom" else None, "streaming": "ams"}
    return {**usual, "uplink_bytes": 1, "downlink_bytes": 1, **more}


def view(rows: list[dict[str, Any]], spec: dict[str, Any] = SPEC) -> View:
    tables = Made(spec, runs=rows)
    return view_of(tables.run, tables)


def three_seeds(**levels: tuple[float, ...]) -> list[dict[str, Any]]:
    return [run_row(name, seed, score) for name, line in levels.items() for seed, score in enumerate(line)]


class TestDifferences:
    def test_the_best_method_is_compared_with_the_reference_and_then_with_the_next(self):
        first, second = headline(view(three_seeds(**LEVELS)))
        assert first.startswith("Of 3 methods, up has the highest live mIoU, 0.60 ± 0.25")
        assert first.endswith(", which is 0.103 ± 0.014 above no_custom.")
        assert second == "This run shows no difference between up and same (+0.10 ± 0.26, for 1× the bytes)."

    def test_a_best_method_below_the_reference_is_not_above_it(self):
        levels = {"no_custom": (0.7, 0.7, 0.7), "up": (0.5, 0.51, 0.5), "down": (0.2, 0.21, 0.2)}
        first, second = headline(view(three_seeds(**levels)))
        assert "below no_custom" in first
        assert second.startswith("Next is down: up is better (+0.300")

    def test_a_sentence_about_two_systems_is_not_repeated(self):
        found = view(three_seeds(**LEVELS))
        (text,) = headline(found, but="same", known="up")
        assert text.startswith("Next is down: up is better")
        (other,) = headline(found, but="same", known="down")
        assert other.startswith("Of 3 methods, up")

    def test_a_difference_is_shown_with_half_of_its_interval(self):
        gain = by_setting(view(three_seeds(**LEVELS)))["w", "up"]
        half = 4.302653 * 0.0057735 / 3**0.5  # Student's t of two degrees of freedom
        assert gain.difference.mean == pytest.approx(0.31 / 3)
        assert gain.difference.high - gain.difference.mean == pytest.approx(half, rel=1e-4)
        assert gain.text == f"+{0.31 / 3:.3f} ± {half:.3f}"

    def test_every_system_has_a_verdict_in_each_setting(self):
        found = by_setting(view(three_seeds(**LEVELS)))
        verdicts = {"up": "better", "down": "worse", "same": "inconclusive"}
        assert {key: gain.verdict for key, gain in found.items()} == {("w", name): it for name, it in verdicts.items()}

    def test_one_seed_shows_no_difference(self):
        rows = [run_row("no_custom", 0, 0.4), run_row("up", 0, 0.9)]
        (text,) = headline(view(rows))
        assert text == "up has a live mIoU of 0.900; this run shows no difference from no_custom (+0.500)."
        (gain,) = by_setting(view(rows)).values()
        assert gain.text == "+0.500"

    def test_only_seeds_that_both_ran_count(self):
        rows = [*three_seeds(**LEVELS), run_row("up", 7, 0.0)]
        assert by_setting(view(rows))["w", "up"].difference.n == 3

    @pytest.mark.slow
    def test_bounds_are_compared_in_the_table_and_not_in_the_headline(self):
        rows = three_seeds(**LEVELS) + [run_row("oracle", seed, 0.9 + seed / 100, bound="oracle") for seed in range(3)]
        assert not [line for line in headline(view(rows)) if "oracle" in line]
        (line,) = [line for line in scores.lines(view(rows)) if line.system == "oracle"]
        assert line.gain.verdict == "better"

    def test_without_a_reference_the_two_best_are_compared(self):
        rows = three_seeds(up=(0.8, 0.81, 0.82), down=(0.3, 0.31, 0.32), same=(0.79, 0.82, 0.81))
        first, second = headline(view(rows))
        assert first == "Of 3 methods, up has the highest live mIoU, 0.810 ± 0.025."
        assert second.startswith("This run shows no difference between up and same (+0.003 ± 0.029")
        assert reference(view(rows)) is None

    def test_expectations_of_the_experiment_are_no_findings(self):
        assert headline(view(three_seeds(no_custom=(0.4, 0.5, 0.6)))) == []


class TestRows:
    @pytest.mark.slow
    def test_every_gain_has_its_interval_and_its_verdict(self):
        summary = summarise(view(three_seeds(**LEVELS)))
        titles = [column.title for column in summary.parts[0].columns]
        for row in summary.parts[0].rows:
            texts = dict(zip(titles, row.texts, strict=True))
            if row.system == "no_custom":
                assert {texts["gain"], texts["verdict"]} == {"–"}
            else:
                assert "±" in texts["gain"]
                assert texts["verdict"].split()[0] in MARKS.values()


def judged(word: str, name: str) -> Any:
    return SimpleNamespace(result=word, claim=SimpleNamespace(id=name))


def test_claims_that_fell_are_named_and_those_that_held_counted():
    verdicts = [judged("reproduced", "A-1"), judged("not reproduced", "A-2"), judged("not testable here", "A-3")]
    text = claims_line(verdicts)
    assert "1 of 2" in text
    assert "A-2" in text
    assert "A-3" not in text
    assert claims_line(verdicts[2:]) == ""


class TestUnsent:
    SILENT: ClassVar = {"uplink_bytes": 0, "downlink_bytes": 0}

    def test_a_run_with_messages_has_no_warning(self):
        assert (
            unsent(view([run_row("ams", 0, 0.5), run_row("no_custom", 0, 0.5, streaming="local", **self.SILENT)])) == []
        )

    def test_a_run_without_messages_warns_and_names_the_systems_that_send(self):
        rows = [run_row("ams", 0, 0.5, **self.SILENT), run_row("tent", 0, 0.5, streaming="local", **self.SILENT)]
        (text,) = unsent(view(rows))
        assert "ams" in text
        assert "tent" not in text
        assert summarise(view(rows)).warnings == [text]

    def test_a_run_of_systems_without_links_is_no_fault(self):
        assert unsent(view([run_row("tent", 0, 0.5, streaming="local", **self.SILENT)])) == []

    def test_one_system_without_messages_is_named(self):
        (text,) = unsent(view([run_row("ams", 0, 0.5), run_row("late", 0, 0.5, streaming="one_time", **self.SILENT)]))
        assert "late" in text
        assert "ams" not in text.partition(".")[0]

    def test_unmeasured_bytes_are_not_zero_bytes(self):
        assert unsent(view([run_row("ams", 0, None, uplink_bytes=None, downlink_bytes=None)])) == []
