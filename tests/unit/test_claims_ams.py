"""Claims about AMS, on tables with known verdicts: scores, strategies and traffic."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from claims_factory import SEEDS, WOBBLE, ask, measured, part, run_row, scored, word
from tables_factory import Made

from driftlab.platform.results.claims.base import evaluate, every_claim
from driftlab.platform.results.relations import base
from driftlab.platform.results.relations.base import Untestable


class TestSchemes:
    def test_ams_must_gain_on_the_street_where_it_gains_least(self):
        good = scored(ams={"dance": 0.6, "running": 0.53}, no_custom={"dance": 0.4, "running": 0.5})
        bad = scored(ams={"dance": 0.9, "running": 0.49}, no_custom={"dance": 0.4, "running": 0.5})
        found = measured(ask("AMS-1", good))
        assert found.value == pytest.approx(0.03)
        assert "running" in found.note
        assert (word("AMS-1", good), word("AMS-1", bad)) == ("reproduced", "not reproduced")

    def test_a_street_where_seeds_disagree_is_not_hidden_by_one_of_a_lower_mean(self):
        tables = scored(ams={"dance": 0.6, "running": 0.55}, no_custom={"dance": 0.4, "running": 0.5})
        chance = {("ams", "dance"): 0.3}
        tables.change(
            "runs", score=lambda row: row["score"] + chance.get((row["system"], row["workload"]), 0) * (row["seed"] - 1)
        )
        found = measured(ask("AMS-1", tables))
        assert (found.value, found.note) == (pytest.approx(0.2), "on dance, the lowest of 2")
        assert word("AMS-1", tables) == "not reproduced"

    def test_the_worst_of_many_streets_is_judged_by_a_wider_interval(self):
        one = scored(one_time={"dance": 0.4}, no_custom={"dance": 0.5})
        many = scored(
            one_time={"dance": 0.4, **dict.fromkeys("abcdefg", 0.6)},
            no_custom={"dance": 0.5, **dict.fromkeys("abcdefg", 0.5)},
        )
        alone, worst = measured(ask("AMS-2", one)), measured(ask("AMS-2", many))
        assert alone.value == worst.value == pytest.approx(-0.1)
        assert worst.high - worst.value > 2 * (alone.high - alone.value)
        assert word("AMS-2", many) == "reproduced"

    def test_differences_are_averaged_over_streets_and_then_over_seeds(self):
        tables = scored(ams={"dance": 0.6, "running": 0.5}, one_time={"dance": 0.5, "running": 0.5})
        found = measured(ask("AMS-3", tables))
        assert (found.value, found.n) == (pytest.approx(0.05), 3)
        assert "dance" in found.note

    def test_where_tracking_is_better_the_claim_is_not_reproduced(self):
        assert word("AMS-4", scored(ams=0.5, remote_tracking=0.6)) == "not reproduced"

    def test_a_failed_cell_and_a_score_that_is_missing_are_left_out(self):
        rows = [
            run_row(system, seed, score=score) for system, score in (("ams", 0.6), ("one_time", 0.5)) for seed in SEEDS
        ]
        rows[0] |= {"status": "failed", "score": None}
        rows[4] |= {"score": None}
        assert isinstance(ask("AMS-3", Made(runs=rows)), Untestable)  # one seed is left

    def test_bandwidth_comes_with_the_uplink_and_the_rate_per_parameter(self):
        rows = [run_row("ams", seed, downlink_kbps=2.0 + WOBBLE[seed], uplink_kbps=3.0) for seed in SEEDS]
        found = measured(ask("AMS-7", Made(runs=rows)))
        assert found.value == pytest.approx(2.0)
        assert "3 kbit/s up; 0.1 bit" in found.note
        assert word("AMS-7", Made(runs=rows)) == "information"

    def test_frames_are_compared_one_by_one_from_the_update_on(self):
        runs, frames = [], []
        improved = {"no_custom": 0, "ams": 9, "one_time": 6}
        for system, better in improved.items():
            for seed in SEEDS:
                runs.append(run_row(system, seed))
                for number in range(-20, 10):
                    score = 0.5 + (0.1 if 0 <= number < better - (seed == 2) else -0.1 if better else 0)
                    version = int(system == "ams" or number >= 0)
                    row = {"device": "d", "app": "a", "frame": number, "version": version, "score_frame": score}
                    frames.append({"cell": runs[-1]["cell"], **row})
        found = measured(ask("AMS-11", Made(runs=runs, frames=frames)))
        assert found.value == pytest.approx(0.3)
        assert "ams 87%" in found.note


class TestStrategies:
    NAMES = ("gradient_guided", "random", "first_last", "first", "last")
    GUIDED = "s-gradient_guided"

    def tables(self, *scores: float, full: float = 0.60) -> Made:
        parts = [part(f"s-{name}", "ams", adaptation={"strategy": name, "fraction": 0.05}) for name in self.NAMES]
        parts.append(part("everything", "ams", adaptation={"strategy": "full", "fraction": 1.0}))
        systems = [entry["name"] for entry in parts]
        runs = [
            run_row(system, seed, score=score + index * WOBBLE[seed])
            for index, (system, score) in enumerate(zip(systems, (*scores, full), strict=True))
            for seed in SEEDS
        ]
        sizes = {"everything": 1340.0}
        updates = [
            {"cell": run["cell"], "accepted": True, "bytes": sizes.get(run["system"], 100.0) + run["seed"]}
            for run in runs
        ]
        return Made({"systems": parts}, runs=runs, updates=updates)

    def test_the_smallest_step_decides_over_the_order(self):
        good, bad = self.tables(0.59, 0.56, 0.53, 0.5, 0.5), self.tables(0.56, 0.57, 0.53, 0.5, 0.4)
        assert measured(ask("AMS-9", good)).value == pytest.approx(0.03)
        assert measured(ask("AMS-9", bad)).value == pytest.approx(-0.01)
        assert (word("AMS-9", good), word("AMS-9", bad)) == ("reproduced", "not reproduced")

    def test_of_the_steps_the_one_counts_whose_interval_ends_lowest(self):
        """The first is higher on average than the second, and three seeds disagree about it."""
        tables = self.tables(0.60, 0.55, 0.53, 0.5, 0.5)
        tables.change("runs", score=lambda row: row["score"] + 0.2 * (row["seed"] - 1) * (row["system"] == self.GUIDED))
        found = measured(ask("AMS-9", tables))
        assert found.value == pytest.approx(0.05)
        assert found.low < 0 < found.high
        assert word("AMS-9", tables) == "not reproduced"

    def test_a_twentieth_is_compared_with_everything(self):
        assert measured(ask("AMS-8", self.tables(0.59, 0.5, 0.5, 0.5, 0.5))).value == pytest.approx(-0.01)
        assert word("AMS-8", self.tables(0.55, 0.5, 0.5, 0.5, 0.5)) == "not reproduced"

    def test_sizes_of_updates_are_divided(self):
        found = measured(ask("AMS-10", self.tables(0.59, 0.5, 0.5, 0.5, 0.5)))
        assert found.value == pytest.approx(1341 / 101, rel=1e-3)
        assert word("AMS-10", self.tables(0.59, 0.5, 0.5, 0.5, 0.5)) == "reproduced"

    def test_quantised_updates_are_no_strategy(self):
        tables = self.tables(0.59, 0.5, 0.5, 0.5, 0.5)
        tables.run.spec["systems"][0]["streaming"] = {"name": "ams", "value_format": "int4"}
        assert isinstance(ask("AMS-10", tables), Untestable)


class TestTraffic:
    def curve(self, ams_score: float = 0.6, thresholds: tuple[float, ...] = (0.4, 0.5, 0.6, 0.7)) -> Made:
        """Just-In-Time scores its threshold, at a downlink of 10 kbit/s that grows tenfold from 0.5 to 0.7."""
        parts = [part(f"jit-{t}", "just_in_time", streaming={"threshold": t}) for t in thresholds]
        parts.append(part("jit-dense", "just_in_time", streaming={"threshold": 0.5}, adaptation={"fraction": 1.0}))
        parts += [part(f"ams-{t}", "ams", streaming={"interval_s": t, "adaptive_training": False}) for t in (20, 40)]
        parts.append(
            part("ams-int4", "ams", streaming={"value_format": "int4", "mask_encoding": "rice", "error_feedback": True})
        )
        parts.append(
            part(
                "ams-blocks", "ams", streaming={"value_format": "int4", "mask_encoding": "runs", "error_feedback": True}
            )
        )
        kbps = {t: 10 ** (1 + (t - 0.5) * 5) for t in thresholds}
        points = [(f"jit-{t}", t, kbps[t]) for t in thresholds] + [("jit-dense", 0.5, 10 * kbps[0.5])]
        points += [("ams", ams_score, 4.0), ("ams-20", ams_score - 0.02, 2.0), ("ams-40", ams_score - 0.04, 1.0)]
        points += [("ams-int4", ams_score + 0.0005, 1.6), ("ams-blocks", ams_score - 0.002, 0.9)]
        runs = [
            run_row(
                name,
                seed,
                score=score + WOBBLE[seed] / 10,
                downlink_kbps=down * (1 + WOBBLE[seed]),
                uplink_kbps=2 * down,
            )
            for name, score, down in points
            for seed in SEEDS
        ]
        return Made({"systems": parts}, runs=runs)

    def test_traffic_is_compared_where_the_scores_are_equal(self):
        found = measured(ask("AMS-5", self.curve(0.6)))
        assert found.value == pytest.approx(10**1.5 / 4, rel=1e-6)
        assert measured(ask("AMS-6", self.curve(0.55))).value == pytest.approx(10**1.25 / 4, rel=0.01)
        assert word("AMS-5", self.curve(0.6)) == "reproduced"

    def test_a_score_that_no_threshold_reaches_gives_a_noted_lower_bound(self):
        found = measured(ask("AMS-5", self.curve(0.8)))
        assert found.value == pytest.approx(25.0, rel=1e-6)
        assert "in 3 of 3 cells" in found.note

    def test_a_score_below_every_threshold_cannot_be_compared(self):
        assert "lower" in ask("AMS-5", self.curve(0.3)).reason

    def test_slopes_are_per_fold_of_downlink(self):
        """Just-In-Time gains 0.2 over a factor of 10, AMS 0.02 over a factor of 2."""
        wanted = 0.2 / math.log(10) - 0.02 / math.log(2)
        assert measured(ask("AMS-12", self.curve())).value == pytest.approx(wanted, rel=0.01)

    def test_all_weights_are_compared_at_the_same_threshold(self):
        found = measured(ask("AMS-13", self.curve()))
        assert found.value == pytest.approx(10)
        assert "25 times that of ams" in found.note

    @pytest.mark.slow
    def test_smaller_updates_are_compared_in_size_and_score(self):
        size, score = (measured(ask(name, self.curve())) for name in ("DELTA-1", "DELTA-2"))
        assert size.value == pytest.approx(0.4)
        assert size.note == ""
        assert score.value == pytest.approx(0.0005)
        assert (word("DELTA-1", self.curve()), word("DELTA-2", self.curve())) == ("reproduced", "reproduced")

    @pytest.mark.slow
    def test_updates_in_blocks_may_gain_and_must_not_lose(self):
        size, loss = (measured(ask(name, self.curve())) for name in ("DELTA-3", "DELTA-4"))
        assert (size.value, loss.value) == (pytest.approx(0.9 / 4), pytest.approx(0.002))
        assert (word("DELTA-3", self.curve()), word("DELTA-4", self.curve())) == ("reproduced", "reproduced")

    def test_the_bytes_of_eight_bits_follow_from_the_updates(self):
        """640 values take 1280 bytes in half precision, 660 in 8 bits, 340 in 4, plus masks of 400 and 300."""
        tables = self.curve()
        sizes = {"ams": 1680, "ams-int4": 640}
        cells_of = tables.frame("runs").set_index("cell")["system"]
        tables._frames["updates"] = pd.DataFrame(
            [
                {"cell": cell, "values": 640, "bytes": sizes[system]}
                for cell, system in cells_of.items()
                if system in sizes
            ]
        )
        found = measured(ask("DELTA-1", tables))
        assert (
            found.note
            == f"with eight bits per value it would be {(300 + 660) / 1680:.2f} times, as the mask has the same size"
        )

    def test_a_score_that_may_differ_by_more_is_not_within_the_limit(self):
        """A small difference between scores that scatter is no proof that they are equal."""
        tables = self.curve()
        runs = tables.frame("runs")
        scatter = runs["seed"].map(dict(zip(SEEDS, (-0.03, 0.0, 0.03), strict=True)))
        tables._frames["runs"] = runs.assign(score=runs["score"] + scatter.where(runs["system"] == "ams-int4", 0.0))
        assert word("DELTA-2", tables) == "not reproduced"


class TestHouse:
    @pytest.mark.slow
    def test_empty_tables_are_untestable_and_the_note_names_the_experiment(self):
        tables = Made()
        for verdict in evaluate(tables.run, tables=tables):
            assert verdict.result == "not testable here", verdict.claim.id
            untold = bool(verdict.claim.not_testable)
            assert verdict.note.endswith(f": run {verdict.claim.experiment}") != untold
        own = Made({"name": "ams-table1"})
        assert evaluate(own.run, ["AMS-1"], tables=own)[0].note == "needs 'ams' and 'no_custom', with truth"

    def test_a_zero_delay_link_is_no_cell_of_the_method(self):
        rows = [run_row("ams", 0), run_row("ams-zero-delay", 0, bound="zero_delay_link")]
        assert base.completed_cells(Made(runs=rows))["system"].tolist() == ["ams"]

    def test_gain_on_average_is_over_all_streets(self):
        tables = scored(ams={"dance": 0.6, "running": 0.49}, no_custom={"dance": 0.4, "running": 0.5})
        assert measured(ask("AMS-1b", tables)).value == pytest.approx(0.095)
        assert word("AMS-1b", tables) == "reproduced"

    def test_every_claim_of_the_paper_is_included(self):
        assert {f"AMS-{number}" for number in range(1, 22)} <= set(every_claim())
