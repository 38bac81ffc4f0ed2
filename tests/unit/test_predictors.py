"""Predictors of latency under load.

The papers' model errs, one that learns errs ever less, the world's own never.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from driftlab.platform.core.records import LayerCost, LoadReading, ModelCost, Sensitivity, TimedInference, Variant
from driftlab.platform.scaling import choosers, predicting
from driftlab.platform.scaling.adascale import AdaScale
from driftlab.platform.scaling.base import Budget
from driftlab.platform.scaling.predicting import Predictor
from driftlab.platform.world import hardware, load
from driftlab.platform.world.operator_loads import sensitivities, sensitivity_of

PRESETS = ("user", "random", "cold_start")
NAMES = ("dwsep", "svd", "base", "dwsep.base", "svd.dwsep", "base.base", "svd.svd.base", "base.dwsep.svd")


def path(name: str) -> Variant:
    """Return a path whose stages take equally long."""
    measured, stages = sensitivities(), name.split(".")
    cpu, memory = (float(np.mean([getattr(measured[one], of) for one in stages])) for of in ("cpu", "memory"))
    return Variant(name, 0.8, 1000, 0.1, sensitivity=Sensitivity(cpu, memory))


def session(preset: str, predictor: Predictor, seed: int = 0) -> list[float]:
    """Return the relative error of each prediction in two minutes, while paths change."""
    rng, paths = np.random.default_rng(seed), [path(name) for name in NAMES]
    profile = load.from_mapping({"preset": preset, "law": "operators"})
    drawn = load.draw(profile, 120.0, np.random.default_rng([seed, 1]))
    assert drawn is not None
    timed: list[TimedInference] = []
    errors = []
    for time_s in np.arange(0.5, 120.0, 0.5).tolist():
        network, reading = paths[rng.integers(len(paths))], drawn.sense(time_s, 1000)
        taken_s = network.latency_s / drawn.network_speed(time_s - 0.5, time_s, network.sensitivity)
        (factor,) = predicting.predicted_factors(predictor, [network], reading, timed)
        errors.append(abs(network.latency_s * factor / taken_s - 1))
        timed.append(TimedInference(network.name, network.latency_s, taken_s, reading))
    return errors


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_a_predictor_that_learns_errs_in_every_load_and_less_with_time(preset):
    errors = session(preset, "learned")
    first, last = np.mean(errors[:20]), np.mean(errors[-60:])
    assert 0 < last < first / 2
    assert last < np.mean(session(preset, "law")[-60:]) / 2


@pytest.mark.parametrize("preset", PRESETS)
def test_the_law_of_the_world_never_errs_and_that_of_the_papers_does(preset):
    assert max(session(preset, "world")) < 1e-9
    assert min(session(preset, "law")[2:]) >= 0 and np.mean(session(preset, "law")) > 0


def reading(cpu: float, memory: float = 0.5) -> LoadReading:
    return LoadReading(1.0, cpu, 10_000, contention="operators", memory=memory)


def test_a_network_is_as_sensitive_as_its_layers_by_their_time():
    layers = tuple(LayerCost(f"stages.{k}.conv", "Conv2d", 10**6 * (k + 1), 0, 0, 0, 0) for k in range(2))
    cost, board = ModelCost(0, 0, 0, 0, layers), hardware.find("phone-lo")
    found = sensitivity_of(cost, {"stages.0.": "svd", "stages.1.": "dwsep"}, board)
    times = [board.overhead_s + one.macs / board.macs_per_s for one in layers]
    measured = sensitivities()
    expected = sum(t * measured[name].memory for t, name in zip(times, ("svd", "dwsep"), strict=True)) / sum(times)
    assert found.memory == pytest.approx(expected)
    assert sensitivity_of(cost, {}, board) == measured["base"]


def test_the_law_of_operators_slows_a_network_by_both_loads():
    sensitive = Sensitivity(cpu=0.5, memory=0.2)
    assert load.speed_of_network(reading(0.5), sensitive) == pytest.approx(0.55 / (1.25 * 1.1))
    assert load.speed_of_network(LoadReading(0, 0.5, 0), sensitive) == pytest.approx(0.55)
    assert load.slowdown([reading(0.5)]) == pytest.approx(0.55)


def slow_twice(names: Sequence[str]) -> tuple[TimedInference, ...]:
    """Return measurements of networks that took twice as long as by the law."""
    return tuple(
        TimedInference(name, 0.1, 0.2 / load.slowdown([reading(cpu)]), reading(cpu))
        for name in names
        for cpu in (0.2, 0.4, 0.6, 0.8)
    )


def test_a_member_chooses_by_what_it_has_measured():
    """Both paths are in time by the law; measured latencies leave only the fast one."""
    paths = [Variant("fast", 0.6, 1000, 0.04), Variant("slow", 0.9, 1000, 0.1)]
    budget = Budget(latency_s=0.25, load=(reading(0.5),), timed=slow_twice(["fast", "slow"] * 10))
    for predictor, chosen in (("law", 1), ("learned", 0)):
        assert choosers.select(AdaScale(predictor=predictor), paths, budget)[0] == chosen
        assert choosers.select(AdaScale(predictor=predictor, chooser="prefer"), paths, budget)[0] == chosen
