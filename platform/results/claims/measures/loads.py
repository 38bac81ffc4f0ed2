"""Measures of loads: what forecasts are worth."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean as mean

from driftlab.platform.results import stats
from driftlab.platform.results.relations.loads import skills_by_seed
from driftlab.platform.results.relations.measured import MORE_SEEDS, Measured, Untestable
from driftlab.platform.results.tables.read import Tables
from driftlab.platform.world.forecasting import ForecastKind


def forecast_gain(tables: Tables, fleets: Sequence[str], kind: ForecastKind = "ar") -> Measured | Untestable:
    """Average by how much of its error a forecast is nearer than persistence, over horizons, fleets and seeds."""
    found: dict[str, dict[int, float]] = {fleet: {} for fleet in fleets}
    for (fleet, seed), scores in skills_by_seed(tables).items():
        if fleet in found:
            found[fleet][seed] = mean(scores[kind].skill)
    if missing := [fleet for fleet, skills in found.items() if not skills]:
        return Untestable(f"needs fleets whose devices have a load, called {', '.join(missing)}")
    seeds = set.intersection(*(set(skills) for skills in found.values()))
    by_seed = {seed: mean(skills[seed] for skills in found.values()) for seed in sorted(seeds)}
    gain = stats.mean(by_seed.values())
    if gain is None or gain.n == 1:
        return Untestable(MORE_SEEDS)
    told = [f"{fleet} {100 * mean(skills.values()):+.1f} %" for fleet, skills in found.items()]
    return Measured.of(gain, ", ".join(told).replace("-", "\u2212"), by_seed)
