"""The tables of a device in the field: the same as of a lab run, with times that were measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftlab.errors import DriftlabError, first_line
from driftlab.platform.core.files import write_atomically
from driftlab.platform.core.records import Receipt
from driftlab.platform.field.lab import write_lab
from driftlab.platform.field.sending import Traffic
from driftlab.platform.lab import paths
from driftlab.platform.lab.plan import origins_of
from driftlab.platform.lab.seal import provenance
from driftlab.platform.results.tables.recorder import Recorder

if TYPE_CHECKING:
    from driftlab.platform.field.agent import Agent

MEASURED = "wall clock of the device"
LESSONS = "wall clock of the device; answers and lessons on the stream: computed from the hardware profile"


def write_update_rows(traffic: Traffic, outcomes: Mapping[int, tuple[float, Receipt]]) -> str:
    """Write the server's training rounds, each with what became of it here; return why there are none, if so."""
    try:
        rounds = traffic.client.ask_json("GET", f"{traffic.path}/rounds")
    except DriftlabError as error:
        return f"the table of updates is empty, as the server did not tell its rounds: {first_line(error)}"
    for one in rounds:
        row, number = one["row"], int(one["number"])
        if not row:  # labels, which have no row here in a lab run either
            continue
        if number in outcomes:
            arrive_s, receipt = outcomes[number]
            version = receipt.version if receipt.accepted else None
            row |= {"version": version, "arrive_s": arrive_s, "accepted": receipt.accepted}
            row["reason"] = receipt.reason or None
        traffic.cell.runner.ledger.row("updates", **row)
    return ""


def energy_of(agent: Agent) -> str:
    """Say where the joules of the tables come from."""
    if agent.meter.sensors:
        return f"measured by {agent.meter.name}: what the machine draws while the device runs"
    return f"estimated: computed from the profile '{agent.cell.device.spec.hardware.name}'"


def write_run(agent: Agent, directory: Path) -> None:
    """Write the tables, and say in run.json what was measured and what a profile says."""
    up, down = agent.traffic.client.counted.both
    facts: dict[str, Any] = {
        **provenance(),
        "times": LESSONS if agent.cell.runner.learns_on_stream else MEASURED,
        "energy": energy_of(agent),
        "field": {"server": agent.ticket.server, "session": agent.ticket.id, "missing": agent.missing},
        "socket_bytes": {"up": up, "down": down},
        "opening_bytes": dict(zip(("up", "down"), agent.opening, strict=True)),  # of them, before the stream
        "closing_bytes": {"up": up - agent.stream_end[0], "down": down - agent.stream_end[1]},  # and after it
    }
    write_atomically(directory / paths.INFO, json.dumps(facts, indent=2, sort_keys=True) + "\n")
    cell = agent.cell.runner.cell
    origin = origins_of(agent.cell.experiment, [cell])[cell.id]
    Recorder(str(directory)).write(cell.id, agent.cell.runner.ledger.rows, origin)
    write_lab(agent, directory)
