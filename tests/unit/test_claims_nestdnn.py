"""Claims about NestDNN's networks, on tables with known verdicts."""

from __future__ import annotations

import pytest
from claims_factory import word
from nestdnn_factory import CLAIMS, SPEC, built, claim, share, value
from tables_factory import Made, numbers_in, run_row

from driftlab.platform.results.relations import networks
from driftlab.platform.results.relations.base import Untestable

FAMILIES: dict[str, dict[str, list[float]]] = {
    "ours": {"a": [0.5, 0.6, 0.7, 0.8], "b": [0.5, 0.6, 0.7, 0.8]},
    "base": {"a": [0.4, 0.52, 0.69, 0.8], "b": [0.3, 0.4, 0.7, 0.8]},
    "whole": {"a": [0.9], "b": [0.9]},
}


def pruned(**accuracies: list[float]) -> Made:
    """Set the accuracy that `ranking_layer` leaves to an application; the largest network is whole."""
    return built(
        {name.replace("_", "-"): {"a": found, "b": [x - 0.1 for x in found]} for name, found in accuracies.items()}
    )


def test_residual_and_norm_are_compared_on_pruned_layers_without_retraining():
    tables = pruned(
        trr_0=[0.3, 0.7, 0.9], l1_0=[0.2, 0.5, 0.1], random_0=[0.1, 0.3, 0.9],
        trr_1=[0.2, 0.6, 0.9], l1_1=[0.3, 0.6, 0.9], random_1=[0.2, 0.6, 0.9],
        trr_2=[0.9, 0.9, 0.9], l1_2=[0.0, 0.0, 0.0],
    )  # fmt: skip
    found = claim("N-1", tables)
    assert found.value == pytest.approx((0.1 + 0.2 - 0.1 + 0.0) / 4)
    assert numbers_in(found.note) == [75, 8, 0.15, 2]
    assert isinstance(CLAIMS["N-1"].measure(pruned(trr_0=[0.3, 0.7, 0.9], random_0=[0.1, 0.3, 0.9])), Untestable)


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
    assert numbers_in(found.note) == [8.2e-05, 0.0002, 2]


def test_loads_on_larger_networks_are_compared_less_the_dropped_bytes():
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
def test_bytes_of_single_networks_are_noted_and_not_judged_unlike_all_others(more: int, verdict: str):
    """Three bytes are each network's own; nested networks hold those of all four all the time."""
    tables = built(
        FAMILIES,
        ours=lambda row: {"memory_bytes": row["kernel_bytes"] + 12 + more * (row["variant"] == 3)},
        base=lambda row: {"memory_bytes": row["kernel_bytes"] + 3},
    )
    assert [word(name, tables) for name in ("N-7", "N-5b")] == [verdict] * 2
    assert claim("N-5b", tables).note.endswith("of the memory is private to one network")


def test_without_a_count_of_shared_bytes_the_claims_are_untestable():
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
    assert found.note == "over 3 seeds that train 2 applications again"
    assert vars(claim("N-5", tables)) == vars(claim("N-5", first))  # no seed changes how large networks are
    averaged = networks.over_draws(networks.networks(tables))
    assert len(averaged) == len(known)
    ours = averaged[averaged["system"] == "ours"]["accuracy"].to_numpy()
    assert ours == pytest.approx([row["accuracy"] + 0.1 for row in known if "ours" in row["cell"]])


def test_random_switches_cover_all_pairs_of_networks_under_any_scheduler():
    """With 10 to 40 bytes two nested networks are 50 / 3 bytes apart on average, and two others hold 50."""
    tables = built(FAMILIES, **{name: lambda row: {"memory_bytes": row["memory_bytes"] * (1 + (row["app"] == "b"))}
                                for name in ("ours", "base")})  # fmt: skip
    assert isinstance(CLAIMS["N-8"].measure(tables), Untestable)
    moved = [{"paged_in_bytes": 3 + k, "paged_out_bytes": k, "paging_j": 0.02 * (3 + k)} for k in range(3)]
    loads = [share("ours", 0, float(k), **bytes_) for k, bytes_ in enumerate(moved)]
    tables = Made(SPEC, runs=tables.frame("runs").to_dict("records"), variants=tables.frame("variants"), shares=loads)
    found = claim("N-8", tables)
    saved_j = 1000 * 0.02 * (25 - 25 / 3)
    assert (found.value, found.n) == (pytest.approx(1.5 * saved_j), 2)
    assert numbers_in(found.note) == [250, 750, 330, 670, 2]


@pytest.mark.slow
def test_without_networks_all_claims_are_untestable():
    for name, one in CLAIMS.items():
        assert isinstance(one.measure(Made(SPEC)), Untestable), name
