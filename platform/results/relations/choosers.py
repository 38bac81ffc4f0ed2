"""Compare rules that choose among the same networks.

The relations list frames that are right in time, late frames, and a bound per frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from driftlab.platform.results.relations.base import CELL, STREAM, completed_cells, no_rows, pair_rows
from driftlab.platform.results.relations.lateness import right_in_time as score_in_time
from driftlab.platform.results.relations.lateness import with_lateness
from driftlab.platform.results.relations.paths import by_setting, loaded, under_each_load
from driftlab.platform.results.tables.read import Tables

if TYPE_CHECKING:
    import pandas as pd

NEEDS = "needs adascale with 'chooser: {}'"


def outcomes(tables: Tables) -> pd.DataFrame:
    """List for each cell the share of frames that are right in time, and the share of late ones.

    Late frames are those that miss the latency goal.
    """
    cells = completed_cells(tables)[["cell", "system", *CELL]]
    frames = with_lateness(tables, tables.frame("frames"), next_frame=False)
    late = frames.groupby("cell")["late"].mean()
    found = cells.assign(right=cells["cell"].map(score_in_time(tables)), late=cells["cell"].map(late))
    return loaded(found.set_index(["system", *CELL]).sort_index(), tables)


def right_in_time(tables: Tables, ours: str, theirs: str) -> pd.DataFrame:
    """List the share of frames that are right in time by two rules of adascale."""
    return _compare(tables, ours, theirs, "right")


def late(tables: Tables, ours: str, theirs: str) -> pd.DataFrame:
    """List the share of late frames by two rules of adascale.

    The share of `theirs` is first, so that a gain is positive.
    """
    return _compare(tables, theirs, ours, "late")


def below_oracle(tables: Tables, rule: str) -> pd.DataFrame:
    """List the accuracy in time of the oracle per frame, and of a rule of adascale."""
    system = by_setting(tables, "chooser").get(rule)
    if system is None:
        return no_rows(NEEDS.format(rule))
    found = oracle(tables)
    own = found[found["system"] == system].set_index(CELL)
    return pair_rows(own["best"], own["own"], under_each_load(own["best"] - own["own"]))


def oracle(tables: Tables) -> pd.DataFrame:
    """List for each cell the mean held-out accuracy in time of the frames, and at best.

    `own` is the accuracy of the network of each frame, and `best` that of the best network. A late frame counts as 0.
    The best is the most accurate network whose latency fits into the deadline at the true speed from the frame on, with
    an idle device.
    """
    import pandas as pd

    cells = completed_cells(tables)[["cell", "system", *CELL]]
    frames = with_lateness(tables, tables.frame("frames"), next_frame=False).merge(cells, on="cell")
    loads, shares, networks = (
        dict(list(tables.frame(name).groupby(STREAM))) for name in ("loads", "shares", "variants")
    )
    rows = []
    for place, own in frames.groupby(STREAM):
        if place in loads and place in networks:
            best, chosen = _in_time(own.sort_values("time_s"), loads[place], shares[place], networks[place])
            rows.append((place[0], best, chosen))
    found = pd.DataFrame(rows, columns=["cell", "best", "own"]).groupby("cell").mean()
    return cells.merge(found, left_on="cell", right_index=True)


def _in_time(
    frames: pd.DataFrame, loads: pd.DataFrame, shares: pd.DataFrame, networks: pd.DataFrame
) -> tuple[float, float]:
    """Return the mean accuracy in time of the frames at best, and as they were."""
    times_s, goal_s = frames["time_s"].to_numpy(), frames["deadline_ms"].iloc[0] / 1e3
    loads, shares = loads.sort_values("time_s"), shares.sort_values("time_s")
    edges_s = loads["time_s"].to_numpy()
    done_s = np.concatenate([[0.0], np.cumsum(np.diff(edges_s) * loads["speed"].to_numpy()[:-1])])
    last = loads["speed"].iloc[-1]
    ends_s = np.append(edges_s, edges_s[-1] + 1e6)
    work_s = np.append(done_s, done_s[-1] + 1e6 * last)
    room_s = np.interp(times_s + goal_s, ends_s, work_s) - np.interp(times_s, ends_s, work_s)
    fits = networks["latency_ms"].to_numpy()[None] / 1e3 <= room_s[:, None] + 1e-9
    best = np.where(fits, networks["accuracy"].to_numpy()[None], 0.0).max(axis=1)
    running = shares["accuracy"].to_numpy()[np.searchsorted(shares["time_s"].to_numpy(), times_s, side="right") - 1]
    return float(best.mean()), float(np.where(frames["late"], 0.0, running).mean())


def _compare(tables: Tables, first: str, second: str, column: str) -> pd.DataFrame:
    systems = by_setting(tables, "chooser")
    if missing := [rule for rule in (first, second) if rule not in systems]:
        return no_rows(NEEDS.format(missing[0]))
    found = outcomes(tables)
    sides = [found.loc[systems[rule]][column] for rule in (first, second)]
    return pair_rows(sides[0], sides[1], under_each_load(sides[0] - sides[1]))
