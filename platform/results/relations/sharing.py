"""Shared devices: allocations per window, frontiers along alpha, and decision times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from driftlab.platform.results.relations.base import (
    CELL,
    STREAM,
    Untestable,
    members,
    no_rows,
    pair_rows,
    slot,
    value_rows,
    with_columns,
    with_note,
)
from driftlab.platform.results.tables.read import Tables
from driftlab.platform.results.tables.systems import Slot
from driftlab.platform.scheduling.costs import weigh_cost

if TYPE_CHECKING:
    import pandas as pd

WINDOW = [*CELL, "device", "time_s"]
USUAL_ALPHA = 0.1  # of the schedulers that weigh lateness
ENDS = 1e-9  # tolerance at the ends of a segment of a frontier
PAPER_CONCURRENT = {2: 9.8, 3: 12.7, 4: 18.6, 5: 24.5, 6: 34.3}  # percent of the time
APPS = 6
ENOUGH = 100_000  # windows of applications: an application stays for minutes, so few windows are independent
KNEE = "knee"
STATUS_QUO = {"gain": 0.0, "speedup": 1.0}  # relative to itself


def allocations(tables: Tables) -> pd.DataFrame:
    """List every share with system, setting and seed; `rate` is the frame rate that the share sustains.

    Nothing is processed while the network is read from storage.
    """
    rows = with_columns(tables, "shares", "system", *CELL)
    loaded = 1 - (rows["paging_s"].fillna(0.0) / rows["window_s"])
    return rows.assign(rate=(1000 / rows["latency_ms"] * loaded).where(rows["inference_share"] > 0, 0.0))


def goals(tables: Tables, rows: pd.DataFrame) -> pd.Series:
    """Return the accuracy goal of each share, by default the accuracy of the least accurate network."""
    least = tables.frame("variants").groupby(STREAM, as_index=False)["val_accuracy"].min()
    joined = rows[[*STREAM, "accuracy_goal"]].merge(least, on=STREAM, how="left").set_axis(rows.index)
    return joined["accuracy_goal"].astype(float).fillna(joined["val_accuracy"].astype(float)).fillna(0.0)


def allocations_once(tables: Tables) -> pd.DataFrame:
    """List the applications per window once for each trace, which all systems of a setting and seed share."""
    rows = tables.once(allocations)
    return rows.merge(rows.drop_duplicates(CELL)[[*CELL, "system"]], on=[*CELL, "system"])


def decisions(tables: Tables) -> pd.DataFrame:
    """List every window of every device once, as one decision allocates all of its applications."""
    return tables.once(allocations).drop_duplicates(["cell", "device", "time_s"])


def switches(tables: Tables) -> pd.DataFrame:
    """List the windows in which a running application switches its network, `before` to `variant`."""
    rows = tables.once(allocations).sort_values([*STREAM, "time_s"])
    last = rows.groupby(STREAM)[["variant", "time_s", "window_s"]].shift()
    on = (last["time_s"] + last["window_s"] - rows["time_s"]).abs() < 1e-6
    changed = on & rows["variant"].notna() & last["variant"].notna() & (rows["variant"] != last["variant"])
    return rows.assign(before=last["variant"])[changed]


def cost(rows: pd.DataFrame, goal: pd.Series, alpha: float) -> pd.Series:
    """Return the cost of each share as schedulers compute it; a waiting application has no accuracy."""
    late_s = (rows["latency_ms"] - rows["latency_goal_ms"]).clip(lower=0).fillna(0.0) / 1000
    found: pd.Series = weigh_cost(goal - rows["val_accuracy"].fillna(0.0), late_s, alpha, rows["priority"])
    return found


def costs(tables: Tables, systems: dict[str, float], objective: str = "total") -> pd.DataFrame:
    """Return the cost of each window that all systems have, one column per system with its alpha."""
    rows = tables.once(allocations)
    found = {}
    for name, alpha in systems.items():
        own = rows[rows["system"] == name]
        by_window = own.assign(cost=cost(own, goals(tables, own), alpha)).groupby(WINDOW)["cost"]
        found[name] = by_window.max() if objective == "max" else by_window.sum()
    import pandas as pd

    return pd.DataFrame(found).dropna()


def greedy_and_exact(tables: Tables) -> dict[str, str]:
    """Map every greedy NestDNN system to the exact one with the same objective, alpha and networks."""
    greedy, exact = (members(tables, "scheduling", kind) for kind in ("nestdnn", "exact"))
    scaling = {name: slot(tables, name, "scaling") for name in [*greedy, *exact]}
    return {
        name: other
        for name, mine in greedy.items()
        for other, theirs in exact.items()
        if (mine["objective"], mine["alpha"], scaling[name]) == (theirs["objective"], theirs["alpha"], scaling[other])
    }


def swept(tables: Tables) -> list[dict[str, float]]:
    """Group the systems that differ only in alpha, in ascending order of alpha."""
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
    points = gains_over_status_quo(tables, line)
    return points.assign(alpha=points["system"].map(line)).sort_values([*CELL, "alpha"])


def in_use(member: Slot) -> bool:
    """Return whether a scheduler has the default method and cache; other settings are ablations."""
    return member["method"] == "priced" and bool(member["cached"])


def gains_over_status_quo(tables: Tables, systems: Iterable[str]) -> pd.DataFrame:
    """Compare systems with the status quo, paired by application and window.

    A row per setting, seed and system: `gain` in accuracy, `speedup` in frame rate, `energy_ratio` per frame. A waiting
    application has no frames and no accuracy.
    """
    base = next(iter(members(tables, "scheduling", "status_quo")), None)
    rows = tables.once(allocations)
    plain = rows[rows["system"] == base]
    both = rows[rows["system"].isin(list(systems))].merge(plain, on=[*WINDOW, "app"], suffixes=("", "_base"))
    if both.empty:
        return both.reindex(columns=[*CELL, "system", "gain", "speedup", "energy_ratio"])
    by_trace = both.assign(
        scored=both["accuracy"].where(both["inference_share"] > 0),
        speedup=both["rate"] / both["rate_base"],
        frames=np.minimum(both["fps"], both["rate"]) * both["window_s"],
        frames_base=np.minimum(both["fps"], both["rate_base"]) * both["window_s"],
    ).groupby([*CELL, "system"])
    found = by_trace[["scored", "accuracy_base", "speedup"]].mean()
    sums = by_trace[["energy_j", "energy_j_base", "frames", "frames_base"]].sum(min_count=1)
    ratio = (sums["energy_j_base"] / sums["frames_base"]) / (sums["energy_j"] / sums["frames"])
    found = found.assign(gain=found["scored"] - found["accuracy_base"], energy_ratio=ratio)
    return found[["gain", "speedup", "energy_ratio"]].reset_index()


def on_traces(points: pd.DataFrame, at: str, column: str) -> pd.DataFrame:
    """Read a column off the frontier of every trace: a `value` per setting and seed.

    It is read at the knee, or where the column `at` equals that of the status quo.
    """
    import pandas as pd

    found = []
    for place, part in points.groupby(CELL):
        trace = part.sort_values("alpha")
        value = float(knee(trace)[column]) if at == KNEE else crossing(trace, at, STATUS_QUO[at], column)
        found.append((*place, value))
    return pd.DataFrame(found, columns=[*CELL, "value"])


def crossing(points: pd.DataFrame, column: str, level: float, result: str) -> float:
    """Interpolate linearly along a frontier to a level of a column; NaN if the frontier does not cross it.

    Of several crossings the one with the lowest wanted value counts.
    """
    x, y = points[column].to_numpy(), points[result].to_numpy()
    found = []
    for k in range(len(x) - 1):
        low, high = sorted((x[k], x[k + 1]))
        if low - ENDS <= level <= high + ENDS:
            ends = (0.0, 1.0) if high - low < ENDS else ((level - x[k]) / (x[k + 1] - x[k]),)
            found += [y[k] + along * (y[k + 1] - y[k]) for along in ends]
    return min(found, default=float("nan"))


def knee(points: pd.DataFrame) -> pd.Series:
    """Return the point farthest above the line between the ends of a frontier, on axes of equal length."""
    scaled = points[["speedup", "gain"]] - points[["speedup", "gain"]].min()
    scaled = scaled / scaled.max().where(scaled.max() > 0, 1.0)
    ends = scaled.loc[[scaled["speedup"].idxmin(), scaled["speedup"].idxmax()]]
    (x0, y0), (x1, y1) = ends.to_numpy()
    above = (scaled["gain"] - y0) * (x1 - x0) - (scaled["speedup"] - x0) * (y1 - y0)
    return points.loc[above.idxmax()]


def avoidable_bytes(tables: Tables) -> pd.DataFrame:
    """List the bytes that switches up drop and switches down load, for nested networks."""
    found = switches(tables)
    nested = [name for name in found["system"].unique() if slot(tables, name, "scaling").nested]
    found = found[found["system"].isin(nested)]
    if found.empty:
        return no_rows()
    up = found["variant"] > found["before"]
    why = "by construction, a switch moves only the difference"  # each network is a prefix of one vector
    wrong = found["paged_out_bytes"].where(up, found["paged_in_bytes"])
    return value_rows(wrong, f"{up.sum()} up and {(~up).sum()} down; {why}")


def concurrency(tables: Tables) -> pd.DataFrame:
    """List the percentage of windows by the number of running applications, and that in the paper."""
    import pandas as pd

    counts = _arrivals(tables).groupby(["cell", "device", "time_s"]).size()
    shares = 100 * counts.value_counts(normalize=True).reindex(list(PAPER_CONCURRENT), fill_value=0.0)
    note = ", ".join(f"{number}: {share:.1f} %" for number, share in shares.items())
    return _counted(pair_rows(shares, pd.Series(PAPER_CONCURRENT), note), len(counts))


def shares_of_applications(tables: Tables) -> pd.DataFrame:
    """List the percentage of application seconds of each application, and an equal share."""
    rows = _arrivals(tables)
    parts = 100 * rows["app"].value_counts(normalize=True)
    note = f"{parts.min():.1f} to {parts.max():.1f} %"
    return _counted(with_note(parts.to_frame("ours").assign(theirs=100 / APPS), note), len(rows))


def _counted(rows: pd.DataFrame, count: int) -> pd.DataFrame:
    """Set the number of observations of these rows."""
    rows.attrs["n"] = count
    return rows


def _arrivals(tables: Tables) -> pd.DataFrame:
    """List the applications per window, once for each trace, on devices with six arriving applications."""
    rows = allocations_once(tables)
    apps = rows.groupby(["cell", "device"])["app"].transform("nunique")
    here = rows.groupby(["cell", "device", "time_s"])["app"].transform("size")
    changes = here.groupby([rows["cell"], rows["device"]]).transform("nunique") > 1
    found = rows[(apps == APPS) & changes]
    if found.empty:
        raise Untestable("needs six applications that arrive and depart")
    if len(found) < ENOUGH:
        raise Untestable(f"has {len(found)} windows of applications and needs {ENOUGH}")
    return found


def points_of_frontier(tables: Tables, objective: str, at: str, column: str) -> pd.DataFrame:
    """Measure a frontier per latency goal and trace, at its knee or where it crosses the status quo.

    Workloads differ in their latency goals, which the paper does not state. With loose goals no frame is late, and a
    frontier may end before it crosses the status quo. The remaining traces would be a biased sample, so a goal counts
    only if all of its traces cross.
    """
    points = tables.once(frontier, objective)
    if points.empty or points["alpha"].nunique() < 3:
        return no_rows()
    traces = on_traces(points, at, column)
    place = "the knee" if at == KNEE else f"{column} at equal {at}"
    goals = traces.groupby("workload")["value"].agg(["mean", "size", "count"])
    whole = goals[goals["count"] == goals["size"]]
    ends = [f"{size - count} of {size} on {name}" for name, _, size, count in goals.itertuples() if count < size]
    without_crossing = f"frontiers that end before {place}: {', '.join(ends)}"
    if whole.empty:
        raise Untestable(without_crossing)
    counted = traces[traces["workload"].isin(whole.index)].set_index(["workload", "seed"])["value"]
    means = ", ".join(f"{name} {mean:.3g}" for name, mean in whole["mean"].items()).replace("-0", "\u22120")
    note = f"the lowest of {means}" if len(whole) > 1 else f"on {means}"
    return value_rows(counted, f"{note}; {without_crossing}" if ends else note)


def gaps_to_optimum(tables: Tables) -> pd.DataFrame:
    """List the cost of default greedy schedulers above the optimum by window, over alphas and objectives."""
    import pandas as pd

    gaps = {}
    for name, best in greedy_and_exact(tables).items():
        member = slot(tables, name, "scheduling")
        found = costs(tables, {name: member["alpha"], best: member["alpha"]}, member["objective"])
        gaps[name] = 100 * (found[name] - found[best])
    used = [name for name in gaps if in_use(slot(tables, name, "scheduling"))]
    if not used:
        return no_rows()
    mean_gaps = {name: f"{name} {gap.mean():.2g}" for name, gap in gaps.items()}
    others = ", ".join(text for name, text in mean_gaps.items() if name not in used)
    note = ", ".join(mean_gaps[name] for name in used) if len(used) <= 8 else f"{len(used)} schedulers"
    return value_rows(pd.concat([gaps[name] for name in used]), note + (f"; not counted: {others}" if others else ""))


def costs_of_greedy_methods(tables: Tables) -> pd.DataFrame:
    """List the cost per window of the best steepest greedy system over all grids, and of lookahead."""
    greedy = {
        name: one for name, one in members(tables, "scheduling", "nestdnn").items() if one["objective"] == "total"
    }
    ahead = [name for name, one in greedy.items() if one["method"] == "lookahead" and not one["cached"]]
    steepest = [name for name, one in greedy.items() if one["method"] == "steepest" and not one["cached"]]
    if not ahead or not steepest:
        return no_rows()
    found = 100 * costs(tables, dict.fromkeys([ahead[0], *steepest], greedy[ahead[0]]["alpha"]))
    best = min(steepest, key=lambda name: float(found[name].mean()))
    took = _decision_s(tables)
    note = ", ".join(f"{name} {1000 * took[name].mean():.2g} ms" for name in (ahead[0], *steepest))
    return pair_rows(found[best], found[ahead[0]], f"a decision takes {note}")


def decision_times(tables: Tables) -> pd.DataFrame:
    """List the decision time of the steepest method with a cached plan and without one, by seed."""
    greedy = members(tables, "scheduling", "nestdnn")
    both = [
        (name, other)
        for name, one in greedy.items()
        for other, two in greedy.items()
        if one["cached"] and not two["cached"] and one.without("cached") == two.without("cached")
        if one["method"] == "steepest"
    ]
    if not both:
        return no_rows()
    kept, replanned = (_decision_s(tables)[name] for name in both[0])
    return pair_rows(kept, replanned, f"of {1000 * replanned.mean():.2g} ms")


def _decision_s(tables: Tables) -> dict[str, pd.Series]:
    """Average the decision time of each system on this host, by seed."""
    by_system = decisions(tables).groupby("system")
    return {name: part.groupby("seed")["host_schedule_seconds"].mean() for name, part in by_system}
