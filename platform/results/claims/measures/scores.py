"""Measures of what systems score, in pairs: one minus the other on the same workload and seed."""

from __future__ import annotations

from dataclasses import replace

from driftlab.platform.results.relations import cells
from driftlab.platform.results.relations.cells import CELL, FRAME, Kinds, differences, done, first_of, gains
from driftlab.platform.results.relations.measured import Measured, Untestable, lowest, over_seeds, ratio_over_seeds
from driftlab.platform.results.relations.scenery import swept
from driftlab.platform.results.tables.read import Tables

COMPARED = ("ams", "one_time", "just_in_time")  # AMS, Figure 5
GUIDED = {"streaming": "ams", "streaming.values": "fp16", "streaming.mask": "gzip", "adaptation.fraction": 0.05}
STRATEGIES = ("gradient_guided", "random", "first_last", "first", "last")  # in the order of AMS, Table 3


def difference(tables: Tables, ours: str | Kinds, theirs: str | Kinds, needs: str = "") -> Measured | Untestable:
    """Average the difference of two scores over workloads, then over seeds; `needs` tells which kinds are missing."""
    names = [first_of(tables, system) for system in (ours, theirs)]
    return cells.difference(tables, *names) if all(names) else Untestable(needs)


def difference_by_setting(tables: Tables, ours: str, theirs: str, setting: str) -> Measured | Untestable:
    """Tell how much larger a difference is at the highest value of a stream's parameter than at the lowest."""
    values = swept(tables).get(setting, {})
    found = differences(tables, ours, theirs)
    found = found[found.index.get_level_values("workload").isin(list(values))]
    if found.empty:
        return Untestable(f"needs '{ours}' and '{theirs}' on a stream with three values of '{setting}'")
    by_value = found.rename(index=values, level="workload").groupby(["workload", "seed"]).mean().unstack("workload")
    lowest_value, *_, highest_value = by_value.columns
    note = ", ".join(f"{value:g}: {mean:+.3f}" for value, mean in by_value.mean().items())
    return over_seeds(by_value[highest_value] - by_value[lowest_value], f"by {setting} {note}")


def lowest_difference(tables: Tables, ours: str, theirs: str, *, chosen_after: bool = False) -> Measured | Untestable:
    """Take the workload where one system gains least over another, or loses most."""
    found = differences(tables, ours, theirs)
    if found.empty:
        return Untestable(f"needs '{ours}' and '{theirs}', with truth")
    return lowest(found, chosen_after=chosen_after)


def lowest_over_rivals(tables: Tables, ours: str) -> Measured | Untestable:
    """Take the rival that learns, the workload and the fleet where one system gains least, or loses most."""
    import pandas as pd

    rivals = [name for name in done(tables)["system"].unique() if name not in (ours, "no_custom")]
    parts = [differences(tables, ours, name).reset_index(name="gain").assign(rival=name) for name in rivals]
    if not any(map(len, parts)):
        return Untestable(f"needs '{ours}' and rivals, with truth")
    found = pd.concat(parts)
    found["workload"] = found["workload"] + " with " + found["fleet"] + " against " + found["rival"]
    return lowest(found.set_index(["workload", "seed"])["gain"], chosen_after=True)


def size_ratio(tables: Tables, ours: Kinds, theirs: Kinds, needs: str) -> Measured | Untestable:
    """Divide the mean size of the updates of one kind of system by that of another."""
    wanted = [first_of(tables, kinds) for kinds in (ours, theirs)]
    if not all(wanted):
        return Untestable(needs)
    updates = tables.frame("updates").merge(done(tables)[["cell", "system", *CELL]], on="cell")
    sizes = updates[updates["accepted"].eq(True)].groupby(["system", "seed"])["bytes"].mean()
    full, part = (sizes[name] for name in wanted)
    return ratio_over_seeds(full / part)


def received(tables: Tables, system: str) -> Measured | Untestable:
    """Tell what a system receives, and beside it what it sends and what that is per parameter."""
    runs = done(tables)
    runs = runs[runs["system"] == system]
    if runs.empty:
        return Untestable(f"needs '{system}'")
    bits = (runs["downlink_kbps"] * 1000 / runs["parameters"]).mean()
    note = f"{runs['uplink_kbps'].mean():.3g} kbit/s up; {bits:.2g} bit per parameter and second down"
    return over_seeds(runs.set_index("seed")["downlink_kbps"], note)


def frames_improved(tables: Tables) -> Measured | Untestable:
    """Subtract the share of frames that One-Time improves from the share that AMS improves.

    Frames count from the arrival of One-Time's update on: before it there is nothing to improve them, and a session of
    ours is hardly longer than that takes.
    """
    named = (
        tables.frame("frames").merge(done(tables)[["cell", "system", *CELL]], on="cell").dropna(subset="score_frame")
    )
    named = named.merge(named[(named["system"] == "one_time") & (named["version"] > 0)][FRAME], on=FRAME)
    found = gains(named, named[named["system"] == "no_custom"])
    better = found.assign(better=found["gain"] > 0).groupby(["system", "seed"])["better"].mean()
    shares = {name: better[better.index.get_level_values("system") == name].droplevel("system") for name in COMPARED}
    value = (shares["ams"] - shares["one_time"]).dropna()
    if value.empty:
        return Untestable("needs 'ams', 'one_time' and 'no_custom', with truth, and an update of One-Time that arrived")
    note = ", ".join(f"{name} {share.mean():.0%}" for name, share in shares.items() if len(share))
    return over_seeds(value, note)


def order_of_strategies(tables: Tables) -> Measured | Untestable:
    """Take the step down from gradient guidance over random and both ends to one end whose interval ends lowest."""
    names = {name: first_of(tables, {**GUIDED, "adaptation.strategy": name}) for name in STRATEGIES}
    if not all(names.values()):
        return Untestable("needs AMS with five strategies at 5 %")
    import pandas as pd

    runs = done(tables)
    wide = runs[runs["system"].isin(list(names.values()))].pivot_table("score", ["workload", "seed"], "system").dropna()
    guided, scattered, ends, first, last = (wide[name] for name in names.values())
    steps = {
        "guided − random": guided - scattered,
        "random − both ends": scattered - ends,
        "both ends − one end": ends - (first + last) / 2,
    }
    note = ", ".join(f"{name} {step.mean():+.3f}" for name, step in steps.items()).replace("-", "−")
    seeds = pd.DataFrame(steps).groupby("seed").mean().rename_axis(columns="workload")
    found = lowest(seeds.unstack(), chosen_after=False)  # a step is lowest as a street is
    return found if isinstance(found, Untestable) else replace(found, note=note)
