"""Claims about networks under a load, with every fixed exit as a baseline: hand-written tables."""

from __future__ import annotations

from dataclasses import replace

import pytest
from claims_factory import ask, measured, word
from figures_factory import hidden, lines, panel_of, show
from paths_factory import EXITS, LOADS, SAME, SEEN, tables

from driftlab.errors import RequestError
from driftlab.platform.results.claims.base import evaluate, every_claim
from driftlab.platform.results.figures import paths as figure
from driftlab.platform.results.figures import plots
from driftlab.platform.results.relations import paths
from driftlab.platform.results.relations.base import Untestable


def test_a_deadline_is_missed_by_a_late_or_missing_prediction():
    found = paths.deadlines(tables())
    assert found.loc[("exit-3", "depot", "user")]["missed"].tolist() == pytest.approx([0.5] * 3)
    assert found.loc[("adascale", "depot", "random")]["energy_j"].tolist() == pytest.approx([0.1] * 3)


def test_an_application_without_a_goal_has_no_deadlines():
    made = tables()
    made.change("shares", latency_goal_ms=lambda row: None)
    why = "needs a deadline of every application, 'a' on 'd' has none: set its latency_goal_s"
    assert ask("AS-11", made).reason == why
    assert show(figure, made).note == f"Not drawn: {why}."


@pytest.mark.parametrize(("column", "hint"), [("known_accuracy", " It is now 'val_accuracy'."), ("zzz", "")])
def test_a_claim_about_an_unknown_column_is_an_error_with_the_new_name(column, hint):
    claim = every_claim()["AS-4"]
    claim = replace(claim, of={**claim.of, "where": {"column": column}})
    with pytest.raises(RequestError, match=f"^Claim 'AS-4': paths.exits_and_light has no column '{column}'.{hint}$"):
        claim.measure(tables())


def test_the_best_fixed_exit_misses_no_more_than_ours():
    found = paths.deadlines(tables())
    best = paths.best_fixed(found, "adascale", list(EXITS))
    assert best == {("depot", "user"): "exit-2", ("depot", "random"): "exit-1"}
    assert paths.best_fixed(found, "adascale", ["exit-3"])["depot", "user"] == "exit-3"


@pytest.mark.parametrize(
    ("claim", "value", "says"),
    [
        ("AS-1", 4.0, "information"),
        ("AS-9", 0.12, "reproduced"),
        ("AS-10", 1.0, "reproduced"),
        ("AS-11", (0.02 + 0.05) / 2, "reproduced"),
        ("AS-12", 0.03, "reproduced"),
        ("AS-4", (0.7 + 0.75 + 0.82) / 3 - 0.79, "not reproduced"),
        ("AS-7", 28 / (70 / 3), "reproduced"),
        ("AS-12b", (0.04 + 0.02) / 2, "information"),
        ("AS-14", 0.82 - 0.79, "reproduced"),
        ("AS-16", -0.15, "information"),
        ("AS-16b", -0.1, "information"),
    ],
)
def test_claims_are_measured_and_judged(claim: str, value: float, says: str):
    made = tables(workloads=["hundred"])
    assert measured(ask(claim, made)).value == pytest.approx(value)
    assert word(claim, made) == says


def test_a_fourth_load_has_equal_weight_and_a_separate_number():
    made = tables(
        "adascale",
        "adascale-ar",
        "clairvoyant",
        "exit-1",
        "exit-3",
        loads={**LOADS, "cold_start": (-0.1, 0.1, 30.0), "idle": (0.1, 0.0, 0.0)},
    )
    made.run.spec["fleets"] = [{"name": "idle", "devices": [{}]}, {"name": "user", "devices": [{"load": "user"}]}]
    gain = measured(ask("AS-11", made))
    assert gain.value == pytest.approx((0.1 + 0.05 + 0.1) / 3)
    assert set(gain.note.removeprefix("compared with ").split(", ")) == {
        "exit-1 on cold_start (+10.0)",
        "exit-1 on random (+5.0)",
        "exit-1 on user (+10.0)",
    }
    missed = measured(ask("AS-16", made))
    assert missed.value == pytest.approx(-(0.1 + 0.2 + 0.1) / 3)
    assert missed.note == "cold_start \u221210.0 %, random \u221220.0 %, user \u221210.0 %"
    assert measured(ask("AS-12b", made)).note == "cold_start +4.0 %, random +2.0 %, user +4.0 %"
    assert measured(ask("AS-12", made)).note == "cold_start +3.0 %, random +3.0 %, user +3.0 %"
    assert measured(ask("AS-11b", made)).note.startswith("cold_start +")


def test_gains_of_several_tasks_are_averaged_and_listed():
    """Boxes count as frames and pixels do: the F1 of a frame is its score."""
    made = tables(loads={"user": SAME}, workloads=["frames", "boxes"])
    made.change("frames", score_frame=lambda row: row["score_frame"] + 0.04 * row["cell"].startswith("exit-2/boxes"))
    by_seed = {"seed-0": 0.01, "seed-1": -0.01, "seed-2": 0.0}

    def vary(row):
        ours = row["cell"].startswith("adascale/")
        return row["score_frame"] + ours * by_seed[row["cell"].rpartition("/")[2]]

    made.change("frames", score_frame=vary)
    found = measured(ask("AS-11c", made))
    assert found.value == pytest.approx((0.02 - 0.02) / 2)
    assert found.note == "compared with exit-2 on boxes (\u22122.0), exit-2 on frames (+2.0)"
    both = measured(ask("AS-11c", tables(workloads=["frames", "boxes"])))
    assert "exit-2 on boxes user (+2.0), " in both.note


def test_a_search_is_timed_by_the_choices_between_windows():
    made = tables()
    made.run.spec["window_s"] = 2.0
    made.change("shares", host_schedule_seconds=lambda row: 0.0004 if row["time_s"] % 2 else 0.05)
    found = measured(ask("AS-2", made))
    assert found.value == pytest.approx(0.4) and found.note.startswith("0.4 %")
    assert word("AS-2", made) == "reproduced"
    made.change("shares", host_schedule_seconds=lambda row: 0.0 if row["time_s"] % 2 else 0.05)
    assert isinstance(ask("AS-2", made), Untestable)


@pytest.mark.parametrize("claim", ["AS-3", "AS-5", "AS-6", "AS-13", "AS-15"])
def test_an_untestable_claim_names_no_other_experiment(claim: str):
    (verdict,) = evaluate(tables().run, [claim], tables=tables())
    assert (verdict.result, verdict.note) == ("not testable here", every_claim()[claim].not_testable)


def test_latency_is_the_mean_over_processed_frames():
    value = measured(ask("AS-11b", tables())).value
    own = {"user": 60.0, "random": (8 * 70.0 + 200.0) / 9}
    whole = {"user": (5 * 120.0 + 2 * 200.0) / 7, "random": (4 * 140.0 + 3 * 200.0) / 7}
    assert value == pytest.approx(sum(1 - own[load] / whole[load] for load in own) / 2)


def test_without_exits_or_deadlines_claims_are_untestable():
    for claim in ("AS-4", "AS-11", "AS-11b", "AS-12", "AS-12b", "AS-14", "AS-16", "AS-16b"):
        assert isinstance(ask(claim, tables("adascale")), Untestable)
    made = tables()
    made.change("shares", latency_goal_ms=lambda row: None)
    assert isinstance(ask("AS-11", made), Untestable)


def test_the_figure_has_a_point_for_every_system_and_a_line_for_exits():
    made = tables()
    shown = show(figure, made)
    (title,) = (panel.title for panel in shown.panels if "user" in panel.title)
    axis = panel_of(shown, title)
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("deadlines missed, % of the frames", "accuracy, %")
    points = {colour: (x[0], y[0]) for colour, (x, y) in lines(axis).items()}
    assert points[shown.legend["exit-3"].colour] == pytest.approx((50.0, 85.1))
    (joined,) = (line for line in axis.get_lines() if line.get_color() == plots.QUIET and len(line.get_xdata()) == 3)
    assert list(joined.get_xdata()) == pytest.approx([0.0, 10.0, 50.0])
    assert len(shown.panels) == 3
    front = lines(panel_of(shown, "networks to choose from, depot"))
    assert list(front[shown.legend["adascale"].colour][1]) == pytest.approx([70.0, 75.0, 78.0, 82.0])
    assert list(front[shown.legend["light-shufflenet"].colour][0]) == [28.0]
    assert shown.legend["clairvoyant"].colour not in front
    assert list(shown.grids[0].rows) == list(SEEN)
    assert hidden(figure, tables("adascale"))
    assert hidden(figure, tables("exit-1", "exit-2"))
