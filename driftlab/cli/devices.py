"""`driftlab devices`: the devices of a server, and their tokens."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import quote

import typer

from driftlab.cli.field import Json, OwnerToken
from driftlab.cli.output import print_json, print_note, print_table, say
from driftlab.errors import RequestError

Server = Annotated[str, typer.Option(metavar="URL", help="Address of the server.")]
Names = Annotated[list[str], typer.Argument(metavar="ID...", help="Sessions of the devices, as `list` prints them.")]
URL = "http://127.0.0.1:8700"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(no_args_is_help=True, help="List the devices of a server, or revoke their tokens.")
    group.command("list", short_help="List the devices of a server.")(list_devices)
    group.command("revoke", short_help="Refuse the tokens of devices from now on.")(revoke)
    app.add_typer(group, name="devices", short_help="List the devices of a server, or revoke their tokens.")


def list_devices(server: Server = URL, token: OwnerToken = None, as_json: Json = False) -> None:
    """List each device with its session, its address, and the time of its newest request.

    The token with which devices open sessions is printed first.
    """
    from driftlab.serve_apps.tokens import enrolment_of

    sessions = _client(server, token).ask_json("GET", "/sessions")
    if as_json:
        print_json(sessions)
        return
    rows = [
        (
            name,
            one["name"],
            one["workload"],
            one["address"] or "-",
            _ago(one["seen"]),
            _date(one["created"]),
            _state(one),
        )
        for name, one in sessions.items()
    ]
    print_note(f"Devices open sessions with the token {enrolment_of(token or '')}.")
    print_table(
        ("session", "device", "workload", "address", "seen", "created", "state"),
        rows,
        whole=("session", "address", "state"),
    )


def revoke(names: Names, server: Server = URL, token: OwnerToken = None) -> None:
    """Refuse the tokens of devices from now on, and end their sessions; the files stay on the server."""
    client = _client(server, token)
    for name in names:
        client.ask_json("DELETE", f"/sessions/{quote(name, safe='')}/token")
        say(f"revoked {name}")


def _client(server: str, token: str | None) -> Any:
    from driftlab.platform.field.client import Client

    if token is None:
        raise RequestError("No token is given. Use --token with the owner's token.")
    return Client(server, token)


def _state(device: Any) -> str:
    return "revoked" if device["revoked"] else "failed" if device["fault"] else "open"


def _ago(seen: float | None) -> str:
    return "-" if seen is None else f"{max(0.0, time.time() - seen):.0f} s ago"


def _date(created: float) -> str:
    return datetime.fromtimestamp(created).strftime("%Y-%m-%d %H:%M")
