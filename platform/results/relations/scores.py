"""Scores of pairs of systems, by cell and by frame, and their downlink traffic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from driftlab.platform.results import stats
from driftlab.platform.results.relations.base import (
    CELL,
    FRAME,
    Kinds,
    Untestable,
    completed_cells,
    first_of,
    no_rows,
    pair_rows,
    pairs,
    value_rows,
    with_columns,
    with_note,
)
from driftlab.platform.results.relations.scenery import sceneries, swept
from driftlab.platform.results.tables.columns import PAPER_SCORE
from driftlab.platform.results.tables.read import Tables

if TYPE_CHECKING:
    import pandas as pd

COMPARED = ("ams", "one_time", "just_in_time")  # AMS, Figure 5
GUIDED = {
    "streaming": "ams",
    "streaming.value_format": "fp16",
    "streaming.mask_encoding": "gzip",
    "adaptation.fraction": 0.05,
}
STRATEGIES = ("gradient_guided", "random", "first_last", "first", "last")  # in the order of AMS, Table 3
SAME_FRAME = [*CELL, "device", "app", "time_s"]  # whatever system runs
ONCE_OR_NEVER = "needs 'one_time' and 'no_custom' on the same workload and seed, with truth"
UPDATED = ", and an update that arrived"


def scores(
    tables: Tables, ours: str | Kinds, theirs: str | Kinds, traffic_column: str = "", score: str = PAPER_SCORE
) -> pd.DataFrame:
    """List the scores of two systems by place and seed; the note has the ratio of `traffic_column`."""
    names = [first_of(tables, system) for system in (ours, theirs)]
    found = pairs(tables, names[0], names[1], score)
    if found.empty:
        return no_rows(f"needs '{ours}' and '{theirs}' on the same workload and seed, with truth")
    if traffic_column:
        traffic = pairs(tables, names[0], names[1], traffic_column)
        return with_note(found, f"at {(traffic['ours'] / traffic['theirs']).mean():.3g} times the downlink")
    found.attrs["ranges"] = True  # over workloads, in the note
    return found


def scores_by_setting(tables: Tables, ours: str, theirs: str, setting: str, score: str = PAPER_SCORE) -> pd.DataFrame:
    """List the score difference of two systems at the highest and the lowest value of a stream parameter."""
    values = swept(tables).get(setting, {})
    found = pairs(tables, ours, theirs, score)
    found = found[found.index.get_level_values("workload").isin(list(values))]
    if found.empty:
        return no_rows(f"needs '{ours}' and '{theirs}' on a stream with three values of '{setting}'")
    gains = (found["ours"] - found["theirs"]).rename(index=values, level="workload")
    by_value = gains.groupby(["workload", "seed"]).mean().unstack("workload")
    lowest, *_, highest = by_value.columns
    note = ", ".join(f"{value:g}: {mean:+.3f}" for value, mean in by_value.mean().items())
    return pair_rows(by_value[highest], by_value[lowest], f"by {setting} {note}")


def gains_by_street(
    tables: Tables, ours: str, theirs: str, first: Sequence[str], second: Sequence[str], score: str = PAPER_SCORE
) -> pd.DataFrame:
    """List the mean gain of a system on the first streets and on the second, by seed."""
    found = pairs(tables, ours, theirs, score)
    gains = found["ours"] - found["theirs"]
    names = [name.rpartition("/")[2] for name in found.index.get_level_values("workload")]
    sides = [gains[[name in chosen for name in names]].groupby("seed").mean() for chosen in (first, second)]
    if any(side.empty for side in sides):
        return no_rows(f"needs '{ours}' and '{theirs}' on {first[0]} and {second[0]}, with truth")
    note = f"{sides[0].mean():+.3f} and {sides[1].mean():+.3f}".replace("-", "\u2212")
    return pair_rows(sides[0], sides[1], note).dropna()


def gains_over_baselines(
    tables: Tables, ours: str, score: str = PAPER_SCORE, excluded: Sequence[str] = ("no_custom",)
) -> pd.DataFrame:
    """List the scores of a system and of each other one that is not excluded, by workload, fleet and seed."""
    import pandas as pd

    others = [name for name in completed_cells(tables)["system"].unique() if name not in (ours, *excluded)]
    parts = [pairs(tables, ours, name, score).reset_index().assign(other=name) for name in others]
    if not any(map(len, parts)):
        return no_rows(f"needs '{ours}' and baselines, with truth")
    found = pd.concat([part for part in parts if len(part)])
    found["workload"] = found["workload"] + " with " + found["fleet"] + " against " + found["other"]
    return found.set_index(["workload", "seed"])[["ours", "theirs"]]


def gains_over(
    tables: Tables, ours: str, others: Sequence[str], workloads: Sequence[str] = (), score: str = PAPER_SCORE
) -> pd.DataFrame:
    """List the score of a system and the mean score of some others, by workload and seed."""
    runs = completed_cells(tables)
    runs = runs[runs["workload"].isin(list(workloads))] if workloads else runs
    wide = runs.pivot_table(score, ["workload", "seed"], "system").reindex(columns=[ours, *others]).dropna()
    if wide.empty:
        return no_rows(
            f"needs '{ours}' and {' and '.join(map(repr, others))} on the same workload and seed, with truth"
        )
    found = pair_rows(wide[ours], wide[list(others)].mean(axis=1))
    found.attrs["ranges"] = True
    return found


def strategies(tables: Tables, score: str = PAPER_SCORE) -> pd.DataFrame:
    """List the score differences guided − random, random − both ends, both ends − one end, as `workload`."""
    names = {name: first_of(tables, {**GUIDED, "adaptation.strategy": name}) for name in STRATEGIES}
    if not all(names.values()):
        return no_rows()
    import pandas as pd

    runs = completed_cells(tables)
    wide = runs[runs["system"].isin(list(names.values()))].pivot_table(score, ["workload", "seed"], "system").dropna()
    guided, scattered, ends, first, last = (wide[name] for name in names.values())
    steps = {
        "guided − random": guided - scattered,
        "random − both ends": scattered - ends,
        "both ends − one end": ends - (first + last) / 2,
    }
    note = ", ".join(f"{name} {step.mean():+.3f}" for name, step in steps.items()).replace("-", "−")
    seeds = pd.DataFrame(steps).groupby("seed").mean().rename_axis(columns="workload")
    return value_rows(seeds.unstack(), note)


def update_sizes(tables: Tables, ours: Kinds, theirs: Kinds) -> pd.DataFrame:
    """List the mean size of the updates of two kinds of systems, by seed."""
    names = [first_of(tables, kinds) for kinds in (ours, theirs)]
    if not all(names):
        return no_rows()
    updates = with_columns(tables, "updates", "system", *CELL)
    sizes = updates[updates["accepted"].eq(True)].groupby(["system", "seed"])["bytes"].mean()
    if not set(names) <= set(sizes.index.get_level_values("system")):  # an update that is not accepted counts nothing
        return no_rows()
    return pair_rows(*(sizes[name] for name in names))


def received(tables: Tables, system: str) -> pd.DataFrame:
    """List the downlink of a system by cell in kbit/s; the note has its uplink and bits per parameter."""
    runs = completed_cells(tables)
    runs = runs[runs["system"] == system]
    if runs.empty:
        return no_rows(f"needs '{system}'")
    bits = (runs["downlink_kbps"] * 1000 / runs["parameters"]).mean()
    note = f"{runs['uplink_kbps'].mean():.3g} kbit/s up; {bits:.2g} bit per parameter and second down"
    return value_rows(runs.set_index("seed")["downlink_kbps"], note)


def improved_frames(tables: Tables, ours: str, theirs: str) -> pd.DataFrame:
    """List the shares of frames that two systems improve over no adaptation, by seed."""
    better = frames_better(tables)
    shares = {name: better[better.index.get_level_values("system") == name].droplevel("system") for name in COMPARED}
    note = ", ".join(f"{name} {share.mean():.0%}" for name, share in shares.items() if len(share))
    return with_note(pair_rows(shares[ours], shares[theirs]).dropna(), note)


def frames_better(tables: Tables) -> pd.Series:
    """Return the share of frames that each system improves over no adaptation, by system and seed.

    Frames before the arrival of One-Time's update do not count, as One-Time cannot improve them.
    """
    frames = with_columns(tables, "frames", "system", *CELL).dropna(subset="score_frame")
    frames = frames.merge(frames[(frames["system"] == "one_time") & (frames["version"] > 0)][FRAME], on=FRAME)
    gains = stats.gains(frames, frames[frames["system"] == "no_custom"], "score_frame", FRAME)
    better: pd.Series = gains.assign(better=gains["gain"] > 0).groupby(["system", "seed"])["better"].mean()
    return better


def gains_on_still_scenes(tables: Tables) -> pd.DataFrame:
    """List the gain of One-Time over sessions without scene changes and without appearance drift."""
    frames = _once_and_never(tables)
    if frames.empty:
        return no_rows(ONCE_OR_NEVER)
    frames = frames.merge(
        sceneries(tables, frames["cell"])[["cell", "device", "appearance_drift"]], on=["cell", "device"]
    )
    frames = frames[~frames["appearance_drift"].eq(True)]
    still = frames[frames.groupby(CELL)["changes"].transform("max") == 0]
    return value_rows(still.groupby(CELL)["gain"].mean()) if len(still) else no_rows("every stream changes its scene")


def gains_on_new_scenes(tables: Tables) -> pd.DataFrame:
    """List the gain of One-Time after its update, on scenes that began after its samples were taken."""
    gains = _gains_after_the_update(tables)
    if False not in gains:
        raise Untestable("no new scene after the update")
    return value_rows(gains[False].dropna())


def gains_on_both_scenes(tables: Tables) -> pd.DataFrame:
    """List the gain of One-Time after its update, on new scenes and on sampled scenes."""
    gains = _gains_after_the_update(tables).dropna()
    if set(gains) != {True, False} or gains.empty:
        raise Untestable("needs both known and new scenes after the update")
    return pair_rows(gains[False], gains[True])


def _once_and_never(tables: Tables) -> pd.DataFrame:
    """Join the frames of both systems, with their gain and the number of scene changes of the stream."""
    runs = tables.frame("runs")
    frames = tables.frame("frames").merge(runs[["cell", "system", *CELL]], on="cell").dropna(subset=["score_frame"])
    once, never = (frames[frames["system"] == system] for system in ("one_time", "no_custom"))
    both = stats.gains(once, never, "score_frame", SAME_FRAME)
    return both.assign(changes=both.groupby([*CELL, "device", "app"])["scene"].transform("nunique") - 1)


def _gains_after_the_update(tables: Tables) -> pd.DataFrame:
    """Average the gain of each cell over frames after the update, by whether their scene had been sampled."""
    frames, updates = _once_and_never(tables), tables.frame("updates")
    first = updates[updates["version"] == 1][["cell", "device", "label_start_s"]].dropna()
    joined = frames.merge(first, on=["cell", "device"])
    began_s = joined.groupby([*SAME_FRAME[:-1], "scene"])["time_s"].transform("min")
    joined = joined.assign(familiar=began_s < joined["label_start_s"])[joined["version"] > 0]
    gains = joined.groupby([*CELL, "familiar"])["gain"].mean().unstack("familiar")
    if gains.empty:
        raise Untestable(ONCE_OR_NEVER + UPDATED)
    return gains
