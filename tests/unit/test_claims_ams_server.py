"""Claims about the server and the rates of AMS, on tables whose answer is known."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest
from claims_factory import SEEDS, WOBBLE, measured, part, run_row, word
from tables_factory import Made

from driftlab.datasets.streets.presets import PRESETS
from driftlab.datasets.streets.travel import draw_travel
from driftlab.platform.results.analysis import cells
from driftlab.platform.results.claims import ams_clients, ams_rates
from driftlab.platform.results.claims.base import Untestable
from driftlab.platform.results.tables.read import Tables


class TestServer:
    def fleets(self, limits: dict[str, int], *, most: int = 11, chance: tuple[int, ...] = (0, 0, 0)) -> Made:
        """Let a device lose two points in a fleet above the limit, which seeds move by chance; patience costs 0.4."""
        patience = {"ams-patient": 0.3}
        parts = [
            part(name, "ams", streaming={"slowdown": name != "ams-steady", "patience": patience.get(name)})
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

    def test_a_device_is_compared_with_itself_where_it_never_waits(self):
        tables = self.fleets({"ams": 9, "ams-steady": 5})
        found = measured(ams_clients.devices_gained(tables))
        assert found.value == 4
        assert "9 with, 5 without" in found.note
        assert (word("AMS-14", tables), word("SHARE-1", tables)) == ("reproduced", "not testable here")

    def test_devices_that_make_room_are_compared_with_the_paper_s_where_they_never_wait(self):
        tables = self.fleets({"ams": 5, "ams-patient": 11})
        found = measured(ams_clients.devices_served(tables))
        assert (found.value, word("SHARE-1", tables)) == (pytest.approx(11), "reproduced")
        assert "3: +0.004, 5: +0.004" in found.note
        made = measured(ams_clients.room_made(tables))
        assert made.value == pytest.approx(0.016) and "of 11 devices each loses 0.004 instead of 0.020" in made.note
        assert word("SHARE-2", tables) == "reproduced"
        assert word("SHARE-2", self.fleets({"ams": 11, "ams-patient": 5})) == "not reproduced"
        assert word("SHARE-2", self.fleets({"ams-patient": 5})) == "not testable here"

    def test_devices_are_counted_seed_by_seed(self):
        found = measured(ams_clients.devices_served(self.fleets({"ams": 3, "ams-patient": 7}, chance=(-2, 0, 2))))
        assert (found.value, found.n) == (pytest.approx(7), 3)
        assert found.low == pytest.approx(7 - 4.303 * 2 / math.sqrt(3), abs=0.01)
        gained = measured(ams_clients.devices_gained(self.fleets({"ams": 9, "ams-steady": 5}, chance=(-2, 0, 2))))
        assert (gained.value, gained.low) == (pytest.approx(4), pytest.approx(4))  # the same streams on both sides

    def test_as_many_devices_are_not_more(self):
        tables = self.fleets({"ams": 5, "ams-steady": 5})
        tables.change("devices", score=lambda row: row["score"] - 0.001 * ("steady/dance/n-3" in row["cell"]))
        assert (measured(ams_clients.devices_gained(tables)).value, word("AMS-14", tables)) == (0, "not reproduced")

    def test_a_fleet_counts_only_when_all_smaller_ones_are_served(self):
        lost = pd.DataFrame({"seed": 0, "devices": [1, 3, 5, 7], "loss": [0.0, 0.001, 0.02, 0.001]})
        assert ams_clients._served(lost)["value"].tolist() == [3]

    def test_fleets_that_all_were_served_do_not_tell_how_many_could_be(self):
        found = ams_clients.devices_served(self.fleets({"ams": 5, "ams-patient": 9}, most=7))
        assert "7 devices were served, and no more were tried" in found.reason
        assert word("SHARE-1", self.fleets({"ams": 5, "ams-patient": 5}, most=7)) == "not reproduced"

    def test_sharing_says_nothing_where_the_intervals_never_adapted(self):
        assert word("AMS-14", self.fleets({"ams": 5, "ams-steady": 5})) == "not testable here"

    def test_of_fleets_that_never_wait_the_largest_is_compared_with(self):
        tables = self.fleets({"ams": 1, "ams-steady": 1}, most=9)
        fleets = tables.run.spec["fleets"]
        fleets[1]["gpus"] = 3  # no wait with three devices either, but here they lost two points
        lost = cells.losses(tables)
        assert set(lost["devices"]) == {5, 7, 9} and len(lost) == 2 * len(SEEDS) * (5 + 7 + 9)
        assert lost["loss"].tolist() == pytest.approx([0.02] * len(lost))
        for fleet in fleets:
            fleet["gpus"] = None
        assert cells.losses(tables).empty
        assert "one of them with a GPU for each device" in ams_clients.devices_gained(tables).reason

    def test_where_even_the_smallest_fleet_loses_one_device_is_served(self):
        assert measured(ams_clients.devices_served(self.fleets({"ams": 1, "ams-patient": 1}))).value == 1

    def horizons(self, short_loses: float, student: str = "tiny") -> Made:
        parts, runs = [], []
        for horizon in (16, 64, 256):
            for every in (10, 40):
                name = f"h{horizon}-{every}"
                parts.append(
                    part(name, "ams", streaming={"horizon_s": horizon, "interval_s": every, "slowdown": False})
                )
                lost = {16: short_loses, 64: 0.03, 256: 0.02}[horizon] * (every == 40)
                best = {16: 0.5, 64: 0.6, 256: 0.55}[horizon]
                runs += [run_row(name, seed, score=best - lost * (1 + WOBBLE[seed]), student=student) for seed in SEEDS]
        return Made({"systems": parts}, runs=runs)

    def test_what_longer_intervals_cost_is_compared_between_horizons(self):
        assert measured(ams_rates.short_horizon_ages(self.horizons(0.1))).value == pytest.approx(0.08)
        assert word("AMS-15", self.horizons(0.1)) == "reproduced"
        assert word("AMS-15", self.horizons(0.01)) == "not reproduced"

    def test_the_best_horizon_is_that_of_the_shortest_interval_and_of_a_small_student(self):
        assert isinstance(ams_rates.best_horizon(self.horizons(0.1)), Untestable)
        half = self.horizons(0.1, student="half")
        assert measured(ams_rates.best_horizon(half)).value == 64
        assert isinstance(ams_rates.short_horizon_ages(half), Untestable)  # asks the usual student
        half.change("runs", duration_s=lambda row: 60.0)
        assert "to forget nothing is best in streams of 60 s (16 s 0.5" in ams_rates.best_horizon(half).reason


class TestRates:
    def stream(
        self, system: str, workload: str, gaps_s: list[float], rates: list[float], seed: int
    ) -> dict[str, list[Any]]:
        run = run_row(system, seed, workload)
        device, at = {"cell": run["cell"], "device": "d"}, 0.0
        cell = device | {"app": "a"}
        made = {"runs": [run], "transfers": [], "updates": [], "devices": [{**device, "stream_seed": 1000 + seed}]}
        for number, (gap_s, rate) in enumerate(zip(gaps_s, rates, strict=True)):
            at += gap_s
            sent = {"kind": "samples", "direction": "up", "sequence": number + 1, "queued_s": at}
            sent["samples"] = rate * gap_s
            made["transfers"] += [
                {**cell, **sent},
                {**cell, "kind": "update", "sequence": number + 1, "queued_s": at + 1},
            ]
            made["updates"].append({**cell, "teach_start_s": at + 0.1, "uploads": 1})
        return made

    def tables(self, *streams: dict[str, list[Any]], workload: str = "interview", **params: Any) -> Made:
        spec = {"workloads": [{"name": f"streets/{workload}"}]}
        spec["systems"] = [part("ams", "ams", streaming=params)] if params else ["ams"]
        spec["systems"].append(part("ams-scaled", "ams", streaming={"control": "scaled"}))
        return Made(spec, **{name: [row for made in streams for row in made[name]] for name in streams[0]})

    def test_a_visit_serves_all_uploads_that_waited_and_none_that_was_refused(self):
        made = self.stream("ams", "interview", [10.0] * 5, [0.1, 0.2, 0.3, 0.4, 0.5], 0)
        made["transfers"][2]["refused"] = "torn"  # the second upload
        made["updates"] = [row | {"uploads": n} for row, n in zip(made["updates"], (1, 0, 2, 1), strict=False)]
        found = cells.uploads(self.tables(made))
        starts_s = [row["teach_start_s"] for row in made["updates"]]
        wanted = [starts_s[0], math.nan, starts_s[2], starts_s[2], starts_s[3]]
        assert found["teach_start_s"].tolist() == pytest.approx(wanted, nan_ok=True)
        assert found["rate"].tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
        assert found["start_s"].tolist() == pytest.approx([0, 10, 20, 30, 40])

    def test_applications_of_a_device_are_streams_of_their_own(self):
        first = self.stream("ams", "interview", [10.0] * 3, [0.5] * 3, 0)
        second = self.stream("ams", "interview", [20.0] * 3, [0.2] * 3, 0)
        for name in ("transfers", "updates"):
            first[name] += [row | {"app": "b"} for row in second[name]]
        tables = self.tables(first)
        found = cells.uploads(tables).set_index(["app", "sequence"])
        assert found["gap_s"].tolist() == [10.0] * 3 + [20.0] * 3
        assert found["rate"].tolist() == pytest.approx([0.5] * 3 + [0.2] * 3)
        assert (found["teach_start_s"] - found["queued_s"]).tolist() == pytest.approx([0.1] * 6)
        within = measured(ams_rates.rates_within_bounds(tables))
        assert (within.n, within.note) == (2, "from 0.20 to 0.50 frames/s")

    def test_the_buffer_that_took_longest_to_encode_counts(self):
        streams = [self.stream("ams", "interview", [10.0] * 3, [0.1] * 3, seed) for seed in SEEDS]
        for made, seed in zip(streams, SEEDS, strict=True):
            for number, row in enumerate(row for row in made["transfers"] if row["kind"] == "samples"):
                row["host_pack_seconds"] = 0.02 + (0.3 + 0.01 * seed) * (number == 1)
        tables = self.tables(*streams)
        found = measured(ams_rates.time_to_encode(tables))
        assert found.value == pytest.approx(0.33)
        assert word("AMS-21", tables) == "reproduced"
        tables._frames["transfers"]["host_pack_seconds"] *= 4
        assert word("AMS-21", tables) == "not reproduced"

    def test_pictures_are_no_clips(self):
        made = self.stream("ams", "interview", [10.0], [0.1], 0)
        for row in made["transfers"]:
            row["host_pack_seconds"] = 0.1
        assert isinstance(ams_rates.time_to_encode(self.tables(made, codec="jpeg")), Untestable)

    def test_the_interval_at_the_end_is_compared_with_the_usual_one(self):
        still = self.slowing([10, 10, 12, 14], [10, 12, 14, 16], [10, 10, 10, 15])
        found = measured(ams_rates.slows_down_on_a_still_scene(still))
        assert found.value == pytest.approx(5.0)
        assert "in 3 of 3 streams, from 20 s on" in found.note
        assert word("AMS-18", still) == "reproduced"

    def test_an_interval_that_grows_in_some_streams_alone_is_not_enough(self):
        assert word("AMS-18", self.slowing([10] * 4, [10, 12, 14, 16], [10] * 4)) == "not reproduced"
        assert word("AMS-18", self.slowing([10] * 4, [10] * 4, [10] * 4)) == "not reproduced"

    def test_less_than_one_step_is_no_growth(self):
        assert word("AMS-18", self.slowing(*[[10, 10, 10, 11]] * 3)) == "not reproduced"

    def slowing(self, *gaps_s: list[float]) -> Tables:
        """Show a still scene under every seed, with these times between uploads."""
        return self.tables(*(self.stream("ams", "interview", gaps_s[seed], [0.1] * 4, seed) for seed in SEEDS))

    def test_only_a_scene_that_stands_still_can_tell(self):
        moving = self.tables(
            *(self.stream("ams", "running", [10, 10], [1, 1], seed) for seed in SEEDS), workload="running"
        )
        assert isinstance(ams_rates.slows_down_on_a_still_scene(moving), Untestable)

    @pytest.mark.parametrize(
        ("rate", "verdict"), [(0.5, "reproduced"), (1.2, "not reproduced"), (0.05, "not reproduced")]
    )
    def test_mean_rates_must_be_within_the_limits(self, rate, verdict):
        streams = [self.stream("ams", "interview", [10.0, 10.0], [0.3, 0.3], 0)]
        streams.append(self.stream("ams", "interview", [10.0, 10.0], [rate, rate], 1))
        assert word("AMS-19", self.tables(*streams)) == verdict

    @pytest.mark.parametrize(("follows", "verdict"), [(True, "reproduced"), (False, "not reproduced")])
    def test_a_rate_must_fall_after_a_stop(self, follows, verdict):
        streams = []
        for seed in SEEDS:
            travel = draw_travel(PRESETS["driving_la"], 1000 + seed)
            speeds = [0.0, 0.0] + [
                (travel.distance_m(5.0 * number) - travel.distance_m(5.0 * number - 10)) / 10 for number in range(2, 40)
            ]
            rates = [0.2 + speed / 12 if follows else 1.2 - speed / 12 for speed in speeds]
            streams.append(self.stream("ams", "driving_la", [5.0] * 40, rates, seed))
        assert word("AMS-17", self.tables(*streams, workload="driving_la", interval_s=5)) == verdict

    def test_changes_of_the_rate_are_compared_in_the_second_half(self):
        wild = [1.0, 0.1] * 4 + [0.3, 0.4] * 4
        calm = [1.0, 0.1] * 4 + [0.35, 0.36] * 4
        streams = []
        for seed in SEEDS:
            streams.append(self.stream("ams", "interview", [10.0] * 16, wild, seed))
            streams.append(
                self.stream("ams-scaled", "interview", [10.0] * 16, [rate + WOBBLE[seed] for rate in calm], seed)
            )
        found = measured(ams_rates.scaled_control_is_steadier(self.tables(*streams)))
        assert found.value == pytest.approx(0.01 - 0.1, abs=0.003)
        assert word("RATE-1", self.tables(*streams)) == "reproduced"
