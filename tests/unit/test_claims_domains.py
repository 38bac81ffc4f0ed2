"""Domains before and after adaptation, its cost, and the claims and figures about both."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import domains_factory
import numpy as np
import pandas as pd
import pytest
from claims_factory import ask, ask_of, measured, word
from figures_factory import hidden, lines, panel_of, show, texts
from tables_factory import Made, run_row

from driftlab.platform.results.figures import domains as figure
from driftlab.platform.results.figures import utility
from driftlab.platform.results.relations import domains, timing
from driftlab.platform.results.relations.base import Untestable

PHASES, STREAMS = domains_factory.phases(), domains_factory.streams()


def geometric(*factors: float) -> float:
    return math.exp(sum(map(math.log, factors)) / len(factors))


def test_a_stretch_is_judged_before_and_after_its_frames_to_adapt_on():
    rows = domains.stretches(PHASES)
    own = rows[(rows["system"] == "elasticdnn") & (rows["seed"] == 0)]
    assert own["stretch"].tolist() == [0, 1, 2, 3] and own["scene"].tolist() == [0, 1, 2, 0]
    assert own["start"].tolist() == [0, 6, 12, 18]
    assert own["after"].tolist() == pytest.approx([0.72, 0.74, 0.76, 0.73])
    assert own["before"].tolist() == pytest.approx([0.62, 0.64, 0.66, 0.68])


def test_overlap_is_the_share_of_channels_that_two_domains_have_in_common():
    """Domains 0 and 1 are one shift; of domain 2 only the newest phase counts."""
    kept = {0: ("0 1", "0 1 2 3"), 1: ("0 1", "0 1 2 4"), 2: ("2 3", "0 5 6 7")}
    rows = []
    phases = [(2, ("0 1", "0 1 2 3")), *kept.items()]
    for seed, (phase, (domain, groups)) in itertools.product((0, 1), enumerate(phases, start=1)):
        place = {"cell": f"follows/digits/one/seed-{seed}", "device": "d", "app": "a", "phase": phase, "domain": domain}
        rows += [{**place, "group": name, "kept": one} for name, one in zip(("first", "last"), groups, strict=True)]
    params = {"shifts": ["fog", "contrast"], "severities": [1, 3]}
    workload = {"name": "domains:set:digits", "alias": "digits", "params": params}
    system = {"name": "follows", "base": "elasticdnn", "scaling": {"name": "surrogate", "gates": "domain"}}
    runs = [run_row("follows", seed, "digits") for seed in (0, 1)]
    tables = Made({"workloads": [workload], "systems": [system]}, runs=runs, channels=rows)
    found = domains.overlaps(tables).query("seed == 0")
    assert found["overlap"].tolist() == pytest.approx([(1 + 3 / 4) / 2, (0 + 1 / 4) / 2, (0 + 1 / 4) / 2])
    assert found["last"].tolist() == [3 / 4, 1 / 4, 1 / 4]
    assert found["similar"].tolist() == [True, False, False]
    assert measured(ask("E-28", tables)).value == pytest.approx(7 / 8 - 1 / 8)


@pytest.mark.slow
def test_forgetting_is_the_loss_from_the_best_score_of_a_recurring_domain():
    found = domains.forgetting(PHASES)
    own = found[(found["system"] == "elasticdnn") & (found["seed"] == 0)]
    assert own["round"].tolist() == [1] and own["lost"].tolist() == pytest.approx([0.67 - 0.705])


@pytest.mark.parametrize(
    ("claim", "value"),
    [
        ("E-1", 0.7375 - (0.5375 + 0.5375 + 0.6375) / 3),
        ("E-2", 0.20),
        ("E-3", 4.0),
        ("E-4", 5.0),
        ("E-5", 0.5),
        ("E-6", -0.05),
        ("E-7", -0.05),
        ("E-8", 0.10),
        ("E-9", 8.0),
        ("E-10", 2.0),
        ("E-11", 4.0),
        ("E-12", 8.0),
        ("E-13", 4.0),
        ("E-14", 44.0 / 10.5),
        ("E-15", 0.05),
        ("E-16", 0.03),
        ("E-17", 0.10),
        ("E-19", 0.17),
        ("E-20", 0.11),
        ("E-21", 0.10),
        ("E-25", 8.0),
        ("E-26", 4.0),
    ],
)
def test_a_claim_of_the_paper_is_measured(claim, value):
    assert measured(ask(claim, PHASES)).value == pytest.approx(value)


def test_costs_are_ordered_as_a_paper_orders_them_or_not():
    paper = {"onda": 0.09, "tent": 0.42, "elasticdnn": 26.48, "cua": 1596.7}
    for order, value in ((paper, 1), (dict(zip(paper, reversed(paper.values()), strict=True)), -1)):
        where = {"column": "phase_s", "network": "small", "names": list(paper)}
        found = ask_of(PHASES, {"rank": {"paper": order}}, "domains.costs_of_members", **where)
        assert measured(found).value == pytest.approx(value)
    assert isinstance(ask("E-22", PHASES), Untestable) and isinstance(ask("E-23", PHASES), Untestable)
    one = {"column": "phase_j", "network": "whole", "fleets": ["board"]}
    assert measured(ask_of(PHASES, "ratio", "domains.costs_over_devices", **one)).value == 1
    assert isinstance(ask("E-27", PHASES), Untestable)


@pytest.mark.slow
def test_verdicts_follow_the_measures():
    assert word("E-1", PHASES) == word("E-9", PHASES) == word("E-18", PHASES) == "reproduced"
    assert word("E-6", PHASES) == word("E-7", PHASES) == word("E-8", PHASES) == "not reproduced"
    assert isinstance(ask("E-1", STREAMS), Untestable) and isinstance(ask("T-1", PHASES), Untestable)


class TestTime:
    def test_jobs_are_the_batches_that_were_trained_on(self):
        jobs = timing.jobs_of(STREAMS)["sar", "again", 0]
        assert len(jobs.accuracy) == 20 and jobs.plain_s == pytest.approx(0.1)
        assert jobs.work_s.tolist() == pytest.approx([0.6] * 20)
        assert jobs.accuracy.tolist() == pytest.approx([0.8] * 10 + [0.7] * 10)

    def test_a_phase_is_trained_after_the_job_in_which_it_begins(self):
        frames = pd.DataFrame({"time_s": np.arange(11) / 2})
        phases = pd.DataFrame({"train_start_s": [1.2, 1.4, 5.0], "isolated_s": [3.0, 0.5, 7.0]})
        sizes, learn_s = timing.job_training(frames, None, phases, usual=2)
        assert sizes.tolist() == [2] * 5 and learn_s.tolist() == [0, 3.5, 0, 0, 0]  # the last one is in no whole job

    def test_ties_have_no_rank_correlation(self):
        """With little patience all systems tie; with more the order is that without time pressure."""
        utility = {"offline": {0.0: (0.5, 0.6)}, "continuous": {1.25: (0.4, 0.4), 25.0: (0.45, 0.6)}}
        rows = [
            (seed, kind, pressure, system, value)
            for seed in (0, 1)
            for kind, levels in utility.items()
            for pressure, values in levels.items()
            for system, value in zip("ab", values, strict=True)
        ]
        found = pd.DataFrame(rows, columns=["seed", "kind", "pressure", "system", "utility"])
        tables = SimpleNamespace(once=lambda function: found)
        assert timing.rank_agreement(tables, "continuous").set_index(["seed", "pressure"])["agreement"][0, 25.0] > 0.99
        compared = timing.ranks_at_pressures(tables, "continuous", 25.0, 1.25)
        assert compared.empty and "all tie" in compared.attrs["needs"]

    def test_fleets_are_ordered_by_their_load_under_plain_inference(self):
        found = timing.load_levels(STREAMS)
        assert [(pace.fleet, pace.utilisation) for pace in found] == [("calm", 0.1), ("full", 1.0)]
        assert found[0].missed == 0 and found[1].missed > 0.6

    def test_the_best_without_time_is_not_the_best_with_it(self):
        rows = timing.utilities(STREAMS).groupby(["system", "kind", "pressure"])["utility"].mean()
        assert rows["sar", "offline", 0.0] > rows["tent", "offline", 0.0] > rows["adabn", "offline", 0.0]
        assert rows["adabn", "discrete", 1.0] > rows["tent", "discrete", 1.0] > rows["sar", "discrete", 1.0]

    @pytest.mark.parametrize("claim", ["T-1", "T-2", "T-2b", "T-3", "T-5", "TTA-1"])
    def test_claims_hold_where_time_turns_the_order(self, claim):
        assert word(claim, STREAMS) == "reproduced"

    @pytest.mark.slow
    def test_values_of_claims(self):
        assert measured(ask("T-5", STREAMS)).value == pytest.approx(-0.1 + 0.001 * 4, abs=1e-6)
        assert measured(ask("TTA-2", STREAMS)).value == pytest.approx(0.02 * (0.2 + 5 + 2 + 5) / 4, abs=0.03)


class TestFigures:
    @pytest.mark.slow
    def test_every_domain_has_a_point_before_and_after(self):
        shown = show(figure, PHASES)
        panel_of_rounds = next(panel for panel in shown.panels if panel.title == "digits: domain by domain")
        assert len(shown.legend) == 5 and len(lines(panel_of(shown, panel_of_rounds.title))) == 5
        assert texts(shown.grids[0])["elasticdnn"][1:] == ["74.8 %", "5", "0.5", "2", "10", "2"]

    @pytest.mark.slow
    def test_time_is_drawn_where_members_train_online(self):
        shown = show(utility, STREAMS)
        found = lines(panel_of(shown, "discrete utility"))
        assert set(shown.legend) == {"no_custom", "adabn", "tent", "sar"}  # not the systems that stop training
        assert sorted(len(line[0]) for line in found.values()) == [6] * 4
        ((took, worth),) = lines(panel_of(shown, "amortised utility")).values()
        assert np.allclose(took, [0, 5, 5]) and np.allclose(worth, [0.501, 0.355, 0.753])
        assert texts(shown.grids[1])["sar"] == ["0.501", "0.355", "0.753"]
        paid = {grid.title.split()[-1]: texts(grid)["tent"] for grid in shown.grids[2:]}
        assert paid["calm"] == ["0.704", "0", "50", "–", "1", "25"] and paid["full"][1] == "65"
        assert hidden(utility, PHASES)
