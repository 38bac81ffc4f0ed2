"""Method against method: paired differences, ratios of costs, and digits of intervals."""

from __future__ import annotations

import pytest
from figures_factory import hidden, notes, show, texts
from tables_factory import Made, run_row

from driftlab.platform.results.figures import duels, plots
from driftlab.platform.results.relations.comparison import cost_ratios, costs_of
from driftlab.platform.results.stats import Estimate

LEVELS = {"low": (0.40, 0.42, 0.41), "high": (0.60, 0.63, 0.60), "near": (0.61, 0.60, 0.59), "bound": (0.9, 0.9, 0.9)}
COSTS = {"low": (10, 8.0), "high": (100, 4.0), "near": (0, 4.0), "bound": (0, 1.0)}


def made() -> Made:
    rows = [
        run_row(
            name,
            seed,
            score_live=score,
            bound="oracle" if name == "bound" else None,
            uplink_bytes=COSTS[name][0],
            downlink_bytes=0,
            energy_j=COSTS[name][1],
        )
        for name, line in LEVELS.items()
        for seed, score in enumerate(line)
    ]
    return Made({"systems": list(LEVELS)}, runs=rows)


def test_each_pair_of_methods_stands_once_with_the_better_one_in_the_row():
    (grid,) = show(duels, made()).grids
    assert (list(grid.rows), grid.columns) == (["high", "near"], ["near", "low"])
    assert texts(grid) == {"high": ["+0.010 ± 0.050", "+0.200 ± 0.025"], "near": ["–", "+0.190 ± 0.043"]}
    assert [[cell.strong for cell in row] for row in grid.rows.values()] == [[False, True], [False, True]]


def test_costs_are_multiples_over_common_cells_and_nothing_is_no_divisor():
    (grid,) = show(duels, made()).grids
    assert notes(grid) == {"high": ["1× joules", "10× bytes, 0.5× joules"], "near": ["", "0× bytes, 0.5× joules"]}
    assert cost_ratios(costs_of(made().frame("runs")), "near", "high") == {"bytes": 0.0, "joules": 1.0}


def test_one_method_has_no_opponent():
    tables = made()
    tables.drop("runs", lambda row: row["system"] not in ("low", "bound"))
    assert hidden(duels, tables)


@pytest.mark.parametrize(
    "low, mean, high, text",
    [
        (0.4772, 0.5, 0.5228, " ± 0.023"),
        (0.2, 0.5, 0.8, " ± 0.30"),
        (0.69, 0.9, 1.11, " (0.69 to 1.00)"),
        (-1.0, 0.5, 2.0, " (0.0 to 1.0)"),
        (None, 0.5, None, ""),
    ],
)
def test_an_interval_has_two_digits_and_stays_in_the_range_of_a_score(low, mean, high, text):
    assert plots.margin(Estimate(mean, low, high, 3)) == text


def test_a_mean_has_no_more_decimals_than_its_interval():
    assert plots.difference(Estimate(-0.12345, -0.62345, 0.37655, 3)) == "−0.12 ± 0.50"
    assert plots.difference(Estimate(0.12345, 0.12245, 0.12445, 3)) == "+0.123 ± 0.001"
