"""Values in cells of the papers' tables: one row per seed, of one system or of two that are compared."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch
from typing import TYPE_CHECKING

from driftlab.platform.results.relations import domains, networks, paths
from driftlab.platform.results.relations.base import Kinds, column_of, first_of, no_rows, rows_with
from driftlab.platform.results.relations.scores import frames_better
from driftlab.platform.results.tables.read import Tables

if TYPE_CHECKING:
    import pandas as pd

MB = 1e6


def column(
    tables: Tables, *systems: str | Kinds, of: str, times: float = 1.0, workloads: Sequence[str] = ("*",)
) -> pd.DataFrame:
    """List a column of one or two systems on the workloads that match a pattern, multiplied by `times`.

    A workload's family does not count: `interview` is streets/interview and city/interview.
    """
    rows, name = tables.once(rows_with, of), column_of(of)[1]
    rows = _on(rows, workloads).dropna(subset=[name])
    names = [first_of(tables, system) for system in systems]
    return _by_seed([times * rows[rows["system"] == one].groupby(["workload", "seed"])[name].mean() for one in names])


def improved(tables: Tables, *systems: str) -> pd.DataFrame:
    """List the percentage of frames that one or two systems improve over no adaptation."""
    better = 100 * frames_better(tables)
    return _by_seed([better[better.index.get_level_values("system") == one].droplevel("system") for one in systems])


def memory(tables: Tables, *kinds: str, app: str) -> pd.DataFrame:
    """List the megabytes of the networks of an application (`*`: of all), of one or two kinds."""
    return _by_seed([_of_app(_megabytes(tables, kind), app) for kind in kinds])


def moved(tables: Tables, *kinds: str, app: str, upgrade: bool, direction: str) -> pd.DataFrame:
    """List the mean megabytes that switches between an application's networks load or drop."""
    found = networks.switches_by_kind(tables)
    if found.empty:
        return no_rows()
    found = found[(found["after"] > found["before"]) == upgrade]
    sides = [found[found["kind"] == kind].groupby(networks.APP)[direction].mean() / MB for kind in kinds]
    return _by_seed([_of_app(side, app) for side in sides])


def pruned(tables: Tables, *rankings: str, removed: float, layer: int = -1) -> pd.DataFrame:
    """List the accuracy in percent of networks with a share of one layer's filters removed, by ranking.

    Layers count from the last one that the run pruned (-1).
    """
    rows = networks.pruned_alone(tables)
    layers = sorted(rows["layer"].unique())
    if len(layers) < abs(layer):
        return no_rows("needs one layer pruned at a time")
    rows = rows[(rows["layer"] == layers[layer]) & ((rows["share"] + removed - 1).abs() < 1e-6)]
    return _by_seed(
        [_of_draw(100 * rows[rows["ranking"] == one].groupby(networks.APP)["accuracy"].mean()) for one in rankings]
    )


def energy_of_switches(tables: Tables, *, app: str) -> pd.DataFrame:
    """List the joules that nesting saves in a thousand random switches of an application."""
    rows = networks.energy_of_switches(tables)
    return _by_seed([_of_app(rows["ours"] - rows["theirs"], app)]) if len(rows) else rows


def cost(tables: Tables, *systems: str, of: str, times: float = 1.0, workloads: Sequence[str] = ("*",)) -> pd.DataFrame:
    """List a column of `domains.costs` of one or two systems, multiplied by `times`."""
    rows = tables.once(domains.costs).dropna(subset=[of])
    rows = _on(rows, workloads)
    return _by_seed([times * rows[rows["system"] == one].groupby(["workload", "seed"])[of].mean() for one in systems])


def exits_and_light(tables: Tables, *names: str, of: str, times: float = 1.0, **place: str) -> pd.DataFrame:
    """List a column of `variants` of one or two networks: an exit, as `exit-1`, or a light network.

    `place` names the workload and the fleet.
    """
    exits, light = paths.whole_paths(tables, **place), paths.light_networks(tables, **place)
    exits = exits.assign(network=[f"exit-{number}" for number in exits["exit"]])
    sides = [rows[rows["network"] == one] for one in names for rows in (exits if one.startswith("exit-") else light,)]
    return _by_seed([times * side.groupby(["app", "seed"])[of].mean() for side in sides])


def latency(tables: Tables, *systems: str, workload: str, fleet: str, times: float = 1.0) -> pd.DataFrame:
    """List the mean latency of the frames of one or two systems in ms, on a workload and a fleet."""
    found = paths.deadlines(tables).reset_index()
    found = found[(found["workload"] == workload) & (found["fleet"] == fleet)]
    return _by_seed([times * found[found["system"] == one].set_index("seed")["latency_ms"] for one in systems])


def latency_saved(tables: Tables, *, fleet: str) -> pd.DataFrame:
    """List the share of the whole network's latency that adascale saves on a fleet."""
    both = paths.latency_of_whole(tables)
    both = both[both.index.get_level_values("fleet") == fleet]
    return _by_seed([1 - both["ours"] / both["theirs"]])


def speed_up(tables: Tables, *, workload: str, fleets: Sequence[str], most: bool, rule: str = "own") -> pd.DataFrame:
    """List the largest or the smallest factor by which light networks take longer than adascale.

    `rule` is the chooser of adascale. The transformer does not count: the paper's figure has none.
    """
    found = paths.deadlines(tables).reset_index()
    found = found[(found["workload"] == workload) & found["fleet"].isin(fleets)]
    ours = paths.by_setting(tables, "chooser").get(rule)
    light = [name for name, kind in paths.light_systems(tables).items() if kind != paths.TRANSFORMER]
    if ours is None or not light or found.empty:
        return no_rows("needs adascale and light networks")
    means = found.groupby(["seed", "system"])["latency_ms"].mean().unstack()
    factors = means[light].div(means[ours], axis=0)
    return _by_seed([factors.max(axis=1) if most else factors.min(axis=1)])


def _on(rows: pd.DataFrame, workloads: Sequence[str]) -> pd.DataFrame:
    """Select the rows on workloads that match a pattern; the family of a workload does not count."""
    names = {name: name.rpartition("/")[2] for name in rows["workload"].unique()}
    return rows[rows["workload"].isin([one for one in names if any(fnmatch(names[one], each) for each in workloads)])]


def _megabytes(tables: Tables, kind: str) -> pd.Series:
    """Return the memory of all networks of a kind: of nested ones the largest, of others the sum."""
    sizes = networks.of_kind(tables, kind).groupby(networks.APP)["memory_bytes"]
    return (sizes.max() if kind == networks.NESTED else sizes.sum()) / MB


def _of_app(values: pd.Series, app: str) -> pd.Series:
    """Select an application and index by seed; `*` adds up all."""
    chosen = values if app == "*" else values[values.index.get_level_values("app") == app]
    return chosen.groupby("draw").sum().rename_axis("seed")


def _of_draw(values: pd.Series) -> pd.Series:
    return values.groupby("draw").mean().rename_axis("seed")


def _by_seed(sides: Sequence[pd.Series]) -> pd.DataFrame:
    """Return one row per seed; the only row of a run has no interval."""
    import pandas as pd

    names = ("value",) if len(sides) == 1 else ("ours", "theirs")
    found = pd.DataFrame(dict(zip(names, sides, strict=True))).dropna().groupby("seed").mean()
    found.attrs["single"] = len(found) == 1
    return found
