"""A simulation experiment with the setting of a field run and the times measured there.

Some members decide by the delay of updates, as Just-In-Time does, so simulation and field run are comparable only at
equal speed. Only times are copied; the simulation computes bytes and scores itself.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from driftlab.platform.core.documents import as_yaml
from driftlab.platform.core.files import write_atomically
from driftlab.platform.lab.cells import resolved
from driftlab.platform.results.tables.read import Run, open_run
from driftlab.platform.world.link import MAX_FLIGHTS

if TYPE_CHECKING:
    from driftlab.platform.field.agent import Agent
    from driftlab.platform.lab.read import Experiment
    from driftlab.platform.world.hardware import Hardware

LAB = "lab.yaml"  # next to the tables of a device


@dataclass(frozen=True)
class MeasuredTimes:
    """Times of the server and of the network; None where nothing was measured."""

    label_s: float | None  # median per frame
    step_s: float | None  # median per training step
    delays_s: tuple[float, ...]  # per result: from upload to result, without labelling and training


def measured_times(run: Run) -> MeasuredTimes:
    """Split the time of each result into labelling, training and network delay.

    For results with labels only, and for a learner on the device, the whole time is network delay.
    """
    rounds = run.table("updates").to_pylist()
    moved = run.table("transfers").select(["direction", "kind", "queued_s", "arrive_s"]).to_pylist()
    sent_s = [row["queued_s"] for row in moved if row["kind"] == "samples"]
    arrived_s = [row["arrive_s"] for row in moved if row["direction"] == "down"]
    if not rounds or not sent_s:  # labels, one message per upload; or a learner on the device
        delays_s = [arrived - sent for arrived, sent in zip(arrived_s, sent_s, strict=False)]
        return MeasuredTimes(0.0 if arrived_s else None, None, tuple(delays_s[:MAX_FLIGHTS]))
    label_s = _median(_duration_s(row, "label") / row["samples"] for row in rounds if row["label_end_s"] is not None)
    step_s = _median(
        _duration_s(row, "train") / row["iterations"] for row in rounds if row["uploads"] and row["iterations"]
    )
    newest = itertools.accumulate(row["uploads"] for row in rounds)  # number of the newest upload of each round
    delays_s = []
    for arrived, number, row in zip(arrived_s, newest, rounds, strict=False):
        if row["uploads"] and number <= len(sent_s):  # other rounds send all weights again
            compute_s = row["samples"] * (label_s or 0.0) + row["iterations"] * (step_s or 0.0)
            delays_s.append(max(0.0, arrived - sent_s[number - 1] - compute_s))
    return MeasuredTimes(label_s, step_s, tuple(delays_s[:MAX_FLIGHTS]))


def _duration_s(row: Mapping[str, Any], part: str) -> float:
    duration_s: float = row[f"{part}_end_s"] - row[f"{part}_start_s"]
    return duration_s


def _median(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return median(numbers) if numbers else None


def lab_of(field: Experiment, times: MeasuredTimes, device: Hardware) -> Experiment:
    """Return a field experiment in virtual time, with measured times and a given device profile."""
    (fleet,) = field.fleets
    free = {"up_kbps": math.inf, "down_kbps": math.inf}
    link = {"name": "field", **free, "down_flights_s": [round(delay_s, 6) for delay_s in times.delays_s]}
    part = fleet.devices[0].model_copy(update={"hardware": asdict(device), "link": link})
    server = {name: value for name in ("label_s", "step_s") if (value := getattr(times, name)) is not None}
    return field.model_copy(
        update={
            "clock": "virtual",
            "server": field.server.model_copy(update=server),
            "fleets": (fleet.model_copy(update={"devices": (part,)}),),
        }
    )


def _scale_speed(hardware: Hardware, shares: Sequence[float]) -> Hardware:
    """Return a profile whose inference takes the median measured time; see `Agent.shares`."""
    speed = median(shares) if shares else 1.0
    speeds = {name: getattr(hardware, name) * speed for name in ("macs_per_s", "bytes_per_s")}
    return replace(hardware, **speeds, overhead_s=hardware.overhead_s / speed)


def write_lab(agent: Agent, directory: Path) -> None:
    """Write `lab.yaml` next to the tables of a device; not for a resumed device or incomplete tables."""
    if agent.missing or not agent.fresh:
        return
    device = _scale_speed(agent.cell.device.spec.hardware, agent.shares)
    lab = lab_of(agent.cell.experiment, measured_times(open_run(directory)), device)
    write_atomically(directory / LAB, as_yaml(resolved(lab)))
