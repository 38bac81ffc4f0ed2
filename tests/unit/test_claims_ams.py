"""Claims about AMS, on tables whose answer is known."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest
from tables_factory import Made

from driftlab.datasets.streets.presets import PRESETS
from driftlab.datasets.streets.travel import draw_travel
from driftlab.platform.results.analysis import cells
from driftlab.platform.results.analysis.measured import Measured, Untestable
from driftlab.platform.results.claims import ams, ams_clients, ams_rates, ams_traffic
from driftlab.platform.results.claims.base import evaluate, every_claim, judge
from driftlab.platform.results.tables.read import Tables

SEEDS = (0, 1, 2)
WOBBLE = (-0.001, 0.0, 0.001)  # from seed to seed; without any an interval would have no width


def run_row(system: str, seed: int, workload: str = "dance", score: float = 0.5, **more: Any) -> dict[str, Any]:
    cell = f"{system}/{workload}/{more.get('fleet', 'one')}/seed-{seed}"
    usual = {"fleet": "one", "devices": 1, "status": "done", "student": "tiny", "parameters": 20_000}
    return {"cell": cell, "system": system, "seed": seed, "workload": workload, "score": score, **usual, **more}


def scored(**scores: dict[str, float] | float) -> Made:
    """Give systems a score, the same on every workload or by workload, with a little chance."""
    rows = []
    for system, found in scores.items():
        by_workload = found if isinstance(found, dict) else {"dance": found}
        for workload, score in by_workload.items():
            rows += [run_row(system, seed, workload, score + WOBBLE[seed] * len(system)) for seed in SEEDS]
    return Made(runs=rows)


def part(name: str, base: str, **slots: Any) -> dict[str, Any]:
    made = {
        family: {"name": {"ams": "ams", "just_in_time": "just_in_time"}[base], **slots[family]}
        for family in slots
        if family == "streaming"
    }
    if "adaptation" in slots:
        made["adaptation"] = {"name": "distill", **slots["adaptation"]}
    return {"name": name, "base": base, **made}


def measured(found: Measured | Untestable) -> Measured:
    assert isinstance(found, Measured), found
    return found


def word(name: str, tables: Tables) -> str:
    claim = every_claim()[name]
    return judge(claim, claim.measure(tables)).word


class TestSchemes:
    def test_ams_must_gain_on_the_street_where_it_gains_least(self):
        good = scored(ams={"dance": 0.6, "running": 0.53}, no_custom={"dance": 0.4, "running": 0.5})
        bad = scored(ams={"dance": 0.9, "running": 0.49}, no_custom={"dance": 0.4, "running": 0.5})
        found = measured(ams.gain_everywhere(good))
        assert found.value == pytest.approx(0.03)
        assert "running" in found.note
        assert (word("AMS-1", good), word("AMS-1", bad)) == ("reproduced", "not reproduced")

    def test_a_street_where_seeds_disagree_is_not_hidden_by_one_of_a_lower_mean(self):
        tables = scored(ams={"dance": 0.6, "running": 0.55}, no_custom={"dance": 0.4, "running": 0.5})
        chance = {("ams", "dance"): 0.3}
        tables.change(
            "runs", score=lambda row: row["score"] + chance.get((row["system"], row["workload"]), 0) * (row["seed"] - 1)
        )
        found = measured(ams.gain_everywhere(tables))
        assert (found.value, found.note) == (pytest.approx(0.2), "on dance, the lowest of 2")
        assert word("AMS-1", tables) == "not reproduced"

    def test_the_worst_of_many_streets_is_judged_by_a_wider_interval(self):
        one = scored(one_time={"dance": 0.4}, no_custom={"dance": 0.5})
        many = scored(
            one_time={"dance": 0.4, **dict.fromkeys("abcdefg", 0.6)},
            no_custom={"dance": 0.5, **dict.fromkeys("abcdefg", 0.5)},
        )
        alone, worst = measured(ams.one_time_hurts(one)), measured(ams.one_time_hurts(many))
        assert alone.value == worst.value == pytest.approx(-0.1)
        assert worst.high - worst.value > 2 * (alone.high - alone.value)
        assert word("AMS-2", many) == "reproduced"

    def test_differences_are_averaged_over_streets_and_then_over_seeds(self):
        tables = scored(ams={"dance": 0.6, "running": 0.5}, one_time={"dance": 0.5, "running": 0.5})
        found = measured(ams.gain_over_one_time(tables))
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
        assert isinstance(ams.gain_over_one_time(Made(runs=rows)), Untestable)  # one seed is left

    def test_bandwidth_is_told_beside_the_uplink_and_per_parameter(self):
        rows = [run_row("ams", seed, downlink_kbps=2.0 + WOBBLE[seed], uplink_kbps=3.0) for seed in SEEDS]
        found = measured(ams.bandwidth(Made(runs=rows)))
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
        found = measured(ams.frames_improved(Made(runs=runs, frames=frames)))
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
        assert measured(ams.order_of_strategies(good)).value == pytest.approx(0.03)
        assert measured(ams.order_of_strategies(bad)).value == pytest.approx(-0.01)
        assert (word("AMS-9", good), word("AMS-9", bad)) == ("reproduced", "not reproduced")

    def test_of_the_steps_the_one_counts_whose_interval_ends_lowest(self):
        """The first is higher on average than the second, and three seeds disagree about it."""
        tables = self.tables(0.60, 0.55, 0.53, 0.5, 0.5)
        tables.change("runs", score=lambda row: row["score"] + 0.2 * (row["seed"] - 1) * (row["system"] == self.GUIDED))
        found = measured(ams.order_of_strategies(tables))
        assert found.value == pytest.approx(0.05)
        assert found.low < 0 < found.high
        assert word("AMS-9", tables) == "not reproduced"

    def test_a_twentieth_is_compared_with_everything(self):
        assert measured(ams.cost_of_a_twentieth(self.tables(0.59, 0.5, 0.5, 0.5, 0.5))).value == pytest.approx(-0.01)
        assert word("AMS-8", self.tables(0.55, 0.5, 0.5, 0.5, 0.5)) == "not reproduced"

    def test_sizes_of_updates_are_divided(self):
        found = measured(ams.compression(self.tables(0.59, 0.5, 0.5, 0.5, 0.5)))
        assert found.value == pytest.approx(1341 / 101, rel=1e-3)
        assert word("AMS-10", self.tables(0.59, 0.5, 0.5, 0.5, 0.5)) == "reproduced"

    def test_quantised_updates_are_no_strategy(self):
        tables = self.tables(0.59, 0.5, 0.5, 0.5, 0.5)
        tables.run.spec["systems"][0]["streaming"] = {"name": "ams", "values": "int4"}
        assert isinstance(ams.compression(tables), Untestable)


class TestTraffic:
    def curve(self, ams_score: float = 0.6, thresholds: tuple[float, ...] = (0.4, 0.5, 0.6, 0.7)) -> Made:
        """Just-In-Time scores its threshold, at a downlink of 10 kbit/s that grows tenfold from 0.5 to 0.7."""
        parts = [part(f"jit-{t}", "just_in_time", streaming={"threshold": t}) for t in thresholds]
        parts.append(part("jit-dense", "just_in_time", streaming={"threshold": 0.5}, adaptation={"fraction": 1.0}))
        parts += [part(f"ams-{t}", "ams", streaming={"interval_s": t, "slowdown": False}) for t in (20, 40)]
        parts.append(part("ams-int4", "ams", streaming={"values": "int4", "feedback": True}))
        kbps = {t: 10 ** (1 + (t - 0.5) * 5) for t in thresholds}
        points = [(f"jit-{t}", t, kbps[t]) for t in thresholds] + [("jit-dense", 0.5, 10 * kbps[0.5])]
        points += [("ams", ams_score, 4.0), ("ams-20", ams_score - 0.02, 2.0), ("ams-40", ams_score - 0.04, 1.0)]
        points.append(("ams-int4", ams_score + 0.0005, 1.6))
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
        found = measured(ams_traffic.downlink_at_equal_score(self.curve(0.6)))
        assert found.value == pytest.approx(10**1.5 / 4, rel=1e-6)
        assert measured(ams_traffic.uplink_at_equal_score(self.curve(0.55))).value == pytest.approx(
            10**1.25 / 4, rel=0.01
        )
        assert word("AMS-5", self.curve(0.6)) == "reproduced"

    def test_a_score_that_no_threshold_reaches_gives_a_lower_bound_and_says_so(self):
        found = measured(ams_traffic.downlink_at_equal_score(self.curve(0.8)))
        assert found.value == pytest.approx(25.0, rel=1e-6)
        assert "in 3 of 3 cells" in found.note

    def test_a_score_below_every_threshold_cannot_be_compared(self):
        assert "lower" in ams_traffic.downlink_at_equal_score(self.curve(0.3)).reason

    def test_slopes_are_per_fold_of_downlink(self):
        """Just-In-Time gains 0.2 over a factor of 10, AMS 0.02 over a factor of 2."""
        wanted = 0.2 / math.log(10) - 0.02 / math.log(2)
        assert measured(ams_traffic.flatter_than_just_in_time(self.curve())).value == pytest.approx(wanted, rel=0.01)

    def test_all_weights_are_compared_at_the_same_threshold(self):
        found = measured(ams_traffic.dense_just_in_time(self.curve()))
        assert found.value == pytest.approx(10)
        assert "25 times that of ams" in found.note

    def test_smaller_updates_are_compared_in_size_and_score(self):
        size, score = (
            measured(judge_by(self.curve()))
            for judge_by in (ams_traffic.quantised_downlink, ams_traffic.quantised_score)
        )
        assert size.value == pytest.approx(0.4)
        assert size.note == ""
        assert score.value == pytest.approx(0.0005)
        assert (word("DELTA-1", self.curve()), word("DELTA-2", self.curve())) == ("reproduced", "reproduced")

    def test_how_far_eight_bits_would_come_follows_from_the_updates(self):
        """640 values: 1280 bytes in half precision, 660 in eight bits and 340 in four, beside masks of 400 and 300."""
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
        found = measured(ams_traffic.quantised_downlink(tables))
        assert found.note == f"eight bits a value would make it {(300 + 660) / 1680:.2f} times, because the mask stays"

    def test_a_score_that_may_differ_by_more_is_not_within_the_limit(self):
        """A small difference between scores that scatter is no proof that they are equal."""
        tables = self.curve()
        runs = tables.frame("runs")
        scatter = runs["seed"].map(dict(zip(SEEDS, (-0.03, 0.0, 0.03), strict=True)))
        tables._frames["runs"] = runs.assign(score=runs["score"] + scatter.where(runs["system"] == "ams-int4", 0.0))
        assert word("DELTA-2", tables) == "not reproduced"


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


class TestHouse:
    def test_a_slot_is_read_from_the_run_or_from_the_table_of_systems(self):
        spec = {"systems": ["one_time", part("mine", "ams", streaming={"interval_s": 3})]}
        tables = Made(spec)
        assert cells.slot(tables, "one_time", "adaptation")["fraction"] == 1.0
        assert cells.slot(tables, "mine", "streaming")["interval_s"] == 3
        assert cells.slot(tables, "mine", "adaptation")["fraction"] == 0.05
        assert cells.slot(tables, "oracle", "streaming").name == "foresight"
        assert cells.slot(tables, "unheard-of", "streaming").name == "local"

    def test_empty_tables_answer_nothing_and_say_what_to_run(self):
        tables = Made()
        for verdict in evaluate(tables.run, tables=tables):
            assert verdict.word == "not testable here", verdict.claim.id
            assert verdict.note.endswith(f": run {verdict.claim.experiment}")
        own = Made({"name": "ams-table1"})
        assert evaluate(own.run, ["AMS-1"], tables=own)[0].note == "needs 'ams' and 'no_custom', with truth"

    def test_a_null_link_is_no_cell_of_the_method(self):
        rows = [run_row("ams", 0), run_row("ams-null-link", 0, bound="null_link")]
        assert cells.done(Made(runs=rows))["system"].tolist() == ["ams"]

    def test_gain_on_average_is_over_all_streets(self):
        tables = scored(ams={"dance": 0.6, "running": 0.49}, no_custom={"dance": 0.4, "running": 0.5})
        assert measured(ams.gain_on_average(tables)).value == pytest.approx(0.095)
        assert word("AMS-1b", tables) == "reproduced"

    def test_every_claim_of_the_paper_is_there(self):
        assert {f"AMS-{number}" for number in range(1, 22)} <= set(every_claim())
