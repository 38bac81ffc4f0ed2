"""Write the tables of a field run: those of a simulation, with measured times."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftlab.errors import DriftlabError, first_line
from driftlab.platform.core.files import write_atomically
from driftlab.platform.core.records import Applied
from driftlab.platform.field.lab import write_lab
from driftlab.platform.field.sending import Traffic
from driftlab.platform.lab import paths
from driftlab.platform.lab.cells import agreement_of
from driftlab.platform.lab.plan import origins_of
from driftlab.platform.lab.seal import provenance
from driftlab.platform.results.tables.recorder import Recorder

if TYPE_CHECKING:
    from driftlab.platform.field.agent import Agent
    from driftlab.platform.field.opening import FieldCell
    from driftlab.platform.field.shared_device import SharedDevice

MEASURED = "wall clock of the device"
PROFILED = "wall clock of the device; inference and training on the stream: computed from the hardware profile"


def write_update_rows(traffic: Traffic, outcomes: Mapping[int, tuple[float, Applied]]) -> str:
    """Write the server's training rounds, each with its outcome on the device.

    Return the reason if the server does not return its rounds and the table stays empty, else an empty string.
    """
    try:
        rounds = traffic.client.ask_json("GET", f"{traffic.path}/rounds")
    except DriftlabError as error:
        return f"the table of updates is empty because the server did not return its rounds: {first_line(error)}"
    for round_facts in rounds:
        row, number = round_facts["row"], int(round_facts["number"])
        if not row:  # labels: they have no row in a simulation either
            continue
        if number in outcomes:
            arrive_s, receipt = outcomes[number]
            version = receipt.version if receipt.accepted else None
            row |= {"version": version, "arrive_s": arrive_s, "accepted": receipt.accepted}
            row["reason"] = receipt.reason or None
        traffic.cell.runner.ledger.row("updates", **row)
    return ""


def energy_of(device: Agent | SharedDevice) -> str:
    """Describe the source of the joules in the tables."""
    if device.meter.sensors:
        return f"measured by {device.meter.name}: energy of the whole computer while the device runs"
    return f"estimated: computed from the profile '{device.cell.device.spec.hardware.name}'"


def write_run(agent: Agent, directory: Path) -> None:
    """Write the tables, `run.json` with the sources of times and energy, and `lab.yaml`."""
    up, down = agent.traffic.client.counted.both
    facts: dict[str, Any] = {
        **provenance(),
        **agreement_of(agent.cell.experiment),
        "times": PROFILED if agent.cell.runner.learns_on_stream else MEASURED,
        "energy": energy_of(agent),
        "field": {"server": agent.ticket.server, "session": agent.ticket.id, "missing": agent.missing},
        "socket_bytes": {"up": up, "down": down},
        "opening_bytes": dict(zip(("up", "down"), agent.opening, strict=True)),  # the part before the stream
        "closing_bytes": {"up": up - agent.stream_end[0], "down": down - agent.stream_end[1]},  # the part after it
    }
    _write(agent.cell, directory, facts)
    write_lab(agent, directory)


def write_shared_run(device: SharedDevice, directory: Path) -> None:
    """Write the tables of several applications, and `run.json` with the sources of times and energy."""
    facts = {"times": MEASURED, "energy": energy_of(device), "capacity": device.capacity}
    _write(device.cell, directory, {**provenance(), **facts})


def _write(field: FieldCell, directory: Path, facts: Mapping[str, Any]) -> None:
    write_atomically(directory / paths.INFO, json.dumps(facts, indent=2, sort_keys=True) + "\n")
    cell = field.runner.cell
    origin = origins_of(field.experiment, [cell])[cell.id]
    Recorder(str(directory)).write(cell.id, field.runner.ledger.rows, origin)
