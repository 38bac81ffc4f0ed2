"""Claims about AMS, on tables with known verdicts: times of samples and uploads."""

from __future__ import annotations

import math
from typing import Any

import pytest
from claims_factory import SEEDS, WOBBLE, ask, measured, part, run_row, word
from tables_factory import Made

from driftlab.datasets.streets.presets import PRESETS
from driftlab.datasets.streets.travel import draw_travel
from driftlab.platform.results.relations import rates
from driftlab.platform.results.relations.base import Untestable
from driftlab.platform.results.tables.read import Tables


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
            made["updates"].append({**cell, "label_start_s": at + 0.1, "uploads": 1})
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
        found = rates.uploads(self.tables(made))
        starts_s = [row["label_start_s"] for row in made["updates"]]
        wanted = [starts_s[0], math.nan, starts_s[2], starts_s[2], starts_s[3]]
        assert found["label_start_s"].tolist() == pytest.approx(wanted, nan_ok=True)
        assert found["rate"].tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
        assert found["start_s"].tolist() == pytest.approx([0, 10, 20, 30, 40])

    def test_applications_of_a_device_have_separate_streams(self):
        first = self.stream("ams", "interview", [10.0] * 3, [0.5] * 3, 0)
        second = self.stream("ams", "interview", [20.0] * 3, [0.2] * 3, 0)
        for name in ("transfers", "updates"):
            first[name] += [row | {"app": "b"} for row in second[name]]
        tables = self.tables(first)
        found = rates.uploads(tables).set_index(["app", "sequence"])
        assert found["gap_s"].tolist() == [10.0] * 3 + [20.0] * 3
        assert found["rate"].tolist() == pytest.approx([0.5] * 3 + [0.2] * 3)
        assert (found["label_start_s"] - found["queued_s"]).tolist() == pytest.approx([0.1] * 6)
        within = measured(ask("AMS-19", tables))
        assert (within.n, within.note) == (2, "from 0.20 to 0.50 frames/s")

    def test_the_buffer_that_took_longest_to_encode_counts(self):
        streams = [self.stream("ams", "interview", [10.0] * 3, [0.1] * 3, seed) for seed in SEEDS]
        for made, seed in zip(streams, SEEDS, strict=True):
            for number, row in enumerate(row for row in made["transfers"] if row["kind"] == "samples"):
                row["host_pack_seconds"] = 0.02 + (0.3 + 0.01 * seed) * (number == 1)
        tables = self.tables(*streams)
        found = measured(ask("AMS-21", tables))
        assert found.value == pytest.approx(0.33)
        assert word("AMS-21", tables) == "reproduced"
        tables.change("transfers", host_pack_seconds=lambda row: row["host_pack_seconds"] * 4)
        assert word("AMS-21", tables) == "not reproduced"

    def test_jpeg_uploads_give_no_verdict_on_clips(self):
        made = self.stream("ams", "interview", [10.0], [0.1], 0)
        for row in made["transfers"]:
            row["host_pack_seconds"] = 0.1
        assert isinstance(ask("AMS-21", self.tables(made, codec="jpeg")), Untestable)

    def test_the_interval_at_the_end_is_compared_with_the_usual_one(self):
        still = self.slowing([10, 10, 12, 14], [10, 12, 14, 16], [10, 10, 10, 15])
        found = measured(ask("AMS-18", still))
        assert found.value == pytest.approx(5.0)
        assert "in 3 of 3 streams, from 20 s on" in found.note
        assert word("AMS-18", still) == "reproduced"

    def test_an_interval_that_grows_in_some_streams_alone_is_not_enough(self):
        assert word("AMS-18", self.slowing([10] * 4, [10, 12, 14, 16], [10] * 4)) == "not reproduced"
        assert word("AMS-18", self.slowing([10] * 4, [10] * 4, [10] * 4)) == "not reproduced"

    def test_less_than_one_step_is_no_growth(self):
        assert word("AMS-18", self.slowing(*[[10, 10, 10, 11]] * 3)) == "not reproduced"

    def test_a_first_buffer_that_takes_longer_to_encode_is_no_longer_interval(self):
        still = self.slowing(*[[10.04, 10.01, 12, 14]] * 3)
        assert "from 20 s on" in measured(ask("AMS-18", still)).note
        assert rates.slow_from(still)["value"].tolist() == pytest.approx([20.05] * 3)

    def slowing(self, *gaps_s: list[float]) -> Tables:
        """Show a still scene under every seed, with these times between uploads."""
        return self.tables(*(self.stream("ams", "interview", gaps_s[seed], [0.1] * 4, seed) for seed in SEEDS))

    def test_a_moving_scene_gives_no_verdict(self):
        moving = self.tables(
            *(self.stream("ams", "running", [10, 10], [1, 1], seed) for seed in SEEDS), workload="running"
        )
        assert isinstance(ask("AMS-18", moving), Untestable)

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

    @pytest.mark.slow
    def test_changes_of_the_rate_are_compared_in_the_second_half(self):
        wild = [1.0, 0.1] * 4 + [0.3, 0.4] * 4
        calm = [1.0, 0.1] * 4 + [0.35, 0.36] * 4
        streams = []
        for seed in SEEDS:
            streams.append(self.stream("ams", "interview", [10.0] * 16, wild, seed))
            streams.append(
                self.stream("ams-scaled", "interview", [10.0] * 16, [rate + WOBBLE[seed] for rate in calm], seed)
            )
        found = measured(ask("RATE-1", self.tables(*streams)))
        assert found.value == pytest.approx(0.01 - 0.1, abs=0.003)
        assert word("RATE-1", self.tables(*streams)) == "reproduced"


class TestResets:
    """A change is a rate above the threshold during a lengthened interval; its delay ends with the reset."""

    def delays(self, *rounds: tuple[float, float, float], system: str = "ams") -> list[float]:
        """Return the delays of a stream with rounds of these times, rates and intervals."""
        run = run_row(system, 0)
        place = {"cell": run["cell"], "device": "d", "app": "a"}
        updates = [
            {**place, "label_start_s": time_s, "rate_fps": fps, "interval_s": interval_s}
            for time_s, fps, interval_s in rounds
        ]
        found = rates.resets(Made({"systems": ["ams"]}, runs=[run], updates=updates))
        return found["delay_s"].tolist()

    def test_a_delay_lasts_from_the_buffer_that_raised_the_rate_to_the_shortest_interval(self):
        calm = [(10.0, 0.1, 10.0), (20.0, 0.1, 12.0), (32.0, 0.1, 14.0)]
        assert self.delays(*calm, (46.0, 0.5, 10.0)) == [14.0]
        assert self.delays(*calm, (46.0, 0.5, 16.0), (62.0, 0.5, 18.0), (80.0, 0.5, 10.0)) == [48.0]

    def test_a_change_without_a_reset_lasts_until_it_is_over_or_the_last_round(self):
        calm = [(20.0, 0.1, 12.0), (32.0, 0.1, 14.0)]
        assert self.delays(*calm, (46.0, 0.5, 16.0), (62.0, 0.1, 18.0), (80.0, 0.1, 20.0)) == [30.0]
        assert self.delays(*calm, (46.0, 0.5, 16.0), (62.0, 0.4, 18.0)) == [30.0]

    def test_a_rate_between_the_thresholds_and_one_at_the_shortest_interval_are_no_change(self):
        assert self.delays((20.0, 0.1, 12.0), (32.0, 0.3, 14.0), (46.0, 0.3, 16.0)) == []
        assert self.delays((10.0, 1.0, 10.0), (20.0, 0.9, 10.0)) == []

    def test_the_shorter_delay_wins_over_seeds(self):
        runs, updates = [], []
        for system, late_s in (("last", 0.0), ("mean", 20.0)):
            for seed in SEEDS:
                runs.append(run_row(system, seed))
                place = {"cell": runs[-1]["cell"], "device": "d", "app": "a"}
                after_s = 40.0 + late_s + seed
                rounds = [(20.0, 0.1, 12.0), (32.0, 0.5, 14.0 if late_s else 10.0), (after_s, 0.5, 10.0)]
                updates += [
                    {**place, "label_start_s": time_s, "rate_fps": fps, "interval_s": interval_s}
                    for time_s, fps, interval_s in rounds
                ]
        spec = {"systems": [part("last", "ams", streaming={"slowdown_rates": 1}), part("mean", "ams", streaming={})]}
        tables = Made(spec, runs=runs, updates=updates)
        found = measured(ask("RATE-2", tables))
        assert found.value == pytest.approx(12.0 - (60.0 + 1.0 - 20.0))
        assert word("RATE-2", tables) == "reproduced"


def test_saved_labels_are_a_share_of_those_at_the_highest_rate():
    runs = [run_row("ams", seed) for seed in SEEDS]
    sent = [
        {"cell": run["cell"], "device": "d", "app": "a", "kind": "samples", "direction": "up", "sequence": number,
         "queued_s": 10.0 * number, "samples": 4 + run["seed"]}
        for run in runs
        for number in (1, 2)
    ]  # fmt: skip
    found = measured(ask("AMS-30", Made({"systems": ["ams"]}, runs=runs, transfers=sent)))
    assert found.value == pytest.approx(0.5)
