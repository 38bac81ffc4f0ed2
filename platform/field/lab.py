"""The laboratory's experiment of the same setting as a run in the field, with the times that were measured there.

A member may decide by how soon updates come, as Just-In-Time does: laboratory and field are the same setting only where
both are as fast. Only times are taken from the field; bytes and scores are left to the laboratory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import yaml

from driftlab.platform.core.files import write_atomically
from driftlab.platform.lab.cells import resolved
from driftlab.platform.results.tables.read import Run, open_run
from driftlab.platform.world.link import MAX_FLIGHTS

if TYPE_CHECKING:
    from driftlab.platform.field.agent import Agent
    from driftlab.platform.lab.read import Experiment
    from driftlab.platform.world.hardware import Hardware

LAB = "lab.yaml"  # beside a device's tables


@dataclass(frozen=True)
class MeasuredTimes:
    """The times of a server and of the way to it and back; None where nothing was measured."""

    label_s: float | None  # median, per frame
    step_s: float | None  # median
    travels_s: tuple[float, ...]  # from an upload to its result without the two, result by result


def measured_times(run: Run) -> MeasuredTimes:
    """Take the times of the training rounds apart, or of the labels that came back."""
    rounds = run.table("updates").to_pylist()
    moved = run.table("transfers").select(["direction", "kind", "queued_s", "arrive_s"]).to_pylist()
    sent_s = [row["queued_s"] for row in moved if row["kind"] == "samples"]
    came_s = [row["arrive_s"] for row in moved if row["direction"] == "down"]
    if not rounds or not sent_s:  # labels, of which each upload has its own; or a learner on the device
        travels_s = [came - sent for came, sent in zip(came_s, sent_s, strict=False)]
        return MeasuredTimes(0.0 if came_s else None, None, tuple(travels_s[:MAX_FLIGHTS]))
    label_s = _middle(_took_s(row, "teach") / row["samples"] for row in rounds if row["teach_end_s"] is not None)
    step_s = _middle(
        _took_s(row, "train") / row["iterations"] for row in rounds if row["uploads"] and row["iterations"]
    )
    newest = itertools.accumulate(row["uploads"] for row in rounds)  # number of the newest upload of each
    travels_s = []
    for came, number, row in zip(came_s, newest, rounds, strict=False):
        if row["uploads"] and number <= len(sent_s):  # others carry every weight again
            worked_s = row["samples"] * (label_s or 0.0) + row["iterations"] * (step_s or 0.0)
            travels_s.append(max(0.0, came - sent_s[number - 1] - worked_s))
    return MeasuredTimes(label_s, step_s, tuple(travels_s[:MAX_FLIGHTS]))


def _took_s(row: Mapping[str, Any], part: str) -> float:
    took_s: float = row[f"{part}_end_s"] - row[f"{part}_start_s"]
    return took_s


def _middle(values: Iterable[float]) -> float | None:
    found = list(values)
    return median(found) if found else None


def lab_of(field: Experiment, times: MeasuredTimes, device: Hardware) -> Experiment:
    """Write the experiment in virtual time."""
    (fleet,) = field.fleets
    free = {"up_kbps": math.inf, "down_kbps": math.inf}
    link = {"name": "field", **free, "down_flights_s": [round(one, 6) for one in times.travels_s]}
    part = fleet.devices[0].model_copy(update={"hardware": asdict(device), "link": link})
    server = {name: value for name in ("label_s", "step_s") if (value := getattr(times, name)) is not None}
    return field.model_copy(
        update={
            "clock": "virtual",
            "server": field.server.model_copy(update=server),
            "fleets": (fleet.model_copy(update={"devices": (part,)}),),
        }
    )


def _as_fast(hardware: Hardware, shares: Sequence[float]) -> Hardware:
    """Return the profile on which an answer takes as long as measured, given the modelled share of each."""
    speed = median(shares) if shares else 1.0
    speeds = {name: getattr(hardware, name) * speed for name in ("macs_per_s", "bytes_per_s")}
    return replace(hardware, **speeds, overhead_s=hardware.overhead_s / speed)


def write_lab(agent: Agent, directory: Path) -> None:
    """Write the laboratory's experiment beside the tables of a device; none for tables that lack a part."""
    if agent.missing or not agent.fresh:
        return
    device = _as_fast(agent.cell.device.spec.hardware, agent.shares)
    lab = lab_of(agent.cell.experiment, measured_times(open_run(directory)), device)
    write_atomically(directory / LAB, yaml.safe_dump(resolved(lab), sort_keys=False, allow_unicode=True))
