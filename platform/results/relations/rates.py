"""Sampling rates, training intervals and training horizons of AMS.

A sampling rate is the number of samples in an upload over the time since the previous upload.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from driftlab.platform.results.relations.base import (
    CELL,
    STREAM,
    Kinds,
    Untestable,
    by_seed,
    completed_cells,
    first_of,
    members,
    no_rows,
    pair_rows,
    slot,
    value_rows,
    with_columns,
)
from driftlab.platform.results.relations.scenery import sceneries, stops, travelled_m
from driftlab.platform.results.tables.columns import PAPER_SCORE
from driftlab.platform.results.tables.read import Tables
from driftlab.platform.results.tables.systems import Slot

if TYPE_CHECKING:
    import pandas as pd

HZ = "frames/s"
HALF = "half"  # the student of half the width
LONGER_S = 0.5  # by which a lengthened interval exceeds the usual one at least: encoding takes tens of milliseconds
USUAL = {"streaming": "ams", "streaming.interval_s": 10.0, "streaming.min_fps": 0.1, "streaming.max_fps": 1.0}


def uploads(tables: Tables) -> pd.DataFrame:
    """List every upload of samples with its interval (`start_s`, `gap_s`), `rate` and training phase.

    A training phase takes all waiting uploads in the order of their arrival; refused and late uploads have no phase.
    """
    sent = with_columns(tables, "transfers", "system", *CELL)
    sent = sent[sent["kind"] == "samples"].sort_values([*STREAM, "sequence"])
    start_s = sent.groupby(STREAM)["queued_s"].shift(fill_value=0.0)
    sent = sent.assign(start_s=start_s, gap_s=sent["queued_s"] - start_s)
    sent["rate"] = sent["samples"] / sent["gap_s"]
    taken = sent[sent["refused"].isna()]
    served = tables.frame("updates").sort_values([*STREAM, "label_start_s"])
    served = served.loc[served.index.repeat(served["uploads"].fillna(0).astype(int))]
    taken, served = (table.assign(number=table.groupby(STREAM).cumcount()) for table in (taken, served))
    phases = served[[*STREAM, "number", "label_start_s", "train_start_s", "train_end_s"]]
    numbered = taken[[*STREAM, "number", "sequence"]].merge(phases, on=[*STREAM, "number"])
    return sent.drop(columns=["bytes", "wire_bytes", "kind"]).merge(numbered, on=[*STREAM, "sequence"], how="left")


def fixed_schedules(tables: Tables) -> pd.DataFrame:
    """List the cells of AMS with a constant training interval, with `horizon_s` and `interval_s`."""
    fixed = {name: one for name, one in members(tables, "streaming", "ams").items() if not one["adaptive_training"]}
    runs = completed_cells(tables)
    runs = runs[runs["system"].isin(list(fixed))]
    times = ("horizon_s", "interval_s")
    return runs.assign(**{key: runs["system"].map({name: one[key] for name, one in fixed.items()}) for key in times})


def losses_by_horizon(tables: Tables, score: str = PAPER_SCORE) -> pd.DataFrame:
    """List the score loss of longer intervals: `ours` at the shortest horizon, `theirs` at the longest."""
    rows = fixed_schedules(tables)
    wide = rows[rows["student"] != HALF].pivot_table(score, CELL, ["horizon_s", "interval_s"])
    horizons, intervals = (sorted(set(rows[key])) for key in ("horizon_s", "interval_s"))
    corners = list(itertools.product(_ends(horizons), _ends(intervals)))
    if len(corners) < 4 or any(corner not in wide for corner in corners):
        return no_rows()
    short_soon, short_late, long_soon, long_late = (wide[corner] for corner in corners)
    note = f"horizon {horizons[0]:g} against {horizons[-1]:g} s, intervals {intervals[0]:g} and {intervals[-1]:g} s"
    return pair_rows(short_soon - short_late, long_soon - long_late, note)


def scores_by_horizon(tables: Tables, score: str = PAPER_SCORE) -> pd.DataFrame:
    """List the mean score of a student of half the width by `horizon_s`, at the shortest interval.

    Horizons longer than the stream are equivalent, as they contain all samples.
    """
    rows = fixed_schedules(tables)
    half = rows[(rows["interval_s"] == rows["interval_s"].min()) & (rows["student"] == HALF)]
    if half["horizon_s"].nunique() < 2:
        return no_rows()
    scores = half.groupby("horizon_s")[score].mean()
    note = ", ".join(f"{horizon:g} s {value:.3f}" for horizon, value in scores.items())
    if scores.idxmax() >= half["duration_s"].max():
        raise Untestable(f"the best horizon exceeds the streams of {half['duration_s'].max():g} s ({note})")
    return value_rows(scores, note)


def _ends(values: list[float]) -> list[float]:
    return [values[0], values[-1]] if len(values) > 1 else []


def rates_by_motion(tables: Tables) -> pd.DataFrame:
    """List the mean rate after driving and after a stop, by seed and stream, where cameras do both.

    The labels of the two previous intervals determine the rate of a buffer, so the speed of these intervals counts.
    """
    buffers, rows = tables.once(_buffers), []
    buffers = buffers[buffers["system"].isin(_fastest_system(tables))]
    for (*_, seed), part in buffers.groupby([*STREAM, "seed"]):
        trajectory = part["trajectory"].iloc[0]
        if trajectory is None or set(stops(trajectory)) != {True, False}:
            continue
        later = part[part["start_s"] > 2 * part["gap_s"]]
        began_m, ended_m = (travelled_m(trajectory, later["start_s"] - ago * later["gap_s"]) for ago in (2, 0))
        speed = (ended_m - began_m) / (2 * later["gap_s"])
        fast = speed > speed.median()
        rows.append((seed, later["rate"][fast].mean(), later["rate"][~fast].mean()))
    return pair_rows(*(by_seed([(row[0], row[side]) for row in rows]) for side in (1, 2)))


def growth_on_still_scenes(tables: Tables) -> pd.DataFrame:
    """List the growth of the upload interval by the end of a static scene with a stationary camera."""
    buffers = tables.once(_buffers)
    buffers = buffers[(buffers["system"] == "ams") & buffers["static_scene"].eq(True)]
    if buffers.empty:
        return no_rows()
    usual_s = slot(tables, "ams", "streaming")["interval_s"]
    last = buffers.groupby(["seed", *STREAM])["gap_s"].last() - usual_s
    slow = buffers[buffers["gap_s"] > usual_s + LONGER_S].groupby(STREAM)["start_s"].min()
    note = f"in {len(slow)} of {len(last)} streams" + (f", from {slow.mean():.0f} s on" if len(slow) else "")
    return value_rows(last, note)


def slow_from(tables: Tables) -> pd.DataFrame:
    """List when AMS first lengthened its interval on a static scene, by seed and stream."""
    buffers = tables.once(_buffers)
    buffers = buffers[(buffers["system"] == "ams") & buffers["static_scene"].eq(True)]
    if buffers.empty:
        return no_rows()
    longer = buffers[buffers["gap_s"] > slot(tables, "ams", "streaming")["interval_s"] + LONGER_S]
    return value_rows(longer.groupby(["seed", *STREAM])["start_s"].min())


def labels_of_control(tables: Tables) -> pd.DataFrame:
    """List the samples that AMS labels, and those of the highest rate in the same time."""
    adaptive = {name: one for name, one in members(tables, "streaming", "ams").items() if one["control"] != "fixed"}
    sent = tables.once(uploads)
    sent = sent[sent["system"] == next(iter(adaptive), "")]
    if sent.empty:
        return no_rows()
    streams = sent.groupby(["seed", *STREAM])[["samples", "gap_s"]].sum()
    return pair_rows(streams["samples"], streams["gap_s"] * adaptive[sent["system"].iloc[0]]["max_fps"])


def resets(tables: Tables) -> pd.DataFrame:
    """List how long each lengthened interval outlasts a change, as `delay_s`, by system and seed.

    A change is a sampling rate above the threshold that ends slowdown, while the interval is lengthened. A delay begins
    with the buffer whose labels raised the rate. It ends with the round that sets the shortest interval or, without
    one, with the round in which the change is over or the last one.
    """
    import pandas as pd

    rounds = with_columns(tables, "updates", "system", "seed").dropna(subset=["interval_s", "label_start_s"])
    known, rows = members(tables, "streaming", "ams"), []
    for (system, *_, seed), part in rounds.sort_values("label_start_s").groupby(["system", *STREAM, "seed"]):
        if system in known and known[system]["slowdown_until"] is not None:
            rows += [(system, int(seed), delay_s) for delay_s in _delays(part, known[system])]
    return pd.DataFrame(rows, columns=["system", "seed", "delay_s"])


def _delays(rounds: pd.DataFrame, member: Slot) -> Iterator[float]:
    """Yield the delays of one stream."""
    low_fps, high_fps = (member[name] * member["max_fps"] for name in ("slowdown_below", "slowdown_until"))
    began_s, before_s, was_slow = None, 0.0, False
    for fps, interval_s, now_s in rounds[["rate_fps", "interval_s", "label_start_s"]].itertuples(index=False):
        if was_slow and began_s is None and fps > high_fps:
            began_s = before_s
        was_slow = interval_s > member["interval_s"] + 1e-6
        if began_s is not None and (not was_slow or fps < low_fps):
            yield now_s - began_s
            began_s = None
        before_s = now_s
    if began_s is not None:
        yield before_s - began_s


def delays_of_resets(tables: Tables, ours: Kinds, theirs: Kinds) -> pd.DataFrame:
    """List the mean delay of `resets` of two kinds of AMS, by seed."""
    found = tables.once(resets)
    both = [found[found["system"] == first_of(tables, kinds)].groupby("seed")["delay_s"] for kinds in (ours, theirs)]
    note = " and ".join(f"{each.size().sum()} changes, {each.mean().mean():.3g} s" for each in both)
    return pair_rows(both[0].mean(), both[1].mean(), note).dropna()


def rates_within_bounds(tables: Tables) -> pd.DataFrame:
    """List for every AMS stream whether its mean rate is within the limits of the controller."""
    buffers = tables.once(_buffers)
    buffers = buffers[buffers["system"] == "ams"]
    if buffers.empty:
        return no_rows()
    streams = buffers.groupby(STREAM)
    rates = streams["samples"].sum() / streams["gap_s"].sum()
    member = slot(tables, "ams", "streaming")
    inside = rates.between(member["min_fps"], member["max_fps"])
    return value_rows(inside, f"from {rates.min():.2f} to {rates.max():.2f} {HZ}")


def changes_by_control(tables: Tables) -> pd.DataFrame:
    """List the mean change of the rate between buffers under `scaled` and under `tanh` control."""
    modes = {mode: first_of(tables, {**USUAL, "streaming.control": mode}) for mode in ("scaled", "tanh")}
    if not all(modes.values()):
        return no_rows()
    buffers = tables.once(_buffers)
    settled = buffers[buffers["start_s"] >= buffers.groupby("cell")["start_s"].transform("max") / 2]
    changes = settled.groupby(STREAM)["rate"].diff().abs()
    wide = settled.assign(change=changes).pivot_table("change", [*CELL, "device", "app"], "system")
    scaled, tanh = (wide[modes[mode]] for mode in ("scaled", "tanh"))
    return pair_rows(scaled, tanh, f"{scaled.mean():.3f} against {tanh.mean():.3f} {HZ} from buffer to buffer")


def encoding_times(tables: Tables) -> pd.DataFrame:
    """List the longest host time to encode a buffer, by seed."""
    clips = [name for name, member in members(tables, "streaming", "ams").items() if member["codec"].startswith("h264")]
    sent = tables.once(uploads)
    took = sent[sent["system"].isin(clips)].dropna(subset="host_pack_seconds")
    if took.empty:
        return no_rows()
    note = f"on this host; {1000 * took['host_pack_seconds'].mean():.3g} ms on average"
    return value_rows(took.groupby("seed")["host_pack_seconds"].max(), note)


def _fastest_system(tables: Tables) -> list[str]:
    """Return the AMS system with the shortest interval, which resolves short stops."""
    adaptive = {name: one for name, one in members(tables, "streaming", "ams").items() if one["control"] != "fixed"}
    return sorted(adaptive, key=lambda name: adaptive[name]["interval_s"])[:1]


def _buffers(tables: Tables) -> pd.DataFrame:
    """List every buffer of every AMS stream with the properties of its scenes."""
    sent = tables.once(uploads)
    sent = sent[sent["system"].isin(list(members(tables, "streaming", "ams")))]
    return sent.merge(sceneries(tables, sent["cell"]), on=["cell", "device"])
