"""Allocations of a shared device per system, as means over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from driftlab.platform.results import stats
from driftlab.platform.results.figures.base import View
from driftlab.platform.results.relations.sharing import allocations, decisions
from driftlab.platform.results.report.summary.base import (
    MAX_SENTENCES,
    Column,
    Part,
    Row,
    bound_of,
    by_system,
    failed,
    mean,
    number,
    percent,
    score,
)
from driftlab.platform.results.stats import Estimate

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    Column("accuracy", emphasis="strong"),
    Column("frames", "% of the stream", emphasis="strong"),
    Column("waits", "% of the time"),
    Column("paged", "MB"),
    Column("energy", "J"),
    Column("decision", "ms"),
    Column("n", emphasis="quiet"),
)
NOTE = (
    "Means over n seeds of the allocations per window and application. Accuracy: test accuracy of the networks that "
    "ran. Frames: processed share at the allocated rate; 0 for a waiting application. Paged: bytes loaded and dropped "
    "per device. Energy: frames and paging per device. Decision: processor time of the host for one window."
)


@dataclass(frozen=True)
class SharingLine:
    """Means over seeds of one system in one setting."""

    setting: str
    system: str
    bound: str | None
    apps: float | None  # on a device at a time
    accuracy: Estimate | None  # of the networks that ran
    frames: Estimate | None  # processed share of the stream
    waits: Estimate | None  # share of the windows of all applications
    paged_mb: float | None  # per device
    energy_j: float | None  # per device
    decision_ms: float | None
    failed: int


def show(view: View) -> Part | None:
    """Summarise allocations, if a device has several applications or one that waits without training."""
    shares = view.tables.frame("shares")
    waits = (shares["inference_share"] == 0) & ~(shares["training_share"] > 0)
    if not (shares.groupby("cell")["app"].nunique() > 1).any() and not waits.any():
        return None
    found = lines(view)
    sentences = [
        _sentence([line for line in found if line.setting == setting]) for setting in view.settings()[:MAX_SENTENCES]
    ]
    return Part(
        COLUMNS, list(map(_row, found)), list(filter(None, sentences)), NOTE, never_ran(view) + memory_exceeded(view)
    )


def lines(view: View) -> list[SharingLine]:
    """Summarise each system per setting."""
    found = of_cells(view)
    return by_system(view, lambda setting, system, runs: _line(setting, system, runs, found.reindex(runs["cell"])))


def of_cells(view: View) -> pd.DataFrame:
    """Average or sum the allocations of each cell; sums are per device."""
    import pandas as pd

    rows = view.tables.once(allocations)
    rows = rows.assign(
        frames=(rows["rate"] / rows["fps"]).clip(upper=1.0),
        waits=rows["inference_share"] == 0,
        paged_mb=(rows["paged_in_bytes"] + rows["paged_out_bytes"]) / 1e6,
        drawn_j=rows["energy_j"] + rows["paging_j"],
    )
    decided = decisions(view.tables)
    devices = decided.groupby("cell")["device"].nunique()
    means = rows.groupby("cell")[["frames", "waits"]].mean()
    sums = rows.groupby("cell")[["paged_mb", "drawn_j"]].sum(min_count=1).div(devices, axis="index")
    return pd.concat(
        [
            rows[rows["inference_share"] > 0].groupby("cell")["accuracy"].mean(),
            (rows.groupby("cell").size() / decided.groupby("cell").size()).rename("apps"),
            1000 * decided.groupby("cell")["host_schedule_seconds"].mean().rename("decision_ms"),
            means,
            sums,
        ],
        axis="columns",
    )


def never_ran(view: View) -> list[str]:
    """Return warnings for applications that never ran, with devices and reason."""
    rows = view.tables.once(allocations).merge(view.runs[["cell", "setting"]], on="cell")
    rows = rows.assign(waits=rows["inference_share"] == 0)
    ends = rows.groupby(["setting", "system", "app", "cell", "device"])
    found = ends.agg(waits=("waits", "all"), note=("note", "last")).reset_index()
    apps = found.groupby(["setting", "system", "app"])
    warnings = [_never_ran_sentence(app) for _, app in apps if app["waits"].any()]
    more = (
        [f"{len(warnings) - MAX_SENTENCES} more never run; table `shares` lists them."]
        if len(warnings) > MAX_SENTENCES
        else []
    )
    return warnings[:MAX_SENTENCES] + more


def memory_exceeded(view: View) -> list[str]:
    """Return warnings for networks that exceed the memory, which the status quo does not check."""
    rows = view.tables.once(allocations).merge(view.runs[["cell", "setting"]], on="cell")
    held_bytes = rows.groupby(["setting", "system", "cell", "device", "time_s"])["memory_bytes"].sum()
    there_bytes = (
        view.tables.frame("devices").set_index(["cell", "device"])["memory_bytes"].astype("float64").rename("there")
    )
    windows = held_bytes.reset_index().join(there_bytes, on=["cell", "device"])
    over = (windows["memory_bytes"] > windows["there"]).rename("over")
    parts = over.groupby([windows["setting"], windows["system"]]).mean()
    warnings = [
        f"On {setting}, the networks of {system} exceed the memory of the device {100 * part:.2g} % of the time."
        for (setting, system), part in parts[parts > 0].items()
    ]
    return warnings[:MAX_SENTENCES]


def _never_ran_sentence(app: pd.DataFrame) -> str:
    waits = app[app["waits"]]
    first = waits.iloc[0]
    part = "" if len(waits) == len(app) else f" on {len(waits)} of {len(app)} devices and seeds"
    why = [note.removeprefix("waits: ") for note in waits["note"].dropna()] or ["no reason recorded"]
    return f"On {first['setting']}, {first['app']} never runs under {first['system']}{part}: {why[0]}."


def _line(setting: str, system: str, runs: pd.DataFrame, found: pd.DataFrame) -> SharingLine:
    return SharingLine(
        setting=setting,
        system=system,
        bound=bound_of(runs),
        apps=mean(found["apps"]),
        accuracy=stats.mean(found["accuracy"]),
        frames=stats.mean(found["frames"]),
        waits=stats.mean(found["waits"]),
        paged_mb=mean(found["paged_mb"]),
        energy_j=mean(found["drawn_j"]),
        decision_ms=mean(found["decision_ms"]),
        failed=failed(runs),
    )


def _row(line: SharingLine) -> Row:
    texts = [
        score(line.accuracy),
        percent(line.frames),
        percent(line.waits),
        *map(number, (line.paged_mb, line.energy_j, line.decision_ms)),
        str(line.frames.n if line.frames else 0),
    ]
    return Row(line.setting, line.system, line.bound, line.failed, texts)


def _sentence(here: Sequence[SharingLine]) -> str:
    methods = [line for line in here if line.bound is None and line.frames]
    if not methods:
        return ""
    fastest, best = (max(methods, key=lambda line: _middle(getattr(line, name))) for name in ("frames", "accuracy"))
    sentence = f"{fastest.system} processes {100 * _middle(fastest.frames):.1f} % of the frames"
    if len(methods) > 1 and best.accuracy is not None:
        sentence += f", the largest share; the networks under {best.system} are the most accurate"
        sentence += f" ({_middle(best.accuracy):.3f})"
    return f"On {fastest.setting}, a device has {number(fastest.apps)} applications at a time. {sentence}."


def _middle(found: Estimate | None) -> float:
    return -1.0 if found is None else found.mean
