"""The spaces by name: one file each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from driftlab.errors import RequestError, unknown_name
from driftlab.platform.request import experiment as experiments
from driftlab.platform.tuning.document import SpaceDocument, parse

FOLDER = Path(__file__).parent / "spaces"


def names() -> list[str]:
    """List the spaces that have a file."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load(request: str, overrides: Sequence[str] = ()) -> SpaceDocument:
    """Read a space by name or file, apply its size and the overrides, and validate it."""
    return parse(raw(request), overrides, source=request)


def raw(request: str) -> Mapping[str, Any]:
    """Read a space as it is written."""
    if request.endswith((".yaml", ".yml")):
        if not Path(request).is_file():
            raise RequestError(f"There is no file '{request}'. Spaces: {', '.join(names())}.")
        return experiments.document_of(Path(request))
    if request not in names():
        raise unknown_name("space", request, names())
    return experiments.document_of(FOLDER / f"{request}.yaml")
