"""Write the tables of a field run: those of a simulation, with measured times."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from driftlab.errors import DriftlabError, first_line, shortened
from driftlab.platform.core.files import write_atomically
from driftlab.platform.core.records import Applied
from driftlab.platform.field.lab import write_lab
from driftlab.platform.field.sending import Traffic
from driftlab.platform.lab import paths
from driftlab.platform.lab.cells import agreement_of
from driftlab.platform.lab.plan import origins_of
from driftlab.platform.lab.seal import provenance
from driftlab.platform.results.tables.recorder import Recorder, as_table
from driftlab.platform.results.tables.schema import TABLES

if TYPE_CHECKING:
    from driftlab.platform.field.agent import Agent
    from driftlab.platform.field.opening import FieldCell
    from driftlab.platform.field.shared_device import SharedDevice


class ServerRound(BaseModel):
    """A training round of the server, with its columns of the table of updates."""

    number: int
    row: dict[str, Any] | None


ROUNDS = TypeAdapter(list[ServerRound])
MEASURED = "wall clock of the device"
PROFILED = "wall clock of the device; inference and training on the stream: computed from the hardware profile"


def write_update_rows(traffic: Traffic, outcomes: Mapping[int, tuple[float, Applied]]) -> str:
    """Write the server's training rounds, each with its outcome on the device.

    Return the reason why the table is incomplete, or an empty text. The rounds come from a server that may be hostile
    or of another version, and must not cost the device its other tables.
    """
    try:
        reply = traffic.client.ask_json("GET", f"{traffic.path}/rounds")
        rounds = ROUNDS.validate_python(reply, strict=True)
    except DriftlabError as error:
        return f"the table of updates is empty because the server did not return its rounds: {first_line(error)}"
    except ValidationError as error:
        return f"the table of updates is empty because the server's rounds cannot be read: {first_line(error)}"
    refused: list[str] = []
    for facts in rounds:
        if facts.row:  # labels have no row in a simulation either
            refused += _write_update_row(traffic, facts.row, outcomes.get(facts.number))
    return "" if not refused else f"rounds of the server are incomplete in the table of updates: {refused[0]}"


def _write_update_row(traffic: Traffic, row: dict[str, Any], outcome: tuple[float, Applied] | None) -> list[str]:
    """Write a round of the server; return why it, or a part of it, is left out."""
    known = set(TABLES["updates"].names)
    unknown = [f"the column '{shortened(name)}' is unknown here" for name in row if name not in known]
    row = {name: value for name, value in row.items() if name in known}
    if outcome is not None:
        arrive_s, receipt = outcome
        row |= {"version": receipt.version if receipt.accepted else None, "arrive_s": arrive_s}
        row |= {"accepted": receipt.accepted, "reason": receipt.reason or None}
    try:
        as_table("updates", traffic.cell.runner.cell.id, [{name: [value] for name, value in row.items()}])
    except (DriftlabError, ValueError, TypeError) as error:
        return [first_line(error)]
    traffic.cell.runner.ledger.row("updates", **row)
    return unknown


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
