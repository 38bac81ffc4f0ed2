"""Claims of the AMS paper about its schemes and strategies, read from runs of `ams-table1` and `ams-table3`."""

from __future__ import annotations

from dataclasses import replace

from driftlab.platform.results.analysis.cells import CELL, FRAME, difference, done, gains, side_by_side, slot
from driftlab.platform.results.analysis.measured import Measured, Untestable, lowest, over_seeds, ratio_over_seeds
from driftlab.platform.results.claims.base import DIFFERENCE, Claim
from driftlab.platform.results.tables.read import Tables

COMPARED = ("ams", "one_time", "just_in_time")  # Figure 5
BEST = ("random", "first_last", "first", "last")  # rivals of gradient guidance, in the paper's order

# Table 1: scores ------------------------------------------------------------------------------------------------------


def gain_everywhere(tables: Tables) -> Measured | Untestable:
    """Take the street where AMS gains least over doing nothing."""
    both = side_by_side(tables, "ams", "no_custom")
    if both.empty:
        return Untestable("needs 'ams' and 'no_custom', with truth")
    return lowest(both.assign(value=both["ours"] - both["theirs"]), chosen_after=False)


def gain_on_average(tables: Tables) -> Measured | Untestable:
    """Compare over all streets."""
    return difference(tables, "ams", "no_custom")


def one_time_hurts(tables: Tables) -> Measured | Untestable:
    """Take the street where One-Time gains least, or loses most."""
    both = side_by_side(tables, "one_time", "no_custom")
    if both.empty:
        return Untestable("needs 'one_time' and 'no_custom', with truth")
    return lowest(both.assign(value=both["ours"] - both["theirs"]), chosen_after=True)


def gain_over_one_time(tables: Tables) -> Measured | Untestable:
    """Compare over all streets."""
    return difference(tables, "ams", "one_time")


def gain_over_tracking(tables: Tables) -> Measured | Untestable:
    """Compare over all streets; the note tells where tracking is better."""
    return difference(tables, "ams", "remote_tracking")


def bandwidth(tables: Tables) -> Measured | Untestable:
    """Tell what AMS receives, and beside it what it sends and what that is per parameter."""
    runs = done(tables)
    runs = runs[runs["system"] == "ams"]
    if runs.empty:
        return Untestable("needs 'ams'")
    bits = (runs["downlink_kbps"] * 1000 / runs["parameters"]).mean()
    note = f"{runs['uplink_kbps'].mean():.3g} kbit/s up; {bits:.2g} bit per parameter and second down"
    return over_seeds(runs.assign(value=runs["downlink_kbps"]), note)


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
    return over_seeds(value.rename("value").reset_index(), note)


# Table 3: which weights -----------------------------------------------------------------------------------------------


def cost_of_a_twentieth(tables: Tables) -> Measured | Untestable:
    """Compare sending a guided twentieth with training and sending everything."""
    chosen = _by_strategy(tables)
    guided, full = chosen.get(("gradient_guided", 0.05)), chosen.get(("full", 1.0))
    if guided is None or full is None:
        return Untestable("needs AMS with 5 % by gradient guidance and with all weights")
    return difference(tables, guided, full)


def order_of_strategies(tables: Tables) -> Measured | Untestable:
    """Take the step down from gradient guidance over random and both ends to one end whose interval ends lowest."""
    chosen = _by_strategy(tables)
    names = {strategy: chosen.get((strategy, 0.05)) for strategy in ("gradient_guided", *BEST)}
    if None in names.values():
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
    seeds = pd.DataFrame(steps).groupby("seed").mean().melt(var_name="workload")  # a step is lowest as a street is
    found = lowest(seeds, chosen_after=False)
    return found if isinstance(found, Untestable) else replace(found, note=note)


def compression(tables: Tables) -> Measured | Untestable:
    """Divide the size of an update of all weights by that of a guided twentieth, both as the paper writes them."""
    chosen = _by_strategy(tables)
    wanted = [chosen.get(("full", 1.0)), chosen.get(("gradient_guided", 0.05))]
    if None in wanted:
        return Untestable("needs AMS with 5 % by gradient guidance and with all weights")
    updates = tables.frame("updates").merge(done(tables)[["cell", "system", *CELL]], on="cell")
    sizes = updates[updates["accepted"].eq(True)].groupby(["system", "seed"])["bytes"].mean()
    full, part = (sizes[name] for name in wanted)
    return ratio_over_seeds((full / part).rename("value").reset_index())


def _by_strategy(tables: Tables) -> dict[tuple[str, float], str]:
    """Name the AMS systems of a run that write updates as the paper does, by strategy and fraction."""
    found: dict[tuple[str, float], str] = {}
    for name in done(tables)["system"].unique():
        streaming, adaptation = slot(tables, name, "streaming"), slot(tables, name, "adaptation")
        if streaming.name == "ams" and (streaming["values"], streaming["mask"]) == ("fp16", "gzip"):
            full = adaptation["strategy"] == "full" or adaptation["fraction"] == 1
            found.setdefault(("full", 1.0) if full else (adaptation["strategy"], adaptation["fraction"]), name)
    return found


CLAIMS = (
    Claim(
        id="AMS-1",
        experiment="ams-table1",
        source="AMS, Section 4.2: +0.4 to +17.8 points, video by video",
        sentence="AMS beats doing nothing, on every street",
        paper=0.004,
        unit=DIFFERENCE,
        rule="sign",
        measure=gain_everywhere,
    ),
    Claim(
        id="AMS-1b",
        experiment="ams-table1",
        source="AMS, Section 1: +8.3 points on average",
        sentence="AMS beats doing nothing, over all streets",
        paper=0.083,
        unit=DIFFERENCE,
        rule="sign",
        measure=gain_on_average,
    ),
    Claim(
        id="AMS-2",
        experiment="ams-table1",
        source="AMS, Table 1: A2D2, 62.05 to 50.78 %",
        sentence="specialising once is worse than doing nothing on some drifting street",
        paper=-0.1127,
        unit=DIFFERENCE,
        rule="sign",
        measure=one_time_hurts,
    ),
    Claim(
        id="AMS-3",
        experiment="ams-table1",
        source="AMS, Section 4.2: 4.3 points on average, 39.1 at most",
        sentence="AMS beats specialising once",
        paper=0.043,
        unit=DIFFERENCE,
        rule="sign",
        measure=gain_over_one_time,
    ),
    Claim(
        id="AMS-4",
        experiment="ams-table1",
        source="AMS, Section 4.2: 5.8 points on average, 24.4 at most",
        sentence="AMS beats labels that are carried along with the motion",
        paper=0.058,
        unit=DIFFERENCE,
        rule="sign",
        measure=gain_over_tracking,
    ),
    Claim(
        id="AMS-7",
        experiment="ams-table1",
        source="AMS, Table 1: 203 to 226 kbit/s down, 158 to 189 up, for networks of 2 M parameters",
        sentence="what AMS receives",
        paper=205.0,
        unit="kbit/s",
        rule="info",
        measure=bandwidth,
    ),
    Claim(
        id="AMS-8",
        experiment="ams-table3",
        source="AMS, Table 3: -0.73 points",
        sentence="sending a guided twentieth of the weights costs little against sending all",
        paper=-0.0073,
        unit=DIFFERENCE,
        rule="abs<=0.02",
        measure=cost_of_a_twentieth,
    ),
    Claim(
        id="AMS-9",
        experiment="ams-table3",
        source="AMS, Table 3, 5 %: -0.73, -2.90, -3.54, -8.37 and -8.98 points",
        sentence="guided beats random beats both ends beats one end",
        paper=0.0064,
        unit=DIFFERENCE,
        rule="sign",
        measure=order_of_strategies,
    ),
    Claim(
        id="AMS-10",
        experiment="ams-table3",
        source="AMS, Section 3.1.2: 13.3 times",
        sentence="an update of a guided twentieth is that much smaller than the whole model",
        paper=13.3,
        unit="times",
        rule="rel<=.15",
        measure=compression,
    ),
    Claim(
        id="AMS-11",
        experiment="ams-fig5",
        source="AMS, Figure 5: 93 % of the frames, One-Time 67 %",
        sentence="AMS improves more frames than specialising once, once that has begun",
        paper=0.26,
        unit="share of frames",
        rule="sign",
        measure=frames_improved,
    ),
)
