"""`driftlab report`, `claims` and `diff`: what a finished run says."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the commands."""
