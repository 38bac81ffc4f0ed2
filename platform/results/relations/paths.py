"""Accuracy, missed deadlines and latency of load-adaptive networks, compared with fixed exits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from driftlab.platform.results import stats
from driftlab.platform.results.relations.base import (
    CELL,
    STREAM,
    Untestable,
    completed_cells,
    members,
    no_rows,
    of_one_network,
    pair_rows,
    value_rows,
    with_columns,
    with_note,
)
from driftlab.platform.results.relations.lateness import with_lateness
from driftlab.platform.results.tables.read import Tables
from driftlab.platform.results.tables.systems import Slot, every_system

if TYPE_CHECKING:
    import pandas as pd

CONDITION = ["workload", "fleet"]
IDLE = "idle"  # a load
FIXED, ADAPTIVE, BOUND, LIGHT = "branches", "adascale", "clairvoyant", "light"  # scaling members
CHOOSING = (ADAPTIVE, "legodnn", "adaptivenet", "adaspring", "adadeep", "nas", BOUND)
TRANSFORMER = "transformer"
WHOLE = r"base(\.base)*"  # a path without operators
LAST = 1000  # exit of a member that names none
NOT_RUN = "needs a load-adaptive network (adascale) and its fixed exits (branches)"
ONE_NETWORK = "of one network"
OTHER_NETWORKS = ("usnet", "once_for_all", "early_exit", "darts", "enas", LIGHT)  # scaling members


def deadlines(tables: Tables) -> pd.DataFrame:
    """List accuracy, share of missed deadlines, latency and energy per frame of each cell.

    The deadline is the latency goal alone. `accuracy` scores the prediction of a frame even if it is late, and the
    last one for a skipped frame; `right` counts late frames as wrong. Columns: `accuracy`, `right`, `missed`,
    `latency_ms`, `energy_j`.
    """
    cells = completed_cells(tables)[["cell", "system", *CELL, "inference_j", "frames"]]
    frames = with_lateness(tables, tables.frame("frames"), next_frame=False)
    frames = frames.assign(missed=frames["late"].astype(float), accuracy=frames["score_frame"])
    means = frames.groupby("cell")[["accuracy", "missed", "latency_ms"]].mean()
    means["right"] = frames["score_frame"].mask(frames["late"], 0.0).groupby(frames["cell"]).mean()
    found = cells.merge(means, left_on="cell", right_index=True)
    return found.assign(energy_j=found["inference_j"] / found["frames"]).set_index(["system", *CELL]).sort_index()


def first(tables: Tables, kind: str = ADAPTIVE) -> str:
    """Return the first system of the experiment with a scaling member, or an empty text."""
    return next(iter(_of_kind(tables, kind)), "")


def _of_kind(tables: Tables, *kinds: str) -> dict[str, Slot]:
    """Map systems with one of these scaling members to it, in the order of the experiment."""
    found = members(tables, "scaling", *kinds)
    order = [str(part["name"]) for part in every_system(tables.run.spec)]
    return {
        name: found[name] for name in sorted(found, key=lambda one: order.index(one) if one in order else len(order))
    }


def choosers(tables: Tables) -> list[str]:
    """List the systems that choose among paths of one network."""
    return list(_of_kind(tables, *CHOOSING))


def others(tables: Tables) -> list[str]:
    """List the systems that run other networks."""
    return list(_of_kind(tables, *OTHER_NETWORKS))


def fixed_exits(tables: Tables) -> dict[str, int | None]:
    """Map the systems with a fixed exit to that exit; None is the last one."""
    return {name: one["exit"] for name, one in _of_kind(tables, FIXED).items()}


def by_setting(tables: Tables, setting: str) -> dict[str, str]:
    """Map each value of a setting of adascale to its first system; older runs may lack the setting."""
    found: dict[str, str] = {}
    for name, one in _of_kind(tables, ADAPTIVE).items():
        found.setdefault(str(one[setting]), name)
    return found


def idle_fleets(tables: Tables) -> set[str]:
    """Return the fleets whose devices have no load in the spec."""
    fleets = tables.run.spec.get("fleets", [])
    return {one["name"] for one in fleets if all(part.get("load", IDLE) == IDLE for part in one.get("devices", [{}]))}


def best_fixed(found: pd.DataFrame, ours: str, exits: list[str]) -> dict[tuple[str, str], str]:
    """Choose for each condition the most accurate fixed exit that misses no more deadlines than ours.

    If every exit misses more, choose the one that misses fewest. Means are over seeds.
    """
    means = found.groupby(["system", *CONDITION])[["accuracy", "missed"]].mean()
    chosen = {}
    for condition, mine in means.loc[ours].iterrows():
        exit_means = {name: means.loc[name].loc[condition] for name in exits}
        punctual = {
            name: one["accuracy"] for name, one in exit_means.items() if one["missed"] <= mine["missed"] + 1e-12
        }
        fewest = min(exit_means, key=lambda name: exit_means[name]["missed"])
        chosen[condition] = max(punctual, key=punctual.__getitem__) if punctual else fewest
    return chosen


def whole_paths(tables: Tables, **place: str) -> pd.DataFrame:
    """List the paths without operators of each network once: one for each `exit`, from the first.

    `place` may name a workload and a fleet.
    """
    rows = _variants_at(tables, place)
    rows = rows[rows["system"].isin(members(tables, "scaling", FIXED, ADAPTIVE))]
    rows = rows[rows["network"].str.fullmatch(WHOLE)]
    exits = rows["network"].str.count(r"\.") + 1
    key = ["app", "exit", "accuracy", "memory_bytes", "macs"]
    return rows.assign(exit=exits).drop_duplicates(key).sort_values(["seed", "app", "exit"])


def fronts(tables: Tables) -> dict[str, dict[str, pd.DataFrame]]:
    """Return the Pareto front of accuracy over latency on an idle device, by workload and system.

    Of systems with the same candidate networks only the first is listed. Networks are those of the lowest seed.
    """
    cells = completed_cells(tables)
    cells = cells[cells["seed"] == cells["seed"].min()][["cell", "system", "workload"]]
    rows = tables.frame("variants").merge(cells, on="cell").dropna(subset=["accuracy"])
    found: dict[str, dict[str, pd.DataFrame]] = {}
    seen = set()
    for name in [*choosers(tables), *others(tables)]:
        for workload, here in rows[rows["system"] == name].groupby("workload"):
            own = here.drop_duplicates(["network", "latency_ms"]).sort_values(["latency_ms", "accuracy"])
            which = (workload, tuple(own["network"]), tuple(own["accuracy"]))
            if which not in seen:
                seen.add(which)
                best = own["accuracy"].cummax()
                found.setdefault(str(workload), {})[name] = own[best > best.shift(fill_value=-1.0)]
    return found


def _variants_at(tables: Tables, place: Mapping[str, str]) -> pd.DataFrame:
    rows = with_columns(tables, "variants", "system", *CELL)
    for name, value in place.items():
        rows = rows[rows[name] == value]
    return rows


def light_systems(tables: Tables) -> dict[str, str]:
    """Map the systems with a light network to its structure."""
    return {name: one["network"] for name, one in members(tables, "scaling", LIGHT).items()}


def light_networks(tables: Tables, **place: str) -> pd.DataFrame:
    """List each light network once; `network` is its structure. `place` may name a workload and a fleet."""
    kinds = light_systems(tables)
    rows = _variants_at(tables, place)
    rows = rows[rows["system"].isin(kinds)]
    rows = rows.assign(network=rows["system"].map(kinds))
    return rows.drop_duplicates(["app", "network", "accuracy", "memory_bytes", "macs"]).sort_values(["seed", "network"])


def accuracy_of_fixed_exits(tables: Tables) -> pd.DataFrame:
    """List our accuracy and that of the best fixed exit of `best_fixed`, chosen for each load."""
    rows, ours, exits = _compared(tables)
    best = best_fixed(rows, ours, list(exits))
    own, rest = rows.loc[ours]["accuracy"], {condition: rows.loc[name]["accuracy"] for condition, name in best.items()}
    theirs = own.index.map(lambda place: rest[place[:2]][place]).to_series(own.index)
    means = (own - theirs).groupby(CONDITION).mean()
    workloads, fleets = (set(names) for names in zip(*best, strict=True))
    notes = []
    for (workload, fleet), name in best.items():
        place = [workload] * (len(workloads) > 1) + [fleet] * (len(fleets) > 1 or len(workloads) == 1)
        gain = f" ({100 * means[workload, fleet]:+.1f})" if len(best) > 1 else ""
        notes.append(f"{name} on {' '.join(place)}{gain}")
    return pair_rows(own, theirs, f"compared with {', '.join(notes)}")


def latency_of_whole(tables: Tables) -> pd.DataFrame:
    """List the latency of the paths that ran and of the whole network; the first exit is faster still."""
    rows, ours, exits = _compared(tables)
    whole = max(exits, key=lambda name: exits[name] or LAST)
    own = rows.loc[ours]["latency_ms"]
    both = pair_rows(own, rows.loc[whole]["latency_ms"].reindex(own.index))
    return with_note(both, under_each_load(1 - both["ours"] / both["theirs"]))


def loss_below_whole(tables: Tables) -> pd.DataFrame:
    """List the time-weighted loss in held-out accuracy of the paths that ran against the whole network."""
    ours = first(tables)
    if not ours or not fixed_exits(tables):
        return no_rows(NOT_RUN)
    shares = with_columns(tables, "shares", "system", *CELL)
    shares = shares[(shares["system"] == ours) & (shares["window_s"] > 0)]
    shares = shares[~shares["fleet"].isin(idle_fleets(tables))]
    rows = tables.frame("variants")
    whole = rows[rows["network"].str.fullmatch(WHOLE)].sort_values("macs").drop_duplicates(STREAM, keep="last")
    both = shares.merge(whole[[*STREAM, "accuracy"]], on=STREAM, suffixes=("", "_whole"))
    lost = (both["accuracy_whole"] - both["accuracy"]) * both["window_s"]
    by = [both[name] for name in CELL]
    means = lost.groupby(by).sum() / both["window_s"].groupby(by).sum()
    return value_rows(means, under_each_load(means))


def accuracy_by_exit(tables: Tables, late: int, early: int) -> pd.DataFrame:
    """List the held-out accuracy of two exits without operators; one row if all seeds share their network."""
    rows = whole_paths(tables)
    if rows.empty:
        return no_rows(NOT_RUN)
    wide = rows.pivot_table(index=["seed", "app"], columns="exit", values="accuracy")
    if early not in wide or late not in wide:
        raise Untestable(f"needs a network with {late} exits")
    both = wide[[late, early]].dropna().set_axis(["ours", "theirs"], axis=1)
    return both if tables.run.spec.get("student", {}).get("per_seed") else of_one_network(both.iloc[:1], ONE_NETWORK)


def costs_rise(tables: Tables) -> pd.DataFrame:
    """List for each step from one exit to the next whether latency, memory and operations all rise."""
    rows = whole_paths(tables)
    if rows.empty:
        return no_rows(NOT_RUN)
    steps = rows.groupby(["cell", "app"])[["latency_ms", "memory_bytes", "macs"]].diff().dropna()
    return value_rows((steps > 0).all(axis=1))


def choices(tables: Tables) -> pd.DataFrame:
    """Count the networks that each application can choose from."""
    ours = first(tables)
    if not ours:
        return no_rows(NOT_RUN)
    rows = with_columns(tables, "variants", "system")
    return value_rows(rows[rows["system"] == ours].groupby(STREAM).size())


def search_times(tables: Tables) -> pd.DataFrame:
    """List the median host time in ms of a choice that changed the path within a window, by cell."""
    ours = first(tables)
    if not ours:
        return no_rows(NOT_RUN)
    rows = with_columns(tables, "shares")
    between = rows["time_s"] % tables.run.spec.get("window_s", rows["time_s"].max() + 1) > 0  # else shares are made too
    rows = rows[(rows["system"] == ours) & between & (rows["host_schedule_seconds"] > 0)]
    took = rows.groupby(["seed", "cell"])[["host_schedule_seconds", "latency_ms"]].median()
    took_ms = 1000 * took["host_schedule_seconds"]
    return value_rows(took_ms, f"{100 * (took_ms / took['latency_ms']).mean():.2g} % of the latency of a frame")


def exits_and_light(tables: Tables, column: str) -> pd.DataFrame:
    """List the means of all exits and of the light networks without the transformer, by seed."""
    exits, light = whole_paths(tables), light_networks(tables)
    light = light[light["network"] != TRANSFORMER]
    if exits.empty or light.empty:
        return no_rows()
    both = pair_rows(*(stats.over_seeds(rows.set_index("seed")[column]) for rows in (exits, light))).dropna()
    best = light.sort_values("accuracy").iloc[-1]
    note = f"of {len(light)} light networks, the best is {best['network']} with {100 * best['accuracy']:.1f} %"
    return of_one_network(both, note) if len(both) == 1 else with_note(both, "")


def cost_of_light(tables: Tables, column: str) -> pd.DataFrame:
    """List the cost of the light networks relative to that of the exits, by seed."""
    both = exits_and_light(tables, column)
    factors = value_rows(both["theirs"] / both["ours"])
    factors.attrs = both.attrs
    return factors


def best_exit_and_light(tables: Tables, networks: Sequence[str], **place: str) -> pd.DataFrame:
    """List the accuracy of the best exit, and of the best of some light networks, by seed."""
    exits, light = whole_paths(tables, **place), light_networks(tables, **place)
    light = light[light["network"].isin(networks)]
    if exits.empty or light.empty:
        return no_rows(f"needs exits of a network (branches) and {', '.join(networks)} (light)")
    both = pair_rows(exits.groupby("seed")["accuracy"].max(), light.groupby("seed")["accuracy"].max())
    return of_one_network(both, ONE_NETWORK) if len(both) == 1 else both


def misses_by_setting(tables: Tables, setting: str, usual: str, other: str) -> pd.DataFrame:
    """List the share of missed deadlines with the usual and with another value of a setting of adascale."""
    systems = by_setting(tables, setting)
    if not {usual, other} <= set(systems):
        return no_rows(f"needs adascale with {setting}: {other} and with {setting}: {usual}")
    return _compareloaded(tables, systems[usual], systems[other], "missed")


def accuracy_of_clairvoyant(tables: Tables) -> pd.DataFrame:
    """List the accuracy of frames with a choice by the true load, and with ours."""
    ours, bound = first(tables), first(tables, BOUND)
    if not ours or not bound:
        return no_rows()
    return _compareloaded(tables, bound, ours, "accuracy")


def _compareloaded(tables: Tables, ours: str, theirs: str, column: str) -> pd.DataFrame:
    found = loaded(deadlines(tables), tables)
    both = pair_rows(*(found.loc[name][column] for name in (ours, theirs)))
    return with_note(both, under_each_load(both["ours"] - both["theirs"]))


def under_each_load(values: pd.Series) -> str:
    """Format the mean of each load in percent; an empty text if there is one load."""
    means = values.groupby(level="fleet").mean()
    return ", ".join(f"{fleet} {100 * mean:+.1f} %" for fleet, mean in means.items()) if len(means) > 1 else ""


def loaded(found: pd.DataFrame, tables: Tables) -> pd.DataFrame:
    """Return the rows of devices with a load."""
    return found[~found.index.get_level_values("fleet").isin(idle_fleets(tables))]


def _compared(tables: Tables) -> tuple[pd.DataFrame, str, dict[str, int | None]]:
    ours, exits = first(tables), fixed_exits(tables)
    if not ours or not exits:
        raise Untestable(NOT_RUN)
    found = loaded(deadlines(tables), tables)
    if found.empty:
        raise Untestable("needs applications with deadlines, and a load")
    return found, ours, exits
