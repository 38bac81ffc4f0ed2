"""Claims about AMS, on tables with known verdicts: a shared server, and horizons."""

from __future__ import annotations

import math

import pytest
from claims_factory import SEEDS, WOBBLE, ask, measured, part, run_row, word
from tables_factory import Made

from driftlab.platform.results.relations import fleets
from driftlab.platform.results.relations.base import Untestable


class TestServer:
    def fleets(self, limits: dict[str, int], *, most: int = 11, chance: tuple[int, ...] = (0, 0, 0)) -> Made:
        """Make fleets in which each device loses 2 points above the limit; patience costs 0.4."""
        patience = {"ams-patient": 0.3}
        parts = [
            part(name, "ams", streaming={"adaptive_training": name != "ams-steady", "patience": patience.get(name)})
            for name in limits
        ]
        counts = {"alone": most, **{f"n-{count}": count for count in range(3, most + 1, 2)}}
        fleets = [
            {"name": name, "devices": [{"count": 1}, {"count": count - 1}], "gpus": most if name == "alone" else None}
            for name, count in counts.items()
        ]
        runs, devices = [], []
        for name, limit in limits.items():
            for fleet, count in counts.items():
                for seed in SEEDS:
                    runs.append(run_row(name, seed, fleet=fleet, devices=count))
                    devices += [
                        {
                            "cell": runs[-1]["cell"],
                            "device": f"d-{i}",
                            "score": 0.9
                            - 0.05 * i
                            - 0.004 * (name in patience)
                            - 0.02 * (fleet != "alone" and count > limit + chance[seed]),
                        }
                        for i in range(count)
                    ]
        return Made({"systems": parts, "fleets": fleets, "server": {"gpus": 1}}, runs=runs, devices=devices)

    @pytest.mark.slow
    def test_a_device_is_compared_with_itself_where_it_never_waits(self):
        tables = self.fleets({"ams": 9, "ams-steady": 5})
        found = measured(ask("AMS-14", tables))
        assert found.value == 4
        assert "9 with, 5 without" in found.note
        assert (word("AMS-14", tables), word("SHARE-1", tables)) == ("reproduced", "not testable here")

    @pytest.mark.slow
    def test_devices_that_yield_capacity_are_compared_with_the_paper_if_none_waits(self):
        tables = self.fleets({"ams": 5, "ams-patient": 11})
        found = measured(ask("SHARE-1", tables))
        assert (found.value, word("SHARE-1", tables)) == (pytest.approx(11), "reproduced")
        assert "3: +0.004, 5: +0.004" in found.note
        made = measured(ask("SHARE-2", tables))
        assert made.value == pytest.approx(0.016) and "of 11 devices each loses 0.004 instead of 0.020" in made.note
        assert word("SHARE-2", tables) == "reproduced"
        assert word("SHARE-2", self.fleets({"ams": 11, "ams-patient": 5})) == "not reproduced"
        assert word("SHARE-2", self.fleets({"ams-patient": 5})) == "not testable here"

    def test_devices_are_counted_seed_by_seed(self):
        found = measured(ask("SHARE-1", self.fleets({"ams": 3, "ams-patient": 7}, chance=(-2, 0, 2))))
        assert (found.value, found.n) == (pytest.approx(7), 3)
        assert found.low == pytest.approx(7 - 4.303 * 2 / math.sqrt(3), abs=0.01)
        gained = measured(ask("AMS-14", self.fleets({"ams": 9, "ams-steady": 5}, chance=(-2, 0, 2))))
        assert (gained.value, gained.low) == (pytest.approx(4), pytest.approx(4))  # the same streams on both sides

    def test_as_many_devices_are_not_more(self):
        tables = self.fleets({"ams": 5, "ams-steady": 5})
        tables.change("devices", score=lambda row: row["score"] - 0.001 * ("steady/dance/n-3" in row["cell"]))
        assert (measured(ask("AMS-14", tables)).value, word("AMS-14", tables)) == (0, "not reproduced")

    def test_fleets_without_an_overloaded_size_give_no_maximum(self):
        found = ask("SHARE-1", self.fleets({"ams": 5, "ams-patient": 9}, most=7))
        assert "7 devices were served, and no larger fleet ran" in found.reason
        assert word("SHARE-1", self.fleets({"ams": 5, "ams-patient": 5}, most=7)) == "not reproduced"

    def test_sharing_is_untestable_where_the_intervals_never_adapted(self):
        assert word("AMS-14", self.fleets({"ams": 5, "ams-steady": 5})) == "not testable here"

    def test_of_fleets_that_never_wait_the_largest_is_compared_with(self):
        tables = self.fleets({"ams": 1, "ams-steady": 1}, most=9)
        sizes = tables.run.spec["fleets"]
        sizes[1]["gpus"] = 3  # no wait with three devices either, but here they lost two points
        lost = fleets.losses(tables, "score")
        assert set(lost["devices"]) == {5, 7, 9} and len(lost) == 2 * len(SEEDS) * (5 + 7 + 9)
        assert lost["loss"].tolist() == pytest.approx([0.02] * len(lost))
        for fleet in sizes:
            fleet["gpus"] = None
        assert fleets.losses(tables, "score").empty
        assert "one of them with a GPU for each device" in ask("AMS-14", tables).reason

    def test_where_even_the_smallest_fleet_loses_one_device_is_served(self):
        assert measured(ask("SHARE-1", self.fleets({"ams": 1, "ams-patient": 1}))).value == 1

    def horizons(self, short_loses: float, student: str = "tiny") -> Made:
        parts, runs = [], []
        for horizon in (16, 64, 256):
            for every in (10, 40):
                name = f"h{horizon}-{every}"
                parts.append(
                    part(name, "ams", streaming={"horizon_s": horizon, "interval_s": every, "adaptive_training": False})
                )
                lost = {16: short_loses, 64: 0.03, 256: 0.02}[horizon] * (every == 40)
                best = {16: 0.5, 64: 0.6, 256: 0.55}[horizon]
                runs += [run_row(name, seed, score=best - lost * (1 + WOBBLE[seed]), student=student) for seed in SEEDS]
        return Made({"systems": parts}, runs=runs)

    def test_the_cost_of_longer_intervals_is_compared_between_horizons(self):
        assert measured(ask("AMS-15", self.horizons(0.1))).value == pytest.approx(0.08)
        assert word("AMS-15", self.horizons(0.1)) == "reproduced"
        assert word("AMS-15", self.horizons(0.01)) == "not reproduced"

    def test_the_best_horizon_is_that_of_the_shortest_interval_and_of_a_small_student(self):
        assert isinstance(ask("AMS-16", self.horizons(0.1)), Untestable)
        half = self.horizons(0.1, student="half")
        assert measured(ask("AMS-16", half)).value == 64
        assert isinstance(ask("AMS-15", half), Untestable)  # asks the usual student
        half.change("runs", duration_s=lambda row: 60.0)
        assert "the best horizon exceeds the streams of 60 s (16 s 0.5" in ask("AMS-16", half).reason
