"""Tables of rules that choose among the same networks, and of predicted latencies."""

from __future__ import annotations

import pytest
from choosers_factory import tables
from claims_factory import ask, measured
from figures_factory import drawn, lines, show

from driftlab.platform.results.figures import predictions as figure
from driftlab.platform.results.relations import choosers, predictions
from driftlab.platform.results.relations.base import Untestable


def test_a_frame_is_right_in_time_or_wrong():
    found = choosers.outcomes(tables())
    assert found.loc["adascale"]["late"].tolist() == pytest.approx([0.3] * 3)
    assert found.loc["adascale"]["right"].tolist() == pytest.approx([0.9 * 0.7] * 3)
    both = choosers.late(tables(), "expected", "own")
    assert (both["ours"] - both["theirs"]).tolist() == pytest.approx([0.2] * 3)
    assert isinstance(ask("AS-17", tables("adascale")), Untestable)


def test_the_oracle_takes_the_most_accurate_network_that_the_speed_allows():
    """The slow network takes 100 ms, which 150 ms at half speed do not allow.

    Frames 0 to 4 are at full speed.
    """
    found = choosers.oracle(tables("adascale")).set_index("seed")
    assert found["best"].tolist() == pytest.approx([(5 * 0.8 + 5 * 0.6) / 10] * 3)
    assert found["own"].tolist() == pytest.approx([0.7 * 0.6] * 3)
    assert measured(ask("AS-18", tables())).value == pytest.approx(0.7 - 0.9 * 0.6)


def test_predictions_are_compared_with_a_model_a_constant_and_a_look_up():
    rows = predictions.errors(tables("adascale-learned")).set_index(["seed", "time_s"])
    first, last = rows.loc[(0, 0.5)], rows.loc[(0, 3.5)]
    assert first["theoretical model"] == pytest.approx(abs(1 / 0.55 / 2 - 1))
    assert first["constant"] == first["look-up"] == first["theoretical model"]
    assert last["constant"] == pytest.approx(0) and last["look-up"] == pytest.approx(0)
    assert last["member"] == pytest.approx(0.2 / 7)


def test_the_member_that_learns_errs_less_with_time():
    assert measured(ask("AS-19b", tables())).value > 0
    assert measured(ask("AS-19", tables())).value != 0
    assert isinstance(ask("AS-19", tables("adascale")), Untestable)


def test_the_figure_has_a_panel_per_system_and_a_line_per_predictor():
    content = show(figure, tables())
    assert [panel.title for panel in content.panels] == ["adascale", "adascale-expected", "adascale-learned"]
    assert len(lines(drawn(content.panels[2]))) >= len(predictions.PREDICTORS)
