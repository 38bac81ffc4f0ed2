"""Measures of networks of several sizes: what they answer and hold, and what a switch between them moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from driftlab.platform.results.relations.cells import members
from driftlab.platform.results.relations.measured import Measured, Untestable
from driftlab.platform.results.relations.sharing import (
    APP,
    every_switch,
    joule_per_byte,
    memory_of_all,
    nested_and_independent,
    of_equal_sizes,
    of_kind,
    over_apps,
    over_trainings,
    pruned_alone,
    unscaled,
)
from driftlab.platform.results.tables.read import Tables

if TYPE_CHECKING:
    import pandas as pd


def residual_beats_norm(tables: Tables) -> Measured | Untestable:
    """Subtract what L1 leaves from what TRR leaves, at every pruning point of every layer; a mean per application."""
    found = pruned_alone(tables).pivot_table("accuracy", [*APP, "layer", "share"], "ranking")
    if not {"trr", "l1"} <= set(found.columns):
        return Untestable("needs one layer pruned at a time, by trr and by l1")
    found = found[found.index.get_level_values("share") < 1]
    gains = found["trr"] - found["l1"]
    note = f"at least as good at {(gains >= 0).mean():.0%} of {len(gains)} points"
    if "random" in found:
        note += f"; over a random choice {(found['trr'] - found['random']).mean():+.3f}".replace("-", "\u2212")
    return over_trainings(gains.groupby(APP).mean(), note)


def descendants_are_better(tables: Tables) -> Measured | Untestable:
    """Subtract the accuracy of independent networks of the same size."""
    gains = _gains(tables)
    if gains.empty:
        return Untestable("needs nested and independent networks of the same sizes")
    return over_trainings(gains.groupby(APP)["gain"].mean())


def small_ones_gain_more(tables: Tables) -> Measured | Untestable:
    """Subtract the gain of the two largest descendants from that of the two smallest."""
    gains = _gains(tables)
    if gains.empty or gains["variant_nested"].nunique() < 4:
        return Untestable("needs four sizes of nested and independent networks")
    by_app = gains.sort_values("macs").groupby(APP)["gain"]
    small, large = by_app.apply(lambda each: each.iloc[:2].mean()), by_app.apply(lambda each: each.iloc[-2:].mean())
    return over_trainings(small - large, f"{small.mean():+.3f} against {large.mean():+.3f}".replace("-", "\u2212"))


def _gains(tables: Tables) -> pd.DataFrame:
    both = nested_and_independent(tables)
    return both.assign(gain=both["accuracy_nested"] - both["accuracy_alone"]).dropna(subset=["gain"])


def fewer_operations(tables: Tables) -> Measured | Untestable:
    """Tell which share of the descendants computes less than the network that they were made from."""
    smaller = {name for name, member in members(tables, "scaling", "nested").items() if max(member["keep"]) < 1}
    descendants = of_kind(tables, "nested")[lambda rows: rows["system"].isin(smaller)]
    both = descendants.merge(unscaled(tables), on=APP, suffixes=("", "_whole"))
    if both.empty:
        return Untestable("needs nested networks and the whole one")
    ratio = both["macs"] / both["macs_whole"]
    return Measured(float((ratio < 1).mean()), n=len(both), note=f"{ratio.min():.0%} to {ratio.max():.0%} of the whole")


def memory_saved(tables: Tables) -> Measured | Untestable:
    """Tell by which share the largest descendant is smaller than all independent networks together."""
    nested, alone = of_kind(tables, "nested"), of_kind(tables, "independent")
    if nested.empty or alone.empty:
        return Untestable("needs nested and independent networks")
    largest, together = memory_of_all(nested, nested=True), memory_of_all(alone, nested=False)
    note = " MB for ".join(f"{each.groupby('draw').sum().mean() / 1e6:.3g}" for each in (largest, together)) + " MB"
    return over_apps((1 - largest / together).dropna(), note)


def memory_saved_is_all_but_the_largest(tables: Tables) -> Measured | Untestable:
    """Divide what nested networks save by the kernels of all independent networks but the largest.

    What every network has for itself is there either way, once for each: of it nothing can be saved.
    """
    saved, shared, private = [], [], []
    for nested, alone in _with_kernels(tables):
        kernels = alone["kernel_bytes"].astype(int)
        saved.append(alone["memory_bytes"].sum() - nested["memory_bytes"].max())
        shared.append(kernels.sum() - kernels.max())
        private.append(_private_share(nested))
    return _identity(saved, shared, f"{max(private, default=0):.1%} at most of what is held is each network's own")


def what_nested_load(tables: Tables) -> Measured | Untestable:
    """Divide what independent networks load less what they drop by what nested ones load, over all switches up.

    Of independent networks those tensors count that nested ones share. What nested networks have for themselves is in
    memory all the time; the note says what is different where it is counted too.
    """
    loaded, both, whole_ratios = [], [], []
    for nested, alone in _with_kernels(tables):
        mine = _upwards(nested, nested=True)["loaded"].sum()
        loaded.append(mine)
        both.append(_kept_on_the_way_up(alone.assign(memory_bytes=alone["kernel_bytes"])))
        whole_ratios.append(_kept_on_the_way_up(alone) / mine)
    least, most = min(whole_ratios, default=1.0), max(whole_ratios, default=1.0)
    return _identity(
        both, loaded, f"{least:.5g} to {most:.5g} with batch norms and biases, which nested ones always hold"
    )


def switching_energy(tables: Tables) -> Measured | Untestable:
    """Subtract what a thousand switches draw among nested networks from what they draw among independent ones.

    As in the paper, switches are random: from each of an application's networks to each other one equally often,
    whatever schedulers would do. What a byte draws is what the devices of the run have paid for one.
    """
    import pandas as pd

    byte_j, pairs = joule_per_byte(tables), of_equal_sizes(tables)
    if not pairs or byte_j is None:
        return Untestable("needs nested and independent networks of the same sizes on devices that load them")
    drawn = pd.DataFrame(
        [[1000 * byte_j * _moved(part, nested=kind) for part, kind in zip(both, (True, False), strict=True)]
         for both in pairs.values()],
        index=pd.MultiIndex.from_tuples(pairs, names=APP),
        columns=["nested", "alone"],
    )  # fmt: skip
    saved = drawn["alone"] - drawn["nested"]
    told = f"{drawn['nested'].mean():.3g} J against {drawn['alone'].mean():.3g} J"
    return over_apps(saved, f"{told}, at least {saved.min():.2g} J less and at most {saved.max():.2g} J")


def _with_kernels(tables: Tables) -> list[tuple[pd.DataFrame, pd.DataFrame]]:
    """Pair nested with independent networks where it was counted what they can share."""
    return [
        pair for pair in of_equal_sizes(tables).values() if not any(each["kernel_bytes"].isna().any() for each in pair)
    ]


def _identity(left: Sequence[int], right: Sequence[int], note: str) -> Measured | Untestable:
    """Divide, application by application, what ought to be equal to the byte."""
    if not left:
        return Untestable("needs nested and independent networks of the same sizes that were built here")
    ratios = [one / other for one, other in zip(left, right, strict=True)]
    told = f"{min(ratios):.5g} to {max(ratios):.5g} over {len(ratios)} families"
    return Measured(sum(ratios) / len(ratios), n=len(ratios), note=f"{told}; {note}")


def _private_share(nested: pd.DataFrame) -> float:
    """Tell which share of the memory of nested networks is what each of them has for itself."""
    held = int(nested["memory_bytes"].max())
    return (held - int(nested["kernel_bytes"].max())) / held


def _upwards(rows: pd.DataFrame, *, nested: bool) -> pd.DataFrame:
    return every_switch(rows, nested=nested)[lambda found: found["before"] < found["after"]]


def _kept_on_the_way_up(alone: pd.DataFrame) -> int:
    """Sum what all switches up load less what they drop."""
    found = _upwards(alone, nested=False)
    return int(found["loaded"].sum() - found["dropped"].sum())


def _moved(rows: pd.DataFrame, *, nested: bool) -> float:
    """Average what a switch between two networks moves, in and out."""
    return float(every_switch(rows, nested=nested)[["loaded", "dropped"]].sum(axis="columns").mean())
