"""The summary of a run: which parts it has follows from the tables, and so does every number in them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest
import results_factory as factory
from tables_factory import WAITS, Made, numbers_in, run_row, share_row

from driftlab.platform.results.figures.base import View, view_of
from driftlab.platform.results.report.page import write_report
from driftlab.platform.results.report.summary import sharing
from driftlab.platform.results.report.summary.table import summarise
from driftlab.platform.results.tables.read import open_run
from driftlab.platform.results.tables.recorder import Recorder

# Half of a device: 10 frames of 20.
share = functools.partial(share_row, network="n", accuracy=0.6, fps=20.0, memory_bytes=10, host_schedule_seconds=0.002)


def view(
    systems: list[str], shares: list[dict[str, Any]], *runs: dict[str, Any], devices: Sequence[dict[str, Any]] = ()
) -> View:
    """Look at a run in which every cell has the same shares, or those that name theirs."""
    rows = [
        {"cell": run["cell"], **row} for run in runs for row in shares if row.get("cell", run["cell"]) == run["cell"]
    ]
    tables = Made({"systems": systems}, runs=list(runs), shares=rows, devices=list(devices))
    return view_of(tables.run, tables)


def line(shares: list[dict[str, Any]]) -> sharing.SharingLine:
    (found,) = sharing.lines(view(["a"], shares, run_row("a")))
    return found


def test_systems_that_are_one_bound_are_explained():
    rows = [run_row(name, frames=1, score=0.5, bound="no_adaptation") for name in ("no_custom", "frozen")]
    one, two = (
        summarise(view([row["system"] for row in found], [], *found)).parts[0].note for found in (rows[:1], rows)
    )
    assert "same bound" not in one
    assert "no_custom and frozen are the same bound" in two


class TestSharing:
    def test_accuracy_is_that_of_running_applications_and_waiting_ones_have_no_frames(self):
        found = line([share("x", accuracy=0.8), share("y", accuracy=0.4), share("z", **WAITS)])
        assert found.accuracy.mean == pytest.approx(0.6)
        assert found.frames.mean == pytest.approx((0.5 + 0.5 + 0) / 3)
        assert found.waits.mean == pytest.approx(1 / 3)

    def test_moved_bytes_and_energy_are_sums_over_windows_and_applications(self):
        moved = {"paged_in_bytes": 3_000_000, "paged_out_bytes": 1_000_000, "paging_j": 0.25}
        shares = [
            share(app, time_s, device=device, **moved) for device in "de" for time_s in (0.0, 1.0) for app in "xy"
        ]
        found = line(shares)
        assert found.paged_mb == pytest.approx(4 * 4)
        assert found.energy_j == pytest.approx(4 * 1.25)
        assert found.apps == 2

    def test_a_decision_is_counted_once_for_a_window(self):
        shares = [
            share("x"),
            share("x", 1.0, host_schedule_seconds=0.004),
            share("y", 1.0, host_schedule_seconds=0.004),
        ]
        assert line(shares).decision_ms == pytest.approx(3.0)
        assert line(shares).apps == pytest.approx(1.5)

    def test_seeds_are_averaged_with_their_interval(self):
        runs = [run_row("a", seed) for seed in (0, 1)]
        shares = [share(app, cell=run["cell"], accuracy=0.5 + 0.2 * run["seed"]) for run in runs for app in "xy"]
        (found,) = sharing.lines(view(["a"], shares, *runs))
        assert (found.accuracy.mean, found.accuracy.n) == (pytest.approx(0.6), 2)
        (row,) = sharing.show(view(["a"], shares, *runs)).rows
        assert row.texts == ["0.6 (0.0 to 1.0)", "50.0 ± 0.0", "0.0 ± 0.0", "0", "2", "2", "2"]

    @pytest.mark.slow
    def test_words_name_the_fastest_and_the_most_accurate(self):
        runs = [run_row("a"), run_row("b")]
        shares = [share(app, cell=runs[0]["cell"], accuracy=0.9) for app in "xy"]
        shares += [share(app, cell=runs[1]["cell"], latency_ms=60.0) for app in "xy"]
        (words,) = sharing.show(view(["a", "b"], shares, *runs)).sentences
        assert numbers_in(words) == [2, 83.3, 0.9]
        assert words.index(" b ") < words.index("83.3") < words.index(" a are the most accurate (0.900)")
        (alone,) = sharing.show(view(["a"], shares[:2], runs[0])).sentences
        assert numbers_in(alone) == [2, 50.0]

    def test_bounds_are_not_among_the_words(self):
        assert sharing.show(view(["a"], [share("x"), share("y")], run_row("a", bound="oracle"))).sentences == []

    def test_a_system_that_failed_has_a_row_without_numbers(self):
        shares = [share(app, cell="a/w/one/seed-0") for app in "xy"]
        _, row = sharing.show(view(["a", "b"], shares, run_row("a"), run_row("b", status="failed"))).rows
        assert (row.system, row.failed, set(row.texts)) == ("b", 1, {"–", "0"})


class TestWaitingApplications:
    SAID = "waits: its smallest network needs 9 bytes, 5 are free"

    def sentences_of(self, shares: list[dict[str, Any]], *runs: dict[str, Any]) -> list[str]:
        return list(sharing.show(view(["a"], shares, *(runs or [run_row("a")]))).warnings)

    def test_it_is_reported_with_the_reason(self):
        sentences = self.sentences_of(
            [share("x", **WAITS, note=self.SAID), share("y"), share("x", 1.0, **WAITS, note=self.SAID)]
        )
        assert sentences == ["On w, x never runs under a: its smallest network needs 9 bytes, 5 are free."]

    def test_the_number_of_devices_is_reported(self):
        shares = [share("x", device=device) for device in "de"] + [share("x", device="f", **WAITS)]
        (sentences,) = self.sentences_of(shares, *(run_row("a", seed) for seed in (0, 1)))
        assert numbers_in(sentences) == [2, 6]

    def test_three_applications_are_named_and_the_others_counted(self):
        sentences = self.sentences_of([share(app, **WAITS, note=self.SAID) for app in "vwxyz"])
        assert [sentence.split()[2] for sentence in sentences[:3]] == ["v", "w", "x"]
        assert sentences[3:] == ["2 more never run; table `shares` lists them."]

    def test_it_is_among_the_words_of_the_report(self):
        summary = summarise(view(["a"], [share("x", **WAITS, note=self.SAID)], run_row("a", frames=0)))
        assert summary.sentences[-1] == summary.parts[-1].warnings[0]


def test_the_share_of_time_with_too_little_memory_is_reported():
    """In one window of four, on one of two devices."""
    shares = [share(app, time_s, device=device) for app in "xy" for time_s in (0.0, 1.0) for device in "de"]
    shares = [row | ({"memory_bytes": 11} if (row["time_s"], row["device"]) == (1.0, "e") else {}) for row in shares]
    run = run_row("a")
    devices = [{"cell": run["cell"], "device": name, "memory_bytes": 20} for name in "de"]
    assert list(sharing.show(view(["a"], shares, run, devices=devices)).warnings) == [
        "On w, the networks of a exceed the memory of the device 25 % of the time."
    ]


SHARED = [share("x"), share("y")]


class TestKinds:
    """A run has the parts that its tables have something for."""

    @pytest.mark.parametrize(
        ("shares", "run", "first"),
        [
            (SHARED, {}, ["accuracy"]),
            (SHARED, {"frames": 9, "score_live": 0.5, "student": "tiny"}, ["live mIoU", "accuracy"]),
            ([share("x")], {"frames": 9, "score_live": 0.5, "student": "tiny_detector"}, ["live F1"]),
            ([share("x")], {"frames": 0, "score_live": None}, ["live score"]),
            ([share("x", **WAITS)], {"frames": 0, "score_live": None}, ["live score", "accuracy"]),
            ([], {"status": "failed"}, ["live score"]),
        ],
    )
    def test_parts_follow_from_the_tables(self, shares, run, first):
        summary = summarise(view(["a"], shares, run_row("a", **run)))
        assert [part.columns[0].title for part in summary.parts] == first
        assert [part.columns[1].title == "frames" for part in summary.parts] == [name == "accuracy" for name in first]

    def test_systems_stand_in_the_order_of_the_experiment_with_bounds_last(self):
        runs = [run_row(name) for name in "abc"]
        runs[0]["bound"] = "oracle"
        for part in summarise(view(["c", "a", "b"], SHARED, *(run | {"frames": 1} for run in runs))).parts:
            assert [row.named for row in part.rows] == ["c", "b", "a (bound: per-window oracle)"]


@pytest.mark.slow
def test_a_report_has_a_table_of_scores_and_one_of_shares(tmp_path, few_claims):
    run = factory.make_run(tmp_path, systems=(), snapshots=False)
    rows = factory.rows("one_time", "w", 0, 20.0, 2.0, False)
    rows["shares"] = [share(app, device=device) for device in factory.DEVICES for app in "xy"]
    Recorder(str(run)).write("x", rows)
    page = write_report(run).read_text(encoding="utf-8")
    assert page.count('<table class="summary cards">') == 2
    assert "On w, a device has 2 applications at a time." in page
    text = (run / "report.md").read_text(encoding="utf-8")
    assert text.count("## Tables") == 1
    assert "| w | one_time | 0.600 | 50.0 | 0.0 | 0 | 2 | 2 | 1 |" in text
    assert len(summarise(view_of(open_run(run))).parts) == 2
