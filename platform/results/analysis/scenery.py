"""What streams show beside their frames: whether a scene stays, whether its light drifts, and where the camera is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from driftlab.datasets.catalogue import scenery_of
from driftlab.platform.results.analysis.cells import labels_of
from driftlab.platform.results.tables.read import Tables

if TYPE_CHECKING:
    import pandas as pd

STEP_S = 0.5  # of ways that are drawn again


def sceneries(tables: Tables, cells: pd.Series) -> pd.DataFrame:
    """List the devices of some cells: `cell`, `device`, and of streets `steady`, `drifts` and `way`.

    A way is a frame with `time_s` and `travelled_m`. Runs before schema 4.3 recorded none of it: their streets are
    drawn again from their seeds.
    """
    import pandas as pd

    ways = dict(list(tables.frame("motion").groupby(["cell", "device"])))
    runs = tables.frame("runs").set_index("cell")[["workload", "duration_s"]]
    names, drawn, found = labels_of(tables), dict[tuple[str, int], pd.DataFrame](), []
    devices = tables.frame("devices")
    for row in devices[devices["cell"].isin(cells)].itertuples(index=False):
        steady, drifts, way = row.steady, row.drifts, ways.get((row.cell, row.device))
        workload, duration_s = runs.loc[row.cell]
        name = names.get(workload, "")
        if way is None and name.startswith("streets/") and (scenery := scenery_of(name, int(row.stream_seed))):
            steady, drifts, stream = scenery.steady, scenery.drifts, (name, int(row.stream_seed))
            if stream not in drawn:
                times_s = np.arange(0.0, duration_s, STEP_S)
                travelled_m = [scenery.travelled_m(time_s) for time_s in times_s.tolist()]
                drawn[stream] = pd.DataFrame({"time_s": times_s, "travelled_m": travelled_m})
            way = drawn[stream]
        found.append((row.cell, row.device, steady, drifts, way))
    return pd.DataFrame(found, columns=["cell", "device", "steady", "drifts", "way"])
