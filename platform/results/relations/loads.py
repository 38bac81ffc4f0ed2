"""Load of devices: the skill of forecasts, and missed frames."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from driftlab.platform.results.relations.base import STREAM, by_seed, completed_cells, no_rows, value_rows
from driftlab.platform.results.relations.lateness import with_lateness
from driftlab.platform.results.tables.read import Tables
from driftlab.platform.world.forecasting import ForecastKind, score_forecasts

if TYPE_CHECKING:
    import pandas as pd

HORIZON = 3
MIN_READINGS = 60  # readings of a load; shorter series are not scored


def misses(tables: Tables) -> pd.DataFrame:
    """Return the frames of loaded devices; one is missed if it is late for its goal or for the next frame."""
    loaded = tables.frame("loads")[STREAM].drop_duplicates()
    found = with_lateness(tables, tables.frame("frames").merge(loaded, on=STREAM), next_frame=True)
    return found.rename(columns={"late": "missed"})


def loads_by_fleet(tables: Tables) -> dict[tuple[str, int], list[list[float]]]:
    """Return the sensed loads by fleet and seed, one series per device, which all systems share."""
    rows = tables.frame("loads").merge(completed_cells(tables)[["cell", "fleet", "seed"]], on="cell")
    longest = rows.groupby(["fleet", "seed", *STREAM])["sensed_cpu"].agg(list)
    found: dict[tuple[str, int], dict[str, list[float]]] = {}
    for (fleet, seed, _, device, _), series in longest.items():
        by_device = found.setdefault((str(fleet), int(seed)), {})
        if len(series) > len(by_device.get(device, [])):
            by_device[str(device)] = series
    enough = {key: [one for one in ones.values() if len(one) >= MIN_READINGS] for key, ones in found.items()}
    return {key: ones for key, ones in enough.items() if ones}


def skills(tables: Tables) -> pd.DataFrame:
    """Score forecasts on the loads of all devices: mean absolute `error` and `skill` by horizon `step`.

    A row for each fleet, seed and `kind` of forecast.
    """
    import pandas as pd

    rows = [
        (fleet, seed, kind, step, one.errors[step], one.skill[step])
        for (fleet, seed), series in loads_by_fleet(tables).items()
        for kind, one in score_forecasts(series, HORIZON).items()
        for step in range(HORIZON)
    ]
    return pd.DataFrame(rows, columns=["fleet", "seed", "kind", "step", "error", "skill"])


def forecast_gains(tables: Tables, fleets: Sequence[str], kind: ForecastKind = "ar") -> pd.DataFrame:
    """List the reduction of the forecast error relative to persistence, over horizons and fleets, by seed."""
    rows = tables.once(skills)
    own = rows[rows["fleet"].isin(fleets) & (rows["kind"] == kind)]
    if absent := [fleet for fleet in fleets if fleet not in set(own["fleet"])]:
        return no_rows(f"needs the fleets {', '.join(absent)}, whose devices have a load")
    wide = own.groupby(["seed", "fleet"])["skill"].agg(fmean).unstack("fleet")[list(fleets)]
    note = ", ".join(f"{fleet} {100 * fmean(wide[fleet].dropna()):+.1f} %" for fleet in fleets)
    return value_rows(by_seed([(int(seed), fmean(each)) for seed, *each in wide.dropna().itertuples()]), note)


def stated_errors(tables: Tables) -> pd.Series:
    """Return the mean absolute error of the forecasts that members state, by system and fleet."""
    rows = tables.frame("loads").dropna(subset=["forecast_cpu"])
    rows = rows.merge(completed_cells(tables)[["cell", "system", "fleet"]], on="cell")
    return rows.assign(error=(rows["forecast_cpu"] - rows["cpu"]).abs()).groupby(["system", "fleet"])["error"].mean()
