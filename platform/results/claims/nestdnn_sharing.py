"""Claims of the NestDNN paper about sharing a device: who comes, the frontier, the optimum.

Read from runs of `nestdnn-fig9` to `-fig11`, `-tables45` and `-optimum`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from driftlab.platform.results.analysis.cells import members, slot
from driftlab.platform.results.analysis.measured import Measured, Untestable, lowest, over_seeds
from driftlab.platform.results.analysis.sharing import (
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
from driftlab.platform.results.claims.base import Claim
from driftlab.platform.results.tables.read import Tables

if TYPE_CHECKING:
    from pandas import DataFrame, Series

PAPER_CONCURRENT = {2: 9.8, 3: 12.7, 4: 18.6, 5: 24.5, 6: 34.3}  # percent of the time
POINTS = "points"
APPS = 6
ENOUGH = 100_000  # windows of applications: who is there now is there for minutes, so few of them are news
TOO_SHORT = "has {} windows of applications and needs {}"
KNEE = "knee"
STATUS_QUO = {"gain": 0.0, "speedup": 1.0}  # what it is beside itself

# Switching ------------------------------------------------------------------------------------------------------------


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


# Who comes and goes ---------------------------------------------------------------------------------------------------


def concurrency(tables: Tables) -> Measured | Untestable:
    """Take the number of applications whose share of the time is farthest from the paper's."""
    rows = visitors(tables)
    if rows.empty:
        return Untestable("needs six applications that come and go")
    if len(rows) < ENOUGH:
        return Untestable(TOO_SHORT.format(len(rows), ENOUGH))
    counts = rows.groupby(["cell", "device", "time_s"]).size()
    shares = 100 * counts.value_counts(normalize=True)
    gaps = {number: abs(shares.get(number, 0.0) - percent) for number, percent in PAPER_CONCURRENT.items()}
    note = ", ".join(f"{number}: {shares.get(number, 0.0):.1f} %" for number in PAPER_CONCURRENT)
    return Measured(float(max(gaps.values())), n=len(counts), note=note)


def even_shares(tables: Tables) -> Measured | Untestable:
    """Take the application whose part of all application seconds is farthest from an even one."""
    rows = visitors(tables)
    if rows.empty:
        return Untestable("needs six applications that come and go")
    if len(rows) < ENOUGH:
        return Untestable(TOO_SHORT.format(len(rows), ENOUGH))
    parts = 100 * rows["app"].value_counts(normalize=True)
    note = f"{parts.min():.1f} to {parts.max():.1f} %"
    return Measured(float((parts - 100 / APPS).abs().max()), n=len(rows), note=note)


def visitors(tables: Tables) -> DataFrame:
    """List who is there window by window, once for each trace, on devices that six applications come to."""
    rows = once(tables)
    apps = rows.groupby(["cell", "device"])["app"].transform("nunique")
    here = rows.groupby(["cell", "device", "time_s"])["app"].transform("size")
    changes = here.groupby([rows["cell"], rows["device"]]).transform("nunique") > 1
    return rows[(apps == APPS) & changes]


# The frontier ---------------------------------------------------------------------------------------------------------


def on_frontier(tables: Tables, objective: str, where: str, wanted: str) -> Measured | Untestable:
    """Take a frontier at its knee, or where it meets the status quo in one thing; tell what it is in another."""
    points = frontier(tables, objective)
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
    found = lowest(traces[traces["workload"].isin(whole.index)], chosen_after=False)
    if isinstance(found, Untestable):
        return found
    means = ", ".join(f"{name} {mean:.3g}" for name, mean in whole["mean"].items()).replace("-0", "\u22120")
    note = f"the lowest of {means}" if len(whole) > 1 else f"on {means}"
    return Measured(found.value, found.low, found.high, found.n, f"{note}; {told}" if ends else note)


# The optimum, and time ------------------------------------------------------------------------------------------------


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
    return over_seeds(pd.concat([gaps[name] for name in used]).rename("value").reset_index(), note)


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
    return over_seeds((found[best] - found[ours[0]]).rename("value").reset_index(), f"a decision takes {note}")


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
    return over_seeds((1 - kept / anew).rename("value").reset_index(), f"of {1000 * anew.mean():.2g} ms")


def _decision_s(tables: Tables) -> dict[str, Series]:
    """Average how long each system's decisions took on this machine, seed by seed."""
    by_system = decisions(tables).groupby("system")
    return {name: part.groupby("seed")["host_schedule_seconds"].mean() for name, part in by_system}


def _claim(id: str, objective: str, where: str, wanted: str, said: float) -> Claim:
    """Word a claim about a frontier; where the paper tells a factor, any factor above 1 is on its side."""
    who = {"total": "MinTotalCost", "max": "MinMaxCost"}[objective]
    does = {"speedup": "answers faster", "gain": "answers better", "energy_ratio": "draws less for a frame"}[wanted]
    place = {KNEE: "at the knee", "gain": "at its accuracy", "speedup": "at its frame rate"}[where]
    figure = "Figure 11" if wanted == "energy_ratio" else "Figure 10"
    points = wanted == "gain"
    return Claim(
        id=id,
        experiment="nestdnn-fig11" if wanted == "energy_ratio" else "nestdnn-fig10",
        source=f"NestDNN, {figure}: " + (f"+{100 * said:.1f} points" if points else f"{said:.1f} times"),
        sentence=f"{who} {does} than the status quo {place}",
        paper=said if points else 1.0,
        unit="of the answers" if points else "times",
        rule="sign" if points else "ge",
        measure=partial(on_frontier, objective=objective, where=where, wanted=wanted),
    )


# id, objective, where on the frontier, what is measured there, and what the paper says of it
ON_FRONTIER = (
    ("N-11", "total", "gain", "speedup", 2.0),
    ("N-12", "total", "speedup", "gain", 0.041),
    ("N-13", "total", KNEE, "speedup", 1.5),
    ("N-13b", "total", KNEE, "gain", 0.026),
    ("N-14", "max", "gain", "speedup", 1.9),
    ("N-14b", "max", "speedup", "gain", 0.042),
    ("N-14c", "max", KNEE, "speedup", 1.5),
    ("N-14d", "max", KNEE, "gain", 0.021),
    ("N-15", "total", KNEE, "energy_ratio", 1.7),
    ("N-15b", "max", KNEE, "energy_ratio", 1.5),
)

CLAIMS = (
    Claim(
        id="N-6",
        experiment="nestdnn-tables45",
        source="NestDNN, Tables 4 and 5",
        sentence="nested networks drop nothing on the way up and load nothing on the way down",
        paper=0.0,
        unit="bytes",
        rule="exact",
        measure=nested_switches,
    ),
    Claim(
        id="N-9",
        experiment="nestdnn-fig9",
        source="NestDNN, Figure 9: 9.8, 12.7, 18.6, 24.5 and 34.3 % with two to six",
        sentence="as many applications run at a time as in the paper",
        paper=0.0,
        unit=POINTS,
        rule="abs<=1.5",
        measure=concurrency,
    ),
    Claim(
        id="N-10",
        experiment="nestdnn-fig9",
        source="NestDNN, Figure 9: about 16.7 % each",
        sentence="every application runs as often as any other",
        paper=0.0,
        unit=POINTS,
        rule="abs<=1.5",
        measure=even_shares,
    ),
    *(_claim(*row) for row in ON_FRONTIER),
    Claim(
        id="N-16",
        experiment="nestdnn-optimum",
        source="NestDNN: not quantified",
        sentence="what greedy schedules cost above the optimum",
        paper=None,
        unit=POINTS,
        rule="info",
        measure=gap_to_optimum,
    ),
    Claim(
        id="N-17",
        experiment="nestdnn-optimum",
        source="NestDNN, Section 3.3: 70 % of the allocations",
        sentence="keeping an unfinished plan saves time",
        paper=0.7,
        unit="of the time",
        rule="sign",
        measure=time_saved,
    ),
    Claim(
        id="NEST-1",
        experiment="nestdnn-optimum",
        source="driftlab: blocks of units, and dividing anew",
        sentence="lookahead is nearer to the optimum than the steepest walk, also on a finer grid",
        paper=0.0,
        unit=POINTS,
        rule="ge",
        measure=nearer_by_looking_ahead,
    ),
)
