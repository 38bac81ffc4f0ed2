"""Claims about NestDNN, on tables whose answer is known."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from tables_factory import Made

from driftlab.platform.results.analysis import sharing
from driftlab.platform.results.analysis.measured import Measured, Untestable
from driftlab.platform.results.claims import nestdnn, nestdnn_sharing
from driftlab.platform.results.claims.base import judge

SEEDS = (0, 1, 2)
KEEP = (0.8, 0.6, 0.45, 0.3)
SYSTEMS: list[dict[str, Any]] = [
    {"name": "ours", "scaling": {"name": "nested", "keep": KEEP}, "scheduling": {"name": "nestdnn", "alpha": 0.1}},
    {"name": "fast", "scaling": {"name": "nested", "keep": KEEP}, "scheduling": {"name": "nestdnn", "alpha": 1.0}},
    {"name": "good", "scaling": {"name": "nested", "keep": KEEP}, "scheduling": {"name": "nestdnn", "alpha": 0.01}},
    {"name": "base", "scaling": {"name": "independent"}, "scheduling": {"name": "status_quo"}},
    {"name": "base-picked", "scaling": {"name": "independent"}, "scheduling": {"name": "nestdnn", "alpha": 0.1}},
    {"name": "best", "scaling": {"name": "nested", "keep": KEEP}, "scheduling": {"name": "exact", "alpha": 0.1}},
    {"name": "whole", "scaling": {"name": "fixed"}, "scheduling": {"name": "status_quo"}},
    *(
        {"name": f"{name}-{alpha}", "scaling": {"name": "nested", "keep": KEEP},
         "scheduling": {"name": "nestdnn", "alpha": alpha, **more}}
        for name, more in {"max": {"objective": "max"}, "literal": {"method": "literal"}}.items()
        for alpha in (0.01, 0.1, 0.3, 1.0)
    ),
    *(
        {"name": name, "scaling": {"name": "nested", "keep": KEEP},
         "scheduling": {"name": "nestdnn", "alpha": 0.1, "method": name.partition("-")[0], **more}}
        for name, more in {
            "lookahead-anew": {"cached": False},
            "steepest": {},
            "steepest-anew": {"cached": False},
            "steepest-fine": {"cached": False, "units": 200},
        }.items()
    ),
    *(
        {"name": f"{ranking}-{layer}",
         "scaling": {"name": "nested", "keep": (1.0, 0.5, 0.25), "only": layer, "ranking": ranking, "prune_epochs": 0,
                     "grow_epochs": epochs}}
        for ranking in ("trr", "l1", "random")
        for layer, epochs in ((0, 0), (1, 0), (2, 1))
    ),
]  # fmt: skip

SPEC = {"systems": SYSTEMS}


def run_row(system: str, seed: int = 0, workload: str = "w") -> dict[str, Any]:
    cell = f"{system}/{workload}/one/seed-{seed}"
    return {"cell": cell, "system": system, "workload": workload, "fleet": "one", "seed": seed, "status": "done"}


def built(accuracies: dict[str, dict[str, list[float]]], **change: Any) -> Made:
    """Give systems a family for each application; sizes and work grow by one from network to network."""
    rows = [
        {"cell": run_row(system)["cell"], "device": "d", "app": app, "variant": k, "network": str(k), "accuracy": a,
         "known_accuracy": a, "memory_bytes": 10 * (k + 1), "kernel_bytes": 10 * (k + 1), "latency_ms": 1.0,
         "macs": 100 * (k + 1)}
        for system, apps in accuracies.items()
        for app, found in apps.items()
        for k, a in enumerate(found)
    ]  # fmt: skip
    rows = [row | change.get(row["cell"].partition("/")[0], dict)(row) for row in rows]
    return Made(SPEC, runs=[run_row(system) for system in accuracies], variants=rows)


def share(system: str, seed: int, time_s: float, workload: str = "w", **more: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "app": "a",
        "share": 0.5,
        "variant": 0,
        "accuracy": 0.5,
        "latency_ms": 100.0,
        "fps": 30.0,
        "window_s": 1.0,
        "priority": 1.0,
    }
    usual |= {"latency_goal_ms": 50.0, "paged_in_bytes": 0, "paged_out_bytes": 0, "energy_j": 1.0, "paging_j": 0.0}
    usual["known_accuracy"] = more.get("accuracy", usual["accuracy"])
    return {"cell": run_row(system, seed, workload)["cell"], "device": "d", "time_s": time_s, **usual, **more}


def shared(rows: list[dict[str, Any]], **tables: list[dict[str, Any]]) -> Made:
    """Make a run of shares, with the cells that they are of."""
    cells = {row["cell"]: row["cell"].split("/") for row in rows}
    runs = [run_row(system, int(seed[5:]), workload) for system, workload, _, seed in cells.values()]
    return Made(SPEC, runs=runs, shares=rows, **tables)


WAITS: dict[str, Any] = {"share": 0.0} | dict.fromkeys(
    ("variant", "accuracy", "known_accuracy", "latency_ms", "energy_j")
)
CLAIMS = {claim.id: claim for claim in (*nestdnn.CLAIMS, *nestdnn_sharing.CLAIMS)}


def claim(name: str, tables: Made) -> Measured:
    found = CLAIMS[name].measure(tables)
    assert isinstance(found, Measured), found
    return found


def value(name: str, tables: Made) -> float:
    return claim(name, tables).value


def word(name: str, tables: Made) -> str:
    return judge(CLAIMS[name], CLAIMS[name].measure(tables)).word


FAMILIES: dict[str, dict[str, list[float]]] = {
    "ours": {"a": [0.5, 0.6, 0.7, 0.8], "b": [0.5, 0.6, 0.7, 0.8]},
    "base": {"a": [0.4, 0.52, 0.69, 0.8], "b": [0.3, 0.4, 0.7, 0.8]},
    "whole": {"a": [0.9], "b": [0.9]},
}


# --- networks


def pruned(**accuracies: list[float]) -> Made:
    """Say what `ranking_layer` leaves of an application's accuracy; the largest network is whole."""
    return built(
        {name.replace("_", "-"): {"a": found, "b": [x - 0.1 for x in found]} for name, found in accuracies.items()}
    )


def test_residual_and_norm_are_compared_where_a_layer_was_pruned_and_nothing_trained_again():
    tables = pruned(
        trr_0=[0.3, 0.7, 0.9], l1_0=[0.2, 0.5, 0.1], random_0=[0.1, 0.3, 0.9],
        trr_1=[0.2, 0.6, 0.9], l1_1=[0.3, 0.6, 0.9], random_1=[0.2, 0.6, 0.9],
        trr_2=[0.9, 0.9, 0.9], l1_2=[0.0, 0.0, 0.0],
    )  # fmt: skip
    found = claim("N-1", tables)
    assert found.value == pytest.approx((0.1 + 0.2 - 0.1 + 0.0) / 4)
    told = "at least as good at 75% of 8 points; over a random choice +0.150"
    assert found.note == f"{told}, over 2 applications, each of a seed of its own"
    assert isinstance(CLAIMS["N-1"].measure(pruned(trr_0=[0.3, 0.7, 0.9], random_0=[0.1, 0.3, 0.9])), Untestable)


def test_shares_kept_go_with_the_networks_from_the_smallest_on():
    found = nestdnn.pruned_alone(pruned(trr_0=[0.3, 0.7, 0.9]))
    assert found[found["app"] == "a"][["share", "accuracy"]].to_numpy().tolist() == [[0.25, 0.3], [0.5, 0.7], [1, 0.9]]


def test_where_a_network_is_missing_nobody_knows_what_was_kept():
    assert set(nestdnn.pruned_alone(pruned(trr_0=[0.3, 0.9], l1_0=[0.3, 0.7, 0.9]))["system"]) == {"l1-0"}


def test_networks_of_one_size_are_compared_and_small_ones_apart_from_large_ones():
    tables = built(FAMILIES)
    assert value("N-2", tables) == pytest.approx((0.0475 + 0.1) / 2)
    assert value("N-3", tables) == pytest.approx((0.085 + 0.2) / 2)
    assert claim("N-3", tables).note.startswith("+0.145 against +0.003")


def test_work_is_compared_with_the_whole_network():
    found = claim("N-4", built(FAMILIES, whole=lambda row: {"macs": 300}))
    assert (found.value, found.n, found.note) == (0.5, 8, "33% to 133% of the whole")


def test_memory_is_that_of_the_largest_against_the_sum():
    found = claim(
        "N-5", built(FAMILIES, ours=lambda row: {"memory_bytes": row["memory_bytes"] + 2 * (row["app"] == "b")})
    )
    assert found.value == pytest.approx(1 - (40 + 42) / 200)
    assert found.note == "8.2e-05 MB for 0.0002 MB, over 2 applications, whatever they learn"


def test_what_is_loaded_on_the_way_up_is_compared_less_what_is_dropped():
    assert value("N-7", built(FAMILIES)) == pytest.approx(1.0)
    assert word("N-7", built(FAMILIES)) == "reproduced"
    tables = built(
        FAMILIES, ours=lambda row: {"memory_bytes": row["memory_bytes"] * (5 if row["app"] == "a" else 4) // 10}
    )
    found = claim("N-7", tables)
    assert (found.value, found.n) == (pytest.approx((2.0 + 2.5) / 2), 2)
    assert found.note.startswith("2 to 2.5 over 2 families; ")
    assert word("N-7", tables) == "not reproduced"


@pytest.mark.parametrize(("more", "verdict"), [(0, "reproduced"), (1, "not reproduced")])
def test_what_each_network_has_for_itself_is_told_and_not_judged_but_no_other_byte(more: int, verdict: str):
    """Three bytes are each network's own; nested networks hold those of all four all the time."""
    tables = built(
        FAMILIES,
        ours=lambda row: {"memory_bytes": row["kernel_bytes"] + 12 + more * (row["variant"] == 3)},
        base=lambda row: {"memory_bytes": row["kernel_bytes"] + 3},
    )
    assert [word(name, tables) for name in ("N-7", "N-5b")] == [verdict] * 2
    assert claim("N-5b", tables).note.endswith("of what is held is each network's own")


def test_without_a_count_of_what_is_shared_its_claims_cannot_be_told():
    for name in ("N-7", "N-5b"):
        unknown = CLAIMS[name].measure(built(FAMILIES, ours=lambda _: {"kernel_bytes": None}))
        assert isinstance(unknown, Untestable)


def test_networks_of_each_seed_count_by_seed():
    """From seed to seed every nested network is a tenth better; by applications there would be two values."""
    first = built(FAMILIES)
    known = first.frame("variants").to_dict("records")
    rows = [
        row | {"cell": row["cell"][:-1] + str(seed), "accuracy": row["accuracy"] + 0.1 * seed * ("ours" in row["cell"])}
        for seed in (0, 1, 2)
        for row in known
    ]
    runs = [run_row(system, seed) for system in FAMILIES for seed in (0, 1, 2)]
    tables = Made({**SPEC, "student": {"per_seed": True}}, runs=runs, variants=rows)
    once = claim("N-2", first).value
    found = claim("N-2", tables)
    assert (found.value, found.n) == (pytest.approx(once + 0.1), 3)
    assert found.note == "over 3 seeds that train 2 applications anew"
    assert vars(claim("N-5", tables)) == vars(claim("N-5", first))  # no seed changes how large networks are
    averaged = sharing.over_draws(sharing.networks(tables))
    assert len(averaged) == len(known)
    ours = averaged[averaged["system"] == "ours"]["accuracy"].to_numpy()
    assert ours == pytest.approx([row["accuracy"] + 0.1 for row in known if "ours" in row["cell"]])


def test_switches_at_random_are_from_every_network_to_every_other_whatever_schedulers_do():
    """With 10 to 40 bytes two nested networks are 50 / 3 bytes apart on average, and two others hold 50."""
    tables = built(FAMILIES, **{name: lambda row: {"memory_bytes": row["memory_bytes"] * (1 + (row["app"] == "b"))}
                                for name in ("ours", "base")})  # fmt: skip
    assert isinstance(CLAIMS["N-8"].measure(tables), Untestable)
    loads = [share("ours", 0, float(k), paged_in_bytes=3, paged_out_bytes=k, paging_j=0.02 * (3 + k)) for k in range(3)]
    tables = Made(SPEC, runs=tables.frame("runs").to_dict("records"), variants=tables.frame("variants"), shares=loads)
    found = claim("N-8", tables)
    saved_j = 1000 * 0.02 * (50 - 50 / 3)
    assert (found.value, found.n) == (pytest.approx(1.5 * saved_j), 2)
    told = "500 J against 1.5e+03 J, at least 6.7e+02 J less and at most 1.3e+03 J"
    assert found.note == f"{told}, over 2 applications, whatever they learn"


def test_without_networks_nothing_can_be_said():
    for name, one in CLAIMS.items():
        assert isinstance(one.measure(Made(SPEC)), Untestable), name


# --- the frontier

LOOKS: dict[str, tuple[float, float, float]] = {  # accuracy, time of a frame in ms, energy of what there is time for
    "base": (0.5, 100.0, 1.0),  # 10 frames
    "good": (0.7, 200.0, 1.0), "ours": (0.65, 80.0, 0.55), "fast": (0.4, 50.0, 1.0),  # 5, 12.5 and 20; 11 are shown
    "max-0.01": (0.8, 200.0, 1.0), "max-0.1": (0.72, 50.0, 0.22), "max-1.0": (0.45, 25.0, 1.0),
}  # fmt: skip
FRONTIER = {
    "N-11": 1.25 + 0.75 * 0.6,
    "N-12": 0.2 - 0.05 * 2 / 3,
    "N-13": 1.25,
    "N-13b": 0.15,
    "N-14": 2 + 2 * 0.22 / 0.27,
    "N-14b": 0.3 - 0.08 / 3,
    "N-14c": 2.0,
    "N-14d": 0.22,
    "N-15": 2.0,  # 0.1 J a frame against 0.55 J for 11
    "N-15b": 5.0,
}


def along(looks: dict[str, tuple[float, float, float]], workload: str = "w") -> list[dict[str, Any]]:
    return [
        share(system, seed, time_s, workload, accuracy=accuracy, latency_ms=latency_ms, energy_j=energy_j, fps=11.0)
        for system, (accuracy, latency_ms, energy_j) in looks.items()
        for seed in SEEDS
        for time_s in (0.0, 1.0)
    ]


@pytest.mark.parametrize(("name", "expected"), FRONTIER.items())
def test_a_frontier_is_met_at_its_knee_or_where_it_equals_the_status_quo(name: str, expected: float):
    tables = shared(along(LOOKS))
    assert value(name, tables) == pytest.approx(expected)
    assert word(name, tables) == "reproduced"


@pytest.mark.parametrize("name", FRONTIER)
def test_a_frontier_below_the_status_quo_reproduces_nothing(name: str):
    below = {"": (0.6, 200.0, 1.0), "middle": (0.48, 100 / 0.9, 1.0), "end": (0.0, 100 / 1.1, 1.0)}
    order = [["good", "ours", "fast"], ["max-0.01", "max-0.1", "max-1.0"]]
    looks = {system: look for systems in order for system, look in zip(systems, below.values(), strict=True)}
    assert word(name, shared(along({"base": LOOKS["base"], **looks}))) == "not reproduced"


def test_one_objective_says_nothing_of_the_other():
    rows = along({name: look for name, look in LOOKS.items() if "max" not in name})
    for name in FRONTIER:
        assert isinstance(CLAIMS[name].measure(shared(rows)), Untestable) == name.startswith(("N-14", "N-15b")), name


def test_a_frontier_is_of_the_schedulers_in_use_alone():
    longer = along({f"literal-{alpha}": (0.0, 1.0, 1.0) for alpha in (0.01, 0.1, 0.3, 1.0)})
    assert value("N-13", shared([*along(LOOKS), *longer])) == pytest.approx(FRONTIER["N-13"])


def test_of_several_goals_the_worst_counts():
    better = {**LOOKS, "ours": (0.68, 80.0, 0.55)}
    found = claim("N-12", shared([*along(LOOKS), *along(better, "v")]))
    assert found.value == pytest.approx(FRONTIER["N-12"])
    assert found.note == "the lowest of v 0.187, w 0.167"


@pytest.mark.parametrize("seeds", [SEEDS, SEEDS[:1]])
def test_a_goal_counts_with_all_of_its_traces_or_not_at_all(seeds: tuple[int, ...]):
    """Traces of `v` that are more accurate than the status quo to the end of the frontier never meet it."""
    above = [f"fast/v/one/seed-{seed}" for seed in seeds]
    never = [row | ({"accuracy": 0.6} if row["cell"] in above else {}) for row in along(LOOKS, "v")]
    found = claim("N-11", shared([*along(LOOKS), *never]))
    assert (found.value, found.n) == (pytest.approx(FRONTIER["N-11"]), 3)
    told = f"frontiers that end before speedup at equal gain: {len(seeds)} of 3 on v"
    assert found.note == f"on w {FRONTIER['N-11']:.3g}; {told}"
    refused = CLAIMS["N-11"].measure(shared(never))
    assert isinstance(refused, Untestable)
    assert refused.reason == told


def test_who_waits_has_no_frames_and_no_accuracy():
    later: dict[str, dict[str, Any]] = {"ours": WAITS, "base": {"energy_j": 3.0}}
    rows = [row | (later.get(row["cell"].partition("/")[0], {}) if row["time_s"] else {}) for row in along(LOOKS)]
    (found,) = sharing.frontier(shared(rows), "total").query("system == 'ours' and seed == 0").to_dict("records")
    assert found["gain"] == pytest.approx(0.15)
    assert found["speedup"] == pytest.approx(1.25 / 2)
    assert found["energy_ratio"] == pytest.approx(0.2 / 0.05)


def test_a_level_that_is_not_reached_is_not_made_up():
    points = pd.DataFrame({"gain": [0.1, 0.2], "speedup": [2.0, 1.5]})
    assert sharing.crossing(points, "gain", 0.0, "speedup") != sharing.crossing(points, "gain", 0.0, "speedup")
    assert sharing.crossing(points, "gain", 0.15, "speedup") == pytest.approx(1.75)


@pytest.mark.parametrize(
    ("gains", "lowest"), [([0.1, -0.1, 0.1, 0.2], 1.75), ([-0.1, 0.0, 0.0, 0.1], 1.5), ([0.1, -0.1, 0.0, 0.0], 1.0)]
)
def test_of_several_crossings_the_lowest_counts(gains: list[float], lowest: float):
    points = pd.DataFrame({"gain": gains, "speedup": [3.0, 2.0, 1.5, 1.0]})
    assert sharing.crossing(points, "gain", 0.0, "speedup") == pytest.approx(lowest)


# --- the optimum, and time


def test_the_gap_to_the_optimum_counts_accuracy_and_lateness_of_what_is_in_use():
    rows = []
    for seed in SEEDS:
        rows += [share("ours", seed, 0.0, latency_ms=150.0), share("best", seed, 0.0, accuracy=0.52, latency_ms=50.0)]
        rows += [share(name, seed, 0.0, accuracy=0.02, latency_ms=50.0) for name in ("literal-0.1", "lookahead-anew")]
    found = claim("N-16", shared(rows))
    assert found.value == pytest.approx(100 * (0.02 + 0.1 * 0.1))
    assert found.note == "ours 3; not counted: literal-0.1 50, lookahead-anew 50"


def test_the_highest_cost_of_a_window_is_that_of_who_is_farthest_from_its_goal():
    rows = [
        share("ours", 0, 0.0, app="a", accuracy=0.95, latency_ms=50.0),
        share("ours", 0, 0.0, app="b", accuracy=0.5, latency_ms=50.0),
        share("ours", 0, 0.0, app="c", accuracy=0.75, latency_ms=150.0, accuracy_goal=0.9),
    ]
    usual = {"cell": rows[0]["cell"], "device": "d"}
    known = [(app, accuracy) for app in "abc" for accuracy in (0.5 + 0.4 * (app == "a"), 1)]
    least = [{**usual, "app": app, "accuracy": 0.2, "known_accuracy": accuracy} for app, accuracy in known]
    tables = shared(rows, variants=least)
    found = {objective: sharing.costs(tables, {"ours": 0.1}, objective)["ours"] for objective in ("total", "max")}
    assert found["total"].tolist() == pytest.approx([-0.05 + 0.0 + 0.15 + 0.01])
    assert found["max"].tolist() == pytest.approx([0.16])


def test_a_priority_multiplies_what_is_never_negative():
    rows = [share("ours", 0, 0.0, accuracy=0.5, latency_ms=150.0, accuracy_goal=0.6, priority=3.0)]
    assert sharing.costs(shared(rows), {"ours": 0.1})["ours"].tolist() == pytest.approx([3 * 1.11 - 1])


def test_costs_go_by_what_schedulers_know_and_gains_by_what_was_reached():
    known = {"ours": 0.9, "base": 0.4}
    rows = [share(name, 0, 0.0, latency_ms=50.0) | {"known_accuracy": each} for name, each in known.items()]
    found = sharing.costs(shared(rows), {"ours": 0.1, "base": 0.1})
    assert (found["base"] - found["ours"]).tolist() == pytest.approx([0.5])
    assert sharing.beside_status_quo(shared(rows), ["ours"])["gain"].tolist() == [0.0]


def test_looking_ahead_is_compared_with_the_best_of_the_steepest_walks():
    accuracies = {"ours": 0.9, "lookahead-anew": 0.6, "steepest-anew": 0.5, "steepest-fine": 0.55, "steepest": 0.9}
    rows = [
        share(name, seed, 0.0, accuracy=accuracy, host_schedule_seconds=0.001 * (k + 1))
        for k, (name, accuracy) in enumerate(accuracies.items())
        for seed in SEEDS
    ]
    found = claim("NEST-1", shared(rows))
    assert found.value == pytest.approx(5.0)
    assert found.note == "a decision takes lookahead-anew 2 ms, steepest-anew 3 ms, steepest-fine 4 ms"
    assert word("NEST-1", shared(rows)) == "reproduced"


def test_the_composition_is_compared_with_each_of_its_parts():
    scores = {"ams+nested": 0.50, "nestdnn": 0.40, "ams": 0.55}
    rows = [{**run_row(name, seed), "score": score + seed / 100} for name, score in scores.items() for seed in SEEDS]
    tables = Made(SPEC, runs=rows)
    assert (value("NEST-2", tables), word("NEST-2", tables)) == (pytest.approx(0.10), "reproduced")
    assert (value("NEST-3", tables), word("NEST-3", tables)) == (pytest.approx(-0.05), "not reproduced")


def test_time_saved_is_counted_once_for_a_window():
    rows = [
        share(system, seed, time_s, app=app, host_schedule_seconds=seconds)
        for system, times in {
            "ours": (0.9, 0.9),
            "lookahead-anew": (1.0, 1.0),
            "steepest": (0.3, 0.5),
            "steepest-anew": (1.0, 1.0),
        }.items()
        for seed in SEEDS
        for time_s, seconds, apps in ((0.0, times[0], "a"), (1.0, times[1], "abc"))
        for app in apps
    ]
    found = claim("N-17", shared(rows))
    assert found.value == pytest.approx(0.6)
    assert found.note == "of 1e+03 ms"


# --- switches, and who comes and goes


def test_only_going_on_with_another_network_is_a_switch():
    went = ((0.0, 0, 0, 0), (1.0, 0, 0, 0), (2.0, 1, 7, 0), (3.0, 0, 0, 5), (5.0, 1, 7, 0))
    shares = [
        share("ours", 0, time_s, variant=variant, paged_in_bytes=into, paged_out_bytes=out)
        for time_s, variant, into, out in went
    ]
    assert sharing.switches(shared(shares))["time_s"].tolist() == [2.0, 3.0]
    assert value("N-6", shared(shares)) == 0.0
    shares += [
        share("base", 0, time_s, variant=k, paged_in_bytes=9, paged_out_bytes=9) for k, time_s in enumerate((0.0, 1.0))
    ]
    assert value("N-6", shared(shares)) == 0.0  # independent networks drop and load as they must
    wrong = [row | {"paged_in_bytes": 4, "paged_out_bytes": 3} for row in shares]
    note = "1 up and 1 down; by construction, a switch moves only the difference"
    assert claim("N-6", shared(wrong)) == Measured(4 + 3, n=2, note=note)


def visits(system: str, device: str, counts: list[int]) -> list[dict[str, Any]]:
    return [share(system, 0, float(k), device=device, app=app) for k, n in enumerate(counts) for app in "abcdef"[:n]]


def test_who_comes_and_goes_is_counted_once_for_a_trace(monkeypatch):
    monkeypatch.setattr(nestdnn_sharing, "ENOUGH", 46)
    counts = [6, 5, 4, 3, 2, 6, 5, 4, 6, 5]
    tables = shared([*visits("ours", "d", counts), *visits("fast", "d", [2, 6]), *visits("ours", "e", [6] * 9)])
    found = claim("N-9", tables)
    assert (found.value, found.n) == (pytest.approx(30 - 24.5), 10)
    assert found.note == "2: 10.0 %, 3: 10.0 %, 4: 20.0 %, 5: 30.0 %, 6: 30.0 %"
    even = claim("N-10", tables)
    assert (even.value, even.n) == (pytest.approx(100 / 6 - 300 / 46), 46)
    assert even.note == "6.5 to 21.7 %"


@pytest.mark.parametrize("number", ["N-9", "N-10"])
def test_a_short_run_does_not_say_how_often_who_is_there(number):
    refused = CLAIMS[number].measure(shared(visits("ours", "d", [6, 5, 4])))
    assert isinstance(refused, Untestable)
    assert refused.reason.startswith("has 15 windows of applications and needs 100000")
