"""Measures of networks that follow a load (AdaScale), beside every fixed exit of the same network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from driftlab.platform.results.relations import paths
from driftlab.platform.results.relations.cells import CELL, done
from driftlab.platform.results.relations.measured import Measured, Untestable, over_seeds
from driftlab.platform.results.tables.read import Tables

if TYPE_CHECKING:
    import pandas as pd

TRANSFORMER = "transformer"
LAST = 1000  # exit of a member that names none
NOT_RUN = "needs a network that follows the load (adascale) beside fixed exits of it (branches)"


def accuracy_over_fixed_exits(tables: Tables) -> Measured | Untestable:
    """Subtract the best fixed exit that misses no more deadlines, chosen for each load over all seeds."""
    found = _compared(tables)
    if isinstance(found, Untestable):
        return found
    rows, ours, exits = found
    best = paths.best_fixed(rows, ours, exits)
    own, rest = rows.loc[ours], {condition: rows.loc[name] for condition, name in best.items()}
    gains = own["accuracy"].copy()
    for place in own.index:
        gains[place] -= rest[place[:2]]["accuracy"][place]
    means, workloads, fleets = gains.groupby(paths.CONDITION).mean(), *(set(names) for names in zip(*best, strict=True))
    notes = []
    for (workload, fleet), name in best.items():
        place = [workload] * (len(workloads) > 1) + [fleet] * (len(fleets) > 1 or len(workloads) == 1)
        gain = f" ({100 * means[workload, fleet]:+.1f})" if len(best) > 1 else ""
        notes.append(f"{name} on {' '.join(place)}{gain}")
    return over_seeds(gains, f"beside {', '.join(notes)}")


def latency_below_whole(tables: Tables) -> Measured | Untestable:
    """Tell what part of the latency of the whole network is saved; always the first exit saves more."""
    found = _beside_whole(tables, "latency_ms")
    if isinstance(found, Untestable):
        return found
    saved = 1 - found["ours"] / found["theirs"]
    return over_seeds(saved, _under_each_load(saved))


def accuracy_below_whole(tables: Tables) -> Measured | Untestable:
    """Tell how much less accurate the paths that ran are than the whole network, by time, on held-out data."""
    ours, exits = paths.first(tables), paths.fixed_exits(tables)
    if not ours or not exits:
        return Untestable(NOT_RUN)
    shares = tables.frame("shares").merge(done(tables)[["cell", "system", *CELL]], on="cell")
    shares = shares[(shares["system"] == ours) & (shares["window_s"] > 0)]
    shares = shares[~shares["fleet"].isin(paths.idle_fleets(tables))]
    rows = tables.frame("variants")
    place = ["cell", "device", "app"]
    whole = (
        rows[rows["network"].str.fullmatch(r"base(\.base)*")].sort_values("macs").drop_duplicates(place, keep="last")
    )
    both = shares.merge(whole[[*place, "accuracy"]], on=place, suffixes=("", "_whole"))
    lost = (both["accuracy_whole"] - both["accuracy"]) * both["window_s"]
    by = [both[name] for name in CELL]
    means = lost.groupby(by).sum() / both["window_s"].groupby(by).sum()
    return over_seeds(means, _under_each_load(means))


def later_exit_is_better(tables: Tables, early: int, late: int) -> Measured | Untestable:
    """Subtract the accuracy of an early exit from that of a late one, without operators, on held-out data."""
    rows = paths.whole_paths(tables)
    if rows.empty:
        return Untestable(NOT_RUN)
    wide = rows.pivot_table(index=["seed", "app"], columns="exit", values="accuracy")
    if early not in wide or late not in wide:
        return Untestable(f"needs a network with {late} exits")
    gains = (wide[late] - wide[early]).dropna()
    shared = not tables.run.spec.get("student", {}).get("per_seed")
    return Measured(float(gains.iloc[0]), note="of one network") if shared else over_seeds(gains)


def exits_cost_more(tables: Tables) -> Measured | Untestable:
    """Tell at which part of the steps from one exit to the next latency, memory and operations all rise."""
    rows = paths.whole_paths(tables)
    if rows.empty:
        return Untestable(NOT_RUN)
    steps = rows.groupby(["cell", "app"])[["latency_ms", "memory_bytes", "macs"]].diff().dropna()
    return Measured(float((steps > 0).all(axis=1).mean()), n=len(steps))


def paths_to_choose_from(tables: Tables) -> Measured | Untestable:
    """Count the networks that an application can choose from."""
    ours = paths.first(tables)
    if not ours:
        return Untestable(NOT_RUN)
    rows = tables.frame("variants").merge(done(tables)[["cell", "system"]], on="cell")
    return Measured(float(rows[rows["system"] == ours].groupby(["cell", "device", "app"]).size().max()))


def search_ms(tables: Tables) -> Measured | Untestable:
    """Tell the processor time of this machine for a choice between two windows that changed the path, as a median."""
    ours = paths.first(tables)
    if not ours:
        return Untestable(NOT_RUN)
    rows = tables.frame("shares").merge(done(tables)[["cell", "system", "seed"]], on="cell")
    between = rows["time_s"] % tables.run.spec.get("window_s", rows["time_s"].max() + 1) > 0  # else shares are made too
    rows = rows[(rows["system"] == ours) & between & (rows["host_schedule_seconds"] > 0)]
    took = rows.groupby(["seed", "cell"])[["host_schedule_seconds", "latency_ms"]].median()
    took_ms = 1000 * took["host_schedule_seconds"]
    return over_seeds(took_ms, f"{100 * (took_ms / took['latency_ms']).mean():.2g} % of the time of a frame")


def no_table_tells(tables: Tables, why: str) -> Untestable:
    """Say why no run can answer, and where to look."""
    return Untestable(why, elsewhere=False)


def exits_over_light(tables: Tables, column: str) -> Measured | Untestable:
    """Compare the mean of all exits with that of the light networks without the transformer, as the paper does.

    Accuracies are subtracted; costs are told as how many times the light networks' is that of the exits.
    """
    exits, light = paths.whole_paths(tables), paths.light_networks(tables)
    light = light[light["network"] != TRANSFORMER]
    if exits.empty or light.empty:
        return Untestable("needs exits of a network (branches) beside light networks (light)")
    ours, theirs = (rows.groupby("seed")[column].mean() for rows in (exits, light))
    found = (ours - theirs if column == "accuracy" else theirs / ours).dropna()
    if len(found) > 1:
        return over_seeds(found)
    best = light.sort_values("accuracy").iloc[-1]
    note = f"of {len(light)} light networks, the best is {best['network']} with {100 * best['accuracy']:.1f} %"
    return Measured(float(found.iloc[0]), note=note)


def best_exit_over(tables: Tables, networks: Sequence[str]) -> Measured | Untestable:
    """Subtract the best accuracy of some light networks from that of the best exit."""
    exits, light = paths.whole_paths(tables), paths.light_networks(tables)
    light = light[light["network"].isin(networks)]
    if exits.empty or light.empty:
        return Untestable(f"needs exits of a network (branches) beside {', '.join(networks)} (light)")
    found = exits.groupby("seed")["accuracy"].max() - light.groupby("seed")["accuracy"].max()
    return over_seeds(found) if len(found) > 1 else Measured(float(found.iloc[0]), note="of one network")


def setting_saves_deadlines(tables: Tables, setting: str, usual: str, other: str) -> Measured | Untestable:
    """Subtract the share of missed deadlines with another value of a setting of adascale from that with the usual."""
    known = paths.by_setting(tables, setting)
    if not {usual, other} <= set(known):
        return Untestable(f"needs adascale with {setting}: {other} beside the one with {usual}")
    found = _loaded(paths.deadlines(tables), tables)
    saved = found.loc[known[usual]]["missed"] - found.loc[known[other]]["missed"]
    return over_seeds(saved, _under_each_load(saved))


def accuracy_below_clairvoyant(tables: Tables) -> Measured | Untestable:
    """Subtract the accuracy of frames from that under a choice by the true load."""
    ours, bound = paths.first(tables), paths.first(tables, paths.BOUND)
    if not ours or not bound:
        return Untestable("needs a network that follows the load (adascale) beside clairvoyant")
    found = _loaded(paths.deadlines(tables), tables)
    gained = found.loc[bound]["accuracy"] - found.loc[ours]["accuracy"]
    return over_seeds(gained, _under_each_load(gained))


def _under_each_load(values: pd.Series) -> str:
    """Write the mean of each load in percent where there are several: their common mean hides where a method gains."""
    means = values.groupby(level="fleet").mean()
    return ", ".join(f"{fleet} {100 * mean:+.1f} %" for fleet, mean in means.items()) if len(means) > 1 else ""


def _loaded(found: pd.DataFrame, tables: Tables) -> pd.DataFrame:
    """Drop devices on which nothing else runs."""
    return found[~found.index.get_level_values("fleet").isin(paths.idle_fleets(tables))]


def _compared(tables: Tables) -> tuple[pd.DataFrame, str, list[str]] | Untestable:
    ours, exits = paths.first(tables), list(paths.fixed_exits(tables))
    if not ours or not exits:
        return Untestable(NOT_RUN)
    found = _loaded(paths.deadlines(tables), tables)
    return (found, ours, exits) if len(found) else Untestable("needs applications with deadlines, and a load")


def _beside_whole(tables: Tables, column: str) -> pd.DataFrame | Untestable:
    """Put what our cells measured beside what the exit did that is the last one."""
    found = _compared(tables)
    if isinstance(found, Untestable):
        return found
    rows, ours, _ = found
    exits = paths.fixed_exits(tables)
    whole = max(exits, key=lambda name: exits[name] or LAST)
    both = rows.loc[ours][[column]].join(rows.loc[whole][column].rename("theirs"))
    return both.rename(columns={column: "ours"})
