"""Measures of a shared device: applications that come and go, the frontier, the optimum, and the time of decisions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from driftlab.platform.results.relations.cells import members, slot
from driftlab.platform.results.relations.measured import Measured, Untestable, lowest, over_seeds
from driftlab.platform.results.relations.sharing import (
    costs,
    crossing,
    decisions,
    frontier,
    greedy_and_exact,
    in_use,
    knee,
    on_traces,
    once,
    switches,
)
from driftlab.platform.results.tables.read import Tables

if TYPE_CHECKING:
    from pandas import DataFrame, Series

PAPER_CONCURRENT = {2: 9.8, 3: 12.7, 4: 18.6, 5: 24.5, 6: 34.3}  # percent of the time
APPS = 6
ENOUGH = 100_000  # windows of applications: an application stays for minutes, so few windows are independent
KNEE = "knee"
STATUS_QUO = {"gain": 0.0, "speedup": 1.0}  # what it is beside itself


def nested_switches(tables: Tables) -> Measured | Untestable:
    """Add up what switches up drop and switches down load, where networks lie inside one another."""
    found = switches(tables)
    nested = [name for name in found["system"].unique() if slot(tables, name, "scaling").nested]
    found = found[found["system"].isin(nested)]
    if found.empty:
        return Untestable("needs nested networks that are switched")
    up = found["variant"] > found["before"]
    wrong = found["paged_out_bytes"].where(up, found["paged_in_bytes"]).sum()
    why = "by construction, a switch moves only the difference"  # of one vector, in which each is a beginning
    return Measured(float(wrong), n=len(found), note=f"{up.sum()} up and {(~up).sum()} down; {why}")


def concurrency(tables: Tables) -> Measured | Untestable:
    """Take the number of applications whose share of the time is farthest from the paper's."""
    rows = _visitors(tables)
    if isinstance(rows, Untestable):
        return rows
    counts = rows.groupby(["cell", "device", "time_s"]).size()
    shares = 100 * counts.value_counts(normalize=True)
    gaps = {number: abs(shares.get(number, 0.0) - percent) for number, percent in PAPER_CONCURRENT.items()}
    note = ", ".join(f"{number}: {shares.get(number, 0.0):.1f} %" for number in PAPER_CONCURRENT)
    return Measured(float(max(gaps.values())), n=len(counts), note=note)


def even_shares(tables: Tables) -> Measured | Untestable:
    """Take the application whose part of all application seconds is farthest from an even one."""
    rows = _visitors(tables)
    if isinstance(rows, Untestable):
        return rows
    parts = 100 * rows["app"].value_counts(normalize=True)
    note = f"{parts.min():.1f} to {parts.max():.1f} %"
    return Measured(float((parts - 100 / APPS).abs().max()), n=len(rows), note=note)


def _visitors(tables: Tables) -> DataFrame | Untestable:
    """List the applications window by window, once for each trace, on devices that six applications come to."""
    rows = once(tables)
    apps = rows.groupby(["cell", "device"])["app"].transform("nunique")
    here = rows.groupby(["cell", "device", "time_s"])["app"].transform("size")
    changes = here.groupby([rows["cell"], rows["device"]]).transform("nunique") > 1
    found = rows[(apps == APPS) & changes]
    if found.empty:
        return Untestable("needs six applications that come and go")
    return found if len(found) >= ENOUGH else Untestable(f"has {len(found)} windows of applications and needs {ENOUGH}")


def on_frontier(tables: Tables, objective: str, where: str, wanted: str) -> Measured | Untestable:
    """Take a frontier at its knee, or where it meets the status quo in one thing; tell what it is in another."""
    points = tables.once(frontier, objective)
    if where == KNEE:
        return _on_goals(points, lambda each: float(knee(each)[wanted]), "the knee")
    level = STATUS_QUO[where]
    return _on_goals(points, lambda each: crossing(each, where, level, wanted), f"{wanted} at equal {where}")


def _on_goals(points: DataFrame, measure: Callable[[DataFrame], float], what: str) -> Measured | Untestable:
    """Measure every trace; take the worst of the latency goals, as the paper does not say which ones it asked for.

    Loose goals leave nothing late, and a frontier ends there before it meets the status quo. The traces that reach it
    all the same are not drawn by chance, so a goal counts with all of its traces or not at all.
    """
    if points.empty or points["alpha"].nunique() < 3:
        return Untestable("needs NestDNN at three alphas and the status quo")
    traces = on_traces(points, measure)
    goals = traces.groupby("workload")["value"].agg(["mean", "size", "count"])
    whole = goals[goals["count"] == goals["size"]]
    ends = [f"{size - count} of {size} on {name}" for name, _, size, count in goals.itertuples() if count < size]
    told = f"frontiers that end before {what}: {', '.join(ends)}"
    if whole.empty:
        return Untestable(told)
    counted = traces[traces["workload"].isin(whole.index)].set_index(["workload", "seed"])["value"]
    found = lowest(counted, chosen_after=False)
    if isinstance(found, Untestable):
        return found
    means = ", ".join(f"{name} {mean:.3g}" for name, mean in whole["mean"].items()).replace("-0", "\u22120")
    note = f"the lowest of {means}" if len(whole) > 1 else f"on {means}"
    return replace(found, note=f"{note}; {told}" if ends else note)


def gap_to_optimum(tables: Tables) -> Measured | Untestable:
    """Subtract the least cost of every window from what the schedules in use cost, over all alphas and objectives."""
    import pandas as pd

    gaps = {}
    for name, best in greedy_and_exact(tables).items():
        member = slot(tables, name, "scheduling")
        found = costs(tables, {name: member["alpha"], best: member["alpha"]}, member["objective"])
        gaps[name] = 100 * (found[name] - found[best])
    used = [name for name in gaps if in_use(slot(tables, name, "scheduling"))]
    if not used:
        return Untestable("needs NestDNN and the exact schedule at the same alpha")
    told = {name: f"{name} {gap.mean():.2g}" for name, gap in gaps.items()}
    others = ", ".join(text for name, text in told.items() if name not in used)
    note = ", ".join(told[name] for name in used) if len(used) <= 8 else f"{len(used)} schedulers"
    note += f"; not counted: {others}" if others else ""
    return over_seeds(pd.concat([gaps[name] for name in used]), note)


def nearer_by_looking_ahead(tables: Tables) -> Measured | Untestable:
    """Subtract what lookahead costs from what the best of the steepest walks does, however fine its grid."""
    greedy = {
        name: one for name, one in members(tables, "scheduling", "nestdnn").items() if one["objective"] == "total"
    }
    ours = [name for name, one in greedy.items() if one["method"] == "lookahead" and not one["cached"]]
    theirs = [name for name, one in greedy.items() if one["method"] == "steepest" and not one["cached"]]
    if not ours or not theirs:
        return Untestable("needs lookahead and steepest without a kept plan")
    alpha = greedy[ours[0]]["alpha"]
    found = 100 * costs(tables, dict.fromkeys([ours[0], *theirs], alpha))
    best = min(theirs, key=lambda name: float(found[name].mean()))
    took = _decision_s(tables)
    note = ", ".join(f"{name} {1000 * took[name].mean():.2g} ms" for name in (ours[0], *theirs))
    return over_seeds(found[best] - found[ours[0]], f"a decision takes {note}")


def time_saved(tables: Tables) -> Measured | Untestable:
    """Tell which share of the time of its decisions a scheduler saves by keeping an unfinished plan."""
    greedy = members(tables, "scheduling", "nestdnn")
    pairs = [
        (name, other)
        for name, one in greedy.items()
        for other, two in greedy.items()
        if one["cached"] and not two["cached"] and one.without("cached") == two.without("cached")
        if one["method"] == "steepest"
    ]
    if not pairs:
        return Untestable("needs the paper's greedy with and without a kept plan")
    kept, anew = (_decision_s(tables)[name] for name in pairs[0])
    return over_seeds(1 - kept / anew, f"of {1000 * anew.mean():.2g} ms")


def _decision_s(tables: Tables) -> dict[str, Series]:
    """Average how long each system's decisions took on this machine, seed by seed."""
    by_system = decisions(tables).groupby("system")
    return {name: part.groupby("seed")["host_schedule_seconds"].mean() for name, part in by_system}
