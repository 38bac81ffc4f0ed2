"""Members on networks: notes on an experiment, and a table for docs/methods/label-free.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftlab.platform.adaptation.wrapper import AdaptationWrapper
from driftlab.platform.core.registry import FAMILIES, member_class
from driftlab.platform.lab.cells import systems_of
from driftlab.platform.networks.tasks.tasks import CLASSIFICATION
from driftlab.platform.networks.zoo import ZOO

if TYPE_CHECKING:
    from collections.abc import Iterator

    from driftlab.platform.adaptation.base import Adaptation
    from driftlab.platform.lab.read import Experiment

NORMS = {"batch": "batch norms", "layer": "layer norms", "group": "group norms", "none": "no norms"}


def unfit_notes(experiment: Experiment) -> Iterator[str]:
    """Yield a note for each system that learns nothing on a network of the zoo in an experiment."""
    live = [workload for workload in experiment.workloads if workload.run_networks]
    networks = dict.fromkeys(
        app.network or experiment.student.network for workload in live for app in experiment.apps_of(workload)
    )
    for system in systems_of(experiment):
        member = system.adaptation.make()
        for network in (name for name in networks if name in ZOO):
            if why := member.unfit_reason(network):
                yield f"{system.name} on {network}: {why}"


def table() -> str:
    """Return the table of label-free members and the norms of classifiers, in Markdown."""
    lines = [f"| member | {' | '.join(NORMS.values())} |", f"|---|{'---|' * len(NORMS)}"]
    for name in sorted(FAMILIES["adaptation"]):
        cls = member_class("adaptation", name)
        if cls.labels == "none" and name != "frozen":
            cells = ["as its member"] * len(NORMS) if issubclass(cls, AdaptationWrapper) else list(_cells(cls()))
            lines.append(f"| `{name}` | {' | '.join(cells)} |")
    examples = {norms: [f"`{n}`" for n, entry in ZOO.items() if entry.norms == norms] for norms in NORMS}
    few = (", ".join(names[:3]) + (", …" if len(names) > 3 else "") for names in examples.values())
    return "\n".join([*lines, f"| *networks* | {' | '.join(few)} |"])


def _cells(member: Adaptation) -> Iterator[str]:
    for norms in NORMS:
        networks = [name for name, one in ZOO.items() if one.norms == norms and one.task is CLASSIFICATION]
        fits = [not member.unfit_reason(name) for name in networks]
        yield "works" if all(fits) else "if linear" if any(fits) else "–"
