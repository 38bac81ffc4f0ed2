"""Apply the tuned settings of a search to an experiment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from driftlab.errors import MAX_LINE, RequestError, quoted, shortened
from driftlab.platform.core.documents import read_text, read_yaml
from driftlab.platform.lab.overrides import apply_overrides

if TYPE_CHECKING:
    from driftlab.platform.lab.read import Experiment

OWN = "systems.0."  # how paths of the tuned system begin in a space
FIX = "Give the best.yaml that `driftlab tune` wrote."
KEPT = ("space", "system", "trial", "settings", "seeds", "budget")  # the keys of a file that a run's spec keeps


def read_tuned(file: Path) -> dict[str, Any]:
    """Read a tuning result of `driftlab tune`; RequestError for another file."""
    try:
        found = read_yaml(read_text(file))
    except (OSError, yaml.YAMLError, UnicodeDecodeError, RequestError) as error:
        raise RequestError(f"--tuned {file} cannot be read: {shortened(str(error), MAX_LINE)}. {FIX}") from None
    if not isinstance(found, dict) or any(key not in found for key in KEPT):
        raise RequestError(f"--tuned {file} is not a tuning result. {FIX}")
    return {key: found[key] for key in KEPT}


def with_tuned(document: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Apply tuned settings to the systems of a complete document."""
    result = dict(document)
    listed = result.get("systems")
    names = [row.get("name") if isinstance(row, dict) else None for row in listed] if isinstance(listed, list) else []
    for part in parts:
        rows = [k for k, name in enumerate(names) if name == part["system"]]
        if not rows:
            raise RequestError(
                f"--tuned: no system is called '{part['system']}'; here are {', '.join(map(str, names))}"
            )
        result = apply_overrides(result, [override for row in rows for override in _overrides(part, row)])
    return {**result, "tuned": [dict(part) for part in parts]} if parts else result


def _overrides(part: Mapping[str, Any], row: int) -> list[str]:
    """Write settings as overrides of the given row; the validation reports settings that are no mapping."""
    settings = part["settings"] if isinstance(part["settings"], dict) else {}
    if shared := [path for path in settings if not str(path).startswith(OWN)]:
        raise RequestError(
            f"--tuned: {quoted(shared)} of '{part['space']}' concern every system; set them with --set, which says so"
        )
    return [f"systems.{row}.{path.removeprefix(OWN)}={json.dumps(value)}" for path, value in settings.items()]


def tuned_faults(experiment: Experiment) -> list[str]:
    """Refuse seeds on which the settings were tuned."""
    return [
        f"seeds holds {quoted(both)}, which '{part.space}' was searched on; evaluate on other seeds"
        for part in experiment.tuned or ()
        if (both := sorted(set(experiment.seeds) & set(part.seeds)))
    ]


def tuned_by(experiment: Experiment) -> dict[str, str]:
    """Return the space and trial of each tuned system's settings."""
    return {
        part.system: f"space {part.space}, trial {part.trial} of {part.budget.trials}"
        for part in experiment.tuned or ()
    }
