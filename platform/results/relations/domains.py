"""What each stretch of a domain was worth before and after adapting to it, what that cost, and what was forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from driftlab.platform.results.relations.cells import done, labels_of, members, of_kinds
from driftlab.platform.results.tables.read import Tables

if TYPE_CHECKING:
    import pandas as pd

    from driftlab.platform.results.tables.systems import Slot

STREAM = ["cell", "device", "app"]
COSTS = ("phase_s", "phase_j", "memory_bytes", "latency_ms", "frame_j")  # columns of `costs`
STATISTICS = ("adabn", "onda", "tent")  # members that tune batch norms alone
SMALL = {"scaling": "independent"}  # a network of the surrogate's size that was pruned offline
WHOLE = {"scaling": "fixed"}


def stretches(tables: Tables) -> pd.DataFrame:
    """List the stretches of all streams through domains: `before` and `after` the frames to adapt on, and `score`.

    A stretch is what a stream shows of one domain at a time. Without frames to adapt on, before and after are unknown.
    """
    runs, names = done(tables), tables.once(labels_of)
    through = [workload for workload in runs["workload"].unique() if names.get(workload, "").startswith("domains:")]
    runs = runs[runs["workload"].isin(through)][["cell", "system", "workload", "fleet", "seed"]]
    rows = tables.frame("frames").merge(runs[["cell"]], on="cell").sort_values([*STREAM, "frame"])
    changed = rows["scene"].ne(rows.groupby(STREAM)["scene"].shift())
    rows = rows.assign(stretch=changed.groupby([rows[key] for key in STREAM]).cumsum() - 1)
    own = [*STREAM, "stretch", "scene"]
    hidden = rows["score_frame"].isna()
    first, last = (
        rows["frame"].where(hidden).groupby([rows[key] for key in own]).transform(how) for how in ("min", "max")
    )
    parts = {"before": rows["frame"] < first, "after": rows["frame"] > last, "score": ~hidden}
    for name, chosen in parts.items():
        rows[name] = rows["score_frame"].where(chosen)
    found = rows.groupby(own)[list(parts)].mean().reset_index().merge(runs, on="cell")
    return found.assign(start=rows.groupby(own)["frame"].min().to_numpy())


def costs(tables: Tables) -> pd.DataFrame:
    """List what each cell paid: time and joules of a phase alone, memory, latency and joules of a frame."""
    runs = done(tables).set_index("cell")
    updates, devices = tables.frame("updates"), tables.frame("devices")
    phases = updates[updates["place"].eq("device") & updates["work_s"].notna()].groupby("cell")
    frames = tables.frame("frames")
    answered = frames[frames["processed"].eq(True)].groupby("cell")
    found = runs[["system", "workload", "fleet", "seed"]].copy()
    found["phase_s"], found["phase_j"] = phases["work_s"].mean(), phases["energy_j"].mean()
    found["memory_bytes"] = devices.groupby("cell")["peak_memory_bytes"].max()
    found["latency_ms"] = answered["latency_ms"].median()
    found["frame_j"] = runs["answering_j"] / answered.size()
    return found.reset_index()


def forgetting(tables: Tables) -> pd.DataFrame:
    """List by how much each stretch of a domain that was shown before falls below the best so far: `lost`, `round`.

    Domains are compared with themselves, so that one which is harder does not count as forgotten.
    """
    rows = tables.once(stretches).sort_values([*STREAM, "stretch"])
    place = [*STREAM, "scene"]
    visits = rows.groupby(place)
    best = visits["score"].transform(lambda scores: scores.cummax().shift())
    rows = rows.assign(round=visits.cumcount(), lost=best - rows["score"])
    return rows[rows["round"] > 0]


def rivals(tables: Tables, *, small: bool, statistics: bool = True) -> dict[str, Slot]:
    """Name the systems that adapt a network of the surrogate's size, or the whole one, and what adapts it."""
    kind = SMALL if small else WHOLE
    found = members(tables, "adaptation")
    adapting = {name: found[name] for name in of_kinds(tables, kind) if found[name].name != "frozen"}
    return {name: one for name, one in adapting.items() if statistics or one.name not in STATISTICS}


def usual_surrogates(tables: Tables) -> list[str]:
    """Name ElasticDNN as it is, without the variants that take a part of it away."""
    usual = {"adaptation.select": "cumulative", "adaptation.objective": "information", "scaling.filters": "relevant"}
    return of_kinds(tables, {"scaling": "surrogate", "adaptation": "elasticdnn", **usual, "scaling.absorb_alpha": 1.0})


def factor_over(rows: pd.DataFrame, ours: str, theirs: list[str], column: str) -> pd.Series:
    """Divide what rivals pay by what one system pays, averaged over rivals as factors are: by seed."""
    wide = rows.pivot_table(column, ["workload", "seed"], "system")
    known = [name for name in theirs if name in wide and wide[name].notna().all() and (wide[name] > 0).all()]
    if ours not in wide or not known:
        return wide.iloc[:0].sum(axis=1)
    ratios = wide[known].div(wide[ours], axis=0)
    factors: pd.Series = np.exp(np.log(ratios).mean(axis=1))
    return factors
