"""Accuracy before and after adapting to each domain, the cost of adapting, and forgetting."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from driftlab.datasets.catalogue import label_of, shifts_of_domains
from driftlab.platform.results.relations.base import (
    STREAM,
    Kinds,
    completed_cells,
    labels_of,
    learners,
    members,
    no_rows,
    of_kinds,
    pair_rows,
    value_rows,
    with_note,
)
from driftlab.platform.results.tables.read import Tables

if TYPE_CHECKING:
    import pandas as pd

    from driftlab.platform.results.tables.systems import Slot

COSTS = ("phase_s", "phase_j", "memory_bytes", "latency_ms", "frame_j")  # columns of `costs`
STATISTICS = ("adabn", "onda", "tent")  # members that tune batch norms only
SMALL = {"scaling": "independent"}  # a network of the surrogate's size that was pruned offline
WHOLE = {"scaling": "fixed"}
FRAMES = 1000  # processed in each domain, for `domain_j`
NetworkSize = Literal["small", "whole"]  # networks of the surrogate's size, or the one that it was cut from
BaselineSet = Literal["all", "statistics", "others"]  # of the baselines; `statistics`: those that tune batch norms only


def stretches(tables: Tables) -> pd.DataFrame:
    """List the visits of all streams to domains: accuracy `before` and `after` adapting, and `score`.

    A stretch is one visit of a stream to a domain. Without frames to adapt on, before and after are unknown.
    """
    runs, names = completed_cells(tables), tables.once(labels_of)
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
    """List the costs of each cell: isolated time and energy of a phase, memory, and costs of a frame."""
    runs = completed_cells(tables).set_index("cell")
    updates, devices = tables.frame("updates"), tables.frame("devices")
    phases = updates[updates["learner_site"].eq("device") & updates["isolated_s"].notna()].groupby("cell")
    frames = tables.frame("frames")
    processed = frames[frames["processed"].eq(True)].groupby("cell")
    found = runs[["system", "workload", "fleet", "seed"]].copy()
    found["phase_s"], found["phase_j"] = phases["isolated_s"].mean(), phases["energy_j"].mean()
    found["memory_bytes"] = devices.groupby("cell")["peak_memory_bytes"].max()
    found["latency_ms"] = processed["latency_ms"].median()
    found["frame_j"] = runs["inference_j"] / processed.size()
    return found.reset_index()


def forgetting(tables: Tables) -> pd.DataFrame:
    """List the loss against the best earlier score on a recurring domain, `lost`, by `round`.

    Domains are compared with themselves, so that a harder domain does not count as forgotten.
    """
    rows = tables.once(stretches).sort_values([*STREAM, "stretch"])
    place = [*STREAM, "scene"]
    visits = rows.groupby(place)
    best = visits["score"].transform(lambda scores: scores.cummax().shift())
    rows = rows.assign(round=visits.cumcount(), lost=best - rows["score"])
    return rows[rows["round"] > 0]


def overlaps(tables: Tables) -> pd.DataFrame:
    """List the share of kept channels that each two domains of a stream have in common.

    Domains are `similar` if they have one shift at two severities. `last` counts the last group of channels only.
    """
    import pandas as pd

    found, kinds = [], tables.once(shifts_of)
    runs = completed_cells(tables)[["cell", "system", "workload", "seed"]]
    rows = tables.frame("channels").merge(runs, on="cell").dropna(subset="domain")
    for (cell, system, workload, seed, _), own in rows.groupby(["cell", "system", "workload", "seed", "app"]):
        kept = own.groupby("domain").apply(_newest_selection, include_groups=False)
        for first, second in itertools.combinations(kept.index, 2):
            shared = [_shared(kept[first][group], kept[second][group]) for group in kept[first]]
            similar = kinds[workload][int(first)] == kinds[workload][int(second)]
            found.append((cell, system, workload, seed, first, second, similar, np.mean(shared), shared[-1]))
    columns = ["cell", "system", "workload", "seed", "first", "second", "similar", "overlap", "last"]
    return pd.DataFrame(found, columns=columns)


def stages(tables: Tables) -> pd.DataFrame:
    """List the memory of each stage of phases in domains: `total_bytes` has network and samples too."""
    runs = completed_cells(tables)[["cell", "system", "workload", "seed"]]
    rows = tables.frame("stages").merge(runs, on="cell")
    rows = rows[rows["workload"].isin(list(tables.once(shifts_of)))]
    return rows.assign(total_bytes=rows["network_bytes"] + rows["samples_bytes"] + rows["memory_bytes"])


def _newest_selection(rows: pd.DataFrame) -> dict[str, frozenset[str]]:
    newest = rows[rows["phase"] == rows["phase"].max()]
    return {group: frozenset(kept.split()) for group, kept in zip(newest["group"], newest["kept"], strict=True)}


def _shared(first: frozenset[str], second: frozenset[str]) -> float:
    return len(first & second) / len(first)


def shifts_of(tables: Tables) -> dict[str, list[str]]:
    """Map workloads under domains to the shift of each domain."""
    found = {}
    for part in tables.run.spec.get("workloads", ()):
        if str(part["name"]).startswith("domains:"):
            shifts = shifts_of_domains(part["name"], part.get("params") or {})
            found[str(part.get("alias") or label_of(part["name"]))] = shifts
    return found


def baselines(tables: Tables, *, small: bool, statistics: bool = True) -> dict[str, Slot]:
    """Map the systems that adapt a network of the surrogate's size, or the whole one, to their members."""
    kind = SMALL if small else WHOLE
    found = members(tables, "adaptation")
    adapting = {name: found[name] for name in of_kinds(tables, kind) if found[name].name != "frozen"}
    return {name: one for name, one in adapting.items() if statistics or one.name not in STATISTICS}


def usual_surrogates(tables: Tables) -> list[str]:
    """List the systems that run ElasticDNN without ablations."""
    usual = {"adaptation.select": "cumulative", "adaptation.objective": "information", "scaling.filters": "relevant"}
    return of_kinds(tables, {"scaling": "surrogate", "adaptation": "elasticdnn", **usual, "scaling.absorb_alpha": 1.0})


def factor_over(rows: pd.DataFrame, ours: str, theirs: list[str], column: str) -> pd.Series:
    """Return the geometric mean over baselines of their cost relative to one system."""
    wide = rows.pivot_table(column, ["workload", "seed"], "system")
    measured = [name for name in theirs if name in wide and wide[name].notna().all() and (wide[name] > 0).all()]
    if ours not in wide or not measured:
        return wide.iloc[:0].sum(axis=1)
    ratios = wide[measured].div(wide[ours], axis=0)
    factors: pd.Series = np.exp(np.log(ratios).mean(axis=1))
    return factors


def gains_over_baselines(tables: Tables, network: NetworkSize, subset: BaselineSet = "all") -> pd.DataFrame:
    """List the mean gain in accuracy after adapting of ElasticDNN over its baselines."""
    after, names = tables.once(after_adapting), _names(tables, network, subset)
    if after.empty or not names:
        return no_rows()
    gains = after[names].rsub(after["ours"], axis=0)
    note = ", ".join(f"{name} {gain:+.3f}" for name, gain in gains.mean().sort_values().items())
    return value_rows(gains.mean(axis=1), note)


def accuracy_of_best_baseline(tables: Tables, network: NetworkSize, subset: BaselineSet = "others") -> pd.DataFrame:
    """List the accuracy after adapting of ElasticDNN, and of the baseline that is best on average."""
    after, names = tables.once(after_adapting), _names(tables, network, subset)
    if after.empty or not names:
        return no_rows()
    best = str(after[names].mean().idxmax())
    return pair_rows(after["ours"], after[best], f"the best is {best}")


def gains_of_batch_norms(tables: Tables, network: NetworkSize) -> pd.DataFrame:
    """List the gain of baselines that tune batch norms only over the same network without adaptation."""
    after, names = tables.once(after_adapting), _names(tables, network, "statistics")
    kind = {"scaling": "independent" if network == "small" else "fixed", "adaptation": "frozen"}
    plain = [name for name in of_kinds(tables, kind) if name in after]
    if after.empty or not names or not plain:
        return no_rows()
    return value_rows(after[names].mean(axis=1) - after[plain[0]])


def costs_of_baselines(
    tables: Tables, column: str, network: NetworkSize, subset: BaselineSet = "others"
) -> pd.DataFrame:
    """List the cost of baselines relative to ElasticDNN, as a geometric mean over baselines.

    Columns are those of `costs`, and `domain_j`: the energy of a domain with its phase and 1000 frames.
    """
    ours, names = usual_surrogates(tables), _names(tables, network, subset)
    paid = tables.once(costs)
    paid = paid.assign(domain_j=paid["phase_j"] + FRAMES * paid["frame_j"])
    factors = factor_over(paid, ours[0], names, column) if ours else None
    if factors is None or factors.empty:
        return no_rows()
    means = paid.groupby("system")[column].mean()
    ratios = (means[names] / means[ours[0]]).sort_values()
    return value_rows(factors, ", ".join(f"{name} {ratio:.3g}" for name, ratio in ratios.items()))


def smallest_cost_factor(tables: Tables, column: str, network: NetworkSize) -> pd.DataFrame:
    """List the factors of `costs_of_baselines` on the device where they are smallest."""
    factors = _by_fleet(tables, column, network)
    if factors is None:
        return no_rows()
    note = ", ".join(f"{fleet} {ratio:.3g}" for fleet, ratio in factors.mean().sort_values().items())
    return value_rows(factors.min(axis=1), note)


def costs_over_devices(tables: Tables, column: str, network: NetworkSize, fleets: list[str]) -> pd.DataFrame:
    """List the largest and the smallest factor of `costs_of_baselines` among some devices."""
    factors = _by_fleet(tables, column, network)
    if factors is None or not set(fleets) <= set(factors):
        return no_rows()
    return pair_rows(factors[fleets].max(axis=1), factors[fleets].min(axis=1))


def _by_fleet(tables: Tables, column: str, network: NetworkSize) -> pd.DataFrame | None:
    """Return the factors of all fleets by seed; None without ElasticDNN or baselines."""
    import pandas as pd

    ours, names = usual_surrogates(tables), _names(tables, network, "others")
    if not ours or not names:
        return None
    paid = tables.once(costs)
    return pd.DataFrame({fleet: factor_over(own, ours[0], names, column) for fleet, own in paid.groupby("fleet")})


def saved_memory(tables: Tables, network: NetworkSize) -> pd.DataFrame:
    """List the memory saving of ElasticDNN relative to its baselines, averaged over these."""
    ours, names = usual_surrogates(tables), _names(tables, network, "others")
    wide = tables.once(costs).pivot_table("memory_bytes", ["workload", "seed"], "system")
    if not ours or not names:
        return no_rows()
    saved = 1 - wide[names].rdiv(wide[ours[0]], axis=0)
    return value_rows(saved.mean(axis=1), ", ".join(f"{name} {share:.0%}" for name, share in saved.mean().items()))


def costs_of_members(tables: Tables, column: str, network: NetworkSize, names: Sequence[str]) -> pd.DataFrame:
    """List a cost of `costs` with one column per member in `names`."""
    systems = baselines(tables, small=network == "small")
    by_member = {one.name: name for name, one in systems.items()} | {
        "elasticdnn": "".join(usual_surrogates(tables)[:1])
    }
    wide = tables.once(costs).pivot_table(column, ["workload", "seed"], "system")
    if any(by_member.get(name) not in wide for name in names):
        return no_rows(f"needs {', '.join(names)} on {network} networks")
    own = wide[[by_member[name] for name in names]]
    means = ", ".join(f"{name} {value:.3g}" for name, value in own.mean().sort_values().items())
    return with_note(own.set_axis(list(names), axis=1), means)


def costs_of_the_largest(tables: Tables, column: str, network: NetworkSize, large: list[str]) -> pd.DataFrame:
    """List the lowest cost among the members in `large` and the highest among other members.

    Members that tune batch norms only are not compared.
    """
    systems = baselines(tables, small=network == "small", statistics=False)
    groups = [[name for name, one in systems.items() if (one.name in large) is wanted] for wanted in (True, False)]
    if not all(groups):
        return no_rows()
    wide = tables.once(costs).pivot_table(column, ["workload", "seed"], "system")
    ours, theirs = (wide[group] for group in groups)
    return pair_rows(ours.min(axis=1), theirs.max(axis=1), f"{ours.mean().idxmin()} over {theirs.mean().idxmax()}")


def phases_by_size(tables: Tables, network: NetworkSize) -> pd.DataFrame:
    """List the shortest phase of members that train more than batch norms, and the longest of the others."""
    quick, slow = (_names(tables, network, which) for which in ("statistics", "others"))
    ours = usual_surrogates(tables)
    if not quick or not slow or not ours:
        return no_rows()
    wide = tables.once(costs).pivot_table("phase_s", ["workload", "seed"], "system")
    return pair_rows(wide[[*slow, *ours]].min(axis=1), wide[quick].max(axis=1))


def accuracy_after(tables: Tables, ours: Kinds, theirs: Kinds) -> pd.DataFrame:
    """List the accuracy after adapting of two kinds of systems, over all systems of each."""
    after = tables.once(after_adapting)
    names = [[name for name in of_kinds(tables, kinds) if name in after] for kinds in (ours, theirs)]
    if after.empty or not all(names):
        return no_rows("needs both systems through domains with frames to adapt on")
    better, worse = (after[group].mean(axis=1) for group in names)
    return pair_rows(better, worse, f"{', '.join(names[0])} against {', '.join(names[1])}")


def accuracy_of_masters(tables: Tables, larger: list[str], smaller: list[str]) -> pd.DataFrame:
    """List the accuracy after adapting with two masters, each named by its workload and system, by seed."""
    after = tables.once(stretches).groupby(["workload", "system", "seed"])["after"].mean()
    if not all(tuple(one) in after.index.droplevel("seed") for one in (larger, smaller)):
        return no_rows("needs size=masters, with workloads of networks of several sizes")
    return pair_rows(after[tuple(larger)], after[tuple(smaller)])


def overlap_of_domains(tables: Tables, systems: Kinds) -> pd.DataFrame:
    """List the channels that similar and dissimilar domains have in common, by seed."""
    rows = tables.once(overlaps)
    rows = rows[rows["system"].isin(of_kinds(tables, systems))]
    if rows["similar"].nunique() < 2:
        return no_rows("needs phases in labelled domains of one shift at several severities, and of several shifts")
    wide = rows.pivot_table("overlap", ["workload", "seed"], "similar")
    return pair_rows(wide[True], wide[False], f"similar {wide[True].mean():.2f}, dissimilar {wide[False].mean():.2f}")


def spread_after(tables: Tables, ours: Kinds, theirs: Kinds) -> pd.DataFrame:
    """List by how much the accuracy after adapting of two kinds of systems varies over domains, by seed."""
    names = [next(iter(of_kinds(tables, kinds)), "") for kinds in (ours, theirs)]
    if not all(names):
        return no_rows("needs both systems through domains")
    spread = tables.once(stretches).groupby(["system", "seed"])["after"].std()
    return pair_rows(*(spread[name] for name in names))


def _names(tables: Tables, network: NetworkSize, subset: BaselineSet) -> list[str]:
    """List the selected baselines of ElasticDNN."""
    adapting = baselines(tables, small=network == "small")
    others = baselines(tables, small=network == "small", statistics=False)
    chosen = {
        "all": list(adapting),
        "others": list(others),
        "statistics": [name for name in adapting if name not in others],
    }
    return chosen[subset]


def after_adapting(tables: Tables) -> pd.DataFrame:
    """Return the accuracy after adapting, one column per system; `ours` is ElasticDNN."""
    wide = tables.once(stretches).pivot_table("after", ["workload", "seed"], "system")
    found = usual_surrogates(tables)
    return wide.assign(ours=wide[found[0]]) if found and found[0] in wide else wide.iloc[:0].assign(ours=np.nan)


def forgotten(tables: Tables) -> pd.DataFrame:
    """List the loss of systems that train against their best earlier score, in the last round."""
    found = forgetting(tables)
    found = found[found["system"].isin(list(learners(tables)))]
    if found.empty:
        return no_rows("needs recurring domains")
    last = found[found["round"] == found["round"].max()]
    worst = last.groupby("system")["lost"].mean().sort_values()
    return value_rows(last.set_index("seed")["lost"], f"{worst.index[-1]} most, {worst.index[0]} least")
