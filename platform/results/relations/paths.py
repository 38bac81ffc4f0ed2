"""What is compared of networks that follow a load: accuracy, missed deadlines and latency, beside every fixed exit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftlab.platform.results.relations.cells import CELL, done, members
from driftlab.platform.results.tables.read import Tables
from driftlab.platform.results.tables.systems import Slot, every_system

if TYPE_CHECKING:
    import pandas as pd

CONDITION = ["workload", "fleet"]
IDLE = "idle"  # a load
FIXED, ADAPTIVE, BOUND, LIGHT = "branches", "adascale", "clairvoyant", "light"  # scaling members
CHOOSING = (ADAPTIVE, "legodnn", "adaptivenet", "adaspring", "adadeep", "nas", BOUND)
BESIDE = ("usnet", "once_for_all", "early_exit", "darts", "enas", LIGHT)  # other networks, beside the paths of one


def deadlines(tables: Tables) -> pd.DataFrame:
    """Tell for each cell how accurate its frames were, how many came late or not at all, and what they took.

    Columns are `accuracy` (a missed frame keeps the last answer), `missed`, `latency_ms` and `energy_j` of a frame.
    """
    cells = done(tables)[["cell", "system", *CELL, "answering_j", "frames"]]
    goals = tables.frame("shares").groupby(["cell", "device", "app"])["latency_goal_ms"].max().reset_index()
    frames = tables.frame("frames").merge(goals.dropna(), on=["cell", "device", "app"])
    late = ~frames["processed"] | (frames["latency_ms"] > frames["latency_goal_ms"])
    frames = frames.assign(missed=late.astype(float), accuracy=frames["score_frame"])
    means = frames.groupby("cell")[["accuracy", "missed", "latency_ms"]].mean()
    found = cells.merge(means, left_on="cell", right_index=True)
    return found.assign(energy_j=found["answering_j"] / found["frames"]).set_index(["system", *CELL]).sort_index()


def first(tables: Tables, kind: str = ADAPTIVE) -> str:
    """Name the first system of the experiment whose scaling is of a kind, or nothing."""
    return next(iter(_of_kind(tables, kind)), "")


def _of_kind(tables: Tables, *kinds: str) -> dict[str, Slot]:
    """Read the scaling of the systems of some kinds, in the order of the experiment."""
    found = members(tables, "scaling", *kinds)
    order = [str(part["name"]) for part in every_system(tables.run.spec)]
    return {
        name: found[name] for name in sorted(found, key=lambda one: order.index(one) if one in order else len(order))
    }


def choosers(tables: Tables) -> list[str]:
    """Name the systems that choose among the paths of such networks."""
    return list(_of_kind(tables, *CHOOSING))


def others(tables: Tables) -> list[str]:
    """Name the systems that run other networks."""
    return list(_of_kind(tables, *BESIDE))


def fixed_exits(tables: Tables) -> dict[str, int | None]:
    """List the systems that always leave at one exit, and which; None: the last one."""
    return {name: one["exit"] for name, one in _of_kind(tables, FIXED).items()}


def by_setting(tables: Tables, setting: str) -> dict[str, str]:
    """Name for each value of a setting the first system that follows the load with it; older runs may not have it."""
    found: dict[str, str] = {}
    for name, one in _of_kind(tables, ADAPTIVE).items():
        found.setdefault(str(one[setting]), name)
    return found


def idle_fleets(tables: Tables) -> set[str]:
    """Name the fleets on whose devices nothing else runs, as far as the spec tells."""
    fleets = tables.run.spec.get("fleets", [])
    return {one["name"] for one in fleets if all(part.get("load", IDLE) == IDLE for part in one.get("devices", [{}]))}


def best_fixed(found: pd.DataFrame, ours: str, exits: list[str]) -> dict[tuple[str, str], str]:
    """Choose for each condition the most accurate fixed exit that misses no more deadlines than ours, over all seeds.

    Where every exit misses more, it is the one that misses fewest.
    """
    means = found.groupby(["system", *CONDITION])[["accuracy", "missed"]].mean()
    chosen = {}
    for condition, mine in means.loc[ours].iterrows():
        there = {name: means.loc[name].loc[condition] for name in exits}
        good = {name: one["accuracy"] for name, one in there.items() if one["missed"] <= mine["missed"] + 1e-12}
        fewest = min(there, key=lambda name: there[name]["missed"])
        chosen[condition] = max(good, key=good.__getitem__) if good else fewest
    return chosen


def whole_paths(tables: Tables) -> pd.DataFrame:
    """List the paths without operators of each network once, from the first exit on: one for each `exit`."""
    rows = tables.frame("variants").merge(done(tables)[["cell", "system", "seed"]], on="cell")
    rows = rows[rows["system"].isin(members(tables, "scaling", FIXED, ADAPTIVE))]
    rows = rows[rows["network"].str.fullmatch(r"base(\.base)*")]
    exits = rows["network"].str.count(r"\.") + 1
    key = ["app", "exit", "accuracy", "memory_bytes", "macs"]
    return rows.assign(exit=exits).drop_duplicates(key).sort_values(["seed", "app", "exit"])


def fronts(tables: Tables) -> dict[str, dict[str, pd.DataFrame]]:
    """Return by workload and system the networks that no other one of its own beats, by `latency_ms` on an idle device.

    Systems that could run the same networks are one: the first of them is named. The lowest seed tells.
    """
    cells = done(tables)
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


def light_networks(tables: Tables) -> pd.DataFrame:
    """List the light networks that run beside, each once; `network` is their structure."""
    kinds = {name: one["network"] for name, one in members(tables, "scaling", LIGHT).items()}
    rows = tables.frame("variants").merge(done(tables)[["cell", "system", "seed"]], on="cell")
    rows = rows[rows["system"].isin(kinds)]
    rows = rows.assign(network=rows["system"].map(kinds))
    return rows.drop_duplicates(["app", "network", "accuracy", "memory_bytes", "macs"]).sort_values(["seed", "network"])
