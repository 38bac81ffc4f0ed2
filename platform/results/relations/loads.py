"""The load of devices: what a forecast of it is worth, and which answers come too late under it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from driftlab.platform.results import stats
from driftlab.platform.results.relations.cells import done
from driftlab.platform.results.stats import Estimate
from driftlab.platform.results.tables.read import Tables
from driftlab.platform.world.forecasting import KINDS, ForecastKind, ForecastScore, score_forecasts

if TYPE_CHECKING:
    import pandas as pd

PLACE = ["cell", "device", "app"]
HORIZON = 3
LEAST = 60  # readings of a load from which forecasts are judged


def misses(tables: Tables) -> pd.DataFrame:
    """Return every frame of a loaded device, and whether it was missed: skipped, or answered after its deadline.

    The deadline is the application's latency goal, or the next frame where that is sooner.
    """
    frames, shares = tables.frame("frames"), tables.frame("shares")
    goals = shares.assign(deadline_ms=(1e3 / shares["fps"]).where(
        ~(shares["latency_goal_ms"] < 1e3 / shares["fps"]), shares["latency_goal_ms"]
    )).drop_duplicates(PLACE)[[*PLACE, "deadline_ms"]]  # fmt: skip
    loaded = tables.frame("loads")[PLACE].drop_duplicates()
    found = frames.merge(loaded, on=PLACE).merge(goals, on=PLACE)
    return found.assign(missed=~(found["latency_ms"] <= found["deadline_ms"] + 1e-6))


def loads_by_fleet(tables: Tables) -> dict[tuple[str, int], list[list[float]]]:
    """Return the sensed loads by fleet and seed, a series for each device; all systems sense the same ones."""
    rows = tables.frame("loads").merge(done(tables)[["cell", "fleet", "seed"]], on="cell")
    longest = rows.groupby(["fleet", "seed", *PLACE])["sensed_cpu"].agg(list)
    found: dict[tuple[str, int], dict[str, list[float]]] = {}
    for (fleet, seed, _, device, _), series in longest.items():
        known = found.setdefault((str(fleet), int(seed)), {})
        if len(series) > len(known.get(device, [])):
            known[str(device)] = series
    enough = {key: [one for one in ones.values() if len(one) >= LEAST] for key, ones in found.items()}
    return {key: ones for key, ones in enough.items() if ones}


def skills_by_seed(tables: Tables) -> dict[tuple[str, int], Mapping[ForecastKind, ForecastScore]]:
    """Score every kind of forecast by fleet and seed, on the loads of all devices."""
    return {key: score_forecasts(series, HORIZON) for key, series in loads_by_fleet(tables).items()}


def forecast_skills(tables: Tables) -> dict[str, Mapping[ForecastKind, list[tuple[float, Estimate]]]]:
    """Return for each fleet and kind of forecast, by horizon, the mean absolute error and the skill over seeds."""
    scores: dict[str, list[Mapping[ForecastKind, ForecastScore]]] = {}
    for (fleet, _), found in skills_by_seed(tables).items():
        scores.setdefault(fleet, []).append(found)
    return {
        fleet: {kind: [_over_seeds([one[kind] for one in ones], step) for step in range(HORIZON)] for kind in KINDS}
        for fleet, ones in scores.items()
    }


def _over_seeds(scores: list[ForecastScore], step: int) -> tuple[float, Estimate]:
    skill = stats.mean(score.skill[step] for score in scores)
    assert skill is not None
    return sum(score.errors[step] for score in scores) / len(scores), skill


def stated_errors(tables: Tables) -> pd.Series:
    """Return the mean absolute error of the forecasts that members state, by system and fleet."""
    rows = tables.frame("loads").dropna(subset=["forecast_cpu"])
    rows = rows.merge(done(tables)[["cell", "system", "fleet"]], on="cell")
    return rows.assign(error=(rows["forecast_cpu"] - rows["cpu"]).abs()).groupby(["system", "fleet"])["error"].mean()
