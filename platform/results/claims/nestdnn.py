"""Claims of the NestDNN paper about its networks: what they answer and hold, and what a switch between them moves.

Read from runs of `nestdnn-fig3`, `-fig6` to `-fig8`, `-table3` and `-tables45`.
"""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, Any

from driftlab.platform.core.records import Variant
from driftlab.platform.results.claims.base import DIFFERENCE, Claim, Measured, Untestable
from driftlab.platform.results.claims.cells import difference, members
from driftlab.platform.results.claims.sharing import (
    memory_of_all,
    nested_and_independent,
    of_kind,
    over_apps,
    pruned_alone,
    whole,
)
from driftlab.platform.results.read import Tables
from driftlab.platform.scaling.independent import Independent
from driftlab.platform.scaling.nested import Nested
from driftlab.platform.world.variants import paged_bytes

if TYPE_CHECKING:
    import pandas as pd

ACCURACY = "of the answers"


def residual_beats_norm(tables: Tables) -> Measured | Untestable:
    """Subtract what L1 leaves from what TRR leaves, at every pruning point of every layer; a mean per application."""
    found = pruned_alone(tables).pivot_table("accuracy", ["workload", "app", "layer", "share"], "ranking")
    if not {"trr", "l1"} <= set(found.columns):
        return Untestable("needs one layer pruned at a time, by trr and by l1")
    found = found[found.index.get_level_values("share") < 1]
    gains = found["trr"] - found["l1"]
    note = f"at least as good at {(gains >= 0).mean():.0%} of {len(gains)} points"
    if "random" in found:
        note += f"; over a random choice {(found['trr'] - found['random']).mean():+.3f}".replace("-", "\u2212")
    return over_apps(gains.groupby(["workload", "app"]).mean(), note)


def descendants_are_better(tables: Tables) -> Measured | Untestable:
    """Subtract the accuracy of independent networks of the same size."""
    gains = _gains(tables)
    if gains.empty:
        return Untestable("needs nested and independent networks of the same sizes")
    return over_apps(gains.groupby(["workload", "app"])["gain"].mean())


def small_ones_gain_more(tables: Tables) -> Measured | Untestable:
    """Subtract the gain of the two largest descendants from that of the two smallest."""
    gains = _gains(tables)
    if gains.empty or gains["variant_nested"].nunique() < 4:
        return Untestable("needs four sizes of nested and independent networks")
    by_app = gains.sort_values("macs").groupby(["workload", "app"])["gain"]
    small, large = by_app.apply(lambda each: each.iloc[:2].mean()), by_app.apply(lambda each: each.iloc[-2:].mean())
    return over_apps(small - large, f"{small.mean():+.3f} against {large.mean():+.3f}".replace("-", "\u2212"))


def _gains(tables: Tables) -> pd.DataFrame:
    both = nested_and_independent(tables)
    return both.assign(gain=both["accuracy_nested"] - both["accuracy_alone"]).dropna(subset=["gain"])


def fewer_operations(tables: Tables) -> Measured | Untestable:
    """Tell which share of the descendants computes less than the network that they were made from."""
    smaller = {name for name, member in members(tables, "scaling", Nested).items() if max(member.keep) < 1}
    descendants = of_kind(tables, Nested)[lambda rows: rows["system"].isin(smaller)]
    both = descendants.merge(whole(tables), on=["workload", "app"], suffixes=("", "_whole"))
    if both.empty:
        return Untestable("needs nested networks and the whole one")
    ratio = both["macs"] / both["macs_whole"]
    return Measured(float((ratio < 1).mean()), n=len(both), note=f"{ratio.min():.0%} to {ratio.max():.0%} of the whole")


def memory_saved(tables: Tables) -> Measured | Untestable:
    """Tell by which share the largest descendant is smaller than all independent networks together."""
    nested, alone = of_kind(tables, Nested), of_kind(tables, Independent)
    if nested.empty or alone.empty:
        return Untestable("needs nested and independent networks")
    largest, together = memory_of_all(nested, nested=True), memory_of_all(alone, nested=False)
    note = f"{largest.sum() / 1e6:.3g} MB for {together.sum() / 1e6:.3g} MB"
    return over_apps((1 - largest / together).dropna(), note)


def what_nested_load(tables: Tables) -> Measured | Untestable:
    """Divide what independent networks load less what they drop by what nested ones load, over all switches up."""
    ratios = []
    for nested, alone in _of_equal_sizes(tables).values():
        mine, theirs = _moved(nested, nested=True, up=True), _moved(alone, nested=False, up=True)
        ratios.append((theirs[0] - theirs[1]) / mine[0])
    if not ratios:
        return Untestable("needs nested and independent networks of the same sizes")
    note = f"{min(ratios):.5g} to {max(ratios):.5g} over {len(ratios)} applications"
    return Measured(sum(ratios) / len(ratios), n=len(ratios), note=note)


def switching_energy(tables: Tables) -> Measured | Untestable:
    """Subtract what a thousand switches draw among nested networks from what they draw among independent ones.

    As in the paper somebody switches at random: from each of an application's networks to each other one equally often,
    whatever schedulers would do. What a byte draws is what the devices of the run have paid for one.
    """
    import pandas as pd

    paid = tables.frame("shares")
    paged_bytes = (paid["paged_in_bytes"] + paid["paged_out_bytes"]).sum()
    pairs = _of_equal_sizes(tables)
    if not pairs or not paged_bytes:
        return Untestable("needs nested and independent networks of the same sizes on devices that load them")
    thousand_j = 1000 * paid["paging_j"].sum() / paged_bytes
    drawn = pd.DataFrame(
        [[thousand_j * sum(_moved(part, nested=kind)) for part, kind in zip(both, (True, False), strict=True)]
         for both in pairs.values()],
        index=pd.MultiIndex.from_tuples(pairs),
        columns=["nested", "alone"],
    )  # fmt: skip
    saved = drawn["alone"] - drawn["nested"]
    told = f"{drawn['nested'].mean():.3g} J against {drawn['alone'].mean():.3g} J"
    return over_apps(saved, f"{told}, at least {saved.min():.2g} J less and at most {saved.max():.2g} J")


def learning_helps(tables: Tables) -> Measured | Untestable:
    """Subtract the score of nested networks that do not learn from that of those that AMS teaches."""
    return difference(tables, "ams+nested", "nestdnn")


def smaller_ones_help(tables: Tables) -> Measured | Untestable:
    """Subtract the score of AMS into one whole network from that of AMS into nested ones."""
    return difference(tables, "ams+nested", "ams")


def _of_equal_sizes(tables: Tables) -> dict[Any, tuple[pd.DataFrame, pd.DataFrame]]:
    """Pair the nested with the independent networks of each application that has as many of both, and several."""
    nested, alone = (dict(list(of_kind(tables, kind).groupby(["workload", "app"]))) for kind in (Nested, Independent))
    return {app: (nested[app], alone[app]) for app in nested if len(nested[app]) == len(alone.get(app, ())) > 1}


def _moved(rows: pd.DataFrame, *, nested: bool, up: bool = False) -> tuple[float, float]:
    """Average what all switches between two networks move in and out, or those to a larger one."""
    known = [Variant(one.network, one.accuracy, one.memory_bytes, one.latency_ms / 1000) for one in rows.itertuples()]
    moved = [
        paged_bytes(known, i, j, nested=nested)
        for i, j in permutations(range(len(known)), 2)
        if not up or known[i].memory_bytes < known[j].memory_bytes
    ]
    return sum(into for into, _ in moved) / len(moved), sum(out for _, out in moved) / len(moved)


CLAIMS = (
    Claim(
        id="N-1",
        experiment="nestdnn-fig3",
        source="NestDNN, Figure 3: 89.72 against 75.45 % where half of one layer is pruned",
        sentence="the triplet response residual prunes better than the L1 norm",
        paper=0.1427,
        unit=ACCURACY,
        rule="sign",
        measure=residual_beats_norm,
    ),
    Claim(
        id="N-2",
        experiment="nestdnn-fig6",
        source="NestDNN, Figure 6: +4.98 points",
        sentence="descendants are more accurate than independent networks of the same size",
        paper=0.0498,
        unit=ACCURACY,
        rule="sign",
        measure=descendants_are_better,
    ),
    Claim(
        id="N-3",
        experiment="nestdnn-fig6",
        source="NestDNN, Figure 6: +6.68 points for the two smallest, +3.72 for the two largest",
        sentence="small descendants gain more than large ones",
        paper=0.0296,
        unit=ACCURACY,
        rule="sign",
        measure=small_ones_gain_more,
    ),
    Claim(
        id="N-4",
        experiment="nestdnn-fig7",
        source="NestDNN, Figure 7",
        sentence="every descendant computes less than the whole network",
        paper=1.0,
        unit="of the descendants",
        rule="exact",
        measure=fewer_operations,
    ),
    Claim(
        id="N-5",
        experiment="nestdnn-table3",
        source="NestDNN, Table 3: 587.4 of 1112.0 MB",
        sentence="nested networks need less memory than independent ones together",
        paper=0.528,
        unit="of the memory",
        rule="sign",
        measure=memory_saved,
    ),
    Claim(
        id="N-7",
        experiment="nestdnn-tables45",
        source="NestDNN, Tables 4 and 5, for four of six applications",
        sentence="nested networks load what independent ones load less what they drop",
        paper=1.0,
        unit="times",
        rule="exact",
        measure=what_nested_load,
    ),
    Claim(
        id="N-8",
        experiment="nestdnn-fig8",
        source="NestDNN, Figure 8: 602.1 J (VC) to 4.0 J (VS)",
        sentence="a thousand switches at random draw less among nested networks than among independent ones",
        paper=4.0,
        unit="J",
        rule="sign",
        measure=switching_energy,
    ),
    Claim(
        id="NEST-2",
        experiment="ams-nested",
        source="driftlab: AMS into nested networks",
        sentence="on a shared device whose world drifts, nested networks that AMS teaches beat those that do not learn",
        paper=0.0,
        unit=DIFFERENCE,
        rule="ge",
        measure=learning_helps,
    ),
    Claim(
        id="NEST-3",
        experiment="ams-nested",
        source="driftlab: AMS into nested networks",
        sentence="on a shared device whose world drifts, AMS into nested networks beats AMS into a whole one",
        paper=0.0,
        unit=DIFFERENCE,
        rule="ge",
        measure=smaller_ones_help,
    ),
)
