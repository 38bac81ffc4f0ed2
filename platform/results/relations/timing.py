"""Jobs of a run: accuracy, inference and training time per batch, in the fleet without missed frames.

The utilities at every load are computed from these jobs; the scores of slower fleets are measured under time pressure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from driftlab.datasets.catalogue import label_of
from driftlab.platform.results.relations.base import (
    completed_cells,
    learners,
    members,
    no_rows,
    pair_rows,
    value_rows,
    with_columns,
    with_note,
)
from driftlab.platform.results.relations.utility import (
    Floats,
    Jobs,
    Rows,
    Utility,
    continuous,
    discrete,
    overhead,
    relative,
)
from driftlab.platform.results.stats import rank_correlation
from driftlab.platform.results.tables.read import Tables

if TYPE_CHECKING:
    import pandas as pd

PLAIN = "no_adaptation"  # the bound whose time is that of plain inference
PACES = (0.25, 0.35, 0.5, 0.7, 1.0)  # time of plain inference over the time between two jobs
PATIENCES = (1.25, 2.5, 5.0, 10.0, 25.0)  # wait for half of the utility, over the time of plain inference
TIMED = {"discrete": PACES, "continuous": PATIENCES}
CELL = ["system", "workload", "seed"]
TIED = "needs systems of different utility; all tie"


@dataclass(frozen=True)
class LoadLevel:
    """A fleet with its utilisation by plain inference and the largest share of missed frames."""

    fleet: str
    utilisation: float
    missed: float  # the largest share among systems


def isolated_latencies(tables: Tables, student: str, height: int, width: int) -> pd.DataFrame:
    """List the median latency of frames on cells with this student and these sizes of frames, in ms."""
    parts = tables.run.spec.get("workloads", ())
    sizes = {part.get("alias") or label_of(part["name"]): (part.get("height"), part.get("width")) for part in parts}
    runs = completed_cells(tables)
    runs = runs[runs["student"].eq(student)]
    runs = runs[runs["workload"].map(lambda name: sizes.get(name) == (height, width)).astype(bool)]
    frames = tables.frame("frames").merge(runs[["cell", "seed"]], on="cell").dropna(subset=["latency_ms"])
    return value_rows(frames.groupby("seed")["latency_ms"].median()) if len(frames) else no_rows()


def load_levels(tables: Tables) -> list[LoadLevel]:
    """List the fleets with training on the stream, the least utilised first.

    A fleet needs the bound without adaptation, whose frames give the time of plain inference.
    """
    runs = completed_cells(tables)
    learning = runs[runs["cell"].isin(tables.frame("adaptations")["cell"])]["fleet"]
    runs = runs[runs["fleet"].isin(learning)]
    frames = tables.frame("frames").merge(runs[["cell", "system", "fleet", "bound"]], on="cell")
    found = []
    for fleet, own in frames.groupby("fleet"):
        plain = own[own["bound"] == PLAIN]
        if plain.empty:
            continue
        period_s = plain.groupby(["cell", "device", "app"])["time_s"].diff().median()
        busy = plain["latency_ms"].median() / 1000 / period_s
        missed = 1 - own.groupby("system")["processed"].mean().min()
        found.append(LoadLevel(str(fleet), float(busy), float(missed)))
    return sorted(found, key=lambda pace: pace.utilisation)


def jobs_of(tables: Tables) -> dict[tuple[str, str, int], Jobs]:
    """Return the jobs of the least utilised fleet, if it misses no frames: by system, workload and seed.

    A job is one training batch. Systems that train in phases, or not at all, have jobs of the same size; a phase is
    trained after the job in which it begins.
    """
    calm = next((pace.fleet for pace in load_levels(tables)[:1] if pace.missed == 0), None)
    runs = completed_cells(tables)
    runs = runs[runs["fleet"] == calm]
    frames = dict(list(tables.frame("frames").groupby("cell")))
    batches = dict(list(tables.frame("adaptations").groupby("cell")))
    updates = tables.frame("updates")
    phases = dict(list(updates[updates["learner_site"].eq("device") & updates["isolated_s"].notna()].groupby("cell")))
    if runs.empty or not batches:
        return {}
    usual = max((int(own["frames"].max()) for own in batches.values()), default=1)
    plain = runs[runs["bound"] == PLAIN]
    plain_s = float(np.median(np.concatenate([frames[cell]["latency_ms"] for cell in plain["cell"]]))) / 1000
    plain_j = float((plain["inference_j"] / plain["frames"]).mean())
    found = {}
    for row in runs.itertuples():
        inference_s = plain_s * float(row.inference_j) / float(row.frames) / plain_j  # of a frame
        own = frames[row.cell].sort_values("time_s")
        sizes, training_s = job_training(own, batches.get(row.cell), phases.get(row.cell), usual)
        jobs = _jobs(own, sizes, training_s, (inference_s, usual * plain_s))
        if len(jobs.accuracy):
            found[str(row.system), str(row.workload), int(row.seed)] = jobs
    return found


def job_training(
    frames: pd.DataFrame, batches: pd.DataFrame | None, phases: pd.DataFrame | None, usual: int
) -> tuple[Rows, Floats]:
    """Return the number of frames and the training time of each job."""
    if batches is not None:
        rows = batches.sort_values("start_s")
        return rows["frames"].to_numpy(int), rows["isolated_s"].to_numpy(float)
    sizes, training_s = np.full(len(frames) // usual, usual), np.zeros(len(frames) // usual)
    if phases is not None:
        newest = np.searchsorted(frames["time_s"], phases["train_start_s"], side="right") - 1
        jobs = newest // usual
        np.add.at(training_s, jobs[jobs < len(sizes)], phases["isolated_s"].to_numpy(float)[jobs < len(sizes)])
    return sizes, training_s


def _jobs(frames: pd.DataFrame, sizes: Rows, training_s: Floats, each_s: tuple[float, float]) -> Jobs:
    """Cut a stream into jobs of these sizes; `each_s`: inference time of a frame, plain time of a job."""
    scores = frames["score_frame"].to_numpy(float)
    stops = np.cumsum(sizes)
    kept = stops <= len(scores)
    sizes, stops, training_s = sizes[kept], stops[kept], training_s[kept]
    accuracy = np.array([np.nanmean(scores[stop - size : stop]) for size, stop in zip(sizes, stops, strict=True)])
    inference_s, plain_s = each_s
    return Jobs(accuracy, np.asarray(sizes * inference_s, np.float64), training_s, plain_s)


def stopping(tables: Tables) -> dict[str, tuple[str, int]]:
    """Map the systems that stop training to their member and its number of steps."""
    found = members(tables, "adaptation", "sparse")
    return {name: (str(one["member"]), int(one["budget"])) for name, one in found.items() if one["budget"]}


def budgets(tables: Tables) -> pd.DataFrame:
    """Average the amortised utility of members that stop training, by `member` and `steps`.

    `overhead` is the time of training over that of plain inference. Each member also has a row with 0 steps, the system
    without training, and one with unlimited steps.
    """
    import pandas as pd

    stops, slots = stopping(tables), members(tables, "adaptation")
    learning = set(with_columns(tables, "adaptations", "system")["system"])
    rows = list[tuple[str, float, float, float]]()
    for member in dict.fromkeys(name for name, _ in stops.values()):
        endless = next((name for name, one in slots.items() if one.name == member and name in learning), None)
        plain = next((name for name, one in slots.items() if one.name == "frozen"), None)
        steps = {name: float(count) for name, (own, count) in stops.items() if own == member}
        steps |= {str(plain): 0.0, str(endless): math.inf}
        measured = [
            (member, steps[system], overhead(jobs), float(jobs.accuracy.mean()))
            for (system, *_), jobs in tables.once(jobs_of).items()
            if system in steps
        ]
        rows += sorted(measured, key=lambda row: row[1])
    found = pd.DataFrame(rows, columns=["member", "steps", "overhead", "utility"])
    return found.groupby(["member", "steps"], sort=False).mean()


def utilities(tables: Tables) -> pd.DataFrame:
    """List the utility of each system at each load and patience: a row per cell, kind and pressure.

    `budgets` has the systems that stop training. Kinds are `offline` (no job is missed), `discrete` (a missed job has
    no utility), `relative` (relative adaptation speed), and `continuous` (utility falls with the waiting time).
    """
    import pandas as pd

    rows, stops = [], stopping(tables)
    for (system, workload, seed), jobs in tables.once(jobs_of).items():
        for kind, pressure, found in _valued(jobs) if system not in stops else ():
            part = found.value, found.availability, found.served, found.timeliness, found.alignment, found.adapted
            rows.append((system, workload, seed, kind, pressure, *part))
    parts = ["utility", "availability", "served", "timeliness", "alignment", "adapted"]
    return pd.DataFrame(rows, columns=[*CELL, "kind", "pressure", *parts])


def mean_utilities(tables: Tables) -> pd.Series:
    """Average `utilities` over workloads and seeds, by kind, pressure and system."""
    return tables.once(utilities).groupby(["kind", "pressure", "system"])["utility"].mean()


def served_scores(tables: Tables) -> pd.DataFrame:
    """Average the `score` of each fleet and system, and the share of frames that are `processed`."""
    by = ["fleet", "system"]
    scores = completed_cells(tables).groupby(by)["score_frame"].mean()
    return scores.to_frame("score").join(with_columns(tables, "frames", *by).groupby(by)["processed"].mean())


def costs_of_fleet(tables: Tables, fleet: str) -> pd.DataFrame:
    """Average accuracy and costs on one fleet, by system; shares are of samples accepted for training."""
    import pandas as pd

    rows = (with_columns(tables, name, "system", "fleet") for name in ("frames", "adaptations", "devices"))
    cells, frames, batches, devices = (
        each[each["fleet"] == fleet].groupby("system") for each in (completed_cells(tables), *rows)
    )
    return pd.DataFrame({
        "accuracy": cells["score_frame"].mean(),
        "missed, %": 100 * (1 - frames["processed"].mean()),
        "latency, ms": frames["latency_ms"].median(),
        "energy, J": cells["energy_j"].mean(),
        "memory, kB": devices["peak_memory_bytes"].mean() / 1000,
        "samples accepted, %": 100 * batches["accepted"].mean(),
    })  # fmt: skip


def _valued(jobs: Jobs) -> Iterable[tuple[str, float, Utility]]:
    yield "offline", 0.0, Utility(float(jobs.accuracy.mean()), served=float(jobs.accuracy.mean()))
    for pace in PACES:
        yield "discrete", pace, discrete(jobs, jobs.plain_s / pace)
        yield "relative", pace, relative(jobs, pace)
    for patience in PATIENCES:
        yield "continuous", patience, continuous(jobs, patience * jobs.plain_s)


def rank_agreement(tables: Tables, kind: str) -> pd.DataFrame:
    """List Spearman's rank correlation of no missed jobs with each pressure, by seed; NaN if all tie."""
    import pandas as pd

    found, rows = tables.once(utilities), list[tuple[int, float, float]]()
    means = found.groupby(["seed", "kind", "pressure", "system"])["utility"].mean()
    for seed in sorted(set(found["seed"])):
        offline = means.loc[seed, "offline", 0.0]
        for pressure in sorted(set(found[found["kind"] == kind]["pressure"])):
            timed = means.loc[seed, kind, pressure].reindex(offline.index)
            rows.append((seed, pressure, rank_correlation(offline.to_numpy(), timed.to_numpy())))
    return pd.DataFrame(rows, columns=["seed", "pressure", "agreement"])


def lost_by_the_best(found: pd.DataFrame, pressures: Mapping[str, Iterable[float]]) -> pd.Series:
    """Return the share of timed places that the best system without time pressure does not win, by seed."""
    place = ["workload", "seed", "kind", "pressure"]
    wide = found.pivot_table("utility", place, "system")
    places = [(kind, pressure) for kind, each in pressures.items() for pressure in each]
    timed = wide[[tuple(key[2:]) in places for key in wide.index]]
    offline = wide.xs("offline", level="kind").droplevel("pressure").idxmax(axis=1).rename("best")
    won = timed.idxmax(axis=1).rename("won").reset_index().merge(offline.reset_index(), on=["workload", "seed"])
    lost: pd.Series = (won["won"] != won["best"]).groupby(won["seed"]).mean()
    return lost


def ranks(tables: Tables, kind: str, pressure: float) -> pd.DataFrame:
    """List the rank correlation of systems with and without time pressure, at one pressure, by seed."""
    found = rank_agreement(tables, kind)
    here = found[found["pressure"] == pressure]
    return value_rows(here.set_index("seed")["agreement"])


def ranks_at_pressures(tables: Tables, kind: str, ours: float, theirs: float) -> pd.DataFrame:
    """List the rank correlation with the order without time pressure, at two pressures, by seed."""
    found = rank_agreement(tables, kind)
    if found.empty:
        return no_rows()
    wide = found.pivot(index="seed", columns="pressure", values="agreement")[[theirs, ours]].dropna()
    if wide.empty:
        return no_rows(TIED)
    return pair_rows(wide[ours], wide[theirs], f"{wide[theirs].mean():.2f} to {wide[ours].mean():.2f}")


def ranks_on_the_device(tables: Tables) -> pd.DataFrame:
    """List the rank correlation of scores on the most and on the least utilised fleet, by seed."""
    levels = load_levels(tables)
    if len(levels) < 2 or levels[0].missed:
        return no_rows()
    runs = completed_cells(tables)
    runs = runs[~runs["system"].isin(list(stopping(tables)))]
    wide = runs.pivot_table("score_frame", ["seed", "system"], "fleet").dropna()
    ends = wide[[levels[0].fleet, levels[-1].fleet]]
    return value_rows(ends.groupby("seed").apply(lambda own: rank_correlation(*own.to_numpy().T)))


def lost_places(tables: Tables) -> pd.DataFrame:
    """List the share of timed places that the best system without time pressure does not win, by seed."""
    found = tables.once(utilities)
    return value_rows(lost_by_the_best(found, TIMED)) if len(found) else no_rows()


def best_utilities(tables: Tables, ours: list[str], kind: str, pressure: float) -> pd.DataFrame:
    """List the utility of the best system among some members, and of the best other one that trains."""
    found, adapting = tables.once(utilities), learners(tables)
    here = found[(found["kind"] == kind) & (found["pressure"] == pressure) & found["system"].isin(list(adapting))]
    wide = here.pivot_table("utility", ["workload", "seed"], "system")
    own = [name for name in wide if adapting[name] in ours]
    if not own or len(own) == wide.shape[1]:
        return no_rows()
    rest = wide.drop(columns=own)
    note = f"{wide[own].mean().idxmax()} against {rest.mean().idxmax()}"
    return pair_rows(wide[own].max(axis=1), rest.max(axis=1), note)


def utilities_without_time(tables: Tables, kind: str, pressure: float) -> pd.DataFrame:
    """List the utility of every system that trains, without and with time pressure."""
    found = tables.once(utilities)
    wide = found[found["system"].isin(list(learners(tables)))].pivot_table(
        "utility", ["seed", "workload", "system"], ["kind", "pressure"]
    )
    if wide.empty:
        return no_rows()
    both = pair_rows(wide["offline", 0.0], wide[kind, pressure])
    worst = (both["ours"] - both["theirs"]).groupby("system").mean().sort_values()
    return with_note(both, f"{worst.iloc[0]:.3f} {worst.index[0]} to {worst.iloc[-1]:.3f} {worst.index[-1]}")


def scores_by_budget(tables: Tables, member: str) -> pd.DataFrame:
    """List the score of a member with its smallest budget, and of the system without training."""
    ours = sorted((steps, name) for name, (own, steps) in stopping(tables).items() if own == member)
    plain = list(members(tables, "adaptation", "frozen"))
    levels = load_levels(tables)
    if not ours or not plain or not levels:
        return no_rows(f"needs {member} with a budget, and a system without adaptation")
    runs = completed_cells(tables)
    wide = runs[runs["fleet"] == levels[0].fleet].pivot_table("score_frame", ["workload", "seed"], "system")
    gains = wide[[name for _, name in ours]].sub(wide[plain[0]], axis=0)
    note = ", ".join(f"{gain:+.3f} {name}" for name, gain in gains.mean().items())
    return pair_rows(wide[ours[0][1]], wide[plain[0]], note)
