"""Digests by content: the code of cells, the code of measures, and experiments."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from driftlab import errors
from driftlab.platform.core.documents import read_text, read_yaml

PACKAGE = Path(errors.__file__).parent
CELLS = (  # imported by cells; `lab` makes their settings from a request
    "_torchvision.py",
    "datasets",
    *(f"platform/{room}" for room in ("core", "world", "networks", "scaling", "adaptation", "streaming", "scheduling")),
    "platform/sim",
    "platform/lab",
)
MEASURES = (
    "platform/results/tables",
    "platform/results/relations",
    "platform/results/stats.py",
    "platform/results/claims/statistics.py",
)
EXPERIMENTS, SETS = "platform/lab/experiments", "platform/lab/sets.yaml"


def code_digest(parts: Sequence[str] = CELLS, package: Path = PACKAGE) -> str:
    """Hash the paths and the content of the Python files in these parts of the package."""
    seen = hashlib.sha256()
    for part in parts:
        place = package / part
        files = [place] if place.is_file() else sorted(place.rglob("*.py"))
        for file in files:
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            seen.update(f"{file.relative_to(package).as_posix()} {content}\n".encode())
    return seen.hexdigest()


def experiment_digest(name: str, size: str | None, package: Path = PACKAGE) -> str | None:
    """Hash the content of an experiment's file at a size, with the sets; None if there is no such file.

    Comments and the summary do not count. Defaults count as code.
    """
    content = _content(name, size, package)
    if not content:
        return None
    sets = read_yaml(read_text(package / SETS))
    return hashlib.sha256(json.dumps([content, sets], sort_keys=True).encode()).hexdigest()


def _content(name: str, size: str | None, package: Path) -> list[object]:
    """List the content of an experiment's file at a size, then that of the files that it `extends`."""
    file = package / EXPERIMENTS / f"{name}.yaml"
    if not file.is_file():
        return []
    document = read_yaml(read_text(file))
    sizes, base = document.pop("sizes", {}), document.get("extends")
    usual = {key: value for key, value in document.items() if key not in ("size", "summary")}
    return [usual, sizes.get(size), *(_content(base, size, package) if base else ())]
