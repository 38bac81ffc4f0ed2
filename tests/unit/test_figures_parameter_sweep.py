"""The figure of differences over one parameter of the streams."""

from __future__ import annotations

import pytest
from claims_factory import SEEDS, ask_of, run_row
from figures_factory import hidden, lines, panel_of, show
from tables_factory import Made

from driftlab.platform.results.claims.statistics import Measured
from driftlab.platform.results.figures import parameter_sweep
from driftlab.platform.results.relations.base import Untestable
from driftlab.platform.results.relations.scenery import swept

PARAMS = {
    "v-1": {"variety": 1.0},
    "v-2": {"variety": 2.0},
    "v-3": {"variety": 3.0},
    "m-1": {"variety": 2.0, "motion": 1.0},
    "m-2": {"variety": 2.0, "motion": 2.0},
}


def swept_run(params: dict[str, dict[str, float]]) -> Made:
    """Make AMS score 0.5, and each other system lower by a tenth of the diversity."""
    rows = [
        run_row(system, seed, label, score=0.5 - (0.1 * one["variety"] + 0.01 * seed) * (system == "tracking"))
        for label, one in params.items()
        for seed in SEEDS
        for system in ("ams", "tracking")
    ]
    spec = {
        "systems": [{"name": "ams"}, {"name": "tracking"}],
        "workloads": [{"name": "city/dance", "alias": label, "params": one} for label, one in params.items()],
    }
    return Made(spec=spec, runs=rows)


def test_a_parameter_is_swept_where_the_others_stay():
    made = swept_run(PARAMS)
    assert swept(made) == {"variety": {"v-1": 1.0, "v-2": 2.0, "v-3": 3.0}}
    made.run.spec["workloads"].append({"name": "city/interview", "alias": "m-3", "params": {"motion": 3.0}})
    assert swept(made).keys() == {"variety"}


def test_differences_from_the_first_system_are_drawn_in_points():
    shown = show(parameter_sweep, swept_run(PARAMS))
    assert [panel.title for panel in shown.panels] == ["by variety"]
    drawn = [found for found in lines(panel_of(shown, "by variety")).values() if len(found[0]) == 3]
    assert drawn[0][0] == [1.0, 2.0, 3.0]
    assert drawn[0][1] == pytest.approx([-11.0, -21.0, -31.0])


def test_claims_measure_the_difference_of_the_highest_and_lowest_value():
    made = swept_run(PARAMS)
    relation = "scores.scores_by_setting"
    found = ask_of(made, "difference", relation, "ams", "tracking", setting="variety")
    assert isinstance(found, Measured)
    assert (found.value, found.note) == (pytest.approx(0.2), "by variety 1: +0.110, 2: +0.210, 3: +0.310")
    assert isinstance(ask_of(made, "difference", relation, "ams", "tracking", setting="motion"), Untestable)
    assert isinstance(ask_of(made, "difference", relation, "ams", "full", setting="variety"), Untestable)


def test_fewer_than_three_values_of_each_parameter_draw_no_figure():
    assert hidden(parameter_sweep, swept_run({name: PARAMS[name] for name in ("v-1", "v-2", "m-1")}))
