"""`driftlab check`: run the contract checks of a member."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from driftlab.cli.output import print_columns, print_json
from driftlab.errors import RequestError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(short_help="Check a method of your own against the contract of its family.")(check)


def check(
    member: Annotated[str, typer.Argument(metavar="MEMBER", help="FILE.py:Class, or FAMILY/NAME of driftlab.")],
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a parameter.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Check that a member repeats, uses the past only, is charged for its work, and resumes.

    It runs in cells of seconds. The exit code is 1 if a check fails. Run it from the folder of the file:

      driftlab check mine.py:Mine --set stream_batch=8
    """
    from driftlab.platform.lab.contract import check_member
    from driftlab.platform.lab.overrides import read_value

    params = {}
    for given in set_ or ():
        key, equals, value = given.partition("=")
        if not equals:
            raise RequestError(f"--set '{given}' has no '='; give KEY=VALUE, such as --set stream_batch=8.")
        params[key] = read_value(value, given)
    found = check_member(member, params)
    failed = any(one.fault for one in found)
    if as_json:
        print_json({"member": member, "ok": not failed, "checks": [asdict(one) for one in found]})
    else:
        print_columns([(one.check, one.fault or "ok") for one in found])
    raise typer.Exit(1 if failed else 0)
