"""Measures of when AMS samples and trains, and how far back it looks.

A sampling rate is what an upload brought over the time since the upload before.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from driftlab.platform.results.relations.cells import CELL, by_seed, done, first_of, members, slot, uploads
from driftlab.platform.results.relations.measured import Measured, Untestable, over_seeds
from driftlab.platform.results.relations.scenery import sceneries, stops, travelled_m
from driftlab.platform.results.tables.read import Tables

if TYPE_CHECKING:
    import pandas as pd

HZ = "frames/s"
HALF = "half"  # the student of half the width
USUAL = {"streaming": "ams", "streaming.interval_s": 10.0, "streaming.low_fps": 0.1, "streaming.high_fps": 1.0}
STREAM = ["cell", "device", "app"]


def short_horizon_ages(tables: Tables) -> Measured | Untestable:
    """Subtract what the longest horizon loses with longer intervals from what the shortest loses."""
    grid = _horizons(tables)
    horizons, intervals = (sorted({key[part] for key in grid}) for part in (0, 1))
    corners = list(itertools.product(_ends(horizons), _ends(intervals)))
    if len(corners) < 4 or any(corner not in grid for corner in corners):
        return Untestable("needs AMS with two horizons and two intervals")
    runs = done(tables)
    wide = runs[runs["student"] != HALF].pivot_table("score", CELL, "system").reindex(columns=list(grid.values()))
    short_soon, short_late, long_soon, long_late = (wide[grid[corner]] for corner in corners)
    note = f"horizon {horizons[0]:g} against {horizons[-1]:g} s, intervals {intervals[0]:g} and {intervals[-1]:g} s"
    return over_seeds((short_soon - short_late) - (long_soon - long_late), note)


def best_horizon(tables: Tables) -> Measured | Untestable:
    """Tell which horizon a student of half the width scores best with, at the shortest interval.

    A horizon that is longer than the stream forgets nothing, and no longer one would do otherwise.
    """
    grid = _horizons(tables)
    runs = done(tables)
    shortest_s = min((every for _, every in grid), default=0.0)
    soon = {horizon: name for (horizon, every), name in grid.items() if every == shortest_s}
    half = runs[runs["system"].isin(list(soon.values())) & (runs["student"] == HALF)]
    if half.empty or half["system"].nunique() < 2:
        return Untestable("needs a student of half the width and several horizons")
    means = half.groupby("system")["score"].mean()
    scores = {horizon: float(means[name]) for horizon, name in soon.items()}
    note = ", ".join(f"{horizon:g} s {score:.3f}" for horizon, score in sorted(scores.items()))
    best_s = max(scores, key=lambda horizon: scores[horizon])
    if best_s >= half["duration_s"].max():
        return Untestable(f"to forget nothing is best in streams of {half['duration_s'].max():g} s ({note})")
    return Measured(best_s, note=note)


def _horizons(tables: Tables) -> dict[tuple[float, float], str]:
    """Name the AMS systems with fixed intervals by their horizon and interval."""
    return {
        (member["horizon_s"], member["interval_s"]): name
        for name, member in members(tables, "streaming", "ams").items()
        if not member["slowdown"]
    }


def _ends(values: list[float]) -> list[float]:
    return [values[0], values[-1]] if len(values) > 1 else []


def rate_falls_in_stops(tables: Tables) -> Measured | Untestable:
    """Subtract the mean rate after a stop from the mean rate after a drive, where cameras do both.

    A buffer is filled at the rate that the labels of the two intervals before it asked for, so their speed counts.
    """
    buffers, rows = tables.once(_buffers), []
    buffers = buffers[buffers["system"].isin(_quickest(tables))]
    for (*_, seed), part in buffers.groupby([*STREAM, "seed"]):
        way = part["way"].iloc[0]
        if way is None or set(stops(way)) != {True, False}:
            continue
        later = part[part["start_s"] > 2 * part["gap_s"]]
        began_m, ended_m = (travelled_m(way, later["start_s"] - ago * later["gap_s"]) for ago in (2, 0))
        speed = (ended_m - began_m) / (2 * later["gap_s"])
        fast = speed > speed.median()
        rows.append((seed, later["rate"][fast].mean() - later["rate"][~fast].mean()))
    if not rows:
        return Untestable("needs AMS on a street with stops, such as driving_la")
    return over_seeds(by_seed(rows))


def slows_down_on_a_still_scene(tables: Tables) -> Measured | Untestable:
    """Tell by how much the interval between uploads has grown at the end of one scene before a standing camera."""
    buffers = tables.once(_buffers)
    buffers = buffers[(buffers["system"] == "ams") & buffers["steady"].eq(True)]
    if buffers.empty:
        return Untestable("needs 'ams' on a scene that stands still, such as interview")
    usual_s = slot(tables, "ams", "streaming")["interval_s"]
    last = buffers.groupby(["seed", *STREAM])["gap_s"].last() - usual_s
    slow = buffers[buffers["gap_s"] > usual_s + 1e-6].groupby(STREAM)["start_s"].min()
    note = f"in {len(slow)} of {len(last)} streams" + (f", from {slow.mean():.0f} s on" if len(slow) else "")
    return over_seeds(last, note)


def rates_within_bounds(tables: Tables) -> Measured | Untestable:
    """Tell which share of the streams has a mean rate within the limits of the controller."""
    buffers = tables.once(_buffers)
    buffers = buffers[buffers["system"] == "ams"]
    if buffers.empty:
        return Untestable("needs 'ams'")
    streams = buffers.groupby(STREAM)
    rates = streams["samples"].sum() / streams["gap_s"].sum()
    member = slot(tables, "ams", "streaming")
    inside = rates.between(member["low_fps"], member["high_fps"])
    return Measured(float(inside.mean()), n=len(rates), note=f"from {rates.min():.2f} to {rates.max():.2f} {HZ}")


def scaled_control_is_steadier(tables: Tables) -> Measured | Untestable:
    """Subtract how much `tanh` control changes the rate from buffer to buffer from how much `scaled` control does."""
    modes = {mode: first_of(tables, {**USUAL, "streaming.control": mode}) for mode in ("scaled", "tanh")}
    if not all(modes.values()):
        return Untestable("needs AMS with tanh and with scaled control")
    buffers = tables.once(_buffers)
    settled = buffers[buffers["start_s"] >= buffers.groupby("cell")["start_s"].transform("max") / 2]
    changes = settled.groupby(STREAM)["rate"].diff().abs()
    wide = settled.assign(change=changes).pivot_table("change", [*CELL, "device", "app"], "system")
    note = f"{wide[modes['scaled']].mean():.3f} against {wide[modes['tanh']].mean():.3f} {HZ} from buffer to buffer"
    return over_seeds(wide[modes["scaled"]] - wide[modes["tanh"]], note)


def time_to_encode(tables: Tables) -> Measured | Untestable:
    """Tell how long this machine took to encode the buffer that took it longest, seed by seed."""
    clips = [name for name, member in members(tables, "streaming", "ams").items() if member["codec"].startswith("h264")]
    sent = tables.once(uploads)
    took = sent[sent["system"].isin(clips)].dropna(subset="host_pack_seconds")
    if took.empty:
        return Untestable("needs AMS that sends H.264")
    worst = took.groupby("seed")["host_pack_seconds"].max()
    note = f"on this machine; {1000 * took['host_pack_seconds'].mean():.3g} ms on average"
    return over_seeds(worst, note)


def _quickest(tables: Tables) -> list[str]:
    """Name the AMS system that asks most often: stops are short."""
    adaptive = {name: one for name, one in members(tables, "streaming", "ams").items() if one["control"] != "fixed"}
    return sorted(adaptive, key=lambda name: adaptive[name]["interval_s"])[:1]


def _buffers(tables: Tables) -> pd.DataFrame:
    """List every buffer of every AMS stream, with what the stream shows."""
    sent = tables.once(uploads)
    sent = sent[sent["system"].isin(list(members(tables, "streaming", "ams")))]
    return sent.merge(sceneries(tables, sent["cell"]), on=["cell", "device"])
