"""Measures of members that learn on the stream where time is short."""

from __future__ import annotations

from driftlab.platform.results.relations.cells import done, members
from driftlab.platform.results.relations.domains import forgetting
from driftlab.platform.results.relations.measured import Measured, Untestable, over_seeds
from driftlab.platform.results.relations.timing import (
    PACES,
    PATIENCES,
    lost_by_the_best,
    paces,
    rank_agreement,
    stopping,
    utilities,
)
from driftlab.platform.results.stats import rank_correlation
from driftlab.platform.results.tables.read import Tables

MISSING = "needs members that learn on the stream, and a fleet in which nothing is missed"
TIMED = {"discrete": PACES, "continuous": PATIENCES}


def ranks_agree(tables: Tables, kind: str, pressure: float) -> Measured | Untestable:
    """Correlate the order of systems with time and without it, at one pressure."""
    found = rank_agreement(tables, kind)
    here = found[found["pressure"] == pressure]
    return over_seeds(here.set_index("seed")["agreement"]) if len(here) else Untestable(MISSING)


def ranks_agree_more(tables: Tables, kind: str, ours: float, theirs: float) -> Measured | Untestable:
    """Subtract how far orders agree under one pressure from how far they do under another."""
    found = rank_agreement(tables, kind)
    if found.empty:
        return Untestable(MISSING)
    wide = found.pivot_table("agreement", "seed", "pressure")
    return over_seeds(wide[ours] - wide[theirs], f"{wide[theirs].mean():.2f} to {wide[ours].mean():.2f}")


def ranks_agree_on_the_machine(tables: Tables) -> Measured | Untestable:
    """Correlate the scores of systems on the busiest fleet with those on the calmest: what devices really come to."""
    every = paces(tables)
    if len(every) < 2 or every[0].missed:
        return Untestable(MISSING)
    runs = done(tables)
    runs = runs[~runs["system"].isin(list(stopping(tables)))]
    wide = runs.pivot_table("score_frame", ["seed", "system"], "fleet").dropna()
    ends = wide[[every[0].fleet, every[-1].fleet]]
    return over_seeds(ends.groupby("seed").apply(lambda own: rank_correlation(*own.to_numpy().T)))


def places_lost_by_the_best(tables: Tables) -> Measured | Untestable:
    """Tell which share of the timed places the system that is best without time does not win."""
    found = tables.once(utilities)
    return over_seeds(lost_by_the_best(found, TIMED)) if len(found) else Untestable(MISSING)


def cheap_ones_win(tables: Tables, ours: list[str], kind: str, pressure: float) -> Measured | Untestable:
    """Subtract the utility of the best other learner from that of the best of these members."""
    found = tables.once(utilities)
    adapting = {name: one.name for name, one in members(tables, "adaptation").items() if one.name != "frozen"}
    here = found[(found["kind"] == kind) & (found["pressure"] == pressure) & found["system"].isin(list(adapting))]
    wide = here.pivot_table("utility", ["workload", "seed"], "system")
    cheap = [name for name in wide if adapting[name] in ours]
    if not cheap or len(cheap) == wide.shape[1]:
        return Untestable(MISSING)
    dear = wide.drop(columns=cheap)
    note = f"{wide[cheap].mean().idxmax()} against {dear.mean().idxmax()}"
    return over_seeds(wide[cheap].max(axis=1) - dear.max(axis=1), note)


def loses_to_time(tables: Tables, kind: str, pressure: float) -> Measured | Untestable:
    """Average how much a system that learns is worth less with time than without it."""
    found = tables.once(utilities)
    learners = [name for name, one in members(tables, "adaptation").items() if one.name != "frozen"]
    wide = found[found["system"].isin(learners)].pivot_table(
        "utility", ["seed", "workload", "system"], ["kind", "pressure"]
    )
    if wide.empty:
        return Untestable(MISSING)
    lost = wide["offline", 0.0] - wide[kind, pressure]
    worst = lost.groupby("system").mean().sort_values()
    return over_seeds(lost, f"{worst.iloc[0]:.3f} {worst.index[0]} to {worst.iloc[-1]:.3f} {worst.index[-1]}")


def gain_of_a_budget(tables: Tables, member: str) -> Measured | Untestable:
    """Subtract the score without any learning from that of a member that stops after its smallest budget."""
    ours = sorted((steps, name) for name, (own, steps) in stopping(tables).items() if own == member)
    plain = list(members(tables, "adaptation", "frozen"))
    every = paces(tables)
    if not ours or not plain or not every:
        return Untestable(f"needs {member} with a budget, and a system that does nothing")
    runs = done(tables)
    wide = runs[runs["fleet"] == every[0].fleet].pivot_table("score_frame", ["workload", "seed"], "system")
    gains = wide[[name for _, name in ours]].sub(wide[plain[0]], axis=0)
    note = ", ".join(f"{gain:+.3f} {name}" for name, gain in gains.mean().items())
    return over_seeds(gains[ours[0][1]], note)


def forgotten_in_the_end(tables: Tables) -> Measured | Untestable:
    """Average how far members that learn fall below their best so far when a domain is shown for the last time."""
    found = forgetting(tables)
    learners = [name for name, one in members(tables, "adaptation").items() if one.name != "frozen"]
    found = found[found["system"].isin(learners)]
    if found.empty:
        return Untestable("needs domains that come back")
    last = found[found["round"] == found["round"].max()]
    worst = last.groupby("system")["lost"].mean().sort_values()
    return over_seeds(last.set_index("seed")["lost"], f"{worst.index[-1]} most, {worst.index[0]} least")
