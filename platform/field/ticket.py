"""The ticket of a device: it opens a session on a server, and resumes it after a stop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from driftlab.errors import DataError, RequestError, WireError, first_line
from driftlab.platform.core.documents import read_json, read_text, shape_fault
from driftlab.platform.core.files import write_atomically
from driftlab.platform.field.client import BUILD_S, Client
from driftlab.platform.field.messages import (
    FORMAT,
    check_format,
)
from driftlab.platform.field.request import PLAIN, SessionRequest

FIX = "Give a folder that `driftlab device` wrote."
STATE = "field.json"  # next to the tables: a device that was killed resumes its session from it


class Ticket(BaseModel):
    """Address and token of a session, as stored on the device's disk."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    server: str
    id: Annotated[str, Field(pattern=PLAIN)]
    token: str
    asked: dict[str, Any]
    source: str = ""  # video file, folder or camera of the device; replaces the workload of the request
    began: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0  # wall clock at the stream's start; 0: not yet


def check_token(server: str, token: str) -> None:
    """Raise RequestError for an invalid address or an unknown token."""
    client = Client(server.rstrip("/"), token)
    try:
        client.ask("GET", "/healthz")
    finally:
        client.close()


def join(server: str, token: str, asked: SessionRequest, source: str = "") -> Ticket:
    """Create a session on a server; this takes minutes if the server must train the network first."""
    client = Client(server.rstrip("/"), token, timeout_s=BUILD_S)
    document = asked.model_dump(mode="json", exclude_none=True)
    try:
        reply = client.ask_json("POST", f"/sessions?format={FORMAT}", document)
    finally:
        client.close()
    try:
        ticket = Ticket(server=client.url, id=reply["id"], token=reply["token"], asked=document, source=source)
    except (TypeError, KeyError, ValueError) as error:
        raise WireError(f"{client.url} is not a driftlab server: its reply has no session.") from error
    check_format(reply.get("format", 1))  # version 1 had no such field
    return ticket


def keep_ticket(ticket: Ticket, folder: Path) -> None:
    """Write a ticket that only its owner can read."""
    file = folder / STATE
    write_atomically(file, ticket.model_dump_json())
    file.chmod(0o600)


def read_ticket(folder: Path) -> Ticket:
    """Return the ticket of a stopped device."""
    try:
        document = read_json(read_text(folder / STATE))
    except (OSError, ValueError, DataError) as error:
        raise RequestError(f"'{folder}' has no device to resume: {first_line(error)}. {FIX}") from error
    if fault := shape_fault(Ticket, document):
        raise RequestError(f"'{folder}' has no device to resume: {fault}. {FIX}")
    return Ticket.model_validate(document)
