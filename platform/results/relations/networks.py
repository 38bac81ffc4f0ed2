"""Networks of several sizes: accuracy, memory, and bytes moved by switches between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import permutations
from typing import TYPE_CHECKING, Any

from driftlab.platform.core.records import Variant
from driftlab.platform.results.relations.base import members, no_rows, pair_rows, value_rows, with_columns, with_note
from driftlab.platform.results.tables.read import Tables
from driftlab.platform.results.tables.systems import Slot
from driftlab.platform.world.measured import paged_bytes

if TYPE_CHECKING:
    import pandas as pd

APP = ["draw", "workload", "app"]  # whose networks are compared
NESTED, INDEPENDENT = "nested", "independent"  # scaling members whose networks are compared


def networks(tables: Tables) -> pd.DataFrame:
    """List the networks of every application once per system, over all cells, devices and workloads.

    `draw` numbers repeated trainings: it is the seed if each seed has its own networks, else 0.
    """
    rows = with_columns(tables, "variants", "system", "workload", "seed")
    rows = rows.assign(draw=rows["seed"] if tables.run.spec.get("student", {}).get("per_seed") else 0)
    return rows.drop_duplicates(["draw", "system", "app", "variant", "network", "accuracy", "memory_bytes", "macs"])


def over_draws(rows: pd.DataFrame) -> pd.DataFrame:
    """Average the accuracy of networks over repeated trainings."""
    place = ["system", "workload", "app", "variant"]
    mean = rows.groupby(place)["accuracy"].transform("mean")
    return rows.assign(accuracy=mean, draw=0).drop_duplicates([*place, "network", "memory_bytes", "macs"])


def families(tables: Tables, systems: Iterable[str]) -> pd.DataFrame:
    """List the networks of scaling members (`family`) that prune all layers, by application (`place`).

    The first of the systems with a member stands for it, and names it if several members share a name. Workloads are
    separate places if their networks differ.
    """
    known, first = members(tables, "scaling"), dict[Slot, str]()
    for name in systems:
        if name in known and known[name]["only"] is None:
            first.setdefault(known[name], name)
    count = Counter(member.name for member in first)
    names = {name: name if count[member.name] > 1 else member.name for member, name in first.items()}
    rows = over_draws(networks(tables))[lambda found: found["system"].isin(list(names))]
    system = rows["system"]
    rows = rows.assign(family=system.map(names), nested=[known[name].nested for name in system])
    rows = rows.assign(order=system.map(list(names).index)).sort_values(["order", "workload", "variant"])
    each = rows.groupby(["family", "app", "variant"])[["memory_bytes", "accuracy"]].nunique()
    rows = rows.assign(place=rows["app"] if (each <= 1).all(axis=None) else rows["workload"] + " · " + rows["app"])
    return rows.drop_duplicates(["family", "place", "variant"])


def means_by_rank(tables: Tables, rows: pd.DataFrame) -> pd.DataFrame:
    """Average `accuracy` and operations of families over applications, by `variant`.

    `work` is relative to the largest network of the application, the unscaled one if the run has it.
    """
    app, whole = ["workload", "app"], unscaled(tables)
    largest = (rows if whole.empty else whole).groupby(app)["macs"].max().rename("most")
    shares = rows.join(largest, on=app)
    return (
        shares.assign(work=shares["macs"] / shares["most"]).groupby(["family", "variant"])[["accuracy", "work"]].mean()
    )


def memory_by_family(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the memory of all networks of each family in a column, by place, and for `all` places."""
    sizes = rows.groupby(["place", "family"])
    bytes_of = sizes["memory_bytes"].max().where(sizes["nested"].first(), sizes["memory_bytes"].sum())
    wide = bytes_of.unstack().reindex(index=rows["place"].unique(), columns=rows["family"].unique())
    wide.loc["all"] = wide.sum(min_count=len(wide))
    return wide


def of_kind(tables: Tables, kind: str) -> pd.DataFrame:
    """List the networks of the first system with a scaling member that prunes all layers."""
    found = [name for name, member in members(tables, "scaling", kind).items() if member["only"] is None]
    rows = tables.once(networks)
    return rows[rows["system"].isin(found[:1])]


def nested_and_independent(tables: Tables) -> pd.DataFrame:
    """Join nested and independent networks of the same application and width: `_nested` and `_alone`."""
    key = [*APP, "macs"]
    return of_kind(tables, "nested").merge(of_kind(tables, "independent"), on=key, suffixes=("_nested", "_alone"))


def unscaled(tables: Tables) -> pd.DataFrame:
    """List the unscaled network of each application."""
    return of_kind(tables, "fixed")


def of_equal_sizes(tables: Tables) -> dict[Any, tuple[pd.DataFrame, pd.DataFrame]]:
    """Pair nested with independent networks of each application that has equally many, and at least two."""
    nested, alone = (dict(list(of_kind(tables, kind).groupby(APP))) for kind in ("nested", "independent"))
    return {app: (nested[app], alone[app]) for app in nested if len(nested[app]) == len(alone.get(app, ())) > 1}


def every_switch(rows: pd.DataFrame, *, nested: bool) -> pd.DataFrame:
    """List all switches between an application's networks, numbered from the smallest, with their bytes.

    Columns are `before`, `after`, `loaded` and `dropped`, both in bytes.
    """
    import pandas as pd

    sizes = sorted(rows["memory_bytes"].astype(int))
    variants = [Variant("", None, size, 0.0) for size in sizes]
    moved = [(i, j, *paged_bytes(variants, i, j, nested=nested)) for i, j in permutations(range(len(variants)), 2)]
    return pd.DataFrame(moved, columns=["before", "after", "loaded", "dropped"])


def switches_by_kind(tables: Tables) -> pd.DataFrame:
    """List the switches of `every_switch` by `kind`, nested or independent, for each application.

    Only applications with equally many nested and independent networks count.
    """
    import pandas as pd

    found = [
        every_switch(rows, nested=kind == NESTED).assign(kind=kind, **dict(zip(APP, app, strict=True)))
        for app, both in of_equal_sizes(tables).items()
        for rows, kind in zip(both, (NESTED, INDEPENDENT), strict=True)
    ]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=[*APP, "kind"])


def joule_per_byte(tables: Tables) -> float | None:
    """Return the energy per loaded byte in a run; None if its devices loaded no bytes."""
    paid = tables.frame("shares")
    loaded_bytes = paid["paged_in_bytes"].sum()
    return float(paid["paging_j"].sum() / loaded_bytes) if loaded_bytes else None


def pruned_alone(tables: Tables) -> pd.DataFrame:
    """List the networks with one pruned layer and no retraining: `layer`, `ranking`, `share`.

    A layer with fewer networks than shares is left out, since the missing share is unknown.
    """
    kinds = {
        name: member for name, member in members(tables, "scaling", "nested").items() if member["only"] is not None
    }
    kinds = {name: member for name, member in kinds.items() if not member["prune_epochs"] and not member["grow_epochs"]}
    rows = tables.once(networks)
    count = rows.groupby(["system", *APP])["variant"].transform("size")
    rows = rows[count == rows["system"].map({name: len(member["keep_ratios"]) for name, member in kinds.items()})]
    shares = [kinds[row.system]["keep_ratios"][::-1][row.variant] for row in rows.itertuples()]
    ranking, layer = ({name: kinds[name][field] for name in kinds} for field in ("ranking", "only"))
    return rows.assign(share=shares, ranking=rows["system"].map(ranking), layer=rows["system"].map(layer))


def gains_of_residual(tables: Tables) -> pd.DataFrame:
    """List the accuracy with TRR minus that with L1, over all pruning points and layers, by application."""
    found = pruned_alone(tables).pivot_table("accuracy", [*APP, "layer", "share"], "ranking")
    if not {"trr", "l1"} <= set(found.columns):
        return no_rows()
    found = found[found.index.get_level_values("share") < 1]
    gains = found["trr"] - found["l1"]
    note = f"at least as good at {(gains >= 0).mean():.0%} of {len(gains)} points"
    if "random" in found:
        note += f"; over a random choice {(found['trr'] - found['random']).mean():+.3f}".replace("-", "\u2212")
    return value_rows(gains.groupby(APP).mean(), note)


def gains_of_descendants(tables: Tables) -> pd.DataFrame:
    """List the gain in accuracy of nested over independent networks of the same size, by application."""
    gains = _gains(tables)
    return no_rows() if gains.empty else value_rows(gains.groupby(APP)["gain"].mean())


def gains_by_size(tables: Tables) -> pd.DataFrame:
    """List the gain of the two smallest descendants and of the two largest, by application."""
    gains = _gains(tables)
    if gains.empty or gains["variant_nested"].nunique() < 4:
        return no_rows()
    by_app = gains.sort_values("macs").groupby(APP)["gain"]
    small, large = by_app.apply(lambda each: each.iloc[:2].mean()), by_app.apply(lambda each: each.iloc[-2:].mean())
    return pair_rows(small, large, f"{small.mean():+.3f} against {large.mean():+.3f}".replace("-", "\u2212"))


def _gains(tables: Tables) -> pd.DataFrame:
    both = nested_and_independent(tables)
    return both.assign(gain=both["accuracy_nested"] - both["accuracy_alone"]).dropna(subset=["gain"])


def smaller_descendants(tables: Tables) -> pd.DataFrame:
    """List for every descendant whether it has fewer operations than the network that it was made from."""
    smaller = {name for name, member in members(tables, "scaling", "nested").items() if max(member["keep_ratios"]) < 1}
    descendants = of_kind(tables, "nested")[lambda rows: rows["system"].isin(smaller)]
    both = descendants.merge(unscaled(tables), on=APP, suffixes=("", "_whole"))
    ratio = both["macs"] / both["macs_whole"]
    return value_rows(ratio < 1, f"{ratio.min():.0%} to {ratio.max():.0%} of the whole") if len(both) else no_rows()


def memory_of_nested(tables: Tables) -> pd.DataFrame:
    """List the memory of the largest descendant and of all independent networks together, by application."""
    nested, alone = of_kind(tables, "nested"), of_kind(tables, "independent")
    if nested.empty or alone.empty:
        return no_rows()
    largest, together = nested.groupby(APP)["memory_bytes"].max(), alone.groupby(APP)["memory_bytes"].sum()
    note = " MB for ".join(f"{each.groupby('draw').sum().mean() / 1e6:.3g}" for each in (largest, together)) + " MB"
    return pair_rows(largest, together, note)


def saved_kernels(tables: Tables) -> pd.DataFrame:
    """List the bytes that nesting saves, and the kernels of all independent networks but the largest.

    Rows are applications. Bytes that every network needs for itself are in both sums, so they cannot be saved.
    """
    rows, private = [], [0.0]
    for nested, alone in _with_kernels(tables):
        kernels, held_bytes = alone["kernel_bytes"].astype(int), int(nested["memory_bytes"].max())
        rows.append((alone["memory_bytes"].sum() - held_bytes, kernels.sum() - kernels.max()))
        private.append((held_bytes - int(nested["kernel_bytes"].max())) / held_bytes)
    return _equal(rows, f"at most {max(private):.1%} of the memory is private to one network")


def loaded_upwards(tables: Tables) -> pd.DataFrame:
    """List net loaded bytes of independent networks and loaded bytes of nested ones, over all switches up.

    Of independent networks only the tensors count that nested ones share. The private tensors of nested networks are
    always in memory; the note has the ratio with private tensors included.
    """
    rows, whole_ratios = [], []
    for nested, alone in _with_kernels(tables):
        mine = _upwards(nested, nested=True)["loaded"].sum()
        rows.append((_net_loaded_bytes(alone.assign(memory_bytes=alone["kernel_bytes"])), mine))
        whole_ratios.append(_net_loaded_bytes(alone) / mine)
    least, most = min(whole_ratios, default=1.0), max(whole_ratios, default=1.0)
    return _equal(rows, f"{least:.5g} to {most:.5g} with batch norms and biases, which are always in memory if nested")


def energy_of_switches(tables: Tables) -> pd.DataFrame:
    """List the joules of a thousand switches among independent and among nested networks, by application.

    As in the paper, switches are random, not those of schedulers: every ordered pair of an application's networks is
    equally frequent. The energy per byte is that of the devices of the run.
    """
    byte_j, changes = joule_per_byte(tables), switches_by_kind(tables)
    if changes.empty or byte_j is None:
        return no_rows()
    loaded = changes.groupby([*APP, "kind"])["loaded"].mean()
    spent = (1000 * byte_j * loaded).unstack("kind")
    rows = pair_rows(spent[INDEPENDENT], spent[NESTED])
    saved = rows["ours"] - rows["theirs"]
    note = f"{rows['theirs'].mean():.3g} J against {rows['ours'].mean():.3g} J"
    return with_note(rows, f"{note}, at least {saved.min():.2g} J less and at most {saved.max():.2g} J")


def _with_kernels(tables: Tables) -> list[tuple[pd.DataFrame, pd.DataFrame]]:
    """Pair nested with independent networks whose kernels were counted."""
    return [
        both for both in of_equal_sizes(tables).values() if not any(one["kernel_bytes"].isna().any() for one in both)
    ]


def _equal(rows: Sequence[tuple[int, int]], note: str) -> pd.DataFrame:
    """Return rows of two byte counts per application that must be equal."""
    import pandas as pd

    return with_note(pd.DataFrame(rows, columns=["ours", "theirs"]), note) if rows else no_rows()


def _upwards(rows: pd.DataFrame, *, nested: bool) -> pd.DataFrame:
    return every_switch(rows, nested=nested)[lambda found: found["before"] < found["after"]]


def _net_loaded_bytes(alone: pd.DataFrame) -> int:
    """Return the bytes that all switches up load minus those that they drop."""
    found = _upwards(alone, nested=False)
    return int(found["loaded"].sum() - found["dropped"].sum())
