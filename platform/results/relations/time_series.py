"""Time series of a run: live scores, scene changes, compute shares and the cost of switching."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from driftlab.platform.results.tables.columns import LIVE_SCORE

if TYPE_CHECKING:
    import pandas as pd

BINS = 20  # of a window


def average_scores(runs: pd.DataFrame, frames: pd.DataFrame, points: int) -> pd.DataFrame:
    """Average live scores over applications, by system, seed and one of at most `points` bins of time."""
    scored = frames.dropna(subset=[LIVE_SCORE])[["cell", "time_s", LIVE_SCORE]]
    joined = scored.merge(runs[["cell", "system", "seed"]], on="cell")
    times = np.unique(joined["time_s"].to_numpy())
    edges = times[:: max(1, -(-len(times) // points))]
    joined["bin"] = np.searchsorted(edges, joined["time_s"].to_numpy(), side="right") - 1
    grouped = joined.groupby(["system", "seed", "bin"], as_index=False)
    return grouped[["time_s", LIVE_SCORE]].mean()


def scene_changes(frames: pd.DataFrame) -> pd.DataFrame:
    """List the times of scene changes and the share of streams that change then."""
    ordered = frames[["cell", "device", "app", "time_s", "scene"]].sort_values(["cell", "device", "app", "time_s"])
    same = ordered["cell"].eq(ordered["cell"].shift()) & ordered["device"].eq(ordered["device"].shift())
    same &= ordered["app"].eq(ordered["app"].shift())
    changed = ordered[same & ordered["scene"].ne(ordered["scene"].shift())]
    streams = max(1, len(ordered[["cell", "device", "app"]].drop_duplicates()))
    counts = changed.groupby("time_s").size()
    return counts.div(streams).rename("share").reset_index()


def score_within_windows(frames: pd.DataFrame, window_s: float) -> pd.DataFrame:
    """Average the scores of frames by the time since their window began, `into_s`, system by system."""
    scored = frames.dropna(subset=["score_frame"])
    bins = (scored["time_s"] % window_s * BINS / window_s + 1e-9) // 1  # rounding must not part equal times
    scored = scored.assign(into_s=bins * window_s / BINS)
    return scored.groupby(["system", "into_s"], as_index=False)["score_frame"].mean()


def join_windows(rows: pd.DataFrame) -> pd.DataFrame:
    """Join windows that follow one another with the same network on the same share."""
    rows = rows.sort_values(["app", "time_s"]).assign(end_s=rows["time_s"] + rows["window_s"])
    last = rows.shift()
    goes_on = rows["app"].eq(last["app"]) & (rows["time_s"] - last["end_s"]).abs().lt(1e-6)
    goes_on &= rows["inference_share"].eq(last["inference_share"]) & rows["variant"].fillna(-1).eq(
        last["variant"].fillna(-1)
    )
    by_stay = rows.groupby((~goes_on).cumsum())
    found = by_stay[["cell", "device", "app", "time_s", "inference_share", "variant"]].first()
    return found.assign(end_s=by_stay["end_s"].last())


def moved_bytes(rows: pd.DataFrame, side: str) -> dict[str, pd.Series]:
    """Return the cumulative bytes of each system over time, averaged over devices and seeds."""
    each = rows.assign(moved=rows[side] / rows["devices"]).groupby(["system", "time_s", "seed"])["moved"].sum()
    return {
        str(name): own.droplevel("system").unstack(fill_value=0.0).cumsum().mean(axis="columns")
        for name, own in each.groupby("system")
    }


def switching_energy(changed: pd.DataFrame) -> pd.Series:
    """Return the mean cumulative energy over the number of switches that all traces reach."""
    ordered = changed.sort_values(["time_s", "app"])
    traces = ordered.groupby(["cell", "device"])["paging_j"]
    sums = traces.cumsum().groupby(traces.cumcount() + 1)
    return sums.mean()[sums.size() == sums.size().max()]
