"""What is compared: systems by what they do, and cells of the same workload, fleet and seed side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from driftlab.datasets.catalogue import label_of
from driftlab.platform.results.relations.measured import Measured, Untestable, over_seeds
from driftlab.platform.results.relations.pairing import pairs
from driftlab.platform.results.tables.read import Tables
from driftlab.platform.results.tables.systems import Slot, recorded_slots, slots_of

if TYPE_CHECKING:
    import pandas as pd

Kinds = Mapping[str, Any] | Sequence[Mapping[str, Any]]  # what systems have in their slots, or one of several
CELL = ["workload", "fleet", "seed"]
FRAME = [*CELL, "device", "app", "frame"]


def done(tables: Tables) -> pd.DataFrame:
    """List the cells that came to their end; what a method would do over no link is no cell of that method."""
    return tables.once(_done)


def _done(tables: Tables) -> pd.DataFrame:
    runs = tables.frame("runs")
    return runs[(runs["status"] == "done") & (runs["bound"] != "null_link")]


def slot(tables: Tables, system: str, family: str) -> Slot:
    """Read the member that a system of this run has in a slot, with every parameter."""
    return slots(tables, [system])[system][family]


def slots(tables: Tables, systems: Iterable[str]) -> dict[str, dict[str, Slot]]:
    """Read what systems have in their slots: from the table of the run, or from its spec if the run is older."""
    names = list(systems)
    rows = tables.frame("systems")
    rows = rows[rows["system"].isin(names)].drop_duplicates(["system", "family", "parameter"])
    known = recorded_slots(rows.to_dict("records"))
    known |= slots_of(tables.run.spec, [name for name in names if name not in known])
    return {name: known[name] for name in names}


def _slots_of_done(tables: Tables) -> dict[str, dict[str, Slot]]:
    return slots(tables, done(tables)["system"].unique())


def members(tables: Tables, family: str, *names: str) -> dict[str, Slot]:
    """Read the members that the systems of a run have in a slot, by system; of these names alone, if any are given."""
    found = tables.once(_slots_of_done)
    chosen = {system: of[family] for system, of in found.items()}
    return {system: one for system, one in chosen.items() if not names or one.name in names}


def first_of(tables: Tables, system: str | Kinds) -> str:
    """Name the first system of the run that is of one of these kinds, or nothing; a name stays as it is."""
    return system if isinstance(system, str) else next(iter(of_kinds(tables, system)), "")


def of_kinds(tables: Tables, kinds: Kinds) -> list[str]:
    """Name the systems whose slots are as asked: `{"streaming": "ams", "streaming.interval_s": 10}`, or one of many."""
    wanted = [kinds] if isinstance(kinds, Mapping) else kinds
    found = tables.once(_slots_of_done)
    return [name for name, of in found.items() if any(all(_has(of, *each) for each in kind.items()) for kind in wanted)]


def _has(of: Mapping[str, Slot], key: str, value: Any) -> bool:
    family, dot, parameter = key.partition(".")
    return bool((of[family][parameter] if dot else of[family].name) == value)


def gains(frames: pd.DataFrame, plain: pd.DataFrame) -> pd.DataFrame:
    """Put every frame beside the same one of the system that does nothing: `gain`."""
    both = frames.merge(plain[[*FRAME, "score_frame"]], on=FRAME, suffixes=("", "_plain"))
    return both.assign(gain=both["score_frame"] - both["score_frame_plain"])


def differences(tables: Tables, ours: str, theirs: str, column: str = "score") -> pd.Series:
    """Subtract what one system measured from what another did, cell by cell."""
    both = pairs(tables, ours, theirs, column)
    return both["ours"] - both["theirs"]


def ratios(tables: Tables, ours: str, theirs: str, column: str) -> pd.Series:
    """Divide what one system measured by what another did, cell by cell."""
    both = pairs(tables, ours, theirs, column)
    return both["ours"] / both["theirs"]


def difference(tables: Tables, ours: str, theirs: str) -> Measured | Untestable:
    """Average the difference of two systems' scores over workloads, then over seeds."""
    found = differences(tables, ours, theirs)
    if found.empty:
        return Untestable(f"needs '{ours}' and '{theirs}' on the same workload and seed, with truth")
    gains = found.groupby("workload").mean()
    note = f"{gains.min():+.3f} on {gains.idxmin()} to {gains.max():+.3f} on {gains.idxmax()}"
    return over_seeds(found, note)


def losses(tables: Tables, against: str | None = None) -> pd.DataFrame:
    """List how much less a device scores in a fleet than the same device where it never waits: `devices`, `loss`.

    It never waits in a fleet with a GPU for each device, and of such fleets the largest counts. There it runs the same
    system, or the one that it is to be compared `against`.
    """
    runs = done(tables)
    columns = ["cell", "system", "workload", "seed", "fleet", "devices"]
    rows = tables.frame("devices").merge(runs[columns], on="cell").sort_values("devices")
    device = ["workload", "seed", "device"]
    key = ["system", *device] if against is None else device
    alone = rows["fleet"].isin(without_waiting(tables))
    own = rows[alone] if against is None else rows[alone & (rows["system"] == against)]
    own = own.drop_duplicates(key, keep="last")[[*key, "score"]]
    shared = rows[~alone].merge(own, on=key, suffixes=("", "_alone"))
    return shared.assign(loss=shared["score_alone"] - shared["score"])[["system", *device, "devices", "loss"]]


def without_waiting(tables: Tables) -> set[str]:
    """Name the fleets with a GPU for each device."""
    spec = tables.run.spec
    fleets, usual = spec.get("fleets", ()), spec.get("server", {}).get("gpus", 1)
    sizes = {part["name"]: sum(each.get("count", 1) for each in part.get("devices", ({},))) for part in fleets}
    return {part["name"] for part in fleets if (part.get("gpus") or usual) >= sizes[part["name"]]}


def uploads(tables: Tables) -> pd.DataFrame:
    """List every upload of samples with what filled it (`start_s`, `gap_s`, `rate`), and the phase that served it.

    A sampling rate is what an upload brought over the time since the upload before. One visit to the server takes all
    uploads that wait, in the order of their arrival; what was refused or came too late has no phase.
    """
    place = ["cell", "device", "app"]
    sent = tables.frame("transfers").merge(done(tables)[["cell", "system", *CELL]], on="cell")
    sent = sent[sent["kind"] == "samples"].sort_values([*place, "sequence"])
    start_s = sent.groupby(place)["queued_s"].shift(fill_value=0.0)
    sent = sent.assign(start_s=start_s, gap_s=sent["queued_s"] - start_s)
    sent["rate"] = sent["samples"] / sent["gap_s"]
    taken = sent[sent["refused"].isna()]
    served = tables.frame("updates").sort_values([*place, "teach_start_s"])
    served = served.loc[served.index.repeat(served["uploads"].fillna(0).astype(int))]
    pairs = [table.assign(number=table.groupby(place).cumcount()) for table in (taken, served)]
    phases = pairs[1][[*place, "number", "teach_start_s", "train_start_s", "train_end_s"]]
    numbered = pairs[0][[*place, "number", "sequence"]].merge(phases, on=[*place, "number"])
    return sent.drop(columns=["bytes", "wire_bytes", "kind"]).merge(numbered, on=[*place, "sequence"], how="left")


def labels_of(tables: Tables) -> dict[str, str]:
    """Map how the tables call a workload to its name in the catalogue."""
    parts: Iterable[dict[str, Any]] = tables.run.spec.get("workloads", ())
    names = {part.get("alias") or label_of(part["name"]): part["name"] for part in parts}
    return {**{part["name"]: part["name"] for part in parts}, **names}


def by_seed(values: Sequence[tuple[int, float]]) -> pd.Series:
    """Make a series of values from pairs of a seed and a value; there may be none."""
    import pandas as pd

    return pd.DataFrame(values, columns=["seed", "value"]).set_index("seed")["value"]
