"""Check that a run is complete and ran the built-in experiment of its name."""

from __future__ import annotations

from pathlib import Path

from driftlab.errors import RequestError, as_typed
from driftlab.platform.lab.cells import resolved
from driftlab.platform.lab.plan import DIFFERENCES_SHOWN, plan_of
from driftlab.platform.lab.read import load, parse
from driftlab.platform.results.tables.diff import spec_differences
from driftlab.platform.results.tables.read import read_spec


def check_evidence(folder: Path) -> None:
    """Refuse a run that lacks cells, or whose spec is not the built-in experiment of its name and size."""
    document = read_spec(folder)
    size = document.get("size")
    asked = load(str(document.get("name")), [f"size={size}"] if size else [])
    experiment = parse(document, source=str(folder / "spec.yaml"))
    differing = list(spec_differences(resolved(asked), resolved(experiment)))
    if experiment.clock != asked.clock:  # `spec_differences` ignores the clock
        differing.append(f"clock: {asked.clock} vs {experiment.clock}")
    if differing:
        shown = "; ".join(differing[:DIFFERENCES_SHOWN])
        raise RequestError(f"'{folder}' differs from experiment '{asked.name}' (requested vs run): {shown}.")
    if todo := plan_of(experiment, folder).todo:
        raise RequestError(
            f"'{folder}' lacks {len(todo)} cells. Finish it: {as_typed('driftlab', 'run', '--resume', folder)}."
        )
