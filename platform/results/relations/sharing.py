"""What is compared on a shared device: networks by size, allocations window by window, frontiers along alpha."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np

from driftlab.platform.core.records import Variant
from driftlab.platform.results import stats
from driftlab.platform.results.relations.cells import CELL, done, members, slot
from driftlab.platform.results.relations.measured import Measured, Untestable, values_by_seed
from driftlab.platform.results.tables.read import Tables
from driftlab.platform.results.tables.systems import Slot
from driftlab.platform.scheduling.costs import weigh_cost
from driftlab.platform.world.measured import paged_bytes

if TYPE_CHECKING:
    import pandas as pd

WINDOW = [*CELL, "device", "time_s"]
APP = ["draw", "workload", "app"]  # whose networks are compared
USUAL_ALPHA = 0.1  # of the schedulers that weigh lateness
ENDS = 1e-9  # what lies closer to an end of a frontier lies on it


def networks(tables: Tables) -> pd.DataFrame:
    """List what every application could run, once for each system, however many cells, devices or workloads have it.

    The `draw` tells apart what was trained more than once: it is the seed, if each seed has networks of its own.
    """
    rows = tables.frame("variants").merge(done(tables)[["cell", "system", "workload", "seed"]], on="cell")
    rows = rows.assign(draw=rows["seed"] if tables.run.spec.get("student", {}).get("per_seed") else 0)
    return rows.drop_duplicates(["draw", "system", "app", "variant", "network", "accuracy", "memory_bytes", "macs"])


def over_draws(rows: pd.DataFrame) -> pd.DataFrame:
    """Average what networks reach that were trained more than once."""
    place = ["system", "workload", "app", "variant"]
    mean = rows.groupby(place)["accuracy"].transform("mean")
    return rows.assign(accuracy=mean, draw=0).drop_duplicates([*place, "network", "memory_bytes", "macs"])


def of_kind(tables: Tables, kind: str) -> pd.DataFrame:
    """List the networks of the first system whose scaling is of a kind, if it prunes all layers alike."""
    found = [name for name, member in members(tables, "scaling", kind).items() if member["only"] is None]
    rows = tables.once(networks)
    return rows[rows["system"].isin(found[:1])]


def nested_and_independent(tables: Tables) -> pd.DataFrame:
    """Put the networks of the same application and width side by side: `_nested` and `_alone`."""
    key = [*APP, "macs"]
    return of_kind(tables, "nested").merge(of_kind(tables, "independent"), on=key, suffixes=("_nested", "_alone"))


def unscaled(tables: Tables) -> pd.DataFrame:
    """List the network of each application as it was before it was scaled."""
    return of_kind(tables, "fixed")


def memory_of_all(rows: pd.DataFrame, *, nested: bool) -> pd.Series:
    """Tell what all networks of an application need together: of nested ones the largest holds the others."""
    sizes = rows.groupby(APP)["memory_bytes"]
    return sizes.max() if nested else sizes.sum()


def of_equal_sizes(tables: Tables) -> dict[Any, tuple[pd.DataFrame, pd.DataFrame]]:
    """Pair the nested with the independent networks of each application that has as many of both, and several."""
    nested, alone = (dict(list(of_kind(tables, kind).groupby(APP))) for kind in ("nested", "independent"))
    return {app: (nested[app], alone[app]) for app in nested if len(nested[app]) == len(alone.get(app, ())) > 1}


def every_switch(rows: pd.DataFrame, *, nested: bool) -> pd.DataFrame:
    """List all switches between two of an application's networks, counted from the smallest on, and what they move.

    Columns are `before`, `after`, `loaded` and `dropped`, both in bytes.
    """
    import pandas as pd

    sizes = sorted(rows["memory_bytes"].astype(int))
    known = [Variant("", None, size, 0.0) for size in sizes]
    moved = [(i, j, *paged_bytes(known, i, j, nested=nested)) for i, j in permutations(range(len(known)), 2)]
    return pd.DataFrame(moved, columns=["before", "after", "loaded", "dropped"])


def joule_per_byte(tables: Tables) -> float | None:
    """Tell what the devices of a run have paid for a byte that they loaded or dropped; None: they moved nothing."""
    paid = tables.frame("shares")
    moved_bytes = (paid["paged_in_bytes"] + paid["paged_out_bytes"]).sum()
    return float(paid["paging_j"].sum() / moved_bytes) if moved_bytes else None


def pruned_alone(tables: Tables) -> pd.DataFrame:
    """List the networks of which one layer was pruned and nothing trained again: `layer`, `ranking`, `share`.

    For a layer with fewer networks than shares it is unknown which share is missing.
    """
    kinds = {
        name: member for name, member in members(tables, "scaling", "nested").items() if member["only"] is not None
    }
    kinds = {name: member for name, member in kinds.items() if not member["prune_epochs"] and not member["grow_epochs"]}
    rows = tables.once(networks)
    count = rows.groupby(["system", *APP])["variant"].transform("size")
    rows = rows[count == rows["system"].map({name: len(member["keep"]) for name, member in kinds.items()})]
    shares = [kinds[row.system]["keep"][::-1][row.variant] for row in rows.itertuples()]
    ranking, layer = ({name: kinds[name][field] for name in kinds} for field in ("ranking", "only"))
    return rows.assign(share=shares, ranking=rows["system"].map(ranking), layer=rows["system"].map(layer))


def over_trainings(values: pd.Series, note: str = "") -> Measured | Untestable:
    """Average over the seeds under which all was trained anew; else over applications, each with a seed of its own."""
    by_draw, apps = values.groupby("draw").mean(), values.groupby(["workload", "app"]).ngroups
    if len(by_draw) < 2:
        return over_apps(values, note, "each of a seed of its own")
    return _over(by_draw.rename_axis("seed"), note, f"over {len(by_draw)} seeds that train {apps} applications anew")


def over_apps(values: pd.Series, note: str, what: str = "whatever they learn") -> Measured | Untestable:
    """Average over applications: how large networks are is the same under every seed, and says nothing of its luck."""
    by_app = values.groupby(["workload", "app"]).mean()
    return _over(by_app, note, f"over {len(by_app)} applications, {what}")


def _over(values: pd.Series, note: str, over: str) -> Measured | Untestable:
    found = stats.mean(values)
    if found is None or found.n < 2:
        return Untestable("needs two applications or more")
    return Measured.of(found, f"{note}, {over}" if note else over, values_by_seed(values))


def allocations(tables: Tables) -> pd.DataFrame:
    """List every share with its system, setting and seed; `rate` is the frames per second that there is time for."""
    rows = tables.frame("shares").merge(done(tables)[["cell", "system", *CELL]], on="cell")
    return rows.assign(rate=(1000 / rows["latency_ms"]).where(rows["share"] > 0, 0.0))


def goals(tables: Tables, rows: pd.DataFrame) -> pd.Series:
    """Tell which accuracy each share was asked for; without a goal the least accurate network sets it."""
    app = ["cell", "device", "app"]
    least = tables.frame("variants").groupby(app, as_index=False)["known_accuracy"].min()
    known = rows[[*app, "accuracy_goal"]].merge(least, on=app, how="left").set_axis(rows.index)
    return known["accuracy_goal"].astype(float).fillna(known["known_accuracy"].astype(float)).fillna(0.0)


def once(tables: Tables) -> pd.DataFrame:
    """List the applications window by window, once for each trace: systems of a setting and seed see the same."""
    rows = tables.once(allocations)
    return rows.merge(rows.drop_duplicates(CELL)[[*CELL, "system"]], on=[*CELL, "system"])


def decisions(tables: Tables) -> pd.DataFrame:
    """List every window of every device once: a scheduler decides on all of its applications together."""
    return tables.once(allocations).drop_duplicates(["cell", "device", "time_s"])


def switches(tables: Tables) -> pd.DataFrame:
    """List the windows in which an application goes on with another network: `before` and `variant`."""
    place = ["cell", "device", "app"]
    rows = tables.once(allocations).sort_values([*place, "time_s"])
    last = rows.groupby(place)[["variant", "time_s", "window_s"]].shift()
    on = (last["time_s"] + last["window_s"] - rows["time_s"]).abs() < 1e-6
    changed = on & rows["variant"].notna() & last["variant"].notna() & (rows["variant"] != last["variant"])
    return rows.assign(before=last["variant"])[changed]


def cost(rows: pd.DataFrame, goal: pd.Series, alpha: float) -> pd.Series:
    """Return the cost of each share as schedulers compute it; a waiting application has no accuracy."""
    late_s = (rows["latency_ms"] - rows["latency_goal_ms"]).clip(lower=0).fillna(0.0) / 1000
    found: pd.Series = weigh_cost(goal - rows["known_accuracy"].fillna(0.0), late_s, alpha, rows["priority"])
    return found


def costs(tables: Tables, systems: dict[str, float], objective: str = "total") -> pd.DataFrame:
    """Tell what each window costs under each system with its alpha: one column per system; windows that all have."""
    rows = tables.once(allocations)
    found = {}
    for name, alpha in systems.items():
        own = rows[rows["system"] == name]
        by_window = own.assign(cost=cost(own, goals(tables, own), alpha)).groupby(WINDOW)["cost"]
        found[name] = by_window.max() if objective == "max" else by_window.sum()
    import pandas as pd

    return pd.DataFrame(found).dropna()


def greedy_and_exact(tables: Tables) -> dict[str, str]:
    """Pair every greedy NestDNN system with the exact one of the same objective, alpha and networks."""
    greedy, exact = (members(tables, "scheduling", kind) for kind in ("nestdnn", "exact"))
    scaling = {name: slot(tables, name, "scaling") for name in [*greedy, *exact]}
    return {
        name: other
        for name, mine in greedy.items()
        for other, theirs in exact.items()
        if (mine["objective"], mine["alpha"], scaling[name]) == (theirs["objective"], theirs["alpha"], scaling[other])
    }


def swept(tables: Tables) -> list[dict[str, float]]:
    """Group the systems that differ in nothing but how they weigh lateness: each with its alpha, from the smallest."""
    groups: defaultdict[tuple[Slot, Slot], dict[str, float]] = defaultdict(dict)
    for name, member in members(tables, "scheduling", "nestdnn", "exact").items():
        others = member.without("alpha"), slot(tables, name, "scaling")
        groups[others][name] = member["alpha"]
    return [dict(sorted(group.items(), key=lambda item: item[1])) for group in groups.values()]


def frontier(tables: Tables, objective: str) -> pd.DataFrame:
    """Compare NestDNN's systems of an objective with the status quo: a row per setting, seed and `alpha`."""
    greedy = members(tables, "scheduling", "nestdnn")
    lines = [
        line
        for line in swept(tables)
        if (one := greedy.get(next(iter(line)))) and one["objective"] == objective and in_use(one)
    ]
    line = max(lines, key=len, default={})
    points = beside_status_quo(tables, line)
    return points.assign(alpha=points["system"].map(line)).sort_values([*CELL, "alpha"])


def in_use(member: Slot) -> bool:
    """Tell whether a scheduler walks and remembers as it does unless told otherwise; other ways are comparisons."""
    return member["method"] == "lookahead" and bool(member["cached"])


def beside_status_quo(tables: Tables, systems: Iterable[str]) -> pd.DataFrame:
    """Compare systems with the status quo, application second by application second.

    A row per setting, seed and system: `gain` in accuracy, `speedup` in frame rate, `energy_ratio` of a frame. One that
    waits has no frames and no accuracy.
    """
    base = next(iter(members(tables, "scheduling", "status_quo")), None)
    rows = tables.once(allocations)
    plain = rows[rows["system"] == base]
    both = rows[rows["system"].isin(list(systems))].merge(plain, on=[*WINDOW, "app"], suffixes=("", "_base"))
    if both.empty:
        return both.reindex(columns=[*CELL, "system", "gain", "speedup", "energy_ratio"])
    by_trace = both.assign(
        answered=both["accuracy"].where(both["share"] > 0),
        speedup=both["rate"] / both["rate_base"],
        frames=np.minimum(both["fps"], both["rate"]) * both["window_s"],
        frames_base=np.minimum(both["fps"], both["rate_base"]) * both["window_s"],
    ).groupby([*CELL, "system"])
    found = by_trace[["answered", "accuracy_base", "speedup"]].mean()
    sums = by_trace[["energy_j", "energy_j_base", "frames", "frames_base"]].sum(min_count=1)
    ratio = (sums["energy_j_base"] / sums["frames_base"]) / (sums["energy_j"] / sums["frames"])
    found = found.assign(gain=found["answered"] - found["accuracy_base"], energy_ratio=ratio)
    return found[["gain", "speedup", "energy_ratio"]].reset_index()


def on_traces(points: pd.DataFrame, measure: Callable[[pd.DataFrame], float]) -> pd.DataFrame:
    """Measure the frontier of every trace, from the smallest alpha on: a `value` for each setting and seed."""
    import pandas as pd

    found = [(*place, measure(part.sort_values("alpha"))) for place, part in points.groupby(CELL)]
    return pd.DataFrame(found, columns=[*CELL, "value"])


def crossing(points: pd.DataFrame, column: str, level: float, wanted: str) -> float:
    """Interpolate linearly along a frontier to where a column has a level; NaN where it never has.

    Where a curve has the level several times, the lowest one counts: it is chosen among all of them.
    """
    x, y = points[column].to_numpy(), points[wanted].to_numpy()
    found = []
    for k in range(len(x) - 1):
        low, high = sorted((x[k], x[k + 1]))
        if low - ENDS <= level <= high + ENDS:
            ends = (0.0, 1.0) if high - low < ENDS else ((level - x[k]) / (x[k + 1] - x[k]),)
            found += [y[k] + along * (y[k + 1] - y[k]) for along in ends]
    return min(found, default=float("nan"))


def knee(points: pd.DataFrame) -> pd.Series:
    """Take the point that is farthest above the line between the ends of a frontier, on axes of equal length."""
    scaled = points[["speedup", "gain"]] - points[["speedup", "gain"]].min()
    scaled = scaled / scaled.max().where(scaled.max() > 0, 1.0)
    ends = scaled.loc[[scaled["speedup"].idxmin(), scaled["speedup"].idxmax()]]
    (x0, y0), (x1, y1) = ends.to_numpy()
    above = (scaled["gain"] - y0) * (x1 - x0) - (scaled["speedup"] - x0) * (y1 - y0)
    return points.loc[above.idxmax()]
