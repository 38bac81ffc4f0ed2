"""Claims about when AMS samples and trains, and how far back it looks.

AMS-15 and AMS-16 are read from a run of `ams-horizon`, the others from `ams-rates`. A sampling rate is what an upload
brought over the time since the upload before.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from driftlab.datasets.streets.presets import PRESETS, Preset
from driftlab.platform.results.analysis.cells import CELL, done, labels_of, members, slot, table_of, uploads
from driftlab.platform.results.analysis.measured import Measured, Untestable, over_seeds
from driftlab.platform.results.claims.base import DIFFERENCE, Claim
from driftlab.platform.results.tables.read import Tables
from driftlab.platform.results.tables.systems import Slot

if TYPE_CHECKING:
    import pandas as pd

HZ = "frames/s"
HALF = "half"  # the student of half the width
USUAL = (10.0, 0.1, 1.0)  # interval_s, low_fps and high_fps of AMS
STREAM = ["cell", "device", "app"]

# How far back to look -------------------------------------------------------------------------------------------------


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
    value = ((short_soon - short_late) - (long_soon - long_late)).dropna()
    note = f"horizon {horizons[0]:g} against {horizons[-1]:g} s, intervals {intervals[0]:g} and {intervals[-1]:g} s"
    return over_seeds(value.rename("value").reset_index(), note)


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
        for name, member in _ams(tables).items()
        if not member["slowdown"]
    }


def _ends(values: list[float]) -> list[float]:
    return [values[0], values[-1]] if len(values) > 1 else []


# Both controllers -----------------------------------------------------------------------------------------------------


def rate_falls_in_stops(tables: Tables) -> Measured | Untestable:
    """Subtract the mean rate after a stop from the mean rate after a drive, where cameras do both.

    A buffer is filled at the rate that the labels of the two intervals before it asked for, so their speed counts.
    """
    from driftlab.datasets.streets.travel import draw_travel

    buffers = _on(
        tables, _buffers(tables), lambda preset: {speed > 0 for _, speed in preset.speed_mps} == {True, False}
    )
    buffers = buffers[buffers["system"].isin(_quickest(tables))]
    rows = []
    for (name, seed, stream_seed, _), part in buffers.groupby(["preset", "seed", "stream_seed", "app"]):
        travel = draw_travel(PRESETS[name], stream_seed)
        later = part[part["start_s"] > 2 * part["gap_s"]]
        moved_m = [
            travel.distance_m(row.start_s) - travel.distance_m(row.start_s - 2 * row.gap_s)
            for row in later.itertuples()
        ]
        speed = np.array(moved_m) / (2 * later["gap_s"])
        fast = speed > speed.median()
        rows.append({"seed": seed, "value": later["rate"][fast].mean() - later["rate"][~fast].mean()})
    if not rows:
        return Untestable("needs AMS on a street with stops, such as driving_la")
    return over_seeds(table_of(rows))


def slows_down_on_a_still_scene(tables: Tables) -> Measured | Untestable:
    """Tell by how much the interval between uploads has grown at the end of one scene before a standing camera."""
    buffers = _on(tables, _buffers(tables), lambda preset: _still(preset) and len(preset.visits) == 1)
    buffers = buffers[buffers["system"] == "ams"]
    if buffers.empty:
        return Untestable("needs 'ams' on a scene that stands still, such as interview")
    usual_s = slot(tables, "ams", "streaming")["interval_s"]
    last = buffers.groupby(["seed", *STREAM])["gap_s"].last() - usual_s
    slow = buffers[buffers["gap_s"] > usual_s + 1e-6].groupby(STREAM)["start_s"].min()
    note = f"in {len(slow)} of {len(last)} streams" + (f", from {slow.mean():.0f} s on" if len(slow) else "")
    return over_seeds(last.rename("value").reset_index(), note)


def rates_within_bounds(tables: Tables) -> Measured | Untestable:
    """Tell which share of the streams has a mean rate within the limits of the controller."""
    buffers = _buffers(tables)
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
    modes = {member["control"]: name for name, member in reversed(_ams(tables).items()) if _usual(member)}
    if not {"scaled", "tanh"} <= set(modes):
        return Untestable("needs AMS with tanh and with scaled control")
    buffers = _buffers(tables)
    settled = buffers[buffers["start_s"] >= buffers.groupby("cell")["start_s"].transform("max") / 2]
    changes = settled.groupby(STREAM)["rate"].diff().abs()
    wide = settled.assign(change=changes).pivot_table("change", [*CELL, "device", "app"], "system")
    value = (wide[modes["scaled"]] - wide[modes["tanh"]]).dropna()
    note = f"{wide[modes['scaled']].mean():.3f} against {wide[modes['tanh']].mean():.3f} {HZ} from buffer to buffer"
    return over_seeds(value.rename("value").reset_index(), note)


def time_to_encode(tables: Tables) -> Measured | Untestable:
    """Tell how long this machine took to encode the buffer that took it longest, seed by seed."""
    clips = [name for name, member in _ams(tables).items() if member["codec"].startswith("h264")]
    sent = uploads(tables)
    took = sent[sent["system"].isin(clips)].dropna(subset="host_pack_seconds")
    if took.empty:
        return Untestable("needs AMS that sends H.264")
    worst = took.groupby("seed")["host_pack_seconds"].max()
    note = f"on this machine; {1000 * took['host_pack_seconds'].mean():.3g} ms on average"
    return over_seeds(worst.rename("value").reset_index(), note)


def _ams(tables: Tables) -> dict[str, Slot]:
    return members(tables, "streaming", "ams")


def _usual(member: Slot) -> bool:
    return (member["interval_s"], member["low_fps"], member["high_fps"]) == USUAL


def _quickest(tables: Tables) -> list[str]:
    """Name the AMS system that asks most often: stops are short."""
    members = {name: member for name, member in _ams(tables).items() if member["control"] != "fixed"}
    return sorted(members, key=lambda name: members[name]["interval_s"])[:1]


def _buffers(tables: Tables) -> pd.DataFrame:
    """List every buffer of every AMS stream, with the seed of the stream."""
    sent = uploads(tables)
    streams = tables.frame("devices")[["cell", "device", "stream_seed"]]
    return sent[sent["system"].isin(list(_ams(tables)))].merge(streams, on=["cell", "device"])


def _on(tables: Tables, buffers: pd.DataFrame, kind: Callable[[Preset], bool]) -> pd.DataFrame:
    """Keep the streets of one kind, with the name of their preset."""
    names: Mapping[str, Any] = {
        label: name.removeprefix("streets/")
        for label, name in labels_of(tables).items()
        if name.removeprefix("streets/") in PRESETS and kind(PRESETS[name.removeprefix("streets/")])
    }
    return buffers[buffers["workload"].isin(list(names))].assign(preset=buffers["workload"].map(names))


def _still(preset: Preset) -> bool:
    return all(speed == 0 for _, speed in preset.speed_mps)


CLAIMS = (
    Claim(
        id="AMS-15",
        experiment="ams-horizon",
        source="AMS, Figure 8b",
        sentence="a short horizon loses more than a long one when updates come less often",
        paper=0.0,
        unit=DIFFERENCE,
        rule="ge",
        measure=short_horizon_ages,
    ),
    Claim(
        id="AMS-16",
        experiment="ams-horizon",
        source="AMS, Figure 8a",
        sentence="the horizon with which a small student scores best",
        paper=256.0,
        unit="s",
        rule="info",
        measure=best_horizon,
    ),
    Claim(
        id="AMS-17",
        experiment="ams-rates",
        source="AMS, Figure 3",
        sentence="the sampling rate falls while the camera stands",
        paper=0.0,
        unit=HZ,
        rule="ge",
        measure=rate_falls_in_stops,
    ),
    Claim(
        id="AMS-18",
        experiment="ams-rates",
        source="AMS, Figure 9: on Interview from about 150 s on; Appendix D: by 2 s each time",
        sentence="the training interval grows on a still scene",
        paper=2.0,
        unit="s",
        rule="ge",
        measure=slows_down_on_a_still_scene,
    ),
    Claim(
        id="AMS-19",
        experiment="ams-rates",
        source="AMS, Figure 11",
        sentence="the mean sampling rate of every stream is within its limits",
        paper=1.0,
        unit="of the streams",
        rule="exact",
        measure=rates_within_bounds,
    ),
    Claim(
        id="AMS-21",
        experiment="ams-rates",
        source="AMS, Section 3.2: at most 1 s",
        sentence="encoding a buffer takes little time",
        paper=1.0,
        unit="s",
        rule="le",
        measure=time_to_encode,
    ),
    Claim(
        id="RATE-1",
        experiment="ams-rates",
        source="driftlab: a gain that follows the rate",
        sentence="the sampling rate is steadier under `scaled` control than under the paper's",
        paper=0.0,
        unit=HZ,
        rule="le",
        measure=scaled_control_is_steadier,
    ),
)
