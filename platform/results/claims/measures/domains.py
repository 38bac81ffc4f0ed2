"""Measures of a network that is cut for each domain, beside members that adapt one as it is.

The accuracy of a system is that of the frames after those to adapt on, over all domains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from driftlab.platform.results.relations.cells import Kinds, of_kinds
from driftlab.platform.results.relations.domains import costs, factor_over, rivals, stretches, usual_surrogates
from driftlab.platform.results.relations.measured import Measured, Untestable, over_seeds, ratio_over_seeds
from driftlab.platform.results.stats import rank_correlation
from driftlab.platform.results.tables.read import Tables

if TYPE_CHECKING:
    import pandas as pd

Whose = Literal["small", "whole"]
Which = Literal[
    "all", "statistics", "others"
]  # of the rivals: those that tune batch norms alone, or those that do more
FRAMES = 1000  # answered in each domain where energies are added up
MISSING = "needs 'elasticdnn' and rivals of {} networks through domains with frames to adapt on"


def gain_over_rivals(tables: Tables, whose: Whose, which: Which = "all") -> Measured | Untestable:
    """Average how much better ElasticDNN answers after adapting than each of its rivals does."""
    after, names = tables.once(_after), _names(tables, whose, which)
    if after.empty or not names:
        return Untestable(MISSING.format(whose))
    gains = after[names].rsub(after["ours"], axis=0)
    note = ", ".join(f"{name} {gain:+.3f}" for name, gain in gains.mean().sort_values().items())
    return over_seeds(gains.mean(axis=1), note)


def gain_over_the_best(tables: Tables, whose: Whose, which: Which = "others") -> Measured | Untestable:
    """Subtract the accuracy of the rival that is best on average from ElasticDNN's."""
    after, names = tables.once(_after), _names(tables, whose, which)
    if after.empty or not names:
        return Untestable(MISSING.format(whose))
    best = str(after[names].mean().idxmax())
    return over_seeds(after["ours"] - after[best], f"the best is {best}")


def gain_over_doing_nothing(tables: Tables, whose: Whose) -> Measured | Untestable:
    """Average how much the rivals that tune batch norms alone gain over the same network as it was built."""
    after, names = tables.once(_after), _names(tables, whose, "statistics")
    kind = {"scaling": "independent" if whose == "small" else "fixed", "adaptation": "frozen"}
    nothing = [name for name in of_kinds(tables, kind) if name in after]
    if after.empty or not names or not nothing:
        return Untestable(f"needs a {whose} network that does nothing, and members that tune its batch norms")
    return over_seeds(after[names].mean(axis=1) - after[nothing[0]])


def rivals_pay(tables: Tables, column: str, whose: Whose, which: Which = "others") -> Measured | Untestable:
    """Divide what rivals pay by what ElasticDNN pays; columns are those of `costs`, and `domain_j` for all energy."""
    ours, names = usual_surrogates(tables), _names(tables, whose, which)
    paid = tables.once(costs)
    paid = paid.assign(domain_j=paid["phase_j"] + FRAMES * paid["frame_j"])
    factors = factor_over(paid, ours[0], names, column) if ours else None
    if factors is None or factors.empty:
        return Untestable(MISSING.format(whose))
    means = paid.groupby("system")[column].mean()
    ratios = (means[names] / means[ours[0]]).sort_values()
    note = ", ".join(f"{name} {ratio:.3g}" for name, ratio in ratios.items())
    return ratio_over_seeds(factors, note)


def rivals_pay_least(tables: Tables, column: str, whose: Whose) -> Measured | Untestable:
    """Divide what rivals pay by what ElasticDNN pays, on the machine on which that is least."""
    factors = _by_machine(tables, column, whose)
    if factors is None:
        return Untestable(MISSING.format(whose))
    note = ", ".join(f"{fleet} {ratio:.3g}" for fleet, ratio in factors.mean().sort_values().items())
    return ratio_over_seeds(factors.min(axis=1), note)


def savings_differ(tables: Tables, column: str, whose: Whose, fleets: list[str]) -> Measured | Untestable:
    """Divide the largest such factor by the smallest, among these machines."""
    factors = _by_machine(tables, column, whose)
    if factors is None or not set(fleets) <= set(factors):
        return Untestable(f"needs the machines {', '.join(fleets)}, and {MISSING.format(whose).removeprefix('needs ')}")
    return ratio_over_seeds(factors[fleets].max(axis=1) / factors[fleets].min(axis=1))


def _by_machine(tables: Tables, column: str, whose: Whose) -> pd.DataFrame | None:
    """Put the factors of all machines side by side, by seed; None without ElasticDNN or rivals."""
    import pandas as pd

    ours, names = usual_surrogates(tables), _names(tables, whose, "others")
    if not ours or not names:
        return None
    paid = tables.once(costs)
    return pd.DataFrame({fleet: factor_over(own, ours[0], names, column) for fleet, own in paid.groupby("fleet")})


def memory_less_than_rivals(tables: Tables, whose: Whose) -> Measured | Untestable:
    """Tell which share of the rivals' memory ElasticDNN does without, averaged over rivals."""
    ours, names = usual_surrogates(tables), _names(tables, whose, "others")
    wide = tables.once(costs).pivot_table("memory_bytes", ["workload", "seed"], "system")
    if not ours or not names:
        return Untestable(MISSING.format(whose))
    saved = 1 - wide[names].rdiv(wide[ours[0]], axis=0)
    return over_seeds(saved.mean(axis=1), ", ".join(f"{name} {share:.0%}" for name, share in saved.mean().items()))


def ordered_alike(tables: Tables, column: str, whose: Whose, paper: dict[str, float]) -> Measured | Untestable:
    """Correlate what members pay with what the paper says of them, by rank; columns are those of `costs`."""
    systems = rivals(tables, small=whose == "small")
    known = {one.name: name for name, one in systems.items()} | {"elasticdnn": "".join(usual_surrogates(tables)[:1])}
    wide = tables.once(costs).pivot_table(column, ["workload", "seed"], "system")
    both = [name for name in paper if known.get(name) in wide]
    if len(both) < len(paper):
        return Untestable(f"needs {', '.join(paper)} on {whose} networks")
    told = np.array([paper[name] for name in both])
    found = wide[[known[name] for name in both]].apply(lambda own: rank_correlation(told, own.to_numpy()), axis=1)
    means = wide[[known[name] for name in both]].mean().sort_values()
    return over_seeds(found, ", ".join(f"{name} {value:.3g}" for name, value in means.items()))


def least_over_others(tables: Tables, column: str, whose: Whose, dear: list[str]) -> Measured | Untestable:
    """Divide the least that these members pay by the most that others do which train more than batch norms."""
    systems = rivals(tables, small=whose == "small", statistics=False)
    groups = [[name for name, one in systems.items() if (one.name in dear) is wanted] for wanted in (True, False)]
    if not all(groups):
        return Untestable(MISSING.format(whose))
    wide = tables.once(costs).pivot_table(column, ["workload", "seed"], "system")
    ours, theirs = (wide[group] for group in groups)
    note = f"{ours.mean().idxmin()} over {theirs.mean().idxmax()}"
    return ratio_over_seeds(ours.min(axis=1) / theirs.max(axis=1), note)


def slowest_among_the_quick(tables: Tables, whose: Whose) -> Measured | Untestable:
    """Divide the shortest phase of members that train more than batch norms by the longest of the others."""
    quick, slow = (_names(tables, whose, which) for which in ("statistics", "others"))
    ours = usual_surrogates(tables)
    if not quick or not slow or not ours:
        return Untestable(MISSING.format(whose))
    wide = tables.once(costs).pivot_table("phase_s", ["workload", "seed"], "system")
    return ratio_over_seeds(wide[[*slow, *ours]].min(axis=1) / wide[quick].max(axis=1))


def gain_after(tables: Tables, ours: Kinds, theirs: Kinds) -> Measured | Untestable:
    """Average how much better one kind of system answers after adapting than another, over all pairs of them."""
    after = tables.once(_after)
    names = [[name for name in of_kinds(tables, kinds) if name in after] for kinds in (ours, theirs)]
    if after.empty or not all(names):
        return Untestable("needs both systems through domains with frames to adapt on")
    better, worse = (after[group].mean(axis=1) for group in names)
    return over_seeds(better - worse, f"{', '.join(names[0])} against {', '.join(names[1])}")


def steadier_after(tables: Tables, ours: Kinds, theirs: Kinds) -> Measured | Untestable:
    """Subtract how much one kind of system's accuracy varies over domains from how much another's does."""
    names = [next(iter(of_kinds(tables, kinds)), "") for kinds in (ours, theirs)]
    if not all(names):
        return Untestable("needs both systems through domains")
    spread = tables.once(stretches).groupby(["system", "seed"])["after"].std()
    return over_seeds(spread[names[1]] - spread[names[0]])


def _names(tables: Tables, whose: Whose, which: Which) -> list[str]:
    """Name the rivals of ElasticDNN that were asked for."""
    every = rivals(tables, small=whose == "small")
    others = rivals(tables, small=whose == "small", statistics=False)
    chosen = {"all": list(every), "others": list(others), "statistics": [name for name in every if name not in others]}
    return chosen[which]


def _after(tables: Tables) -> pd.DataFrame:
    """Put the accuracy after adapting of all systems side by side; ElasticDNN's is called `ours`."""
    wide = tables.once(stretches).pivot_table("after", ["workload", "seed"], "system")
    found = usual_surrogates(tables)
    return wide.assign(ours=wide[found[0]]) if found and found[0] in wide else wide.iloc[:0].assign(ours=np.nan)
