"""Properties of streams: static scenes, drifting appearance, and camera trajectories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from driftlab.datasets.catalogue import label_of, scene_properties
from driftlab.platform.results.relations.base import labels_of
from driftlab.platform.results.tables.read import Tables

if TYPE_CHECKING:
    import pandas as pd

DRAWN = ("streets/", "city/")
VALUES = 3  # of a parameter, at least
TRAJECTORY = ["time_s", "travelled_m", "speed_mps", "acceleration_mps2"]


def sceneries(tables: Tables, cells: pd.Series) -> pd.DataFrame:
    """List devices with `static_scene`, `appearance_drift` and `trajectory`, which only streets have.

    A trajectory has a row per stretch of constant acceleration, as table `motion`. Trajectories that a run did not
    record are drawn again from the seeds of their streets.
    """
    import pandas as pd

    trajectories = dict(list(tables.frame("motion").groupby(["cell", "device"])))
    runs = tables.frame("runs").set_index("cell")[["workload", "duration_s"]]
    names, drawn, found = tables.once(labels_of), dict[tuple[str, int], pd.DataFrame](), []
    devices = tables.frame("devices")
    for row in devices[devices["cell"].isin(cells)].itertuples(index=False):
        static, drift, trajectory = row.static_scene, row.appearance_drift, trajectories.get((row.cell, row.device))
        workload, duration_s = runs.loc[row.cell]
        name = names.get(workload, "")
        if trajectory is None and name.startswith(DRAWN) and (scenery := scene_properties(name, int(row.stream_seed))):
            static, drift, stream = scenery.static_scene, scenery.appearance_drift, (name, int(row.stream_seed))
            if stream not in drawn:
                drawn[stream] = pd.DataFrame(scenery.stretches(duration_s), columns=TRAJECTORY)
            trajectory = drawn[stream]
        found.append((row.cell, row.device, static, drift, trajectory))
    return pd.DataFrame(found, columns=["cell", "device", "static_scene", "appearance_drift", "trajectory"])


def stops(trajectory: pd.DataFrame) -> pd.Series:
    """Mark the stretches in which the camera is stationary."""
    return (trajectory["speed_mps"] == 0) & (trajectory["acceleration_mps2"] == 0)


def travelled_m(trajectory: pd.DataFrame, times_s: pd.Series) -> npt.NDArray[np.float64]:
    """Return the distance that the camera has travelled at these times."""
    rows = np.searchsorted(trajectory["time_s"], times_s, side="right") - 1
    begin_s, begin_m, speed, acceleration = trajectory[TRAJECTORY].to_numpy()[rows].T
    since_s = times_s.to_numpy() - begin_s
    return np.asarray(begin_m + since_s * (speed + acceleration * since_s / 2))


def swept(tables: Tables) -> dict[str, dict[str, float]]:
    """Map each parameter with several values, all others equal, to its workloads and their values."""
    workloads = tables.run.spec.get("workloads") or ()
    params = {
        str(part.get("alias") or label_of(part["name"])): (part["name"], dict(part.get("params") or {}))
        for part in workloads
    }
    found: dict[str, dict[str, float]] = {}
    for knob in dict.fromkeys(key for _, one in params.values() for key in one):
        groups: dict[str, dict[str, float]] = {}
        for label, (name, one) in params.items():
            if isinstance(one.get(knob), int | float):
                rest = repr((name, sorted((key, value) for key, value in one.items() if key != knob)))
                groups.setdefault(rest, {})[label] = float(one[knob])
        largest: Mapping[str, float] = max(groups.values(), key=len, default={})
        if len(set(largest.values())) >= VALUES:
            found[knob] = dict(largest)
    return found
